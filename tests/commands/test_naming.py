"""Names of runs: whole, by an end, latest."""

from collections.abc import Callable
from typing import Any

import pytest

from mosaic.commands.naming import find_run, find_runs
from mosaic.contract.errors import ConfigError, UnknownRunError
from mosaic.trainer.rpc.client import Client


def test_a_run_is_named_by_its_id_either_end_of_it_or_latest(client: Client, start: Callable[..., Any]) -> None:
    first, second = start().run_id, start().run_id
    for name in (first, first[-8:], first[-8:].lower(), first[:-1]):
        assert find_run(client, name) == first
    assert find_run(client, "latest") == second
    assert find_runs(client, [first, "latest", first[-6:]]) == [first, second]


def test_a_name_of_several_runs_lists_them(client: Client, start: Callable[..., Any]) -> None:
    run_ids = {start().run_id, start().run_id}
    with pytest.raises(ConfigError, match=r"'01' names \d+ runs .*give more of the id"):
        find_run(client, "01")
    assert run_ids


@pytest.mark.parametrize("name", ["nobody", "tiny", ""])
def test_a_name_of_none_says_how_to_list_them(client: Client, start: Callable[..., Any], name: str) -> None:
    with pytest.raises(UnknownRunError, match="mosaic runs"):
        find_run(client, name)
