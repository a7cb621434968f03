"""The reason for an algorithm's end: its signal or exit code, and a hint for known causes."""

import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

REQUEUE = 75  # EX_TEMPFAIL: after a stop request, the algorithm saved its state, if any, and needs a restart
_ALMOST_FULL_BYTES = 1024 * 1024

# Searched in "died of <signal>" and the last lines of stderr; the first match counts.
KNOWN_CAUSES: tuple[tuple[str, str], ...] = (
    (r"No space left on device|Disk quota exceeded", "the disk is full: free space or point MOSAIC_HOME elsewhere"),
    (
        r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|torch\.OutOfMemoryError|RESOURCE_EXHAUSTED",
        "the GPU's memory is full: lower num_envs, batch_size or buffer_size, or train with cuda=false",
    ),
    (
        r"died of SIGKILL|MemoryError|Cannot allocate memory|Unable to allocate",
        "most likely the machine's memory is full: lower num_envs or buffer_size, or run fewer trainings at once",
    ),
    (
        r"No module named '?(?P<name>[\w.]+)",
        "install the missing package '{name}' in the interpreter that trains (extras.python for a script of your own)",
    ),
    (
        r"\bROMs?\b|Unable to find game",
        "the Atari ROMs are missing: pip install 'mosaic-rl[atari]' (ale-py brings them)",
    ),
    (
        r"\bEGL|GLFW|OpenGL|libGL|mujoco\.FatalError|gladLoadGL",
        "drawing failed: install libegl1 and set MUJOCO_GL=egl, or train with capture_video=false",
    ),
    (
        r"SIGBUS|/dev/shm|shared memory",
        "shared memory is too small: enlarge /dev/shm (docker run --shm-size=2g) or use vectorization=sync",
    ),
    (
        r"(?:Expected parameter (?:logits|loc|probs)|invalid values)[\s\S]*nan|NaN",
        "the policy's outputs became NaN: lower learning_rate, or check rewards and observations for NaN",
    ),
    (
        r"Environment `?.*`? (?:doesn't exist|not found)|NameNotFound|VersionNotFound|NamespaceNotFound",
        "Gymnasium does not know the environment: check env_id, or name its module as 'module:Id'",
    ),
    (
        r"unexpected keyword argument 'render_mode'|rgb_array",
        "the environment cannot draw its pictures (render_mode='rgb_array'): train with capture_video=false",
    ),
    (r"device-side assert|CUDA error", "a CUDA kernel failed: run again with CUDA_LAUNCH_BLOCKING=1 to see which one"),
    (r"Too many open files", "too many files are open: raise the limit (ulimit -n 4096) or lower num_envs"),
    (
        r"died of SIG(?:SEGV|ABRT|ILL)",
        "native code crashed: try env_backend=gymnasium, cuda=false or capture_video=false",
    ),
)


def describe_end(returncode: int, lines: list[str], folder: Path) -> dict[str, Any]:
    """Return the payload of `run_failed` for an exit code and the last lines of stderr."""
    name = signal_name(returncode)
    text = "\n".join([f"died of {name}" if name else "", *lines])
    hint = "asked to be started again; it goes on from its checkpoint" if returncode == REQUEUE else _hint(text)
    if hint is None and _free_bytes(folder) < _ALMOST_FULL_BYTES:
        hint = KNOWN_CAUSES[0][1]
    return {"exit_code": None if name else returncode, "signal": name, "stderr_tail": lines, "hint": hint}


def signal_name(returncode: int) -> str | None:
    """Return the name of the signal that killed a process, None if it exited by itself."""
    if returncode >= 0:
        return None
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def _hint(text: str) -> str | None:
    for pattern, advice in KNOWN_CAUSES:
        if match := re.search(pattern, text):
            return advice.format(**match.groupdict())
    return None


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return sys.maxsize
