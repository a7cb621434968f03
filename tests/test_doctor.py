"""The doctor: what it finds on this machine, and what it says where something is missing."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mosaic import doctor
from mosaic.cli import main


def found(findings: list[doctor.Finding], name: str) -> doctor.Finding:
    return next(finding for finding in findings if finding.name == name)


def test_the_report_covers_everything_a_run_needs_and_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from mosaic import doctor; names = [f.name for f in doctor.examine()]; "
        "print(*dict.fromkeys(names), sep='|'); "
        "assert not {'torch', 'jax', 'gymnasium', 'wandb'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = set(done.stdout.strip().split("|"))
    assert {"python", "packages", "workers", "environments", "drawing", "GPU", "disk", "ports", "W&B"} <= names


def test_the_command_prints_json_and_a_table_and_ends_with_0_where_runs_can_be_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and all(set(check) == {"name", "state", "text", "advice"} for check in report["checks"])
    assert main(["doctor"]) == 0
    assert "CleanRL Worker" in capsys.readouterr().out


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        findings = list(doctor.listening(port, port))
    assert [finding.state for finding in findings] == ["note", "note"] and str(port) in findings[0].text


def test_shared_memory_that_is_too_small_comes_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "SHARED_MEMORY_MB", 2**40)
    finding = found(list(doctor.shared_memory(tmp_path)), "shared memory")
    assert finding.state == "trouble" and "--shm-size" in finding.advice


@pytest.mark.parametrize(
    ("installed", "told"), [({"jax"}, ["JAX"]), ({"jax", "jax_cuda13_plugin"}, []), (set[str](), [])]
)
def test_a_jax_that_cannot_see_the_gpu_comes_with_what_to_type(
    installed: set[str], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: name if name in installed else None)
    findings = list(doctor.jax_build())
    assert [finding.name for finding in findings] == told
    assert all("jax[cuda13]" in finding.advice for finding in findings)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_home_that_cannot_be_written_is_trouble(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert found(list(doctor.disk(tmp_path)), "disk").state == "trouble"


def test_a_full_disk_is_trouble_and_a_small_one_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "DISK_GB", 2**40)
    assert found(list(doctor.disk(tmp_path)), "disk").state in ("note", "trouble")
    monkeypatch.setattr(doctor, "FULL_DISK_MB", 2**40)
    finding = found(list(doctor.disk(tmp_path)), "disk")
    assert finding.state == "trouble" and "mosaic gc" in finding.advice


def test_a_missing_library_for_drawing_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")

    def nothing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(doctor.ctypes, "CDLL", nothing)
    assert "libosmesa6" in found(list(doctor.gl()), "drawing").advice
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert "needs a screen" in found(list(doctor.gl()), "drawing").text


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ("libQt5Gui.so.5", "libQt5Gui.so.5 is not there"),
        ("libharfbuzz.so.0", "libharfbuzz.so.0, which libQt5Gui.so.5 needs, is not there"),
    ],
)
def test_games_without_their_system_library_are_not_called_ready(
    absent: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str) -> None:
        raise OSError(f"{absent}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(doctor, "find_spec", lambda name: name)
    monkeypatch.setattr(doctor.ctypes, "CDLL", nothing)
    findings = list(doctor.families())
    assert "Procgen" not in findings[0].text and "MuJoCo" in findings[0].text
    assert findings[1].text == f"not installed: Procgen ({said})"
    assert findings[1].state == "note" and "apt install libqt5gui5 libqt5core5a" in findings[1].advice


def test_the_key_of_wandb_is_found_in_the_environment_and_the_env_file_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert found(list(doctor.wandb(tmp_path)), "W&B").state == "note"
    (tmp_path / ".env").write_text("WANDB_API_KEY=0123456789abcdef\n")
    finding = found(list(doctor.wandb(tmp_path)), "W&B")
    assert finding.state == "ok" and "0123456789abcdef" not in finding.text


def test_games_that_envpool_alone_makes_lack_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "envpool" else name)
    findings = {finding.advice: finding.text for finding in doctor.families()}
    assert (
        findings["pip install 'mosaic-rl[envpool]'"]
        == "not installed: Procgen, MiniGrid wave function collapse, EnvPool"
    )
