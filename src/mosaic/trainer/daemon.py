"""The trainer daemon: assembles its parts, serves calls, adopts live runs, and can be killed at any moment.

python -m mosaic.trainer.daemon [--home DIR] [--listen 127.0.0.1:50055] [--slots N] [--eval-slots N]
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import grpc

from mosaic.contract import channel
from mosaic.contract.errors import (
    ConfigError,
    MosaicError,
    NoDaemonError,
    TrainerError,
    UnavailableError,
    storage_error,
)
from mosaic.contract.happenings import Happenings
from mosaic.contract.identity import own_identity
from mosaic.contract.paths import make_var, resolve_home, write_atomic
from mosaic.contract.proto import trainer_pb2_grpc
from mosaic.trainer.executors.settings import ExecutorSettings, add_flags, given_flags, make_executors
from mosaic.trainer.live.bus import Bus
from mosaic.trainer.live.frames import FrameHub
from mosaic.trainer.live.ingest import Ingest
from mosaic.trainer.live.remote_workers import Handshakes
from mosaic.trainer.live.worker_requests import WorkerRequests
from mosaic.trainer.registry.folders import advice, unlisted
from mosaic.trainer.registry.registry import Registry
from mosaic.trainer.rpc.listening import Listening
from mosaic.trainer.rpc.service import THREADS, Parts, TokenCheck, TrainerService
from mosaic.trainer.scheduling.attempts import Attempts
from mosaic.trainer.scheduling.dispatcher import Dispatcher
from mosaic.trainer.scheduling.gpu import Machine
from mosaic.trainer.scheduling.submission import Submissions, Vault

# Short enough that a number reaches the registry well within a second of being logged.
TICK_SECONDS = 0.25
START_SECONDS = 60.0
SERVED = "a trainer daemon already serves"


class Daemon:
    """One daemon per home; when `serve` returns, runs continue."""

    def __init__(
        self,
        home: Path,
        listening: Listening,
        *,
        cpu_slots: float | None = None,
        eval_slots: int | None = None,
        settings: ExecutorSettings | None = None,
    ) -> None:
        listening.check()
        if cpu_slots is not None and not cpu_slots > 0:
            raise ConfigError(f"--slots takes a number above 0, not {cpu_slots:g}: no run could ever start")
        if eval_slots is not None and eval_slots < 1:
            raise ConfigError(f"--eval-slots takes a whole number from 1, not {eval_slots}: no evaluation could start")
        self.home = home.resolve()
        self._listening = listening
        self._trouble, self._true_at = "", time.time()
        make_var(self.home)
        self._lock = take_lock(self.home)
        self._token = _token(self.home)
        self.happenings = Happenings(self.home / "var" / "logs" / "trainer_daemon.log")
        self.happenings.hide(self._token)
        self.registry = Registry(self.home)
        machine = Machine.found(cpu_slots, eval_slots)
        bus, vault, attempts = Bus(), Vault(), Attempts(self.registry)
        relay = Ingest(self.registry, bus, self.happenings)
        self.target = listening.target
        controls, given = WorkerRequests(), settings or ExecutorSettings()
        self._executors = executors = make_executors(
            given, self.home, controls, lambda: self.target, listening.certificate
        )
        self.dispatcher = Dispatcher(
            *(self.registry, attempts, relay, bus, vault, self.happenings, machine),
            executors=executors,
            target=lambda: self.target,
            controls=controls,
        )
        submissions = Submissions(self.registry, vault, self.happenings, machine, executors=executors)
        for name in submissions.workers:
            self.happenings.note("worker.discovered", worker=name)
        for problem in submissions.problems:
            self.happenings.warn("worker.broken", problem=problem)
        self._parts = Parts(
            registry=self.registry,
            attempts=attempts,
            submissions=submissions,
            handshakes=Handshakes(self.registry, attempts, self.happenings),
            bus=bus,
            frames=FrameHub(self.registry, self.happenings),
            controls=controls,
            vault=vault,
            happenings=self.happenings,
            machine=machine,
            started_at=time.time(),
            version=_version(),
            trouble=self._current_trouble,
            secure=listening.certificate is not None,
        )

    def start(self) -> None:
        """Adopt live runs, then answer calls."""
        self.dispatcher.adopt()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(THREADS, thread_name_prefix="call"),
            interceptors=[TokenCheck(self._token, self.happenings, self._parts.attempts)],
            options=[*channel.OPTIONS, ("grpc.so_reuseport", 0)],
        )
        trainer_pb2_grpc.add_TrainerServicer_to_server(TrainerService(self._parts), self._server)
        self.target = self._listening.bind(self._server)
        self._server.start()
        try:
            self._write_cards()
        except MosaicError:  # without its card, no client finds it
            self._server.stop(None)
            raise
        self.happenings.note("daemon.started", target=self.target, home=self.home, pid=os.getpid())
        if unlisted_line := advice(unlisted(self.home)):
            self.happenings.warn("registry.unlisted", text=unlisted_line)
            print(f"mosaic: {unlisted_line}", file=sys.stderr, flush=True)

    def serve(self, is_stopped: Callable[[], bool]) -> None:
        """Tick until stopped."""
        try:
            while not is_stopped():
                self._tick()
                time.sleep(TICK_SECONDS)
        finally:
            self._close()

    def _tick(self) -> None:
        """Run one tick; report an error once, and retry."""
        try:
            self.dispatcher.tick()
        except TrainerError as error:
            self._say("registry.unavailable", error)
            return
        except Exception as error:  # a daemon that dies of one run's error would leave all the others unwatched
            self._say("daemon.trouble", error)
            return
        self._true_at = time.time()
        if self._trouble:
            self._trouble = ""
            self.happenings.note("daemon.recovered")

    def _say(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._trouble:
            self.happenings.note(name, level=logging.ERROR, error=text)
            if name == "daemon.trouble":
                import traceback

                print(self.happenings.masked(traceback.format_exc()), file=sys.stderr, flush=True)
        self._trouble = text

    def _current_trouble(self) -> str:
        """Return the problem of the last tick for clients, with the time up to which the states are valid."""
        if not self._trouble:
            return ""
        until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._true_at))
        return f"{self._trouble.removeprefix('UnavailableError: ')}; the states of runs are true up to {until}"

    def _write_cards(self) -> None:
        """Publish the daemon's address for clients: in this home, and in the user's state folder."""
        card = {
            "home": str(self.home),
            "target": self.target,
            "token_file": str(channel.token_file(self.home)),
            "ca": str(self._listening.certificate.resolve()) if self._listening.certificate else "",
            **own_identity(),
        }
        text = json.dumps(card, indent=2) + "\n"
        try:
            write_atomic(channel.user_card(), text, mode=0o600)
        except MosaicError as error:
            self.happenings.warn("daemon.trouble", error=error)
        # The home's own last: the starter of a daemon waits for that one, and may then read either.
        write_atomic(channel.daemon_card(self.home), text, mode=0o600)

    def _close(self) -> None:
        for path in (channel.daemon_card(self.home), channel.user_card()):
            if channel.read_card(path).get("pid") == os.getpid():
                with contextlib.suppress(OSError):
                    path.unlink()
        self._server.stop(grace=1.0).wait(5.0)
        with contextlib.suppress(UnavailableError):
            self._executors.close({row["executor"] for row in self._parts.attempts.live()})
        self.happenings.note("daemon.stopped", pid=os.getpid())
        self.registry.close()
        self.happenings.close()
        os.close(self._lock)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a daemon in the foreground until SIGTERM or SIGINT."""
    args = _parser().parse_args(argv)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal ends no daemon
    try:
        home = Path(args.home) if args.home else resolve_home()
        daemon = Daemon(
            home,
            Listening(args.listen, args.tls_cert, args.tls_key, args.insecure_listen),
            cpu_slots=args.slots,
            eval_slots=args.eval_slots,
            settings=ExecutorSettings.read(given_flags(args), home),
        )
        daemon.start()
    except ConfigError as error:
        print(f"mosaic: {error}", file=sys.stderr)
        return 2
    except MosaicError as error:
        print(f"mosaic: {error}", file=sys.stderr)
        return 1
    print(f"mosaic: the trainer daemon listens on {daemon.target} for {daemon.home}", flush=True)
    daemon.serve(lambda: bool(asked))
    return 0


def spawn(home: Path, *, listen: str = channel.DEFAULT_TARGET, arguments: Sequence[str] = ()) -> channel.Address:
    """Start a daemon that outlives this process, and wait until it answers; raise NoDaemonError with the reason if not.

    If another process starts one for this home at the same moment, that one is returned.
    """
    log = home.resolve() / "var" / "logs" / "trainer_daemon.stderr.log"
    make_var(home)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            start = file.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "mosaic.trainer.daemon", "--home", str(home), "--listen", listen, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
    except OSError as error:
        raise storage_error(log, error) from None
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        ended = process.poll() is not None
        card = channel.read_card(channel.daemon_card(home.resolve()))
        if card.get("pid") == process.pid or (card and ended):
            return _address(card)
        said = log.read_bytes()[start:].decode(errors="replace").strip().splitlines() if ended else []
        if ended and not any(SERVED in line for line in said):  # otherwise another one is about to write its card
            reason = said[-1].removeprefix("mosaic: ") if said else "it gave no reason"
            raise NoDaemonError(f"the trainer daemon did not start: {reason}")
        time.sleep(0.05)
    raise NoDaemonError(f"the trainer daemon did not answer within {START_SECONDS:.0f} s; see {log}")


def _address(card: Mapping[str, Any]) -> channel.Address:
    """Return the address in this card, whatever MOSAIC_TARGET names."""
    token = Path(card["token_file"]).read_text(encoding="ascii").strip()
    return channel.Address(str(card["target"]), token, str(card.get("ca") or ""), str(card.get("home") or ""))


def take_lock(home: Path) -> int:
    """Take the lock of a home's only daemon; the kernel releases a dead one's."""
    path = channel.daemon_lock(home)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise storage_error(path, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        card = channel.read_card(channel.daemon_card(home))
        os.close(descriptor)
        raise TrainerError(
            f"{SERVED} {home}"
            + (f" on {card['target']} (pid {card.get('pid')})" if card else "")
            + "; use it, or choose another home with MOSAIC_HOME"
        ) from None
    return descriptor


def _token(home: Path) -> str:
    """Return the daemon's token, created at the first start."""
    path = channel.token_file(home)
    try:
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
                file.flush()
                os.fsync(file.fileno())
        path.chmod(0o600)
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise storage_error(path, error) from None
    if len(token) < 16:  # a crash left it empty, or it was edited by hand
        path.unlink()
        return _token(home)
    return token


def _version() -> str:
    try:
        return version("mosaic-rl")
    except PackageNotFoundError:
        return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mosaic daemon", description="Serve runs of one home.")
    add = parser.add_argument
    add("--home", help="folder that holds var/ (default: MOSAIC_HOME, else the current directory)")
    add(
        "--listen",
        default=channel.DEFAULT_TARGET,
        metavar="HOST:PORT",
        help="where to listen (%(default)s); port 0: any",
    )
    add("--tls-cert", type=Path, help="certificate (PEM): needed to listen beyond this machine")
    add("--tls-key", type=Path, help="its private key (PEM)")
    add("--insecure-listen", action="store_true", help="listen beyond this machine without TLS")
    add("--slots", type=float, help="CPU slots, one per run unless it asks for more (default: the number of cores)")
    add("--eval-slots", type=int, help="evaluations that run at once, beside the CPU slots (default: 1)")
    add_flags(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
