"""The exception tree and the words of an error message."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mosaic.contract.errors import (
    ConfigError,
    EventError,
    MosaicError,
    RunIdError,
    StorageError,
    WorkerError,
    nearest,
    shown,
    storage_error,
)


def test_the_tree_is_as_drawn() -> None:
    assert issubclass(ConfigError, MosaicError) and issubclass(ConfigError, ValueError)
    assert issubclass(RunIdError, ConfigError)
    assert issubclass(EventError, MosaicError) and issubclass(EventError, ValueError)
    assert issubclass(StorageError, WorkerError) and issubclass(WorkerError, MosaicError)
    assert not issubclass(StorageError, ConfigError)


@pytest.mark.parametrize("given", ["ppoo", "PPO", "pp"])
def test_a_misspelled_name_gets_the_nearest_choice(given: str) -> None:
    assert nearest(given, ["dqn", "ppo", "sac_continuous_action"]) == "; did you mean 'ppo'?"


def test_a_name_that_is_like_nothing_gets_no_suggestion() -> None:
    assert nearest("zzzz", ["dqn", "ppo"]) == ""
    assert nearest("", ["dqn"]) == ""
    assert nearest("ppo", []) == ""
    assert nearest("x" * 1_000_000, ["ppo"]) == ""


def test_a_quoted_value_stays_on_one_short_line() -> None:
    assert shown("a\nb") == "'a\\nb'"
    assert len(shown("x" * 5000)) == 60


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_a_refused_write_says_where_why_and_what_to_do(number: int) -> None:
    message = str(storage_error(Path("/data/run"), OSError(number, "the reason")))
    assert message.startswith("cannot write /data/run: the reason; ")
    assert "MOSAIC_HOME" in message and "\n" not in message
