"""The name of every environment variable that is read or set, one line of doc each, and the `.env` file's defaults."""

from __future__ import annotations

import re
from pathlib import Path

from mosaic.contract.errors import ConfigError

DOCS: dict[str, str] = {}
"""Name -> one line of doc, filled by the constants below."""


def _variable(name: str, doc: str) -> str:
    DOCS[name] = doc
    return name


MOSAIC_HOME = _variable("MOSAIC_HOME", "folder that holds var/ (default: the current directory)")
MOSAIC_CONFIG_FILE = _variable("MOSAIC_CONFIG_FILE", "flat base config that a script starts its phases from")
MOSAIC_RUN_ID = _variable("MOSAIC_RUN_ID", "run id for a config that names none; set for the algorithm")
MOSAIC_CHECKPOINT_DIR = _variable("MOSAIC_CHECKPOINT_DIR", "where a script keeps its checkpoints")
MOSAIC_SCRIPT = _variable("MOSAIC_SCRIPT", "1 inside a script: a phase's start and end are `phase` events")
MOSAIC_PHASES = _variable("MOSAIC_PHASES", "the number of phases that a script declares (@phases)")
MOSAIC_FIRST_STEP = _variable("MOSAIC_FIRST_STEP", "step at which a phase's curve goes on from the one before it")
MOSAIC_SHELL_PID = _variable(
    "MOSAIC_SHELL_PID",
    "pid of the shell that tails metrics.jsonl: its child writes no TensorBoard files and starts no W&B itself",
)
MOSAIC_ATTEMPT = _variable("MOSAIC_ATTEMPT", "nonce of one start of a run; the daemon finds its processes again by it")
MOSAIC_ORDER = _variable("MOSAIC_ORDER", "what a cluster's node is to run; set by the daemon for its relay")
MOSAIC_SCRATCH = _variable("MOSAIC_SCRATCH", "where a node keeps runs whose home it does not see (default: its /tmp)")
RAY_AUTH_TOKEN = _variable("RAY_AUTH_TOKEN", "token for a Ray cluster that asks for one")
MOSAIC_EXECUTOR = _variable("MOSAIC_EXECUTOR", "where runs run that do not say: local, ray or slurm (the daemon's)")
MOSAIC_RAY_ADDRESS = _variable("MOSAIC_RAY_ADDRESS", "URL of a Ray cluster's dashboard, for the daemon")
MOSAIC_ADVERTISE = _variable("MOSAIC_ADVERTISE", "HOST:PORT by which a cluster's nodes reach the daemon")
MOSAIC_NODE_SCRATCH = _variable(
    "MOSAIC_NODE_SCRATCH", "folder of the nodes' own for runs, even where they see the home"
)
MOSAIC_NODE_PYTHON = _variable(
    "MOSAIC_NODE_PYTHON", "the interpreter on a cluster's nodes (default: the daemon's path)"
)
MOSAIC_STEP_LOG = _variable("MOSAIC_STEP_LOG", "where the algorithm writes its steps (extras.telemetry steps)")
MOSAIC_TARGET = _variable("MOSAIC_TARGET", "HOST:PORT of the daemon that clients talk to")
MOSAIC_TOKEN = _variable("MOSAIC_TOKEN", "the daemon's token for clients that cannot read its file")
MOSAIC_STORAGE_URL = _variable(
    "MOSAIC_STORAGE_URL", "where runs keep a copy of their files (file://, s3://, …) unless extras.storage_url says"
)

MOSAIC_CA = _variable("MOSAIC_CA", "certificate file by which clients know a daemon that listens with TLS")
XDG_STATE_HOME = _variable("XDG_STATE_HOME", "the user's state folder (default: ~/.local/state)")

CLEANRL_AGENT_ID = _variable("CLEANRL_AGENT_ID", "agent id, set for the algorithm")
CLEANRL_NUM_ENVS = _variable("CLEANRL_NUM_ENVS", "number of environments, set for the algorithm; num_envs in a script")
CLEANRL_FASTLANE_INTERVAL_MS = _variable("CLEANRL_FASTLANE_INTERVAL_MS", "least milliseconds between two live frames")
CLEANRL_FASTLANE_MAX_DIM = _variable("CLEANRL_FASTLANE_MAX_DIM", "longest side of a live frame, in pixels")
CLEANRL_FASTLANE_BUDGET = _variable("CLEANRL_FASTLANE_BUDGET", "share of the training thread that rendering may take")

GYM_GUI_FASTLANE_ENABLED = _variable("GYM_GUI_FASTLANE_ENABLED", "1 turns the live view on")
GYM_GUI_FASTLANE_VIDEO_MODE = _variable("GYM_GUI_FASTLANE_VIDEO_MODE", "what the live view shows: single, grid, off")
GYM_GUI_FASTLANE_GRID_LIMIT = _variable("GYM_GUI_FASTLANE_GRID_LIMIT", "most environments in a live grid")
GYM_GUI_FASTLANE_SLOT = _variable("GYM_GUI_FASTLANE_SLOT", "which environment the single live view shows")

TRACK_TENSORBOARD = _variable("TRACK_TENSORBOARD", "1 writes TensorBoard files")
TRACK_WANDB = _variable("TRACK_WANDB", "1 tracks with Weights & Biases")
WANDB_API_KEY = _variable("WANDB_API_KEY", "W&B key; travels only in the environment")
WANDB_EMAIL = _variable("WANDB_EMAIL", "W&B account's e-mail")
WANDB_MODE = _variable("WANDB_MODE", "online or offline; offline where there is no key")
HTTP_PROXY = _variable("HTTP_PROXY", "proxy for W&B's plain requests (extras.wandb_http_proxy)")
HTTPS_PROXY = _variable("HTTPS_PROXY", "proxy for W&B's encrypted requests (extras.wandb_https_proxy)")
NO_PROXY = _variable("NO_PROXY", "hosts that are reached without the proxy; loopback is always among them")

TMPDIR = _variable("TMPDIR", "folder for temporary files; a script's own, so that two never meet")
CUDA_VISIBLE_DEVICES = _variable("CUDA_VISIBLE_DEVICES", "GPUs that a run sees; set for runs that asked for some")
CUDA_DEVICE_ORDER = _variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID for such runs: GPUs are numbered as nvidia-smi does")
MUJOCO_GL = _variable("MUJOCO_GL", "how MuJoCo renders; headless and unset: egl, or disabled without EGL")
DISPLAY = _variable("DISPLAY", "X display; none means headless")
PYTHONPATH = _variable("PYTHONPATH", "folders of your own modules; the one of `mosaic train` goes with its run")
JAX_COMPILATION_CACHE_DIR = _variable(
    "JAX_COMPILATION_CACHE_DIR", "where JAX keeps what it compiled; var/cache/jax in the home when unset"
)
JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = _variable(
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "what took less to compile is not kept; 0.1 when unset"
)
PYTHONUNBUFFERED = _variable("PYTHONUNBUFFERED", "1, so that an algorithm's prints reach its log at once")
SDL_NO_SIGNAL_HANDLERS = _variable("SDL_NO_SIGNAL_HANDLERS", "1, or SDL eats SIGTERM once an environment has rendered")
OMP_NUM_THREADS = _variable("OMP_NUM_THREADS", "threads of OpenMP in the algorithm")
OMP_WAIT_POLICY = _variable("OMP_WAIT_POLICY", "passive where you say nothing: idle threads sleep and leave the cores")
OPENBLAS_NUM_THREADS = _variable("OPENBLAS_NUM_THREADS", "threads of OpenBLAS in the algorithm")
MKL_NUM_THREADS = _variable("MKL_NUM_THREADS", "threads of MKL in the algorithm")


def read_dotenv(home: Path) -> dict[str, str]:
    """Return the `.env` file's variables; {} if it is missing (a folder of that name is a virtual environment)."""
    path = Path(home) / ".env"
    try:
        if not path.is_file():
            return {}
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        entry = _ENTRY.match(text, position)
        if entry is None:
            line = text.count("\n", 0, position) + 1
            # The line itself is not quoted: it may hold a key.
            raise ConfigError(f"{path}, line {line}: not KEY=VALUE (is a quote left open?)")
        if entry["name"] and entry["value"] is not None:
            found[entry["name"]] = _unquoted(entry["value"])
        position = entry.end()
    return found


_ENTRY = re.compile(
    r"""[^\S\n]*
    (?:(?:export[^\S\n]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)[^\S\n]*
       (?:=(?P<value>[^\S\n]*(?:"(?:[^"\\]|\\.)*"|'[^']*')|(?![^\S\n]*["'])(?:(?!\s\#)[^\n])*))?)?
    [^\S\n]*(?:\#[^\n]*)?(?:\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def _unquoted(value: str) -> str:
    value = value.strip()
    if value.startswith('"'):
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), value[1:-1], flags=re.DOTALL)
    if value.startswith("'"):
        return value[1:-1]
    return value
