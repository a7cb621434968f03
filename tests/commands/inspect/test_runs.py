"""runs and show: filters, the table on a terminal and in a pipe, one run in full."""

import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mosaic.commands.inspect import run_table, runs
from mosaic.contract.errors import ConfigError
from mosaic.contract.paths import RunPaths
from mosaic.contract.provenance import add_attempt
from mosaic.trainer import states
from mosaic.trainer.run import Run

A_RUN = Run(
    run_id="01JCV4M0Z1S2R4Q8E5W9T7Y6U3",
    state=states.State.EXECUTING,
    algo="ppo_continuous_action",
    env_id="HalfCheetah-v5",
    seed=1915558416,
    total_timesteps=1_000_000,
    step=250_000,
    sps=5000.0,
    eta_seconds=150.0,
    started_at=1.0,
    created_at=1.0,
    last_return=4012.7,
)


def drawn(width: int, terminal: bool, *shown: Run) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    console.print(run_table.table(shown, console))
    return out.getvalue()


def test_states_are_those_of_the_trainer() -> None:
    assert set(runs.STATES) == set(states.State)
    assert set(runs.LIVE) == set(states.LIVE) and set(runs.ENDED) == set(states.ENDED)


def test_states_are_named_alone_in_lists_and_as_groups() -> None:
    assert runs.parse_states(["failed,LOST", "queued"]) == ["FAILED", "LOST", "INIT"]
    assert runs.parse_states(["ended"]) == ["COMPLETED", "FAILED", "CANCELLED", "BROKEN"]
    with pytest.raises(ConfigError, match="did you mean 'FAILED'"):
        runs.parse_states(["fialed"])


@pytest.mark.parametrize("width", [80, 96, 100, 120, 200])
def test_table_fits_the_terminal_and_cuts_neither_state_nor_number(width: int) -> None:
    text = drawn(width, True, A_RUN)
    assert all(len(line) <= width for line in text.splitlines())
    for whole in ("E5W9T7Y6U3"[-8:], "EXECUTING", "1915558416", "25%", "4013"):
        assert whole in text
    assert ("2:30 left" in text) == (width >= 96) and ("5,000" in text) == (width >= 110)


@pytest.mark.parametrize(("width", "terminal"), [(80, True), (110, True), (140, True), (500, False)])
def test_a_stalled_run_is_marked_beside_its_state_with_how_long(width: int, terminal: bool) -> None:
    since = time.time() - 75
    stalled = replace(A_RUN, stalled=True, stalled_since=since, sps=0.0, eta_seconds=None)
    text = drawn(width, terminal, stalled)
    state = "EXECUTING " if width >= 140 else ""
    assert re.search(rf"{state}STALLED 1:1\d", text) and "left" not in text
    assert all(len(line) <= width for line in text.splitlines())
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    for part in runs._full(stalled, console):
        console.print(part)
    assert re.search(r"EXECUTING  STALLED 1:1\d", out.getvalue()) and "0 steps/s" in out.getvalue()


def test_pipe_gets_whole_ids_and_one_plain_line_a_run() -> None:
    text = drawn(run_table.PIPE_WIDTH, False, A_RUN)
    assert A_RUN.run_id in text and "250000/1000000" in text and len(text.splitlines()) == 2


def test_runs_are_filtered_and_counted(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    completed, failed = start(), start(exit=4)
    found = json.loads(mosaic("runs", "--json", "--state", "failed", "--limit", "1", "--algo", "tiny").out)
    assert [run["run_id"] for run in found["runs"]] == [failed.run_id] and found["total"] >= 1
    assert {"state", "algo", "env_id", "seed", "mode", "step", "total_timesteps", "created_at"} <= set(found["runs"][0])
    assert "payload" not in found["runs"][0]
    told = mosaic("runs", "--text", completed.run_id[-6:])
    assert told.code == 0 and completed.run_id in told.out and failed.run_id not in told.out
    assert json.loads(mosaic("runs", "--json", "--env", "Nowhere-v0").out) == {"runs": [], "total": 0}
    assert len(json.loads(mosaic("runs", "--json", "--limit", "0").out)["runs"]) >= 2
    assert mosaic("runs", "--state", "runing").code == 2


def test_show_tells_state_reason_values_and_files(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    run = start(exit=4)
    told = mosaic("show", run.run_id)
    for part in (run.run_id, "FAILED", "exit code 4", "losses/loss", "tiny on CartPole-v1", "exit=4"):
        assert part in told.out
    document = json.loads(mosaic("show", run.run_id, "--json").out)
    assert document["last_values"]["charts/SPS"] == 100.0 and document["payload"]["metadata"]


def test_show_follows_a_run_to_its_end(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    run = start(until="EXECUTING", episodes=30, pause=0.05)
    told = mosaic("show", "-f", run.run_id, "--json")
    assert told.code == 0 and json.loads(told.out)["state"] == "COMPLETED" and "completed (seed 1)" in told.err


def test_list_and_show_print_the_return_of_the_run_and_apart_from_it_the_last_episodes() -> None:
    run = replace(A_RUN, mean_return=4100.5, last_return=9.0)
    assert "4100" in drawn(120, True, run) or "4101" in drawn(120, True, run)
    facts = dict(runs._facts(run))
    assert (facts["return"], facts["last episode"]) == ("4100", "9")


def test_a_script_is_listed_and_shown_by_its_name_with_its_phase() -> None:
    run = replace(A_RUN, mode="script", run_name="rooms.sh", reason="phase 2 of 3")
    assert "rooms.sh (script)" in drawn(140, True, run)
    out = io.StringIO()
    console = Console(file=out, width=140)
    for part in runs._full(run, console):
        console.print(part)
    assert "rooms.sh · ppo_continuous_action on HalfCheetah-v5" in out.getvalue() and "phase 2 of 3" in out.getvalue()


def test_show_prints_provenance_in_a_few_lines_and_in_full_as_json(
    mosaic: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    run = start()
    paths = RunPaths(run.run_id, Path(run.folder).parents[3])
    config = {"started_at": 1.0, "command": ["python", "-m", "tiny"], "packages": {"torch": "2.0", "x": "1"}}
    git = {"commit": "a" * 40, "dirty": True, "diff": "d" * 64}
    add_attempt(paths, config | {"mosaic": {"module": "mosaic", "version": "0.1", "git": git}}, {"d" * 64: "+x"})
    told = mosaic("show", run.run_id)
    lines = told.out[told.out.index("provenance") :].splitlines()[1:]
    assert lines[0].split() == ["command", "python", "-m", "tiny"]
    assert "0.1 · commit aaaaaaaaaaaa (changed, diff dddddddddddd)" in lines[1] and "torch 2.0, 1 more" in lines[2]
    assert json.loads(mosaic("show", run.run_id, "--json").out)["provenance"]["diffs"] == {"d" * 64: "+x"}
    paths.provenance.write_text("[]")
    told = mosaic("show", run.run_id)
    assert told.code == 0 and "warning: provenance.json: a JSON object is needed, not []" in told.out
    assert json.loads(mosaic("show", run.run_id, "--json").out)["provenance"] is None
