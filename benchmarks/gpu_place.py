"""Where benchmarks/gpu.py runs things: a folder, and interpreters that find our sources and the wheels."""

import itertools
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SRC = Path(__file__).resolve().parents[1] / "src"
DRIVER = Path(__file__).with_name("cleanrl_driver.py")
# What our files import besides torch, jax and numpy, and what HalfCheetah and Pong, for one and for two, need.
WHEELS = (
    *(
        "gymnasium",
        "cloudpickle",
        "farama-notifications",
        "typing-extensions",
        "mujoco>=3.17,<4",
        "absl-py",
        "etils",
        "glfw",
    ),
    *("pyopengl", "ale-py", "pydantic", "pydantic-core", "annotated-types", "typing-inspection", "orjson"),
    *("python-ulid", "psutil", "tyro", "docstring-parser", "typeguard", "tensorboard", "protobuf", "safetensors"),
    *("imageio", "pillow", "zipp", "websockets", "fsspec", "importlib-resources", "packaging"),
    *("flax", "optax", "msgpack", "pyyaml", "rich", "pygments"),
    *("pettingzoo", "multi-agent-ale-py"),
)
# CleanRL's release as it is, with the Gymnasium that it is written for.
PEER_WHEELS = ("cleanrl==1.2.0", "gymnasium==0.29.1", "stable-baselines3==2.9.2")


@dataclass(frozen=True)
class Case:
    """One algorithm with CleanRL's defaults: how far it trains, and from which step on the clock counts."""

    algo: str
    env_id: str
    total: int
    warm_up: int
    checked_with: tuple[str, ...]
    """flags that bring more than 100 updates into a short run"""
    checked_steps: int
    cleanrl: str = "–"
    """steps per second on an H200 of CleanRL's file, where it is not timed beside ours"""
    goal: str = "–"
    flags: tuple[str, ...] = ()
    """what both runs get, ours and CleanRL's"""
    our_flags: tuple[str, ...] = ()
    peer: bool = False
    """whether CleanRL's own file can be timed here"""

    @property
    def name(self) -> str:
        return f"{self.algo} {self.env_id}"


def pack(folder: Path) -> None:
    """Fetch the wheels for a bare machine with Python 3.12."""
    platforms = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (17, 27, 28)]
    fetch = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--no-deps"]
    subprocess.run([*fetch, "--python-version=3.12", *platforms, f"--dest={folder}", *WHEELS], check=True)
    cleanrl, *others = PEER_WHEELS  # the release refuses to be installed on 3.12, where it runs all the same
    for version, names in (("3.9", [cleanrl]), ("3.12", others)):
        subprocess.run([*fetch, f"--python-version={version}", f"--dest={folder / 'peer'}", *names], check=True)
    size = sum(wheel.stat().st_size for wheel in folder.rglob("*.whl"))
    print(f"{folder}: {size / 2**20:.0f} MB")


class Place:
    """A folder to work in, and the interpreters."""

    def __init__(self, folder: Path, wheels: Path | None) -> None:
        self.folder = folder
        self._numbers = itertools.count(1)  # several threads take from it
        if wheels is not None and not any(wheels.glob("*.whl")):
            raise SystemExit(f"no wheels in {wheels}; make them with: python benchmarks/gpu.py --pack {wheels}")
        for source, target in ((wheels, "site"), (wheels and wheels / "peer", "peer")):
            for wheel in sorted(source.glob("*.whl")) if source else []:
                with zipfile.ZipFile(wheel) as packed:
                    packed.extractall(folder / target)
        if wheels is not None:  # PettingZoo imports it for its windows; it would be the 15 MB too many
            (folder / "site" / "pygame.py").touch()
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        ours = [str(SRC), *known, str(folder / "site")]
        peers = [str(folder / "peer"), str(folder / "site"), *(path for path in known if Path(path) != SRC)]
        self.has_peer = (folder / "peer" / "cleanrl").is_dir()
        self._environments = {
            name: {**os.environ, "MUJOCO_GL": "disabled", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            for name, paths in (("ours", ours), ("peer", peers))
        }

    def python(self, *command: str, whose: str = "ours", variables: dict[str, str] | None = None) -> str:
        """What a command prints; where it fails, the end of what it said is raised."""
        environment = self._environments[whose] | (variables or {})
        done = subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise Failed(f"{' '.join(command)[:300]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout + "\n".join(line for line in done.stderr.splitlines() if "CUDA graphs" in line)

    def train(self, case: Case, total: int, *flags: str) -> Path:
        """The folder of a finished run."""
        folder = self.folder / f"run-{next(self._numbers)}"
        alone = (f"--env-id={case.env_id}", f"--run-dir={folder}", f"--total-timesteps={total}")
        said = self.python("-m", f"cleanrl_worker.algorithms.{case.algo}", *alone, *case.our_flags, *flags)
        if "CUDA graphs" in said:
            print(f"{case.name}: {said.strip().splitlines()[-1]}", flush=True)
        return folder

    def peer(self, case: Case, total: int) -> str:
        """What CleanRL's own file of this name prints."""
        script = self.folder / "peer" / "cleanrl" / f"{case.algo}.py"
        given = (f"--env-id={case.env_id}", f"--total-timesteps={total}", f"--warm-up={case.warm_up}", *case.flags)
        return self.python(str(DRIVER), str(script), *given, whose="peer")


class Failed(Exception):
    """A command that did not end well; the others go on."""


Rows, Found = list[dict[str, Any]], dict[str, Any]
