"""A window of a run trained again, by the worker, in a temporary home that is deleted afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from mosaic.commands.inspect.windows import RunRecord, Window
from mosaic.contract import recipes, variables
from mosaic.contract.checkpoints import REPLAY, adopt_segments
from mosaic.contract.errors import ConfigError
from mosaic.contract.event_reader import decoded
from mosaic.contract.events import Event, from_line
from mosaic.contract.fields import EVENT_BYTES, EXTRAS, ROW_BYTES
from mosaic.contract.kinds import FieldError
from mosaic.contract.lines import read_lines
from mosaic.contract.paths import RunPaths
from mosaic.contract.provenance import newest, read_provenance

POLL_SECONDS = 0.2
STOP_SECONDS = 30.0
RUN_ID = "verify"
# Settings of this user's other runs: the recorded run's recipe does not include them.
_NOT_INHERITED = ("MOSAIC_", "CLEANRL_", "GYM_GUI_", "TRACK_", "WANDB_")
# The submission's variables that the daemon stored, and those that change how it computes.
_OF_THE_SUBMISSION = (
    *(variables.PYTHONPATH, variables.MUJOCO_GL, variables.OMP_NUM_THREADS, variables.OMP_WAIT_POLICY),
    *(variables.OPENBLAS_NUM_THREADS, variables.MKL_NUM_THREADS),
)
# Of the recorded config's extras, those of the worker's own that change what is computed.
_OF_THE_RECIPE = ("algo_params", "curriculum_schedule", "curriculum")
_QUIET = {"fastlane_video_mode": "off", "grace_seconds": 0.1}
_NO_OUTPUT = {"upload_model": False, "capture_video": False}


class Rerun:
    """A worker that trains a window again; `check` and `finish` follow it."""

    def __init__(self, home: Path, process: subprocess.Popen[bytes], window: Window) -> None:
        self.paths = RunPaths(RUN_ID, home)
        self._process, self._window = process, window
        self._offset = self._rows_offset = 0
        self.step = window.start
        """the last step that it logged"""
        self._saved: RunRecord | None = None

    def provenance(self) -> dict[str, Any] | None:
        """Return the provenance entry of the worker, None until it is written."""
        try:
            document = read_provenance(self.paths)
        except FieldError:
            return None
        return None if document is None else newest(document)

    def poll(self) -> RunRecord | None:
        """Return the checkpoint at the window's end once it is saved; ConfigError if the run cannot reach it."""
        if self._saved is not None:
            time.sleep(POLL_SECONDS)
            return self._saved
        ended = self._process.poll() is not None
        for event in self._events():
            payload = event.payload
            if event.event == "resumed" and not payload.get("exact"):
                changed = ", ".join(f"{name} {pair[0]} → {pair[1]}" for name, pair in payload["changed"].items())
                raise ConfigError(f"the window cannot be run again here: its recipe would differ: {changed}")
            if event.event == "run_failed":
                lines = [line for line in payload.get("stderr_tail") or () if line.strip()]
                why = payload.get("error") or (lines[-1] if lines else payload.get("signal")) or "no reason given"
                raise ConfigError(f"the window cannot be run again here: {' '.join(str(why).split())}")
            if event.event == "checkpoint" and payload["step"] >= self._window.end.step:
                exact, device = bool(payload.get("exact")), str(payload.get("device") or "")
                self._saved = RunRecord(payload["step"], payload["weights"], payload["metrics_bytes"], exact, device)
                return self._saved
        if ended:
            raise ConfigError(f"the window cannot be run again here: {self._last_words()}")
        self._follow_rows()
        time.sleep(POLL_SECONDS)
        return None

    def _events(self) -> Iterator[Event]:
        found = read_lines(self.paths.events, self._offset, EVENT_BYTES)
        self._offset = found.end
        yield from (event for line in found.lines if (event := decoded(line)) is not None)

    def _follow_rows(self) -> None:
        found = read_lines(self.paths.metrics, self._rows_offset, ROW_BYTES)
        self._rows_offset = found.end
        if found.lines:
            self.step = max(self.step, int(from_line(found.lines[-1]).get("step") or 0))

    def _last_words(self) -> str:
        text = (self.paths.home / "worker.stderr.log").read_text(errors="replace").strip()
        words = text.rpartition("\n")[2].removeprefix("cleanrl-worker: ")
        return words or f"the worker ended with code {self._process.returncode} before step {self._window.end.step:,}"


@contextlib.contextmanager
def rerunning(
    window: Window, config: Mapping[str, Any], command: Sequence[str], submitted: Mapping[str, str]
) -> Iterator[Rerun]:
    """Start the worker; at the end, also by SIGTERM or SIGHUP, remove its processes and files.

    `submitted` are the variables that came with the run's submission.
    """
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    home = Path(tempfile.mkdtemp(prefix="mosaic-verify-"))
    process = None
    try:
        document = dict(config)
        if window.checkpoint is not None:
            source = _copied(window, home / "source")
            document["extras"] = {**document["extras"], "checkpoint_path": str(source)}
        file = home / "config.json"
        file.write_text(json.dumps(document))
        given = {name: submitted[name] for name in _OF_THE_SUBMISSION if name in submitted}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        with (home / "worker.stderr.log").open("wb") as errors:
            process = subprocess.Popen(
                [*command, "--config", str(file)],
                env={**kept, **given, variables.MOSAIC_HOME: str(home)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        yield Rerun(home, process, window)
    finally:
        if process is not None:
            _stop(process)
        shutil.rmtree(home, ignore_errors=True)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def config_from_checkpoint(window: Window) -> dict[str, Any]:
    """Return the config that continues a kept checkpoint as the run did: with its arguments and what it changed."""
    changed = {name: value for name, value in window.changed.items() if name in (window.state.get("args") or {})}
    top: dict[str, Any] = {name: changed.pop(name) for name in ("env_id", "seed", "total_timesteps") if name in changed}
    params = {name: value for name, value in changed.items() if name not in recipes.PLACES} | _NO_OUTPUT
    return {"run_id": RUN_ID, **top, "extras": {"mode": "resume_training", "algo_params": params, **_QUIET}}


def config_from_zero(attempt: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Return the config that trains a recorded run from step 0."""
    config = attempt.get("config") or {}
    if (config.get("extras") or {}).get("mode", "train") != "train":
        raise ConfigError(f"run {run_id} cannot be verified from step 0: it began from a checkpoint or policy file")
    extras = {
        name: value
        for name, value in (config.get("extras") or {}).items()
        if name not in EXTRAS or name in _OF_THE_RECIPE
    }
    given = [flag.partition("=")[2] for flag in attempt.get("command") or () if flag.startswith("--num-envs=")]
    several = {"num_envs": int(given[-1])} if given and given[-1].isdecimal() else {}  # CLEANRL_NUM_ENVS may set it
    extras["algo_params"] = {**(extras.get("algo_params") or {}), **several, **_NO_OUTPUT}
    names = ("algo", "env_id", "seed", "total_timesteps")
    return {"run_id": RUN_ID, **{name: config.get(name) for name in names}, "extras": extras | _QUIET}


def _copied(window: Window, folder: Path) -> Path:
    """Copy the checkpoint, which a live run might delete; link its replay memory if possible."""
    path = window.checkpoint
    assert path is not None
    checkpoints = folder / "checkpoints"
    try:
        shutil.copytree(path, checkpoints / path.name)
        segments = (window.state.get(REPLAY) or {}).get("segments") or []
        adopt_segments(path.parent / REPLAY, checkpoints / REPLAY, segments)
    except OSError as error:
        raise ConfigError(f"checkpoint {path} cannot be copied: {error.strerror}") from None
    (folder / "metrics.jsonl").touch()  # the copy starts without its curve
    return checkpoints / path.name


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the worker, which ends the algorithm within its short grace period."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # the algorithm dies with it
        process.wait()
