"""mosaic verify on real runs: equal, different, refused; the run itself stays as it is."""

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from needs import needed

from mosaic.contract.paths import RunPaths
from mosaic.trainer.run import Run

PPO = {"num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 2, "checkpoint_every": 128}
DQN = {"learning_starts": 100, "buffer_size": 300, "batch_size": 32, "checkpoint_every": 200}
SAC = {"learning_starts": 60, "buffer_size": 200, "batch_size": 32, "checkpoint_every": 100}
FRAMES = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "checkpoint_every": 32}
IMAGES = {"learning_starts": 60, "batch_size": 2, "buffer_size": 70, "checkpoint_every": 40, "num_threads": 1}
FAMILIES = {
    "ppo": ("CartPole-v1", 512, PPO),
    "ppo_continuous_action": ("Pendulum-v1", 512, PPO),
    "dqn": ("CartPole-v1", 700, DQN),
    "c51": ("CartPole-v1", 700, DQN),
    "pqn": ("CartPole-v1", 512, PPO),
    "sac_continuous_action": ("Pendulum-v1", 330, SAC),
    "td3_continuous_action": ("Pendulum-v1", 330, SAC),
    "ppo_jax": ("CartPole-v1", 512, PPO),
    "dqn_jax": ("CartPole-v1", 700, DQN),
    "ppo_atari": ("Pong-v5", 96, FRAMES | {"env_backend": "gymnasium"}),
    "dqn_atari": ("Pong-v5", 110, IMAGES | {"target_network_frequency": 20}),
}


def train(place: Any, algo: str) -> Run:
    needed(algo)
    env_id, steps, params = FAMILIES[algo]
    params = params | {"cuda": False, "checkpoint_episodes": 0}
    extras = {"algo_params": params, "fastlane_video_mode": "off"}
    config = {"algo": algo, "env_id": env_id, "total_timesteps": steps, "seed": 5, "extras": extras}
    with place.client() as client:
        made = client.submit_run({"metadata": {"worker": {"config": config}}})
        run = client.wait_run(made.run_id, 400)
        assert run.state == "COMPLETED", run.reason
        return client.get_run(run.run_id)


@pytest.fixture(scope="module")
def ppo(place: Any) -> Run:
    return train(place, "ppo")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary homes; nothing may be left in it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def until(happens: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.02)


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in files}


def edited(run: Run, name: str, change: Callable[[str], str]) -> Callable[[], None]:
    """Change a file of the run; what is returned puts it back."""
    path = Path(run.folder) / name
    before = path.read_bytes()
    path.write_text(change(before.decode()))
    assert path.read_bytes() != before
    return lambda: [path.write_bytes(before)][0] and None


def test_every_window_of_a_run_is_equal_and_the_run_is_not_touched(
    mosaic: Callable[..., Any], place: Any, ppo: Run, scratch: Path, client: Any
) -> None:
    before, runs = contents(Path(ppo.folder)), [run.run_id for run in client.list_runs().runs]
    told = mosaic("verify", ppo.run_id, "--windows", "9")
    assert told.code == 0, told.err
    assert "steps 384 to 512: training again from the kept checkpoint" in told.out
    assert told.out.count(": equal: weights ") == 2 and "steps 0 to 128: training again from the beginning" in told.out
    assert "differs from the recorded run" not in told.out
    assert contents(Path(ppo.folder)) == before and [run.run_id for run in client.list_runs().runs] == runs


def test_a_dqn_with_its_replay_memory_is_equal_as_json(mosaic: Callable[..., Any], place: Any, scratch: Path) -> None:
    told = mosaic("verify", train(place, "dqn").run_id, "--json")
    assert told.code == 0, told.err
    report = json.loads(told.out)
    assert report["equal"] and report["differs_here"] == []
    (window,) = report["windows"]
    assert (window["start"], window["end"], window["difference"]) == (600, 700, "") and window["rows"] > 0


def other_entropy(line: str) -> str:
    head, _, tail = line.partition('"losses/entropy":0.')
    return f'{head}"losses/entropy":0.{9 - int(tail[0])}{tail[1:]}'


def other_weights(line: str) -> str:
    head, _, tail = line.partition('"weights":"')
    return f'{head}"weights":"{"0" * 64}{tail[64:]}'


@pytest.mark.parametrize(
    ("file", "mark", "other", "flags", "words"),
    [
        (
            "metrics.jsonl",
            '"losses/entropy":0.',
            other_entropy,
            (),
            "steps 384 to 512: different: step 512: losses/ent",
        ),
        (
            "logs/worker.jsonl",
            '"weights"',
            other_weights,
            ("--windows", "2"),
            "step 512: weights 000000000000 recorded",
        ),
    ],
    ids=["row", "weights"],
)
def test_a_changed_recorded_number_is_named_with_exit_code_1(
    mosaic: Callable[..., Any],
    ppo: Run,
    scratch: Path,
    file: str,
    mark: str,
    other: Callable[[str], str],
    flags: tuple[str, ...],
    words: str,
) -> None:
    def change(text: str) -> str:
        lines = text.splitlines(keepends=True)
        last = max(number for number, line in enumerate(lines) if mark in line)
        lines[last] = other(lines[last])
        return "".join(lines)

    undo = edited(ppo, file, change)
    try:
        told = mosaic("verify", ppo.run_id, *flags)
    finally:
        undo()
    assert told.code == 1 and "different: " in told.out and words in told.out
    assert "steps 0 to 128" not in told.out or not flags


def test_other_packages_and_machines_are_named_first(mosaic: Callable[..., Any], ppo: Run, scratch: Path) -> None:
    def change(text: str) -> str:
        document = json.loads(text)
        document["attempts"][0]["packages"]["torch"] = "1.0"
        document["attempts"][0]["machine"]["cpu"] = "Another"
        return json.dumps(document)

    undo = edited(ppo, "provenance.json", change)
    try:
        told = mosaic("verify", ppo.run_id)
    finally:
        undo()
    assert told.code == 0
    assert told.out.index("differs from the recorded run: packages: torch 1.0 → ") < told.out.index(
        ": equal (here with"
    )
    assert "cpu: Another → " in told.out


def refused(told: Any, words: str) -> None:
    assert told.code == 2 and words in told.err and told.err.count("\n") == 1, (told.out, told.err)


def test_a_gpu_that_this_machine_lacks_is_refused(mosaic: Callable[..., Any], ppo: Run, scratch: Path) -> None:
    def change(text: str) -> str:
        document = json.loads(text)
        document["attempts"][0]["machine"]["gpus"] = ["NVIDIA Z9"]
        return json.dumps(document)

    undo = [
        edited(ppo, "provenance.json", change),
        edited(ppo, "logs/worker.jsonl", lambda text: text.replace('"device":"cpu"', '"device":"cuda"')),
    ]
    try:
        told = mosaic("verify", ppo.run_id)
    finally:
        for back in undo:
            back()
    refused(told, "trained on NVIDIA Z9, which this machine does not have")


def test_runs_without_windows_are_refused_in_one_line(
    mosaic: Callable[..., Any], start: Callable[..., Run], ppo: Run, place: Any, scratch: Path
) -> None:
    refused(mosaic("verify", start().run_id), "none of its checkpoint events has a weight hash")
    refused(mosaic("verify", ppo.run_id, "--windows", "0"), "--windows 0: 1 or more is needed")
    undo = edited(ppo, "logs/worker.jsonl", lambda text: text.replace('"weights":', '"w":'))
    try:
        refused(mosaic("verify", ppo.run_id), "has a weight hash")
    finally:
        undo()
    path = place.home / "var/trainer/mosaic.db"
    for column, value, words in (
        ("mode", "policy_eval", "it is an evaluation"),
        ("mode", "script", "the phases of a script share one run"),
        ("algo", str(place.home / "x.py"), "is not a registered algorithm"),
    ):
        with sqlite3.connect(path) as connection:
            connection.execute(f"UPDATE runs SET {column} = ? WHERE run_id = ?", (value, ppo.run_id))
        try:
            refused(mosaic("verify", ppo.run_id), words)
        finally:
            with sqlite3.connect(path) as connection:
                connection.execute("UPDATE runs SET mode = 'train', algo = 'ppo' WHERE run_id = ?", (ppo.run_id,))


def test_a_module_that_only_a_file_names_is_not_imported(
    mosaic: Callable[..., Any], ppo: Run, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "evil_envs.py").write_text(f"open({str(ran)!r}, 'w')\n")
    paths = RunPaths(ppo.run_id, Path(ppo.folder).parents[3])

    def change(text: str) -> str:
        document = json.loads(text)
        document["attempts"][0]["config"]["env_id"] = "evil_envs:CartPole-v1"
        return json.dumps(document)

    kept = {path: path.with_name(f"{path.name}.away") for path in paths.checkpoints.iterdir() if path.name.isdigit()}
    for path, away in kept.items():
        path.rename(away)
    undo = edited(ppo, "provenance.json", change)
    try:
        told = mosaic("verify", ppo.run_id)
    finally:
        undo()
        for path, away in kept.items():
            away.rename(path)
    refused(told, "its files name 'evil_envs:CartPole-v1', a module to import")
    assert not ran.exists()


def test_a_terminated_verification_leaves_no_process_and_no_file(place: Any, ppo: Run, scratch: Path) -> None:
    environment = {**os.environ, **place.variables, "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "mosaic.cli", "verify", ppo.run_id]
    verify = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert verify.stdout is not None and b"training again" in verify.stdout.readline()
    until(lambda: psutil.Process(verify.pid).children())
    children = psutil.Process(verify.pid).children(recursive=True)
    verify.terminate()
    assert verify.wait(60) == 128 + signal.SIGTERM
    psutil.wait_procs(children, 60)
    assert [child for child in children if child.is_running()] == []


@pytest.mark.full
@pytest.mark.parametrize("algo", [algo for algo in FAMILIES if algo not in ("ppo", "dqn")])
def test_one_run_of_each_family_is_equal(mosaic: Callable[..., Any], place: Any, scratch: Path, algo: str) -> None:
    told = mosaic("verify", train(place, algo).run_id, "--windows", "3")
    assert told.code == 0 and told.out.count(": equal: weights ") >= 2, (told.out, told.err)
