"""The shell's part of the live view: its settings, a ring that reports a disabled view, and cleanup."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, nearest, shown

if TYPE_CHECKING:
    from mosaic.contract.paths import RunPaths

MODES = ("single", "grid", "off")
OFF = "the live view is off (fastlane_video_mode off)"
WAITING = "no environment has been "  # prefix of the reasons that end with the first step
SILENT_SECONDS = 30.0  # a script may load for a long time before it makes its environments
# A waiting sh needs 1 MB. It reads a line when the worker ends on its own. EOF means a killed worker: a Python then
# removes the rings, after the algorithm's process has died as well.
_SWEEP = "import sys; from mosaic.contract.frames import sweep; sweep(sys.argv[1])"
_REMOVER = 'read -r line || { sleep 2; exec "$0" -P -c "$1" "$2"; }'


def fastlane_variables(extras: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the algorithm's FastLane variables: extras override the environment, which overrides the defaults."""
    mode = _one_of(extras, "fastlane_video_mode", "video_mode") or _inherited_mode(inherited)
    given = {
        variables.GYM_GUI_FASTLANE_ENABLED: int(mode != "off"),
        variables.GYM_GUI_FASTLANE_VIDEO_MODE: mode,
        variables.GYM_GUI_FASTLANE_GRID_LIMIT: _one_of(extras, "fastlane_grid_limit", "grid_limit"),
        variables.GYM_GUI_FASTLANE_SLOT: extras.get("fastlane_slot"),
    }
    found = {name: str(value) for name, value in given.items() if value not in (None, "")}
    for name, (least, most) in _NUMBERS.items():
        _check_number(name, found.get(name, inherited.get(name)), least, most)
    return found


def is_on(environment: Mapping[str, str]) -> bool:
    """Return True if these variables enable the live view."""
    return environment.get(variables.GYM_GUI_FASTLANE_ENABLED) == "1"


@contextlib.contextmanager
def keeping_clean(paths: RunPaths, environment: Mapping[str, str]) -> Iterator[None]:
    """Report a disabled live view to viewers while inside, and remove the run's rings afterwards."""
    from mosaic.contract.frames import FastLaneWriter, RingError, sweep

    sweep()  # rings of all runs whose shell was killed, if no daemon has removed them
    writer: FastLaneWriter | None = None
    if not is_on(environment):
        with contextlib.suppress(RingError, OSError):  # a full /dev/shm: the warning event reports it anyway
            writer = FastLaneWriter.create(paths.run_id, paths.fastlane)
            writer.tell(reason=OFF)
    remover = _start_remover(paths.run_id)
    try:
        yield
    finally:
        if writer is not None:
            writer.close()
        sweep(paths.run_id)  # rings that a killed algorithm could not remove itself
        if remover is not None:
            with contextlib.suppress(OSError):  # it was killed
                remover.communicate(b"\n")


def _start_remover(run_id: str) -> subprocess.Popen[bytes] | None:
    """Start a process that removes this run's rings if the worker is killed without a daemon to do so."""
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _REMOVER, sys.executable, _SWEEP, run_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals to the worker's group or its terminal do not reach this process
        )
    except OSError:  # no sh, or the process limit: the next run or daemon removes them
        return None


class Silence:
    """A one-time warning, after a timeout, that a running script has not made an environment to watch.

    A script that ends earlier reports it itself, in its notes (`sitecustomize`).
    """

    def __init__(self, paths: RunPaths, warn: Callable[[str], None], seconds: float = SILENT_SECONDS) -> None:
        self._record, self._warn = paths.fastlane, warn
        self._due = time.monotonic() + seconds

    def poll(self) -> None:
        """Check once the timeout has passed."""
        if time.monotonic() < self._due:
            return
        self._due = math.inf
        from mosaic.contract.frames import FastLaneReader, RingError

        with contextlib.suppress(RingError, OSError), FastLaneReader.open(self._record) as reader:
            reason = reader.status().reason
            if reason.startswith(WAITING):
                self._warn(f"no live view: {reason}")


# Numeric variables with their minimum and maximum.
_NUMBERS = {
    variables.GYM_GUI_FASTLANE_SLOT: (0, 1_000_000),
    variables.GYM_GUI_FASTLANE_GRID_LIMIT: (0, 256),  # 0 is the default; more tiles would be a few pixels each
    variables.CLEANRL_FASTLANE_INTERVAL_MS: (0, 86_400_000),
    variables.CLEANRL_FASTLANE_MAX_DIM: (16, 8192),
    variables.CLEANRL_FASTLANE_BUDGET: (0, 1),
}


def _check_number(name: str, value: str | None, least: int, most: int) -> None:
    try:
        fits = value in (None, "") or least <= float(str(value)) <= most
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(f"{name}={value!r}: a number from {least} to {most} is needed")


def _one_of(extras: Mapping[str, Any], name: str, short: str) -> Any:
    long_value, short_value = (None if extras.get(key) == "" else extras.get(key) for key in (name, short))
    if None not in (long_value, short_value) and long_value != short_value:
        raise ConfigError(f"extras.{name} is {shown(long_value)}, but extras.{short} is {shown(short_value)}; give one")
    return short_value if long_value is None else long_value


def _inherited_mode(inherited: Mapping[str, str]) -> str:
    mode = inherited.get(variables.GYM_GUI_FASTLANE_VIDEO_MODE) or "single"
    if mode not in MODES:
        name = variables.GYM_GUI_FASTLANE_VIDEO_MODE
        raise ConfigError(f"{name}={mode!r} is none of {', '.join(MODES)}{nearest(mode, MODES)}")
    enabled = inherited.get(variables.GYM_GUI_FASTLANE_ENABLED, "").strip().lower()
    if enabled not in ("", "0", "1"):
        raise ConfigError(f"{variables.GYM_GUI_FASTLANE_ENABLED}={enabled!r}: 0 or 1 is needed")
    return "off" if enabled == "0" else mode
