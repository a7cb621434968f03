"""The checks of this machine: packages, drawing, ROMs, shared memory, disk, GPUs, the daemon, ports, W&B.

Each check is cheap and imports nothing heavy: torch, jax and the environments are located, not imported.
"""

import ctypes
import ctypes.util
import importlib.metadata
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from mosaic import catalog
from mosaic.contract import variables
from mosaic.contract.paths import resolve_home
from mosaic.contract.workers import discover_workers

State = Literal["ok", "note", "trouble"]
DAEMON_PORT, WEB_PORT = 50055, 8080
DISTRIBUTION = "mosaic-rl"
# A grid of eight 600x400 pictures in three slots takes 18 MB; a few concurrent runs fit.
SHARED_MEMORY_MB = 128
# One Atari replay memory of DQN and its checkpoints need more.
DISK_GB = 5.0
# Too little for one checkpoint of a replay buffer.
FULL_DISK_MB = 100
MB, GB = 2**20, 2**30
LIVE = ("HANDSHAKE", "READY", "EXECUTING", "PAUSED", "LOST")


@dataclass(frozen=True)
class Finding:
    """One line of the report; `advice` is a command or step, empty if none is needed."""

    name: str
    state: State
    text: str
    advice: str = ""


def examine(home: Path | None = None, ports: tuple[int, int] = (DAEMON_PORT, WEB_PORT)) -> list[Finding]:
    """Return all findings, in the order in which a run would encounter the problems."""
    home = home or resolve_home()
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        python,
        workers,
        families,
        roms,
        gl,
        gpus,
        shared_memory,
        lambda: disk(home),
        lambda: daemon(home),
        lambda: registry(home),
        lambda: listening(*ports),
        lambda: wandb(home),
    )
    return [finding for check in checks for finding in check()]


def document(findings: list[Finding]) -> dict[str, Any]:
    """Return the report as JSON."""
    return {"ok": not any(f.state == "trouble" for f in findings), "checks": [asdict(f) for f in findings]}


def python() -> Iterator[Finding]:
    """Check the interpreter and the packages that every run needs."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", f"{version} at {sys.executable}")
    missing, found = [], []
    for line in importlib.metadata.requires(DISTRIBUTION) or []:
        if "extra ==" in line:
            continue
        name = line.split(";")[0].split("[")[0].split("<")[0].split(">")[0].split("=")[0].strip()
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding("packages", "trouble", f"not installed: {', '.join(missing)}", f"pip install {DISTRIBUTION}")
    else:
        named = [entry for entry in found if entry.split()[0] in ("torch", "gymnasium", "numpy")]
        yield Finding("packages", "ok", f"{len(found)} of {len(found)}: {', '.join(named)} …")


def workers() -> Iterator[Finding]:
    """Check the installed workers."""
    found, problems = discover_workers()
    for problem in problems:
        yield Finding("workers", "trouble", problem, "reinstall or remove that package")
    if found:
        counts = [f"{worker.label} ({len(worker.schema())} algorithms)" for worker in found.values()]
        yield Finding("workers", "ok", ", ".join(counts))
    elif not problems:
        yield Finding("workers", "trouble", "none is installed", f"pip install {DISTRIBUTION}")


def families() -> Iterator[Finding]:
    """Check which environments can be created here."""
    ready: list[str] = []
    lacking: dict[str, list[str]] = {}
    parts = [part for family in catalog.FAMILIES.values() for part in (family, *family.groups)]
    for part in parts:
        if not all(find_spec(package) for package in part.packages):
            lacking.setdefault(part.pip_line, []).append(part.label)
        elif trouble := catalog.library_trouble(part):
            lacking.setdefault(part.system, []).append(f"{part.label} ({trouble})")
        else:
            ready.append(part.label)
    if find_spec("envpool") is None:
        lacking.setdefault(f"pip install '{DISTRIBUTION}[envpool]'", []).append("EnvPool")
    if find_spec("cv2") is None:
        lacking.setdefault(f"pip install '{DISTRIBUTION}[foreign]'", []).append("OpenCV, for Atari files of CleanRL's")
    yield Finding("environments", "ok" if ready else "trouble", f"ready: {', '.join(ready) or 'none'}")
    for line, names in lacking.items():
        yield Finding("environments", "note", f"not installed: {', '.join(names)}", line)


def roms() -> Iterator[Finding]:
    """Check for Atari's games in ale-py's own folder."""
    spec = find_spec("ale_py")
    if spec is None or not spec.submodule_search_locations:
        return
    folder = Path(spec.submodule_search_locations[0]) / "roms"
    count = len(list(folder.glob("*.bin")))
    if count:
        yield Finding("ROMs", "ok", f"{count} Atari games in {folder}")
    else:
        yield Finding("ROMs", "trouble", f"no Atari games in {folder}", "pip install --force-reinstall ale-py")


def gl() -> Iterator[Finding]:
    """Check for EGL, through which MuJoCo and DM Control render without a screen."""
    if not sys.platform.startswith("linux") or os.environ.get(variables.DISPLAY):
        yield Finding("drawing", "ok", "through the screen of this machine")
        return
    backend = os.environ.get(variables.MUJOCO_GL, "egl")
    library = {"egl": "EGL", "osmesa": "OSMesa"}.get(backend)
    if library is None:
        yield Finding("drawing", "note", f"MUJOCO_GL={backend} needs a screen", "export MUJOCO_GL=egl")
        return
    name = ctypes.util.find_library(library)
    try:
        ctypes.CDLL(name or f"lib{library}.so.1")
    except OSError:
        package = {"egl": "libegl1", "osmesa": "libosmesa6"}[backend]
        text = f"lib{library} is missing: MuJoCo trains, but neither the live view nor videos can draw it"
        yield Finding("drawing", "note", text, f"sudo apt-get install -y {package}")
    else:
        yield Finding("drawing", "ok", f"headless, MuJoCo through {library}")


def gpus() -> Iterator[Finding]:
    """Check the GPUs that the driver reports, without importing torch."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        named = [
            f"{pynvml.nvmlDeviceGetName(handle)}, {pynvml.nvmlDeviceGetMemoryInfo(handle).free / GB:.0f} GB free"
            for handle in handles
        ]
    except ImportError:
        named = []
    except (OSError, pynvml.NVMLError):  # no driver, no permission
        named = []
    if named:
        yield Finding("GPU", "ok", "; ".join(named))
        yield from jax_build()
    else:
        yield Finding("GPU", "note", "none found: runs train on the CPU", "nvidia-smi shows what the driver sees")


def jax_build() -> Iterator[Finding]:
    """Check for JAX's CUDA build: the extra `jax` installs the CPU build, which suits most machines."""
    if find_spec("jax") is None or any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return
    advice = "pip install 'jax[cuda13]', or 'jax[cuda12]' for an older driver"
    yield Finding("JAX", "note", "built for the CPU: the JAX algorithms do not see the GPU", advice)


def shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Check the shared memory, which holds live frames and async environments."""
    if not folder.is_dir():
        if sys.platform.startswith("linux"):
            yield Finding("shared memory", "trouble", f"there is no {folder}", f"sudo mount -t tmpfs shm {folder}")
        return
    usage = shutil.disk_usage(folder)
    text = f"{usage.free / MB:,.0f} MB free of {usage.total / MB:,.0f} MB in {folder}"
    if usage.free < SHARED_MEMORY_MB * MB:
        yield Finding("shared memory", "trouble", text, "in Docker: docker run --shm-size=1g …; else: mosaic gc")
    else:
        yield Finding("shared memory", "ok", text)


def disk(home: Path) -> Iterator[Finding]:
    """Check the disk that holds the runs."""
    folder = next((place for place in (home, *home.parents) if place.is_dir()), Path("/"))
    if not os.access(folder, os.W_OK):
        yield Finding("disk", "trouble", f"{folder} is not writable", "export MOSAIC_HOME=/a/folder/of/yours")
        return
    free = shutil.disk_usage(folder).free
    text = f"{free / GB:,.1f} GB free for {home / 'var'}"
    few = free < DISK_GB * GB
    state: State = "trouble" if free < FULL_DISK_MB * MB else "note" if few else "ok"
    yield Finding("disk", state, text, "mosaic gc shows what can be removed" if few else "")


def daemon(home: Path) -> Iterator[Finding]:
    """Check if a daemon runs and answers; gRPC is imported only to contact one."""
    from mosaic.commands.connection import connect
    from mosaic.contract.errors import MosaicError, NoDaemonError

    log = home / "var" / "logs" / "trainer_daemon.log"
    try:
        client = connect()
    except NoDaemonError:
        yield Finding("daemon", "ok", "none runs; `mosaic train` and `mosaic up` start one")
        return
    except MosaicError as error:
        yield Finding("daemon", "trouble", str(error), "cat var/trainer/token on its machine, export MOSAIC_TOKEN=…")
        return
    with client:
        try:
            health = client.health()
        except NoDaemonError as error:
            yield Finding("daemon", "trouble", str(error).partition(";")[0], f"look at {log}, then: mosaic up")
            return
        except MosaicError as error:
            yield Finding("daemon", "trouble", str(error))
            return
    live = sum(count for state, count in health["runs"].items() if state in LIVE)
    text = f"version {health['version']} answers at {health['target']} for {health['home']}, {live} live run(s)"
    yield Finding("daemon", "ok", text)
    for problem in (health["trouble"], *health["problems"]):
        if problem:
            yield Finding("daemon", "trouble", problem, f"look at {health['home']}/var/logs/trainer_daemon.log")


def registry(home: Path) -> Iterator[Finding]:
    """Check the registry of this home, without a daemon, for run folders that it does not list."""
    from mosaic.contract.errors import DamagedError, TrainerError
    from mosaic.trainer.registry.folders import advice, database_file, listed, unlisted

    try:
        known = listed(home)
        folders = unlisted(home, known)
    except DamagedError as error:
        yield Finding("registry", "trouble", str(error).partition(";")[0], "mosaic rebuild")
        return
    except TrainerError as error:
        yield Finding("registry", "note", str(error).partition(";")[0], "try again")
        return
    if folders:
        yield Finding("registry", "note", advice(folders).partition(";")[0], "mosaic rebuild")
    elif database_file(home).exists():
        yield Finding("registry", "ok", f"{len(known):,} run(s) in {database_file(home)}")


def listening(daemon_port: int, web_port: int) -> Iterator[Finding]:
    """Check that the two servers' ports are free, or already theirs."""
    from mosaic.contract.channel import daemon_card, read_card, user_card

    ours = {str(read_card(card).get("target")) for card in (daemon_card(resolve_home()), user_card())}
    for name, port in (("daemon", daemon_port), ("web", web_port)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                if any(target.endswith(f":{port}") for target in ours):
                    yield Finding("ports", "ok", f"{port} ({name}) is in use by your own {name}")
                else:
                    advice = "mosaic up takes another by itself" if name == "daemon" else ""
                    yield Finding("ports", "note", f"{port} ({name}) is in use by another program", advice)
            else:
                yield Finding("ports", "ok", f"{port} ({name}) is free")


def wandb(home: Path) -> Iterator[Finding]:
    """Check if tracking would be online; no server is contacted."""
    if find_spec("wandb") is None:
        yield Finding("W&B", "note", "not installed: runs cannot be tracked", f"pip install '{DISTRIBUTION}[wandb]'")
        return
    if os.environ.get(variables.WANDB_API_KEY):
        yield Finding("W&B", "ok", "a key is in the environment")
    elif variables.WANDB_API_KEY in variables.read_dotenv(home):
        yield Finding("W&B", "ok", f"a key is in {home / '.env'}")
    elif _has_login():
        yield Finding("W&B", "ok", "an earlier `wandb login` is used")
    else:
        yield Finding("W&B", "note", "no key: tracked runs stay offline", "export WANDB_API_KEY=…")


def _has_login() -> bool:
    """Return True if the netrc file holds a wandb login."""
    for name in (".netrc", "_netrc"):
        try:
            if "api.wandb.ai" in (Path.home() / name).read_text(errors="replace"):
                return True
        except OSError:
            continue
    return False
