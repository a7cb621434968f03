"""Weights & Biases tracking: a separate process that follows a run's metrics.jsonl, and the shell's handle on it.

    python -m cleanrl_worker.telemetry.wandb --run-dir DIR --project P [--entity E] [--name N] [--config-file F]
        [--offset N]

It ends at SIGTERM or at the end of its stdin (which may hold the algorithm's exit code), after the last row. The key
comes only from the environment; without a key or network, it tracks offline and reports so in wandb.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cleanrl_worker.telemetry.wandb_keys import DEFAULT_SERVER, find_key, is_logged_in
from mosaic.contract import variables
from mosaic.contract.errors import EventError, storage_error
from mosaic.contract.files import TRACKING, read_note
from mosaic.contract.metrics import Tail
from mosaic.contract.paths import resolve_home, write_atomic

if TYPE_CHECKING:
    from mosaic.contract.paths import RunPaths

STATUS, LOG, SETTINGS = "wandb.json", "wandb.log", "wandb_config.json"
POLL_SECONDS = 1.0
# A tracker silent for this long hangs: its own network timeouts are shorter.
HANG_SECONDS = 60.0
# Timeout for the upload of a finished run's last rows; the tracker is then killed.
FINISH_SECONDS = 20.0
CONNECT_SECONDS = 5.0
# Well below FINISH_SECONDS: if a server accepts and never responds, a short run must still have time to track offline.
INIT_SECONDS = 10.0
# Upload timeout of a tracker whose shell was killed; it then ends itself, hung or not.
LINGER_SECONDS = 120.0


class Tracker:
    """The shell's handle on the process; it never blocks or fails a run."""

    def __init__(
        self,
        paths: RunPaths,
        environment: Mapping[str, str],
        *,
        project: str,
        entity: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        self._status = paths.wandb_status
        self._hang_seconds = hang_seconds
        self._said_offline = self._said_trouble = False
        self._seen = (-1.0, time.monotonic())
        self._status.unlink(missing_ok=True)
        settings = paths.logs / SETTINGS
        write_atomic(settings, json.dumps(dict(config or {}), indent=2, default=str) + "\n")
        offset = paths.metrics.stat().st_size if paths.metrics.exists() else 0
        # -P: never import a json.py from the folder that the run was started in.
        command = [sys.executable, "-P", "-m", "cleanrl_worker.telemetry.wandb", "--run-dir", str(paths.folder)]
        command += ["--project", project, "--config-file", str(settings), "--offset", str(offset)]
        command += [f"--entity={entity}"] * bool(entity) + [f"--name={name}"] * bool(name)
        try:
            with (paths.logs / LOG).open("ab") as log:
                self._process = subprocess.Popen(
                    command, env=dict(environment), stdin=subprocess.PIPE, stdout=log, stderr=log, process_group=0
                )
        except OSError as error:
            raise storage_error(paths.logs / LOG, error) from None

    def poll(self) -> str | None:
        """Return a message about a problem not reported yet, else None."""
        status = self._read_status()
        if status.get("error") and not self._said_offline:
            self._said_offline = True
            return str(status["error"])
        if self._said_trouble or self._process.poll() == 0:  # 0: it has reported why it does not track
            return None
        if self._process.returncode is not None:
            self._said_trouble = True
            return f"W&B's process ended early (exit code {self._process.returncode}); training goes on, see logs/{LOG}"
        if self._is_silent():
            self._said_trouble = True
            return f"W&B has not answered for {self._hang_seconds:.0f} s; training goes on without it"
        return None

    def close(
        self, returncode: int, seconds: float = FINISH_SECONDS, hurry: Callable[[], bool] = lambda: False
    ) -> str | None:
        """Wait for the upload of the last rows, up to a timeout or until `hurry`; return a message on failure."""
        self._tell_end(returncode)
        already_told = self._said_trouble
        until = time.monotonic() + (2.0 if already_told else seconds)
        while self._process.poll() is None and time.monotonic() < until and not hurry():
            time.sleep(0.05)
        if self._process.poll() is not None:
            return None if already_told else self._last_words()
        self.kill()
        return None if already_told else self._epitaph()

    def kill(self) -> None:
        """Kill the process group; W&B's own service ends with it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _tell_end(self, returncode: int) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(str(returncode).encode())
            self._process.stdin.close()
        except OSError:
            pass  # it has already ended, which its exit code reports

    def _last_words(self) -> str | None:
        error = self._read_status().get("error")
        if error and not self._said_offline:
            self._said_offline = True
            return str(error)
        if self._process.returncode:
            return f"W&B's process failed (exit code {self._process.returncode}); see logs/{LOG}"
        return None

    def _epitaph(self) -> str:
        status = self._read_status()
        if not status.get("mode"):
            return "W&B was ended before it had started: nothing is tracked, metrics.jsonl has it all"
        folder = self._status.parent / (status.get("folder") or "wandb/latest-run")
        return f"W&B was ended before it had sent everything; the rest: wandb sync {folder}"

    def _read_status(self) -> dict[str, Any]:
        return read_note(self._status, TRACKING)

    def _is_silent(self) -> bool:
        """Return True if the status file, which a healthy tracker keeps touching, has not changed for too long."""
        try:
            touched = self._status.stat().st_mtime
        except OSError:
            touched = 0.0
        if touched != self._seen[0]:
            self._seen = (touched, time.monotonic())
        return time.monotonic() - self._seen[1] > self._hang_seconds


def project_of(extras: Mapping[str, Any]) -> str:
    """Return the W&B project, by default CleanRL's."""
    return str(extras.get("wandb_project_name") or extras.get("wandb_project") or "cleanRL")


def main(argv: list[str] | None = None) -> int:
    """Follow the run until a stop request."""
    parser = argparse.ArgumentParser(prog="python -m cleanrl_worker.telemetry.wandb", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--project", required=True)
    parser.add_argument("--entity")
    parser.add_argument("--name")
    parser.add_argument("--config-file", type=Path)
    parser.add_argument("--offset", type=int, default=0)
    flags = parser.parse_args(argv)
    flags.run_id = flags.run_dir.name
    if os.environ.get(variables.WANDB_MODE) == "disabled":
        return 0
    end = _End()
    try:
        import wandb
    except ImportError:
        _say(flags, {"mode": None, "error": "W&B is not installed, nothing is tracked: pip install 'mosaic-rl[wandb]'"})
        return 0
    tail = Tail(flags.run_dir / "metrics.jsonl", flags.offset)
    if flags.offset and _is_resumption(tail, flags, end):
        tail, rows, resumptions = _history(tail.path)
        flags.run_id = f"{flags.run_dir.name}-r{resumptions}"
        run = _start(wandb, flags)
        _send(run, rows)
    else:
        run = _start(wandb, flags)
    while True:
        last = end.asked.is_set()  # checked first, so that the last read includes the last row
        _send(run, _new_rows(tail))
        os.utime(flags.run_dir / STATUS)
        if last:
            break
        end.asked.wait(POLL_SECONDS)
    run.finish(exit_code=end.exit_code)
    return 0


class _End:
    """A listener for the run's end: SIGTERM or the end of stdin; a process that then hangs exits after a timeout."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.exit_code = 0
        signal.signal(signal.SIGTERM, lambda number, frame: self.asked.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._listen, name="end", daemon=True).start()

    def _listen(self) -> None:
        said = b""
        while part := os.read(0, 64):  # not sys.stdin: a thread inside its lock makes the interpreter abort at exit
            said += part
        if said:
            self.exit_code = abs(int(said))
        self.asked.set()
        time.sleep(LINGER_SECONDS)
        os._exit(1)


def _start(wandb: Any, flags: argparse.Namespace) -> Any:
    """Open the W&B run online if possible, else offline."""
    reason = _why_offline()
    if reason is None:
        try:
            return _open(wandb, flags, "online", None)
        except (wandb.Error, OSError, RuntimeError, ValueError) as error:
            reason = f"W&B could not be reached ({' '.join(str(error).split())[:200]})"
            wandb.teardown()  # its service still holds the run's id
    return _open(wandb, flags, "offline", reason)


def _why_offline() -> str | None:
    """Return the reason to track offline: None if online may work, "" if offline mode is configured."""
    mode = os.environ.get(variables.WANDB_MODE)
    if mode and mode != "online":
        return ""
    key = find_key(os.environ, resolve_home())
    if key:
        os.environ[variables.WANDB_API_KEY] = key
    elif not is_logged_in(os.environ):
        return f"there is no W&B key ({variables.WANDB_API_KEY})"
    server = urlsplit(_proxy() or os.environ.get("WANDB_BASE_URL") or DEFAULT_SERVER)
    port = server.port or (80 if server.scheme == "http" else 443)
    return None if _answers(server.hostname or "", port) else f"{server.hostname} does not answer"


def _open(wandb: Any, flags: argparse.Namespace, mode: str, reason: str | None) -> Any:
    os.environ["WANDB_SILENT"] = "true"
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would wait for a network that may be missing
    os.environ.setdefault("WANDB_CACHE_DIR", str(flags.run_dir / "wandb" / "cache"))
    run = wandb.init(
        project=flags.project,
        entity=flags.entity,
        name=flags.name,
        id=flags.run_id,
        resume="allow" if mode == "online" else None,
        dir=flags.run_dir,
        mode=mode,
        config=json.loads(flags.config_file.read_bytes()) if flags.config_file else None,
        settings=wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, init_timeout=INIT_SECONDS
        ),
    )
    # Several rows may share a step, which W&B's own step counter would merge or drop.
    run.define_metric("*", step_metric="global_step")
    folder = Path(run.dir).parent
    status = {"mode": mode, "run_path": run.path if mode == "online" else None, "entity": run.entity or flags.entity}
    if folder.is_relative_to(flags.run_dir):
        status["folder"] = folder.relative_to(flags.run_dir).as_posix()
    if reason:
        status["error"] = f"{reason}: tracking offline; upload later with: wandb sync {folder}"
    _say(flags, status)
    return run


def _is_resumption(tail: Tail, flags: argparse.Namespace, end: _End) -> bool:
    """Wait for this start's first row in an earlier start's file; return True if it resumes from a checkpoint."""
    _say(flags, {})
    first = Tail(tail.path, tail.offset)
    while True:
        last = end.asked.is_set()
        for row in _new_rows(first):
            return "resumed_from" in row
        if last:
            return False
        os.utime(flags.run_dir / STATUS)
        end.asked.wait(POLL_SECONDS)


def _history(path: Path) -> tuple[Tail, list[dict[str, Any]], int]:
    """Return a tail at the end of the file, the valid rows so far and the number of resumptions.

    W&B cannot delete logged rows, and a killed attempt may not have sent all. So each resumption is a separate W&B run
    with the whole curve: no overlap, no gap, online or not.
    """
    tail, resumptions = Tail(path), 0
    rows: list[dict[str, Any]] = []
    for row in _new_rows(tail):
        if "resumed_from" in row:
            rows = [earlier for earlier in rows if earlier["step"] <= row["resumed_from"]]
            resumptions += 1
        else:
            rows.append(row)
    return tail, rows, resumptions


def _new_rows(tail: Tail) -> Iterator[dict[str, Any]]:
    offset = -1
    while tail.offset != offset:
        offset = tail.offset
        try:
            yield from tail.read()
        except EventError:
            pass  # the shell reports a bad line; the tail continues after it


def _send(run: Any, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        if "step" in row:
            run.log({"global_step": row["step"], **{k: v for k, v in row.items() if k not in ("step", "time")}})


def _say(flags: argparse.Namespace, status: dict[str, Any]) -> None:
    known = {"mode": None, "run_path": None, "entity": flags.entity, "project": flags.project, "error": None}
    write_atomic(flags.run_dir / STATUS, json.dumps({**known, **status}, indent=2) + "\n")
    if status.get("error"):  # for training without a shell; a shell reads the file
        print(status["error"], file=sys.stderr, flush=True)


def _proxy() -> str | None:
    return os.environ.get(variables.HTTPS_PROXY) or os.environ.get(variables.HTTPS_PROXY.lower())


def _answers(host: str, port: int) -> bool:
    """Return True if a connection opens in time; in a thread, because a DNS lookup has no timeout."""
    answered = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
            answered.set()
        except OSError:
            return

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS + 1.0)
    return answered.is_set()


if __name__ == "__main__":
    sys.exit(main())
