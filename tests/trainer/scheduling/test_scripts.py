"""Scripts as runs, under a real daemon: their phases, their variables, how they fail, pause, end and start over."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic import catalog
from mosaic.contract.errors import RefusedError
from mosaic.contract.events import Event, replay
from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths
from mosaic.contract.phases import read_phases
from mosaic.contract.provenance import read_provenance
from mosaic.store.stored import StoredRun
from mosaic.trainer.states import State

PPO = {"num_steps": 32, "num_envs": 4, "checkpoint_every": 256, "checkpoint_episodes": 0}
WORK = "python -m cleanrl_worker.cli --config"

# An algorithm without torch: a row a step, so that whole scripts take a second or two.
MINE = """
import argparse, json, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--env-id")
parser.add_argument("--total-timesteps", type=int)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--code", type=int, default=0)
parser.add_argument("--gate", default="/")
parser.add_argument("--reward", type=float, default=1.0)
args = parser.parse_args()
with open("metrics.jsonl", "ab", buffering=0) as file:
    for step in range(1, args.total_timesteps + 1):
        row = {"step": step, "time": time.time(), "charts/episodic_return": args.reward, "charts/episodic_length": 1}
        file.write(json.dumps(row).encode() + b"\\n")
        time.sleep(args.pause)
while not os.path.exists(args.gate):
    time.sleep(0.02)
if args.code:
    print("it was told to", file=sys.stderr)
sys.exit(args.code)
"""


def submit(daemon: Any, text: str, name: str = "script.sh", retry: int = 0, **config: Any) -> Any:
    """Submit a bash text whose base config trains with MINE, or as `config` says."""
    (daemon.home / "mine.py").write_text(MINE)
    (daemon.home / name).write_text(text)
    base = {"algo": "mine.py", "env_id": "CartPole-v1", "total_timesteps": 3, "seed": 1, **config}
    worker = {"script": name, "config": base}
    return daemon.client.submit_run({"metadata": {"worker": worker}, "retry": {"max_restarts": retry}})


def ended(daemon: Any, run: Any) -> Any:
    return daemon.client.wait_run(run.run_id, 240)


def events(daemon: Any, run: Any, *kinds: str) -> list[Event]:
    return [event for event in replay(daemon.paths(run.run_id).events) if event.event in kinds]


def phases(daemon: Any, run: Any) -> list[tuple[Any, ...]]:
    """Number, status, outcome of each phase event."""
    found = events(daemon, run, "phase")
    return [tuple(event.payload.get(key) for key in ("number", "status", "outcome")) for event in found]


def test_a_scripts_run_is_stored_as_a_whole_to_its_last_event(shared: Any, tmp_path: Path, until: Any) -> None:
    url = f"file://{tmp_path}/store"
    text = f"""
{WORK} "$MOSAIC_CONFIG_FILE"
mkdir -p "$MOSAIC_CHECKPOINT_DIR/extra"
{WORK} "$MOSAIC_CONFIG_FILE" --total-timesteps 2
"""
    run = submit(shared, text, "stored.sh", extras={"storage_url": url})
    assert ended(shared, run).state == State.COMPLETED
    paths = shared.paths(run.run_id)
    other = RunPaths(run.run_id, tmp_path / "other")

    def arrived() -> bool:
        StoredRun(other, url).fetch()
        return other.events.exists() and other.events.read_bytes() == paths.events.read_bytes()

    until(arrived, "its last event in the store")
    assert other.metrics.read_bytes() == paths.metrics.read_bytes() and len(read_rows(other.metrics)) == 5
    told = [str(event.payload["message"]) for event in events(shared, run, "warning")]
    assert not [text for text in told if "store" in text]


def test_a_script_is_titled_by_its_file_and_shows_its_phase_and_its_own_steps(shared: Any, until: Any) -> None:
    text = f"""# @phases: 3
# @total_timesteps: 60
{WORK} "$MOSAIC_CONFIG_FILE" --total-timesteps 20
{WORK} "$MOSAIC_CONFIG_FILE" --total-timesteps 20 --extras '{{"algo_params": {{"gate": "{shared.home}/titled-gate"}}}}'
"""
    run = submit(shared, text, "titled.sh", total_timesteps=None)
    assert (run.run_name, run.total_timesteps) == ("titled.sh", 60)
    standing = until(
        lambda: (one := shared.client.get_run(run.run_id)) and (one.episodes == 40 or one.ended) and one, "its phase"
    )
    assert (standing.state, standing.reason, standing.total_timesteps) == ("EXECUTING", "phase 2 of 3", 60)
    (shared.home / "titled-gate").touch()
    end = ended(shared, run)
    assert (end.state, end.reason, end.run_name) == (State.COMPLETED, "", "titled.sh")
    named = shared.client.submit_run({"run_name": "mine", "metadata": standing.payload["metadata"]})
    assert named.run_name == "mine"
    shared.client.cancel_run(named.run_id)
    ended(shared, named)


def test_the_summary_of_a_script_has_final_and_best_return_of_all_phases(shared: Any) -> None:
    text = f"""
{WORK} "$MOSAIC_CONFIG_FILE" --total-timesteps 30 --extras '{{"algo_params": {{"reward": 5}}}}'
{WORK} "$MOSAIC_CONFIG_FILE" --total-timesteps 30 --extras '{{"algo_params": {{"reward": 2}}}}'
"""
    run = submit(shared, text, "best.sh")
    assert ended(shared, run).state == State.COMPLETED
    summary = events(shared, run, "run_completed")[0].payload["manifest"]["summary"]
    assert (summary["final_return"], summary["best_return"], summary["episodes"]) == (2.0, 5.0, 60)


def test_phases_share_one_run_one_stream_of_events_and_one_step_axis(shared: Any) -> None:
    text = f"""
set -euo pipefail
{WORK} "$MOSAIC_CONFIG_FILE" --total-timesteps 512
{WORK} "$MOSAIC_CONFIG_FILE" --total-timesteps 384 --extras '{{"mode": "resume_training"}}'
{WORK} "$MOSAIC_CONFIG_FILE" --env-id Acrobot-v1 --total-timesteps 256
"""
    extras = {"algo_params": PPO, "tensorboard_dir": "tensorboard"}
    run = submit(shared, text, "three.sh", algo="ppo", total_timesteps=512, extras=extras)
    end = ended(shared, run)
    assert end.state == State.COMPLETED, (end.reason, shared.log()[-2000:])
    assert (end.mode, end.step, end.total_timesteps) == ("script", 1152, 1152)
    paths = shared.paths(run.run_id)
    assert [event.event for event in events(shared, run, "run_started", "run_completed", "run_failed")] == [
        "run_started",
        "run_completed",
    ]
    told = [event.payload for event in events(shared, run, "phase")]
    assert [(one["number"], one["status"]) for one in told] == [
        (number, status) for number in (1, 2, 3) for status in ("started", "ended")
    ]
    assert [(one["start_step"], one["end_step"], one["outcome"]) for one in told[1::2]] == [
        (0, 512, "completed"),
        (512, 896, "completed"),
        (896, 1152, "completed"),
    ]
    assert [one["env_id"] for one in told[::2]] == ["CartPole-v1", "CartPole-v1", "Acrobot-v1"]
    steps = [row["step"] for row in read_rows(paths.metrics) if "losses/value_loss" in row]
    assert steps == list(range(128, 1153, 128)), "nothing is lost, nothing comes twice"
    (curve,) = shared.client.get_metrics(run.run_id, ["losses/value_loss"])
    assert [int(step) for step in curve.steps] == steps
    (resumed,) = events(shared, run, "resumed")
    assert (resumed.payload["step"], resumed.payload["exact"]) == (512, False)
    saved = {event.payload["path"] for event in events(shared, run, "checkpoint")}
    assert {Path(path).parent.name for path in saved} == {
        "phase1-CartPole-v1",
        "phase2-CartPole-v1",
        "phase3-Acrobot-v1",
    }
    assert _tensorboard_steps(paths.tensorboard) == steps
    summary = events(shared, run, "run_completed")[0].payload["manifest"]["summary"]
    assert (summary["steps"], summary["phases"]) == (1152, 3)
    manifest = events(shared, run, "run_completed")[0].payload["manifest"]
    steps = manifest["artifacts"]["checkpoints"]["steps"]
    assert [step.partition("/")[0] for step in steps] == sorted(step.partition("/")[0] for step in steps)
    assert {step.partition("/")[0] for step in steps} == {Path(path).parent.name for path in saved}
    assert manifest["artifacts"]["checkpoints"]["latest"] == f"checkpoints/{steps[-1]}"
    assert summary["final_return"] == end.mean_return
    means = shared.client.get_metrics(run.run_id, ["charts/mean_return"])[0].values
    assert summary["best_return"] is None or summary["best_return"] in means
    longer = shared.client.resume(run.run_id, additional_timesteps=128).wait(240)
    assert longer.info.step == 1280, "a run that goes on from a script's goes on on its axis"


def _tensorboard_steps(folder: Path) -> list[int]:
    from mosaic.contract.tensorboard import ScalarReader

    files = sorted(folder.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime_ns)
    scalars = [scalar for file in files for scalar in ScalarReader(file).read()]
    return sorted(step for _, step, tag, _ in scalars if tag == "losses/value_loss")


def test_each_phase_has_its_provenance_and_all_scripts_are_copied_without_keys(shared: Any) -> None:
    text = f'export HF_TOKEN=abcdef123456\n{WORK} "$MOSAIC_CONFIG_FILE"\n{WORK} "$MOSAIC_CONFIG_FILE" --seed 2\n'
    run = submit(shared, text, "two.sh")
    assert ended(shared, run).state == State.COMPLETED
    paths = shared.paths(run.run_id)
    attempts = (read_provenance(paths) or {})["attempts"]
    assert [(one["phase"], one["config"]["seed"]) for one in attempts] == [
        ("phase1-CartPole-v1", 1),
        ("phase2-CartPole-v1", 2),
    ]
    copies = {path.name.rpartition("-")[0]: path.read_text() for path in paths.scripts.iterdir()}
    assert copies == {"mine": MINE, "two": text.replace("abcdef123456", "***")}
    assert attempts[0]["script"]["path"] == str(shared.home / "mine.py")


def test_script_gets_every_variable_and_a_config_with_every_parameter(shared: Any, tmp_path: Path) -> None:
    text = """
set -euo pipefail
env > seen.env
cp "$MOSAIC_CONFIG_FILE" seen.json
python -c 'import sys; print(sys.executable)' > seen.python
pwd > seen.folder
test -d "$TMPDIR" && echo "$TMPDIR" > seen.tmp
"""
    extras = {"algo_params": {"num_envs": 3, "track": True}, "agent_id": "robin", "video_mode": "grid", "grid_limit": 2}
    run = submit(shared, text, "look.sh", algo="ppo", extras={**extras, "grace_seconds": 9})
    end = ended(shared, run)
    assert end.state == State.COMPLETED, end.reason
    home = shared.home
    seen = dict(line.partition("=")[::2] for line in (home / "seen.env").read_text().splitlines())
    paths = shared.paths(run.run_id)
    expected = {
        "MOSAIC_SCRIPT": "1",
        "MOSAIC_HOME": str(home),
        "MOSAIC_RUN_ID": run.run_id,
        "MOSAIC_CHECKPOINT_DIR": str(paths.checkpoints),
        "CLEANRL_AGENT_ID": "robin",
        "CLEANRL_NUM_ENVS": "3",
        "GYM_GUI_FASTLANE_ENABLED": "1",
        "GYM_GUI_FASTLANE_VIDEO_MODE": "grid",
        "GYM_GUI_FASTLANE_GRID_LIMIT": "2",
        "TRACK_TENSORBOARD": "0",
        "TRACK_WANDB": "1",
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert Path((home / "seen.folder").read_text().strip()).samefile(home)
    config = json.loads((home / "seen.json").read_text())
    assert "run_id" not in config and config["extras"]["algo_params"]["learning_rate"] == 2.5e-4
    assert config["extras"]["algo_params"]["num_envs"] == 3
    from cleanrl_worker import get_worker_metadata

    assert (home / "seen.python").read_text().strip() == get_worker_metadata().command[0]
    assert not Path((home / "seen.tmp").read_text().strip()).exists(), "its temporary folder is gone"


@pytest.mark.parametrize("strict", ["set -e", "set +e"])
def test_failing_phase_fails_the_run_by_name_and_its_code_passes_on(shared: Any, strict: str) -> None:
    text = f"""{strict}
{WORK} "$MOSAIC_CONFIG_FILE"
{WORK} "$MOSAIC_CONFIG_FILE" --env-id Acrobot-v1 --extras '{{"algo_params": {{"code": 7}}}}'
true
"""
    run = submit(shared, text, f"fails{strict[-2]}.sh")
    end = ended(shared, run)
    assert (end.state, end.exit_code) == (State.FAILED, 7)
    assert end.reason == "phase 2 (phase2-Acrobot-v1) failed: exit code 7: it was told to"
    assert phases(shared, run) == [
        (1, "started", None),
        (1, "ended", "completed"),
        (2, "started", None),
        (2, "ended", "failed"),
    ]


def test_refused_phase_and_a_script_that_fails_by_itself_say_why(shared: Any) -> None:
    refused = submit(shared, f'{WORK} "$MOSAIC_CONFIG_FILE" --algo nonsense\n', "refused.sh")
    lost = submit(shared, "set -e\nno-such-program-here\n", "lost.sh")
    end = ended(shared, refused)
    assert (end.state, end.exit_code) == (State.FAILED, 2)
    assert end.reason.startswith("phase 1 (phase1-CartPole-v1) failed: unknown algo 'nonsense'")
    end = ended(shared, lost)
    assert (end.state, end.exit_code) == (State.FAILED, 127)
    assert end.reason.startswith("script lost.sh failed: exit code 127:") and "no-such-program-here" in end.reason


def test_cancel_ends_the_whole_tree_and_starts_no_further_phase(shared: Any, until: Any, lives: Any) -> None:
    text = f"""
trap 'echo tidy > tidied' EXIT
sleep 600 &
{WORK} "$MOSAIC_CONFIG_FILE" --total-timesteps 100000 --extras '{{"algo_params": {{"pause": 0.05}}}}'
touch went_on
{WORK} "$MOSAIC_CONFIG_FILE"
"""
    for left in ("tidied", "went_on"):  # by an earlier try of this test
        (shared.home / left).unlink(missing_ok=True)
    run = submit(shared, text, "long.sh", extras={"grace_seconds": 20})
    until(lambda: shared.client.get_run(run.run_id).state == State.EXECUTING, "the first rows")
    host = shared.client.get_run(run.run_id).pid
    tree = [host, *(process.pid for process in psutil.Process(host).children(recursive=True))]
    assert len(tree) >= 4, "host, bash, sleep, shell, algorithm"
    shared.client.cancel_run(run.run_id)
    end = ended(shared, run)
    assert end.state == State.CANCELLED
    until(lambda: not any(lives(pid) for pid in tree), "every process to end")
    assert phases(shared, run) == [(1, "started", None), (1, "ended", "stopped")]
    assert (shared.home / "tidied").exists() and not (shared.home / "went_on").exists()


def test_pause_holds_a_script_and_continue_lets_it_end(shared: Any, until: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    text = f"""
set -e
{WORK} "$MOSAIC_CONFIG_FILE" --extras '{{"algo_params": {{"gate": "{gate}"}}}}'
{WORK} "$MOSAIC_CONFIG_FILE"
"""
    run = submit(shared, text, "pause.sh")
    until(lambda: shared.client.get_run(run.run_id).state == State.EXECUTING, "the first rows")
    shared.client.pause_run(run.run_id)
    until(lambda: shared.client.get_run(run.run_id).state == State.PAUSED, "the pause")
    host = psutil.Process(shared.client.get_run(run.run_id).pid)
    below = host.children(recursive=True)
    until(lambda: [one.status() for one in below].count(psutil.STATUS_STOPPED) == 2, "bash and the algorithm to stand")
    gate.touch()  # nobody who stands sees that
    assert len(phases(shared, run)) == 1 and not events(shared, run, "continued")
    shared.client.continue_run(run.run_id)
    end = ended(shared, run)
    assert end.state == State.COMPLETED, end.reason
    (paused,) = events(shared, run, "paused")
    (continued,) = events(shared, run, "continued")
    assert continued.payload["paused_seconds"] > 0 and paused.payload["step"] is not None
    assert phases(shared, run)[-1] == (2, "ended", "completed")


def test_script_that_is_tried_again_starts_over_and_says_so(shared: Any) -> None:
    text = f"""
set -e
{WORK} "$MOSAIC_CONFIG_FILE"
test -e second_time || {{ touch second_time; exit 5; }}
{WORK} "$MOSAIC_CONFIG_FILE"
"""
    (shared.home / "second_time").unlink(missing_ok=True)
    run = submit(shared, text, "again.sh", retry=1)
    end = ended(shared, run)
    assert (end.state, end.attempt) == (State.COMPLETED, 2), end.reason
    assert [number for number, status, _ in phases(shared, run) if status == "started"] == [1, 1, 2]
    assert any("a script starts over" in warning for warning in end.warnings)


def test_two_scripts_at_once_do_not_meet(shared: Any) -> None:
    text = f"""
set -euo pipefail
jq_or_python() {{ python -c 'import json, sys; c = json.load(open(sys.argv[1])); c["total_timesteps"] += 1
print(json.dumps(c))' "$1"; }}
jq_or_python "$MOSAIC_CONFIG_FILE" > "$TMPDIR/phase.json"
{WORK} "$TMPDIR/phase.json" --extras '{{"algo_params": {{"pause": 0.02}}}}'
"""
    runs = [submit(shared, text, "same.sh", total_timesteps=total) for total in (10, 20)]
    for run, total in zip(runs, (11, 21), strict=True):
        end = ended(shared, run)
        assert (end.state, end.step) == (State.COMPLETED, total), end.reason


def test_script_whose_host_was_killed_fails_and_leaves_nothing(shared: Any, until: Any, lives: Any) -> None:
    text = f"""{WORK} "$MOSAIC_CONFIG_FILE" --total-timesteps 90000 --extras '{{"algo_params": {{"pause": 0.05}}}}'\n"""
    run = submit(shared, text, "host.sh")
    until(lambda: shared.client.get_run(run.run_id).state == State.EXECUTING, "the first rows")
    host = shared.client.get_run(run.run_id).pid
    tree = [process.pid for process in psutil.Process(host).children(recursive=True)]
    os.kill(host, signal.SIGKILL)
    end = ended(shared, run)
    assert (end.state, end.signal) == (State.FAILED, "SIGKILL")
    until(lambda: not any(lives(pid) for pid in tree), "every process to end")


def test_phase_that_is_killed_is_named(shared: Any, until: Any) -> None:
    text = f"""set -e
{WORK} "$MOSAIC_CONFIG_FILE" --total-timesteps 90000 --extras '{{"algo_params": {{"pause": 0.05}}}}'\n"""
    run = submit(shared, text, "killed.sh")
    until(lambda: shared.client.get_run(run.run_id).state == State.EXECUTING, "the first rows")
    os.kill(read_phases(shared.paths(run.run_id))[0].pid, signal.SIGKILL)
    end = ended(shared, run)
    assert (end.state, end.exit_code) == (State.FAILED, 137)
    assert end.reason.startswith("phase 1 (phase1-CartPole-v1) failed")


def test_scripts_outside_the_home_are_refused(shared: Any, tmp_path: Path) -> None:
    (tmp_path / "outside.sh").write_text("true\n")
    (shared.home / "link.sh").unlink(missing_ok=True)
    (shared.home / "link.sh").symlink_to(tmp_path / "outside.sh")
    for name in (str(tmp_path / "outside.sh"), "../outside.sh", "link.sh", "/etc/profile"):
        worker = {"script": name, "config": {"algo": "ppo", "env_id": "CartPole-v1"}}
        with pytest.raises(RefusedError, match="is not there; it lies in"):
            shared.client.submit_run({"metadata": {"worker": worker}})


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("curriculum_doorkey.sh", 3),
        # The same text with other environments, which the test below looks up.
        pytest.param("curriculum_babyai_goto.sh", 4, marks=pytest.mark.full),
        pytest.param("curriculum_dynamic_obstacles.sh", 4, marks=pytest.mark.full),
    ],
)
def test_shipped_curricula_end_as_they_should(shared: Any, name: str, count: int) -> None:
    # The smallest that trains at all: what is tested is the way through the environments, not what is learnt.
    params = {"num_envs": 2, "num_steps": 8, "update_epochs": 1}
    config = {"seed": 1, "total_timesteps": 32 * count, "extras": {"algo_params": params}}
    run = shared.client.submit_run({"metadata": {"worker": {"script": name, "config": config}}})
    assert run.algo == "ppo" and run.env_id
    end = shared.client.wait_run(run.run_id, 400)
    assert end.state == State.COMPLETED, end.reason
    assert (end.step, end.total_timesteps) == (32 * count, 32 * count)
    told = [event.payload for event in events(shared, run, "phase")][1::2]
    assert [one["outcome"] for one in told] == ["completed"] * count
    assert [one["end_step"] for one in told] == [32 * number for number in range(1, count + 1)]
    assert len(events(shared, run, "resumed")) == count - 1


def test_shipped_scripts_are_clean_and_say_what_they_do() -> None:
    from cleanrl_worker import get_worker_metadata
    from mosaic.contract.scripts import list_scripts, shipped_folders

    command = get_worker_metadata().command
    (folder,) = shipped_folders(command)
    found = {script.path.name: script for script in list_scripts(Path("/nowhere"), command)}
    assert set(found) == {"curriculum_doorkey.sh", "curriculum_babyai_goto.sh", "curriculum_dynamic_obstacles.sh"}
    door = found["curriculum_doorkey.sh"]
    assert (door.phases, door.total_timesteps, door.env_family) == (3, 600000, "minigrid")
    assert all(script.description and script.author and script.shipped for script in found.values())
    for path in sorted(folder.glob("*.sh")):
        # Where shellcheck is not installed, bash's own check of the syntax is what can be had.
        check = ["shellcheck", str(path)] if shutil.which("shellcheck") else ["bash", "-n", str(path)]
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        text = path.read_text()
        name, words = re.findall(r"^for (\w+) in (.+); do$", text, re.MULTILINE)[0]
        (pattern,) = re.findall(r'--env-id "(.+?)"', text)
        ids = [pattern.replace(f"${name}", word) for word in words.split()]
        assert len(ids) == found[path.name].phases and all(catalog.find(env_id) for env_id in ids), ids
