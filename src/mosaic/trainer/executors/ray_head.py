"""A private Ray cluster of one machine: started for a home when its first run needs Ray, found again by its card.

It is ended by the ids of its own processes. `ray stop` would end every Ray process of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from mosaic.contract import variables
from mosaic.contract.channel import read_card
from mosaic.contract.fields import RAY_CARD
from mosaic.contract.identity import boot_id, start_ticks
from mosaic.contract.paths import write_atomic
from mosaic.trainer.executors.contract import Identity

START_SECONDS, AGAIN_SECONDS = 120.0, 60.0
# A run may wait long for its turn; by default Ray fails a waiting job after 15 minutes.
QUEUE_SECONDS = 30 * 86400


def ray_problem() -> str:
    """Return why no private cluster can be started here, "" if one can."""
    if find_spec("ray") is None:
        return "ray is not installed: pip install 'mosaic-rl[ray]', or name a cluster with mosaic daemon --ray-address"
    return ""


class PrivateHead:
    """The head of a home's own cluster; it outlives the daemon, as runs do."""

    def __init__(self, home: Path) -> None:
        self._card = home / "var" / "trainer" / "ray.json"
        self._token_file = home / "var" / "trainer" / "ray_token"
        self._log = home / "var" / "logs" / "ray.log"
        self._temp = home / "var" / "ray"
        self._thread: threading.Thread | None = None
        self._ready: Identity | None = None
        self._problem = ""
        self._not_before = 0.0

    def waits_for(self) -> str:
        """Return why nothing can be submitted yet, "" once it answers; the first call starts it."""
        if self.address():
            return ""
        if self._thread is None or not self._thread.is_alive():
            if time.monotonic() < self._not_before:
                return self._problem
            self._thread = threading.Thread(target=self._start, name="ray-head", daemon=True)
            self._thread.start()
            self._problem = "the private Ray cluster is starting"
        return self._problem

    def address(self) -> str:
        """Return the dashboard's address, "" if it does not run."""
        identity, address = self._identity(), str(self._told().get("address", ""))
        if identity is None:
            self._ready = None
        elif self._ready != identity and _answers(address, self.token()):
            self._ready = identity
        return address if self._ready else ""

    def token(self) -> str:
        """Return the dashboard's token; without one, every user of this machine could run anything as us."""
        try:
            return self._token_file.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def runs(self) -> bool:
        """Return True if its processes live; on a busy machine it may answer late."""
        return self._identity() is not None

    def close(self) -> None:
        """End its processes, if it runs."""
        identity = self._identity()
        if identity is None:
            return
        temp = self._temp_of(self._told().get("port", 0))
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) == identity.pid:
                    process.kill()
        self._card.unlink(missing_ok=True)
        shutil.rmtree(temp, ignore_errors=True)

    def _told(self) -> Mapping[str, Any]:
        return read_card(self._card, RAY_CARD)

    def _identity(self) -> Identity | None:
        told = self._told()
        return Identity(told["pid"], told["start_ticks"], told["boot_id"]) if told else None

    def _temp_of(self, port: int) -> Path:
        """Return the folder of its sockets; their paths have at most 107 characters, too few for a deep home."""
        return self._temp if len(str(self._temp)) < 40 else Path(f"/tmp/mosaic-ray-{os.getuid()}-{port}")

    def _start(self) -> None:
        port, dashboard = _free_port(), _free_port()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"),
            *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
            # Ray's default ports are fixed, and may be in use by another cluster of this machine.
            *(f"--dashboard-agent-listen-port={_free_port()}", f"--ray-client-server-port={_free_port()}"),
            *("--disable-usage-stats", f"--temp-dir={self._temp_of(port)}"),
        ]
        token = secrets.token_urlsafe(32)
        with open(os.open(self._token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(token)
        environment = {
            **os.environ,
            **{"RAY_JOB_START_TIMEOUT_SECONDS": str(QUEUE_SECONDS), "RAY_DEDUP_LOGS": "0"},
            **{"RAY_AUTH_MODE": "token", variables.RAY_AUTH_TOKEN: token},
        }
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        address = f"http://127.0.0.1:{dashboard}"
        ticks = start_ticks(process.pid, dead=True) or 0
        card = {"address": address, "port": port, "pid": process.pid, "start_ticks": ticks, "boot_id": boot_id()}
        write_atomic(self._card, json.dumps(card) + "\n")
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            if _answers(address, token):
                return
            time.sleep(0.25)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self._problem = f"the private Ray cluster did not start; see {self._log}"
        self._not_before = time.monotonic() + AGAIN_SECONDS


def _answers(address: str, token: str) -> bool:
    request = urllib.request.Request(f"{address}/api/jobs/", headers={"Authorization": f"Bearer {token}"})
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=5):
            return True
    except (OSError, ValueError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
