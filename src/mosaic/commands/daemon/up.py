"""mosaic up, down and url: the daemon and the web GUI of a home, started and ended together."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.commands.connection import connect, interruptible, local_home, start_daemon
from mosaic.commands.printing import add_json, print_json, say, waiting
from mosaic.contract import variables
from mosaic.contract.channel import daemon_card, is_stale, names_running, read_card, user_card
from mosaic.contract.errors import ConfigError, MosaicError, NoDaemonError, TrainerError, storage_error
from mosaic.contract.paths import make_var, resolve_home

if TYPE_CHECKING:
    from collections.abc import Mapping

START_SECONDS, END_SECONDS, CLOSING_SECONDS = 90.0, 20.0, 10.0
ANSWER_SECONDS = 5.0
# A daemon that dies repeatedly is restarted with a delay.
LOOK_SECONDS, HURRY_SECONDS = 0.5, 5.0


def add_to(commands: Any) -> None:
    """Declare the commands."""
    one = commands.add_parser("up", help="start the trainer daemon and the web GUI of this home")
    one.add_argument("--port", type=int, metavar="N", help="the web GUI's port (8080, or any if that is taken; 0: any)")
    one.add_argument(
        "--listen", metavar="HOST:PORT", help="the daemon's address (127.0.0.1:50055, or any port if that is taken)"
    )
    one.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a host name that the GUI may be reached by"
    )
    one.add_argument(
        "--eval-slots", type=int, metavar="N", help="evaluations that run at once, beside the CPU slots (1)"
    )
    one.add_argument(
        "--detach", "-d", action="store_true", help="return once both answer; they go on in the background"
    )
    add_json(one)
    one.set_defaults(command=up)

    two = commands.add_parser("down", help="end the trainer daemon and the web GUI; runs go on")
    add_json(two)
    two.set_defaults(command=down)

    three = commands.add_parser("url", help="print an address that signs you in to the web GUI, once")
    add_json(three)
    three.set_defaults(command=url)


def up(args: argparse.Namespace) -> int:
    """Serve the GUI and keep a daemon until SIGTERM or Ctrl-C, or start both in the background."""
    with interruptible():
        from mosaic.web.server import WebSite, fresh_url, read_web_card

    home = resolve_home()
    if args.json and not args.detach:
        raise ConfigError("--json goes with --detach: what runs in the foreground has no end to report")
    if read_web_card(home):
        return _report(args, home, f"MOSAIC already runs for {home}; open {fresh_url(home)}")
    if args.detach:
        _start_in_background(args, home)
        _name_unlisted(home)
        return _report(args, home, f"MOSAIC runs in the background; open {fresh_url(home)}\nEnd it with: mosaic down")
    site = WebSite(home, args.port, args.allow_host)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: site.stop())
    with Keeping(home, args.listen, args.eval_slots) as daemon:
        if not site.stopped:
            _name_unlisted(home)
            say(f"the trainer daemon listens on {daemon.target}; Ctrl-C ends it and the GUI, runs continue")
            print(f"Open {site.new_url()}", flush=True)
            say("The address is good for one sign-in; another: mosaic url")
            site.serve()
    say("MOSAIC has ended; what runs goes on, and the next `mosaic up` takes it over")
    return 0


class Keeping:
    """A daemon for as long as the GUI runs: the home's own if one runs, restarted when it dies."""

    def __init__(self, home: Path, listen: str | None, eval_slots: int | None) -> None:
        self._home, self._listen = home, listen
        self._arguments = () if eval_slots is None else ("--eval-slots", str(eval_slots))
        self._stopping = threading.Event()
        self.target = ""

    def __enter__(self) -> Keeping:
        card = _daemon(self._home)
        self.target = str(card["target"]) if card else start_daemon(self._home, self._listen, self._arguments)
        self._thread = threading.Thread(target=self._look_after, name="daemon", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        _end(_daemon(self._home), "the daemon")

    def _look_after(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            if _daemon(self._home):
                continue
            try:
                # The same address, so that workers and clients find it again.
                start_daemon(self._home, self.target, self._arguments)
            except MosaicError as error:
                say(f"the trainer daemon has died and does not start again: {error}")
                self._stopping.wait(HURRY_SECONDS)
            else:
                say("the trainer daemon had died and was started again")


def down(args: argparse.Namespace) -> int:
    """Stop daemon and GUI and wait for their end; remove the cards of killed ones."""
    from mosaic.contract.fields import CARD, WEB_CARD
    from mosaic.web.server import read_web_card, web_card

    home = _home_to_end()
    daemon, web = _daemon(home), read_web_card(home)
    going = _runs_going_on(home) if daemon else None
    _end(web, "the web GUI", END_SECONDS + CLOSING_SECONDS)  # first: it would start another daemon
    _end(daemon, "the daemon")
    cards = ((daemon_card(home), CARD), (web_card(home), WEB_CARD), (user_card(), CARD))
    removed = [path for path, fields in cards if is_stale(path, home, fields)]
    for path in removed:
        _remove(path)
    if not (daemon or web or removed):
        raise NoDaemonError(f"no trainer daemon and no web GUI runs for {home}; start both with: mosaic up")
    if args.json:
        pids = {name: card.get("pid") for name, card in (("pid", daemon), ("web_pid", web))}
        print_json({"home": str(home), **pids, "runs_going_on": going, "removed": [str(path) for path in removed]})
        return 0
    for path in removed:
        print(f"removed {path}: the process that it names has ended")
    if daemon or web:
        what = " and ".join(name for name, card in (("the daemon", daemon), ("the web GUI", web)) if card)
        print(
            f"{what} of {home} {'have' if daemon and web else 'has'} ended"
            + (f"; {going} run(s) continue or wait" if going else "")
        )
    return 0


def _home_to_end() -> Path:
    """Return the home of the daemon that MOSAIC_TARGET names, else this one, else that of the user's own daemon."""
    from mosaic.web.server import web_card

    if os.environ.get(variables.MOSAIC_TARGET):
        with connect() as client:
            return local_home(client, client.health(), "end it")
    home = resolve_home()
    if os.environ.get(variables.MOSAIC_HOME) or daemon_card(home).exists() or web_card(home).exists():
        return home
    card = read_card(user_card())
    return Path(card["home"]) if card else home


def _runs_going_on(home: Path) -> int | None:
    """Return how many runs outlive the daemon; None if it does not answer."""
    from mosaic.trainer.rpc.client import Client

    try:
        with Client(home=home) as client:
            states = client.health(seconds=ANSWER_SECONDS)["runs"]
    except MosaicError:
        return None
    return sum(count for state, count in states.items() if state not in ("COMPLETED", "FAILED", "CANCELLED", "BROKEN"))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(path, error) from None


def url(args: argparse.Namespace) -> int:
    """Print a fresh address of the running GUI: of this home, else of the user's own daemon."""
    from mosaic.web.server import fresh_url, read_web_card

    home = resolve_home()
    if not read_web_card(home):
        with contextlib.suppress(NoDaemonError), connect() as client:
            home = local_home(client, client.health(), "ask for its address")
    address = fresh_url(home)
    print_json({"url": address}) if args.json else print(address)
    return 0


def _name_unlisted(home: Path) -> None:
    """Print which run folders the registry has no row for."""
    from mosaic.trainer.registry.folders import advice, unlisted

    with contextlib.suppress(TrainerError):  # a registry that cannot be read now: the daemon reports it
        if line := advice(unlisted(home)):
            say(line)


def _report(args: argparse.Namespace, home: Path, text: str) -> int:
    if not args.json:
        print(text)
        return 0
    from mosaic.trainer.rpc.client import Client
    from mosaic.web.server import fresh_url

    with Client(home=home) as client:
        print_json({**client.health(), "url": fresh_url(home)})
    return 0


def _start_in_background(args: argparse.Namespace, home: Path) -> None:
    from mosaic.web.server import read_web_card

    make_var(home)
    if not args.json:
        say(f"starting the trainer daemon and the web GUI of {home} …")
    log = home / "var" / "logs" / "gym_gui.stderr.log"
    words = [
        word
        for flag, value in (("--port", args.port), ("--listen", args.listen), ("--eval-slots", args.eval_slots))
        if value is not None
        for word in (flag, str(value))
    ]
    words += [word for host in args.allow_host for word in ("--allow-host", host)]
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            start = file.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "mosaic.cli", "up", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )
    except OSError as error:
        raise storage_error(log, error) from None
    end = time.monotonic() + START_SECONDS
    with waiting("waiting until both answer"):
        while not read_web_card(home) or not _daemon(home):
            if process.poll() is not None:
                said = log.read_bytes()[start:].decode(errors="replace").strip().splitlines()
                raise TrainerError(said[-1].removeprefix("mosaic: ") if said else f"it ended at once; see {log}")
            if time.monotonic() > end:
                raise TrainerError(f"MOSAIC did not answer within {START_SECONDS:.0f} s; see {log}")
            time.sleep(0.05)


def _end(card: Mapping[str, Any], what: str, seconds: float = END_SECONDS) -> None:
    """End the process of a card, if it runs; kill it if it ignores SIGTERM, which harms no run."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, CLOSING_SECONDS)):
        if not card or not names_running(card):
            return
        pid = card["pid"]
        if number == signal.SIGKILL:
            say(f"{what} (pid {pid}) does not end within {seconds:.0f} s and is killed")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        end = time.monotonic() + patience
        with waiting(f"waiting for {what} (pid {pid}) to end"):
            while names_running(card) and time.monotonic() < end:
                time.sleep(0.05)
    if names_running(card):
        raise TrainerError(f"{what} cannot be ended: the kernel holds its process; look at it with: ps {card['pid']}")


def _daemon(home: Path) -> Mapping[str, Any]:
    """Return the card of this home's daemon, {} if none runs."""
    return read_card(daemon_card(home))
