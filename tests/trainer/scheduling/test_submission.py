"""Submissions: what is refused and why, and that no secret is left anywhere."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic.contract.errors import ConfigError, RefusedError, RunIdError
from mosaic.contract.paths import new_run_id
from mosaic.trainer.states import State

KEY = "s3cr3t-k3y-0123456789abcdef"
LOGIN = "walter:hunter2hunter2"


def leaks(folder: Path, *needles: str) -> list[str]:
    """Every file below the folder that holds one of these."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a daemon that runs has files for a moment
            if path.is_file() and any(needle.encode() in path.read_bytes() for needle in needles):
                found.append(str(path))
    return found


def test_no_secret_is_in_any_file_log_event_or_command_line(daemon: Any) -> None:
    extras = {
        "episodes": 100_000,
        "pause": 0.05,
        "wandb_use_vpn_proxy": True,
        "wandb_https_proxy": f"http://{LOGIN}@proxy:3128",
        "say": "HTTPS_PROXY",
        "child": True,
    }
    run = daemon.submit({**extras, "say": "PLAIN"}, environment={"WANDB_API_KEY": KEY, "PLAIN": "plain"})
    pid = daemon.until_state(run.run_id, State.EXECUTING).pid
    environment = psutil.Process(pid).environ()
    assert environment["WANDB_API_KEY"] == KEY and environment["HTTPS_PROXY"] == f"http://{LOGIN}@proxy:3128"
    lines = [" ".join(psutil.Process(pid).cmdline()), " ".join(psutil.Process(daemon.process.pid).cmdline())]
    assert not any(KEY in line or "hunter2" in line for line in lines)
    with pytest.raises(RefusedError) as refused:
        daemon.client.submit_run({"algo": f"x-{KEY}", "environment": {"WANDB_API_KEY": KEY}, "metadata": {"x": KEY}})
    assert KEY not in str(refused.value)
    told = json.dumps([daemon.client.get_run(run.run_id).to_json(), daemon.client.health()], default=str)
    assert KEY not in told and "hunter2" not in told
    assert all(KEY not in str(event.payload) for event in daemon.client.read_events(run.run_id))
    daemon.client.cancel_run(run.run_id)
    daemon.until_state(run.run_id, State.CANCELLED)
    daemon.stop()
    assert leaks(daemon.home, KEY, "hunter2") == []
    assert leaks(Path(daemon.environment["XDG_STATE_HOME"]), KEY, "hunter2") == []
    token = (daemon.home / "var/trainer/token").read_text().strip()
    assert [Path(path).name for path in leaks(daemon.home, token)] == ["token"]


def test_a_queued_run_whose_key_is_gone_after_a_restart_says_so(daemon: Any) -> None:
    busy = daemon.submit({"episodes": 100_000, "pause": 0.05}, resources={"cpus": 8})
    daemon.until_state(busy.run_id, State.EXECUTING)
    run = daemon.submit({"episodes": 1}, environment={"WANDB_API_KEY": KEY})
    daemon.kill()
    daemon.start()
    daemon.client.cancel_run(busy.run_id)
    ended = daemon.client.wait_run(run.run_id, 180)
    assert ended.state == State.COMPLETED
    assert ended.warnings == ("the daemon was restarted and no longer has WANDB_API_KEY: tracking is offline",)
    assert "run.secrets_gone" in daemon.log()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "config field 'algo' is missing"),
        ({"metadata": {"worker": {}}}, "metadata.worker.config: missing"),
        ({"metadata": {"worker": {"config": {"algo": "tiny"}}}, "retries": 3}, "retries: unknown field"),
        ({"algo": "tiny", "extras": {"algo_params": {"api_key": KEY}}}, "looks like a secret"),
        ({"algo": "tiny", "extras": {"notes": "http://me:pass@host"}}, "holds a login"),
        ({"metadata": {"worker": {"config": {"algo": "tiny"}, "arguments": ["--api-key=x"]}}}, "looks like a secret"),
        ({"metadata": {"worker": {"config": {"algo": "tiny"}, "module": "no.such"}}}, "no worker is started as"),
        ({"metadata": {"worker": {"config": {"algo": "tiny"}}}, "entry_point": "tinny"}, "did you mean 'tiny'"),
        ({"algo": "tinny", "env_id": "x", "total_timesteps": 1}, "unknown algo 'tinny'; did you mean 'tiny'"),
        ({"algo": ["tiny"], "env_id": "x", "total_timesteps": 1}, "algo"),
        (
            {
                "metadata": {"worker": {"config": {"algo": "tiny", "extras": {"notes": KEY}}}},
                "environment": {"A_TOKEN": KEY},
            },
            "the value of environment.A_TOKEN also stands elsewhere",
        ),
        ({"algo": "ppo", "env_id": "CartPol-v1", "total_timesteps": 5}, "CartPole"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refused_submission_creates_no_run_and_only_the_log_keeps_the_reason(
    shared: Any, payload: dict[str, Any], message: str
) -> None:
    before = shared.client.list_runs().total, files_below(shared.home / "var" / "trainer" / "runs")
    refusals = shared.log().count("run.refused")
    with pytest.raises(RefusedError) as refused:
        shared.client.submit_run(payload)
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert (shared.client.list_runs().total, files_below(shared.home / "var" / "trainer" / "runs")) == before
    assert not list((shared.home / "var" / "trainer" / "configs").glob(".dry-run*"))
    assert shared.log().count("run.refused") == refusals + 1
    assert leaks(shared.home, KEY, "me:pass") == []


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"seed": 1.5}, "seed: a whole number from 0 to 4294967295 is needed, not 1.5"),
        ({"seed": 1 << 63}, "seed: a whole number from 0 to 4294967295 is needed, not 9223372036854775808"),
        ({"seed": [1]}, "seed: a whole number from 0 to 4294967295 is needed, not [1]"),
        ({"total_timesteps": 1e308}, "total_timesteps: a whole number from"),
        ({"extras": {"max_restarts": 1 << 31}}, "extras.max_restarts: a whole number from 0 to 1000000 is needed"),
        ({"extras": {"grace_seconds": "x"}}, "extras.grace_seconds: a number between 0 and 1,000,000,000 is needed"),
        ({"extras": {"mode": "x\0"}}, "a text has a NUL"),
        ({"env_id": "x" * 301}, "env_id: a printable text"),
    ],
)
@pytest.mark.parametrize("external", [False, True])
def test_a_field_out_of_its_range_is_refused_also_where_no_worker_is_asked(
    shared: Any, payload: dict[str, Any], message: str, external: bool
) -> None:
    with pytest.raises(RefusedError) as refused:
        shared.client.submit_run({"algo": "tiny", "env_id": "x", "total_timesteps": 1, **payload}, external=external)
    assert message in str(refused.value)


def test_what_is_nested_too_deep_is_refused_in_one_line(shared: Any) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(ConfigError, match="nested deeper than 64 levels"):
        shared.client.submit_run({"algo": "tiny", "env_id": "x", "total_timesteps": 1, "extras": deep})


def test_extras_that_are_empty_count_as_absent_in_the_registry_too(shared: Any) -> None:
    extras = {"algo_params": "", "mode": "", "max_restarts": ""}
    payload = {"algo": "tiny", "env_id": "x", "total_timesteps": 1, "extras": extras}
    run = shared.client.submit_run(payload, external=True)
    assert shared.client.get_run(run.run_id).state != "BROKEN"
    shared.client.cancel_run(run.run_id)


def test_a_refused_submission_is_not_the_latest(shared: Any) -> None:
    accepted = shared.submit({"episodes": 1})
    with pytest.raises(RefusedError):
        shared.submit({"max_restarts": -1})
    assert shared.client.list_runs(page_size=1).runs[0].run_id == accepted.run_id
    shared.client.wait_run(accepted.run_id, 180)


def test_the_same_payload_twice_makes_two_runs_and_its_run_id_is_not_taken(shared: Any) -> None:
    payload = {"run_id": "mine", "algo": "tiny", "env_id": "x", "total_timesteps": 1, "extras": {"episodes": 1}}
    runs = [shared.client.submit_run(payload) for _ in range(2)]
    assert len({run.run_id for run in runs} | {"mine"}) == 3
    for run in runs:
        shared.client.wait_run(run.run_id, 180)


def test_a_submission_under_an_id_of_the_callers_own_can_be_repeated_without_a_second_run(shared: Any) -> None:
    payload = {"algo": "tiny", "env_id": "x", "total_timesteps": 1, "extras": {"episodes": 1}}
    run_id = new_run_id()
    assert shared.client.submit_run(payload, run_id=run_id).run_id == run_id
    with pytest.raises(ConfigError, match="exists already"):
        shared.client.submit_run(payload, run_id=run_id)
    with pytest.raises(RunIdError):
        shared.client.submit_run(payload, run_id="../x")
    shared.client.wait_run(run_id, 180)


def test_runs_that_differ_by_their_seed_alone_share_a_group(shared: Any) -> None:
    def group(seed: int, name: str | None = None, **extras: Any) -> str:
        config = {"algo": "tiny", "env_id": "x", "seed": seed, "extras": {"episodes": 1, **extras}}
        run = shared.client.submit_run({"metadata": {"worker": {"config": config}, "ui": {"group": name}}})
        shared.client.wait_run(run.run_id, 180)
        return str(run.group)

    plain = group(1)
    assert plain.startswith("#") and plain == group(2, notes="again", fastlane_slot=0)
    assert plain != group(1, pause=0.001) and group(1, "night run") == "night run"


def test_an_accepted_run_keeps_the_version_that_accepted_it_also_when_it_is_submitted_again(shared: Any) -> None:
    config = {"algo": "tiny", "env_id": "x", "seed": 1, "extras": {"episodes": 1}}
    payload = shared.client.get_run(shared.client.submit_run(config).run_id).payload
    known = payload["metadata"]["ui"]["version"]
    payload["metadata"]["ui"]["version"] = "0.0"
    payload["metadata"]["worker"]["config"].pop("run_id", None)
    again = shared.client.get_run(shared.client.submit_run(payload).run_id).payload
    assert known and again["metadata"]["ui"]["version"] == known


def test_what_nobody_gave_is_filled_in_by_the_worker(shared: Any) -> None:
    run = shared.client.submit_run({"algo": "tiny", "env_id": "x", "extras": {"episodes": 1, "warn": ["careful"]}})
    assert (run.seed, run.total_timesteps, run.warnings) == (7, 100, ("careful",))
    own = shared.client.wait_run(run.run_id, 180)
    (config,) = shared.paths(run.run_id).configs_folder.glob(f"worker-{run.run_id}-*.json")
    assert json.loads(config.read_text())["seed"] == 7 and own.payload["metadata"]["worker"]["config"]["seed"] == 7
    assert not list(shared.paths(run.run_id).configs_folder.glob(".dry-run*"))


def test_dry_run_only_is_a_run_that_completes_without_training(shared: Any) -> None:
    config = {"algo": "tiny", "env_id": "x", "total_timesteps": 1}
    worker = {"config": config, "arguments": ["--dry-run", "--emit-summary"]}
    run = shared.client.submit_run({"metadata": {"worker": worker}})
    assert shared.client.wait_run(run.run_id, 180).state == State.COMPLETED
    paths = shared.paths(run.run_id)
    assert not paths.events.exists() and "dry-run" in (paths.logs / "worker.stdout.log").read_text()


def test_the_clients_own_wandb_key_goes_with_a_tracked_run(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    extras = {"episodes": 100_000, "pause": 0.05, "track_wandb": True}
    run = shared.client.train("tiny", "x", total_timesteps=5, extras=extras)
    pid = shared.until_state(run.run_id, State.EXECUTING).pid
    assert psutil.Process(pid).environ()["WANDB_API_KEY"] == KEY
    run.cancel()
    assert run.wait(180).info.state == State.CANCELLED
    assert os.environ["WANDB_API_KEY"] == KEY and leaks(shared.home, KEY) == []


def test_a_tracked_run_leaves_its_key_nowhere(daemon: Any, tmp_path: Path) -> None:
    """A real worker with real W&B, offline; everything below the home and the person's own folder is searched.

    It trains until W&B has begun: what is over sooner waits for it for a while only, which a slow machine may need.
    """
    pytest.importorskip("wandb")
    key = "0123456789abcdef0123456789abcdef01234567"
    script = tmp_path / "mine.py"
    script.write_text(
        "import json, os, time\n"
        "assert 'WANDB_API_KEY' not in os.environ, 'the algorithm has no business with it'\n"
        "with open('metrics.jsonl', 'a') as file:\n"
        "    file.write(json.dumps({'step': 1, 'time': time.time(), 'charts/episodic_return': 1.0}) + '\\n')\n"
        "end = time.monotonic() + 120\n"
        "while not os.path.exists('wandb.json') and time.monotonic() < end:\n"
        "    time.sleep(0.1)\n"
    )
    config = {"algo": str(script), "env_id": "CartPole-v1", "total_timesteps": 1, "extras": {"track_wandb": True}}
    environment = {"WANDB_API_KEY": key, "WANDB_MODE": "offline"}
    run = daemon.client.submit_run({"metadata": {"worker": {"config": config}}, "environment": environment})
    ended = daemon.client.wait_run(run.run_id, 180)
    assert ended.state == State.COMPLETED, (ended.reason, daemon.log())
    assert list(Path(ended.folder).glob("wandb/*run*")), "it was tracked"
    daemon.stop()
    assert leaks(tmp_path, key) == []
