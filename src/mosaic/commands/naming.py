"""The names of runs on a command line: a complete id, the start or the end of one, or `latest`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mosaic.contract.errors import ConfigError, UnknownRunError

if TYPE_CHECKING:
    from mosaic.trainer.rpc.client import Client

LATEST = "latest"
HELP = "a run's id, the start or the end of one that no other run has, or `latest`"
PAGE = 1000


def add_run(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the argument that names one run, or several."""
    if several:
        parser.add_argument("runs", metavar="RUN", nargs="+", help=HELP)
    else:
        parser.add_argument("run", metavar="RUN", help=HELP)


def find_run(client: Client, name: str) -> str:
    """Return the id of the one run that the name matches."""
    if name == LATEST:
        newest = client.list_runs(page_size=1).runs
        if not newest:
            raise UnknownRunError("there is no run yet; start one with: mosaic train ppo CartPole-v1")
        return newest[0].run_id
    found = _matching(client, name)
    if name in found:
        return name
    if not found:
        raise UnknownRunError(f"no run's id is, starts or ends with {name!r}; list them with: mosaic runs")
    if len(found) > 1:
        shown = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
        raise ConfigError(f"{name!r} names {len(found)} runs ({shown}); give more of the id")
    return found[0]


def find_runs(client: Client, names: list[str]) -> list[str]:
    """Return the ids of all named runs, each once."""
    return list(dict.fromkeys(find_run(client, name) for name in names))


def _matching(client: Client, name: str) -> list[str]:
    """Return the runs whose id starts or ends with the name, ignoring case; the registry also matches other columns."""
    found: list[str] = []
    wanted, page = name.upper(), ""
    while name:
        answer = client.list_runs(text=name, page_size=PAGE, page=page)
        ids = [run.run_id for run in answer.runs]
        found += [run_id for run_id in ids if run_id.upper().startswith(wanted) or run_id.upper().endswith(wanted)]
        page = answer.next_page
        if not page:
            break
    return found
