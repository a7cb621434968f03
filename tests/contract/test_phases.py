"""The phases of a script on disk: their numbers, their first steps, how they ended."""

import fcntl
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from mosaic.contract.errors import StorageError
from mosaic.contract.metrics import encode_resumed, encode_row
from mosaic.contract.paths import RunPaths
from mosaic.contract.phases import begin_phase, end_phase, is_alive, last_step, read_phases


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths("a-run", tmp_path)
    found.create()
    return found


def write_rows(paths: RunPaths, *steps: int, tag: str = "charts/SPS") -> None:
    with paths.metrics.open("ab") as file:
        file.writelines(encode_row(step, 0.0, {tag: 1.0}) for step in steps)


def test_each_phase_begins_where_the_curve_of_the_last_one_ended(paths: RunPaths) -> None:
    first = begin_phase(paths, "ppo", "CartPole-v1")
    write_rows(paths, 10, 20, 30)
    second = begin_phase(paths, "dqn", "ALE/Pong-v5")
    write_rows(paths, 40, 50)
    write_rows(paths, 900, tag="eval/episode_return")  # counts episodes
    third = begin_phase(paths, "ppo", "my_module:My Env")  # whatever it is called, its name is a folder's
    assert [(one.number, one.name, one.first_step) for one in (first, second, third)] == [
        (1, "phase1-CartPole-v1", 0),
        (2, "phase2-ALE-Pong-v5", 30),
        (3, "phase3-my_module-My-Env", 50),
    ]
    assert last_step(paths) == 900


def test_rows_that_no_longer_count_are_not_gone_on_from(paths: RunPaths) -> None:
    write_rows(paths, 10, 20)
    with paths.metrics.open("ab") as file:
        file.write(encode_resumed(-1) + b"not a row\n")
    assert begin_phase(paths, "ppo", "x").first_step == 0
    write_rows(paths, 10, 20, 30)
    with paths.metrics.open("ab") as file:
        file.write(encode_resumed(20))
    assert begin_phase(paths, "ppo", "x").first_step == 20


def test_last_word_of_a_phase_counts_and_a_cut_line_is_left_out(paths: RunPaths) -> None:
    first = begin_phase(paths, "ppo", "x")
    end_phase(paths, replace(first, outcome="failed", end_step=4, exit_code=7, error="it was told to"))
    assert begin_phase(paths, "ppo", "y").first_step == 4, "its last steps had no row"
    with paths.phases.open("ab") as file:
        file.write(b'{"number": 3, "na')
    begin_phase(paths, "ppo", "z")
    found = read_phases(paths)
    assert [(one.number, one.outcome, one.exit_code) for one in found] == [
        (1, "failed", 7),
        (2, "", None),
        (3, "", None),
    ]
    assert read_phases(RunPaths("another", paths.home)) == []


def _begin_many(home: str) -> None:
    for _ in range(20):
        begin_phase(RunPaths("a-run", home), "ppo", "x")


def test_no_number_is_given_twice_to_shells_that_start_at_once(paths: RunPaths) -> None:
    context = multiprocessing.get_context("spawn")
    shells = [context.Process(target=_begin_many, args=(str(paths.home),)) for _ in range(3)]
    for shell in shells:
        shell.start()
    for shell in shells:
        shell.join(120)
    assert [one.number for one in read_phases(paths)] == list(range(1, 61))


def test_run_lives_while_its_lock_is_held(paths: RunPaths) -> None:
    assert not is_alive(paths)
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    assert is_alive(paths)
    os.close(descriptor)
    assert not is_alive(paths)


def test_file_that_cannot_be_written_is_a_storage_error(paths: RunPaths) -> None:
    paths.phases.mkdir()
    with pytest.raises(StorageError, match=r"phases\.jsonl"):
        begin_phase(paths, "ppo", "x")
