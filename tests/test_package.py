"""The built wheel: what is in it, and that it works outside the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves build/ and egg-info beside what it builds."""
    copy = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip("wheel", str(copy), "--no-deps", "--no-build-isolation", "-w", str(copy / "wheels"))
    (built,) = (copy / "wheels").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin/ of a fresh environment with the wheel in it; the dependencies are borrowed, so nothing is downloaded."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (site,) = folder.glob("lib/python*/site-packages")
    # A path named in a .pth file is searched last, and its own .pth files (the editable install) are not read.
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


def pip(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def outside(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "MOSAIC_"))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)


def test_wheel_holds_every_module_the_scripts_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read("mosaic_rl-0.1.0.dist-info/entry_points.txt").decode()
        metadata = archive.read("mosaic_rl-0.1.0.dist-info/METADATA").decode()
    sources = {file.relative_to(ROOT / "src").as_posix() for file in (ROOT / "src").rglob("*.py")}
    assert sources <= names
    assert not {name for name in names if name.startswith(("tests", "benchmarks", "docs"))}
    for line in ("mosaic = mosaic.cli:main", "cleanrl-worker = cleanrl_worker.cli:main", "[mosaic.workers]"):
        assert line in entry_points
    assert "mosaic_rl-0.1.0.dist-info/licenses/LICENSE" in names
    assert "Requires-Python: >=3.11" in metadata and "Requires-Dist: torch==2.13.0" in metadata


def test_installed_package_is_the_one_that_is_imported(scripts: Path, tmp_path: Path) -> None:
    code = "import mosaic, cleanrl_worker; print(mosaic.__file__); print(cleanrl_worker.__file__)"
    done = outside([str(scripts / "python"), "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(scripts.parent)) for line in done.stdout.splitlines())


def test_lists_work_outside_the_checkout(scripts: Path, tmp_path: Path) -> None:
    for line in ("cleanrl-worker --list --json", "mosaic algos --json", "mosaic envs --json"):
        program, *words = line.split()
        done = outside([str(scripts / program), *words], tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)


def test_dry_run_and_training_work_outside_the_checkout(scripts: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.json"
    config.write_text('{"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 1024, "run_id": "first"}')
    dry = outside([str(scripts / "cleanrl-worker"), "--config", str(config), "--dry-run", "--emit-summary"], tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert json.loads(dry.stdout)["status"] == "dry-run" and not (tmp_path / "var").exists()
    done = outside([str(scripts / "cleanrl-worker"), "--config", str(config)], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "run_completed"
    assert (tmp_path / "var/trainer/runs/first/metrics.jsonl").stat().st_size > 0
