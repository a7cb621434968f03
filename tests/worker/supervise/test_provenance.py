"""provenance.json as shells write it: what it has, what it must not have, attempts, scripts."""

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.paths import RunPaths
from mosaic.contract.provenance import newest, read_provenance

KEY = "0123456789abcdef0123456789abcdef01234567"


def document(paths: RunPaths) -> dict[str, Any]:
    found = read_provenance(paths)
    assert found is not None
    return found


def test_a_run_records_command_config_packages_and_machine(start_run: Callable[..., Any]) -> None:
    run = start_run("row(1, a=1.0)", extras={"notes": "hello"})
    assert run.wait() == 0
    (entry,) = document(run.paths)["attempts"]
    assert entry["command"][:3] == [sys.executable, "-m", "tiny_algorithm"] and "--seed=1" in entry["command"]
    assert entry["config_digest"] == run.first("run_started").payload["config_digest"]
    assert entry["config"]["extras"] == {"notes": "hello"} and entry["config"]["env_id"] == "CartPole-v1"
    assert entry["python"]["version"] == platform.python_version()
    assert entry["packages"]["gymnasium"] and entry["packages"]["mosaic-rl"] == entry["mosaic"]["version"]
    assert entry["environment"]["module"] == "gymnasium"
    assert entry["machine"]["cpu"] and entry["machine"]["cores"] >= 1 and isinstance(entry["machine"]["gpus"], list)
    manifest = json.loads(run.paths.analytics.read_text())["provenance"]
    assert manifest["relative_path"] == "provenance.json" and manifest["config_digest"] == entry["config_digest"]
    assert manifest["machine"] == entry["machine"] and "packages" not in manifest
    assert run.first("run_completed").payload["manifest"]["provenance"] == manifest


def test_a_second_attempt_is_appended(start_run: Callable[..., Any]) -> None:
    for seed_steps in (100, 200):
        run = start_run("row(1, a=1.0)", total_timesteps=seed_steps)
        assert run.wait() == 0
    attempts = document(run.paths)["attempts"]
    assert [entry["config"]["total_timesteps"] for entry in attempts] == [100, 200]
    assert attempts[0]["started_at"] < attempts[1]["started_at"]


def test_no_secret_of_the_environment_or_the_dotenv_file_is_recorded(start_run: Callable[..., Any], home: Path) -> None:
    (home / ".env").write_text("HF_TOKEN=dotenv-secret-value-1\n")
    payload = {"environment": {"MY_PASSWORD": "payload-secret-value"}}
    script = home / "train.py"
    script.write_text(f"key = '{KEY}'\npassword: str = 'hunter2hunter2'\nother = 'dotenv-secret-value-1'\n")
    extras = {"notes": f"{KEY} payload-secret-value", "wandb_http_proxy": "http://me:proxypass@host:1"}
    run = start_run(extras=extras, algo=str(script), payload=payload, environment={"WANDB_API_KEY": KEY})
    assert run.wait() == 0
    (copy,) = run.paths.scripts.iterdir()
    manifest = json.loads(run.paths.analytics.read_text())["provenance"]
    for text in (run.paths.provenance.read_text(), copy.read_text(), json.dumps(manifest)):
        for secret in ("dotenv-secret-value-1", "payload-secret-value", "hunter2hunter2", "proxypass"):
            assert secret not in text
    assert KEY not in run.paths.provenance.read_text() + copy.read_text()
    assert "WANDB_API_KEY" not in run.paths.provenance.read_text()


def test_a_users_script_is_copied_with_its_digest_and_its_repository(
    start_run: Callable[..., Any], home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    script = folder / "train.py"
    script.write_text("print('one')\n")
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init"], ["add", "."], [*names, "commit", "-m", "one"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    script.write_text("print('two')\n")
    run = start_run(algo=str(script))
    assert run.wait() == 0
    found = document(run.paths)
    about = newest(found)["script"]
    assert about["path"] == str(script)
    assert (run.paths.folder / about["copy"]).read_text() == "print('two')\n"
    assert about["git"]["dirty"] is True and "+print('two')" in found["diffs"][about["git"]["diff"]]


def test_a_module_of_a_users_environment_is_found_without_importing_it(
    start_run: Callable[..., Any], write_algorithm: Callable[..., Path]
) -> None:
    folder = write_algorithm("row(1, a=1.0)").parent
    maker = "gymnasium.envs.classic_control:CartPoleEnv"
    (folder / "my_envs.py").write_text(f"import gymnasium\ngymnasium.register('Mine-v0', '{maker}')\n")
    for words in (["init"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-m", "one"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    run = start_run("row(1, a=1.0)", env_id="my_envs:Mine-v0")
    assert run.wait() == 0, run.process.stderr.read()
    about = newest(document(run.paths))["environment"]
    assert about["module"] == "my_envs" and about["path"] == str(folder / "my_envs.py")
    assert about["git"]["root"] == str(folder.resolve())


def test_a_damaged_file_is_set_aside_with_one_warning(start_run: Callable[..., Any], home: Path) -> None:
    paths = RunPaths("run-1", home)
    paths.create()
    paths.provenance.write_text('{"format": 1, "attempts": 7}')
    run = start_run("row(1, a=1.0)")
    assert run.wait() == 0
    assert len(document(paths)["attempts"]) == 1
    (aside,) = paths.folder.glob("provenance.json.*.damaged")
    warnings = [event.payload["message"] for event in run.events("warning")]
    assert [line for line in warnings if aside.name in line and "attempts: a list" in line]


def test_the_algorithm_starts_before_anything_is_collected(
    start_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text("#!/bin/sh\nexec /bin/sleep 2\n")
    (tmp_path / "bin/git").chmod(0o755)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    run = start_run("episode(5, 1.0)\ntime.sleep(60)", environment={"PATH": path})
    run.first("episode")
    assert not run.paths.provenance.exists()
    until(run.paths.provenance.exists, 60, "provenance.json")
