"""A real `mosaic up` in a folder of its own, for the tests of the web GUI."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx

from mosaic.trainer.rpc.client import Client

SRC = Path(__file__).resolve().parents[1] / "src"
# Two busy cores may take their time; who waits looks ten times a second.
PATIENCE = 120.0

Answer = TypeVar("Answer")


class Site:
    """The GUI and the daemon of a home; `client` speaks with the daemon."""

    def __init__(self, top: Path, plugins: Path | None = None) -> None:
        self.home = top / "home"
        self.home.mkdir(parents=True)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("MOSAIC_", "WANDB_"))},
            "MOSAIC_HOME": str(self.home),
            "XDG_STATE_HOME": str(top / "state"),
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, (plugins, SRC)))),
        }
        self.log = top / "up.log"
        self.start()

    def start(self, *words: str) -> None:
        """`mosaic up` as a person types it, on free ports."""
        command = [sys.executable, "-m", "mosaic.cli", "up", "--port", "0", "--listen", "127.0.0.1:0", *words]
        start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        said = wait_until(lambda: self._address(start), what=f"an address in {self.log}")
        self.code = said[1]
        self.base = said[0]
        wait_until(self._answers, what="an answer of the GUI")
        self.client = Client(home=self.home)

    def _address(self, start: int) -> Any:
        text = self.log.read_bytes()[start:].decode(errors="replace")
        assert self.process.poll() is None, text
        found = re.search(r"Open (http://127\.0\.0\.1:\d+)/\?code=(\S+)", text)
        return found.groups() if found else None

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(self.base, timeout=10.0).status_code == 401
        except httpx.HTTPError:
            return False

    def command(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Another `mosaic` command of the same person, with other variables where they are given."""
        return subprocess.run(
            [sys.executable, "-m", "mosaic.cli", *words], env=self._environment | variables,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=4 * PATIENCE,
        )  # fmt: skip

    def new_url(self) -> str:
        """An address that signs one person in."""
        told = self.command("url")
        assert told.returncode == 0, told.stderr
        return told.stdout.strip()

    @contextlib.contextmanager
    def browser(self) -> Iterator[httpx.Client]:
        """A signed-in client without a screen."""
        with httpx.Client(base_url=self.base, timeout=60.0) as client:
            assert client.get(self.new_url()).status_code == 200
            yield client

    def end_runs(self) -> None:
        """Cancel what runs, so that nothing outlives the tests."""
        for run in self.client.list_runs(states=["INIT", "HANDSHAKE", "READY", "EXECUTING", "PAUSED"]).runs:
            self.client.cancel_run(run.run_id, 0.0)
            self.client.wait_run(run.run_id, PATIENCE)

    def stop(self) -> int:
        """SIGTERM, which ends both; returns the exit code."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


def in_a_loop(work: Coroutine[Any, Any, Answer]) -> Answer:
    """What `asyncio.run` gives, in a thread of its own: Playwright's browser keeps a loop running in the main one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def wait_until(look: Callable[[], Any], seconds: float = PATIENCE, what: str = "") -> Any:
    """What `look` finds, as soon as it finds something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain for {what or look}"
        time.sleep(0.1)
    return found
