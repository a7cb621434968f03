"""The ledger of a benchmark or a sweep: the run id of each planned run, written before its submission."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mosaic.contract.errors import ConfigError, RefusedError, UnknownRunError, storage_error
from mosaic.contract.fields import NOTE_BYTES, parse_object
from mosaic.contract.paths import check_run_id, new_run_id

if TYPE_CHECKING:
    from mosaic.trainer.rpc.client import Client
    from mosaic.trainer.run import Run

# The prefix of the registry's reason for a run that never entered the queue.
REFUSED = "refused"


class Ledger:
    """A ledger that one command at a time holds. After a crash the next command submits under the recorded ids.

    So a run whose submission was in flight when the command was killed is neither lost nor duplicated.
    """

    def __init__(self, folder: Path, what: str) -> None:
        self.folder, self._what = folder, what
        self._path = folder / "planned.jsonl"
        self._ids: dict[str, str] = {}
        self._lock: IO[str] | None = None

    def __enter__(self) -> Ledger:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.folder / "lock", "a+", encoding="ascii")
            self._take()
            self._ids = _read(self._path)
        except OSError as error:
            raise storage_error(self.folder, error) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def id_of(self, key: str) -> str:
        """Return the run id of a planned run; a new id is on disk before this returns."""
        return self._ids[key] if key in self._ids else self.renew(key)

    def known(self, key: str) -> str:
        """Return the id of a planned run; "" if it has none yet."""
        return self._ids.get(key, "")

    def know(self, key: str, run_id: str) -> None:
        """Record the registry's id for a run that the ledger does not have."""
        self._ids.setdefault(key, run_id)

    def renew(self, key: str) -> str:
        """Assign a new run id for a retry."""
        run_id = new_run_id()
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                # On its own line, even after a line that a crash truncated.
                file.write(f"\n{json.dumps({'key': key, 'run_id': run_id})}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise storage_error(self._path, error) from None
        self._ids[key] = run_id
        return run_id

    def submit(self, client: Client, key: str, payload: Mapping[str, Any], priority: int = 0) -> Run:
        """Submit a planned run, or return the run of an earlier submission; a refused run is retried under a new id."""
        run_id = self.id_of(key)
        try:
            return client.submit_run(payload, priority=priority, run_id=run_id)
        except RefusedError:
            raise
        except ConfigError:
            run = _find(client, run_id)
            if run is None:
                raise
        if not run.reason.startswith(REFUSED):
            return run
        return client.submit_run(payload, priority=priority, run_id=self.renew(key))

    def _take(self) -> None:
        assert self._lock is not None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            pid = self._lock.read().strip() or "?"
            self._lock.close()
            raise ConfigError(
                f"{self._what} is already looked after by another command (process {pid}); end that one first, "
                "or give this one another --name"
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()


def _find(client: Client, run_id: str) -> Run | None:
    try:
        return client.get_run(run_id)
    except UnknownRunError:
        return None


def _read(path: Path) -> dict[str, str]:
    """Return the newest id of each key; a truncated line was never acted upon."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = parse_object(line, "ledger", NOTE_BYTES)
            found[str(entry["key"])] = check_run_id(entry["run_id"])
    return found
