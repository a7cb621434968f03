"""What people type for a run: settings and seeds."""

from typing import Any

import pytest

from mosaic.contract.errors import ConfigError
from mosaic.contract.settings import group_name, parse_seeds, parse_setting


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("gamma=0.9", ("gamma", 0.9)),
        ("num-envs=8", ("num_envs", 8)),
        ("--learning-rate=1e-3", ("learning_rate", 0.001)),
        ("cuda=False", ("cuda", False)),
        ("target_kl=null", ("target_kl", None)),
        ("name=a=b", ("name", "a=b")),
        ("sizes=[64, 64]", ("sizes", [64, 64])),
        ("gamma=NaN", ("gamma", "NaN")),  # no JSON: the worker says what it needs instead
        ("gamma=1e999", ("gamma", "1e999")),
        ("extras.notes=first try", ("extras.notes", "first try")),
    ],
)
def test_set_reads_json_where_it_can(text: str, pair: tuple[str, Any]) -> None:
    assert parse_setting(text) == pair


@pytest.mark.parametrize("text", ["gamma", "=1", "wandb_api_key=abc"])
def test_set_refuses_what_is_no_pair_and_what_is_a_secret(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_setting(text)


@pytest.mark.parametrize(("text", "seeds"), [("1-3", [1, 2, 3]), ("7", [7]), ("1, 4-5", [1, 4, 5]), ("0-0", [0])])
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["a", "3-1", "1-", "-1", "1,1", "1..3", ",", "1-999999999999", "0,1-1000", "9" * 5000, "²"]
)
def test_seeds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds(text)


def test_a_group_that_nobody_named_says_what_it_is() -> None:
    assert group_name("ppo", "CartPole-v1", "1, 2") == "ppo CartPole-v1 seeds 1,2"
