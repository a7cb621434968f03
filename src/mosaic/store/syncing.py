"""The sync process that uploads a run's files to its store as they grow, and the shell's handle on it.

    python -m mosaic.store.syncing --home DIR --run-id RUN --url URL [--checkpoints DIR | --fetch]

A line on stdin requests a full sync now; at the end of stdin it syncs once more and exits. storage.json in the run's
folder reports its progress. With --fetch it downloads what the run needs to continue here, and exits. Credentials come
through the environment only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mosaic.contract.errors import ConfigError, MosaicError, StoreError, storage_error
from mosaic.contract.files import STORAGE, read_note
from mosaic.contract.paths import RunPaths, write_atomic
from mosaic.contract.stopping import STOP_SIGNALS
from mosaic.store.storage import OFF, AwayError, Storage
from mosaic.store.stored import fetch_newest
from mosaic.store.upload import STATUS, TakenOver, Upload

LOG = "storage.log"
# Logs and curves are uploaded at this interval; a checkpoint as soon as it is seen.
SYNC_SECONDS, LOOK_SECONDS = 15.0, 1.0
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
# At the end of a run: while bytes move, up to a limit; a run that was stopped has less time.
FLUSH_SECONDS, STOPPED_FLUSH_SECONDS, SILENT_SECONDS = 600.0, 60.0, 30.0
# After the flush, only the last event and the manifest remain; if the flush failed, they rarely succeed.
CLOSE_SECONDS, HOPELESS_SECONDS = 20.0, 1.0
# A process whose shell was killed continues to upload for this long.
LINGER_SECONDS = 120.0
# A run that continues elsewhere waits this long for a store that does not answer.
FETCH_SECONDS = 300.0
_BEAT_SECONDS = 30.0


def storage_of(extras: Mapping[str, Any]) -> str:
    """Return the storage URL of a run's config; "" if unset or off."""
    url = str(extras.get("storage_url") or "").strip()
    return "" if url.lower() == OFF else url


def fetch_stored(paths: RunPaths, url: str, environment: Mapping[str, str]) -> None:
    """Fetch what a run needs to continue here from its store, with the credentials in `environment`.

    Raise StoreError if the store has not answered for FETCH_SECONDS: starting over would lose training.
    """
    command = [sys.executable, "-P", "-m", "mosaic.store.syncing", "--home", str(paths.home)]
    command += ["--run-id", paths.run_id, "--url", url, "--fetch"]
    done = subprocess.run(command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"{url} cannot be read (exit code {done.returncode})"]
        raise StoreError(said[-1])
    sys.stderr.write(done.stderr)


class Syncer:
    """The shell's handle on the sync process; its failures never block or fail a run."""

    def __init__(self, paths: RunPaths, url: str, environment: Mapping[str, str], checkpoints: Path) -> None:
        self._status, self._url, self._asked, self._told = paths.folder / STATUS, url, 0, ""
        self._gave_up = False
        self._status.unlink(missing_ok=True)
        # -P: a json.py in the run's start folder must not be imported.
        command = [sys.executable, "-P", "-m", "mosaic.store.syncing", "--home", str(paths.home)]
        command += ["--run-id", paths.run_id, "--url", url, "--checkpoints", str(checkpoints)]
        try:
            with (paths.logs / LOG).open("ab") as log:
                self._process = subprocess.Popen(
                    command, env=dict(environment), stdin=subprocess.PIPE, stdout=log, stderr=log, process_group=0
                )
        except OSError as error:
            raise storage_error(paths.logs / LOG, error) from None

    def poll(self) -> str | None:
        """Return a line about an error that was not yet reported, else None."""
        status = self.status()
        trouble = str(status.get("error") or "")
        if not trouble and self._process.poll():
            trouble = f"the copy in the store has stopped (exit code {self._process.returncode}); see logs/{LOG}"
        if not trouble or trouble == self._told:
            return None
        self._told = trouble
        return f"{trouble}; training goes on, and so do the tries" if status.get("again") else trouble

    def flush(self, seconds: float, hurry: Callable[[], bool], beat: Callable[[], None]) -> str | None:
        """Wait until everything is stored, `seconds` at most or until `hurry`; return the line to report on failure."""
        self._asked, self._gave_up = self._asked + 1, False
        if not self._say(b"flush\n"):
            return self.poll()
        now = time.monotonic()
        until, moved_at, beat_at, moved = now + seconds, now, now + _BEAT_SECONDS, -1
        while self._process.poll() is None and not hurry():
            status, now = self.status(), time.monotonic()
            if status.get("flushed", 0) >= self._asked:
                return self.poll()
            if status.get("moved_bytes", 0) != moved:
                moved, moved_at = status.get("moved_bytes", 0), now
            if now > until or now - moved_at > SILENT_SECONDS:
                break
            if now > beat_at:
                beat_at += _BEAT_SECONDS
                beat()
            time.sleep(0.1)
        self._gave_up = True
        return self._epitaph()

    def close(self, seconds: float = CLOSE_SECONDS) -> str | None:
        """Let the process store the last event and exit; return the line for stderr on failure."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass  # it has exited already; its exit code has the reason
        try:
            code = self._process.wait(HOPELESS_SECONDS if self._gave_up else seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            code = 1
        return self._epitaph() if code and not self._gave_up else None

    def kill(self) -> None:
        """End the process now; a partial upload stays invisible to readers."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def status(self) -> dict[str, Any]:
        """Return the last status that the process reported."""
        return read_note(self._status, STORAGE)

    def _say(self, line: bytes) -> bool:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            return True
        except OSError:
            return False

    def _epitaph(self) -> str:
        status = self.status()
        left = f"{int(status['left_bytes']):,} bytes" if status.get("left_bytes") else "the last changes"
        why = f" ({status['error']})" if status.get("error") else ""
        return f"{left} could not be stored in {self._url} in time{why}; they are only here"


def main(argv: list[str] | None = None) -> int:
    """Sync the run until stdin ends; return 1 if not everything could be stored."""
    parser = argparse.ArgumentParser(prog="python -m mosaic.store.syncing", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--fetch", action="store_true")
    flags = parser.parse_args(argv)
    paths = RunPaths(flags.run_id, flags.home)
    if flags.fetch:
        return _fetch(paths, flags.url)
    for number in STOP_SIGNALS:  # sent to the whole process group; the shell decides, by closing stdin
        signal.signal(number, signal.SIG_IGN)
    return _Sync(paths, flags.url, flags.checkpoints or paths.checkpoints).to_end()


def _fetch(paths: RunPaths, url: str) -> int:
    until, retry = time.monotonic() + FETCH_SECONDS, FIRST_RETRY
    while True:
        try:
            fetch_newest(paths, url)
            return 0
        except MosaicError as error:
            if not isinstance(error, AwayError) or time.monotonic() > until:
                print(" ".join(str(error).split()), file=sys.stderr)
                return 1
        time.sleep(retry)
        retry = min(2 * retry, LONGEST_RETRY)


class _Sync:
    """Uploads until stdin ends; retries a store that does not answer, with growing delays."""

    def __init__(self, paths: RunPaths, url: str, checkpoints: Path) -> None:
        self._paths, self._url, self._checkpoints = paths, url, checkpoints
        self._upload: Upload | None = None
        self._asked, self._ended_at = 0, 0.0
        self._woken = threading.Event()
        self._status: dict[str, Any] = {"url": url, "moved_bytes": 0, "flushed": 0, "error": None, "again": False}
        self._shown_at = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def to_end(self) -> int:
        retry = FIRST_RETRY
        while True:
            asked, ended = self._asked, bool(self._ended_at)
            try:
                damaged = self._sync(last=ended)
            except (TakenOver, ConfigError) as error:
                self._show(error=str(error), again=False)
                return 1
            except (MosaicError, OSError) as error:
                left = self._upload.left_bytes() if self._upload is not None else 0
                self._show(error=" ".join(str(error).split()), again=True, left_bytes=left)
                if self._ended_at and time.monotonic() - self._ended_at > LINGER_SECONDS:
                    return 1
                self._wait(retry, for_checkpoints=False)
                retry = min(2 * retry, LONGEST_RETRY)
                continue
            retry = FIRST_RETRY
            error_text = "; ".join(damaged) or None
            self._show(error=error_text, again=False, flushed=asked, stored_at=time.time(), left_bytes=0)
            if ended:
                return 1 if damaged else 0
            self._wait(SYNC_SECONDS, for_checkpoints=True)

    def _sync(self, last: bool) -> list[str]:
        if self._upload is None:
            self._upload = Upload(self._paths, Storage(self._url), self._checkpoints, self._moved)
        return self._upload.sync(last=last)

    def _wait(self, seconds: float, *, for_checkpoints: bool) -> None:
        """Wait until the time has come, a sync is requested, or a new checkpoint appears."""
        until, known = time.monotonic() + seconds, self._saved()
        while not self._woken.is_set() and (left := until - time.monotonic()) > 0:
            self._woken.wait(min(left, LOOK_SECONDS))
            if for_checkpoints and self._saved() - known:
                return
        self._woken.clear()

    def _saved(self) -> set[tuple[str, int]]:
        """Return the local checkpoints, without reading them."""
        found = set()
        for path in (*self._checkpoints.glob("*/state.json"), *self._checkpoints.glob("*/*/state.json")):
            with contextlib.suppress(OSError):
                found.add((str(path), path.stat().st_mtime_ns))
        return found

    def _listen(self) -> None:
        for _ in sys.stdin.buffer:
            self._asked += 1
            self._woken.set()
        self._ended_at = time.monotonic()
        self._woken.set()

    def _moved(self, count: int) -> None:
        self._status["moved_bytes"] += count
        if time.monotonic() - self._shown_at > 1.0:
            assert self._upload is not None
            self._show(left_bytes=self._upload.left_bytes())

    def _show(self, **changed: Any) -> None:
        self._status |= changed
        self._shown_at = time.monotonic()
        write_atomic(self._paths.folder / STATUS, json.dumps(self._status) + "\n")


if __name__ == "__main__":
    sys.exit(main())
