"""The registry's SQLite file: one writer, a reader per thread, its schema and its migrations."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from mosaic.contract.errors import DamagedError, TrainerError, UnavailableError, storage_error

# The time a write waits for another program that locks the file (a backup, an interactive `sqlite3`).
BUSY_SECONDS = 5.0

# One entry per version of the format; a file of version n gets those from n on. Never edit a released one.
MIGRATIONS = (
    """
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL UNIQUE,
        state TEXT NOT NULL,
        reason TEXT NOT NULL DEFAULT '',
        run_name TEXT NOT NULL DEFAULT '',
        worker_type TEXT NOT NULL DEFAULT '',
        algo TEXT NOT NULL DEFAULT '',
        env_id TEXT NOT NULL DEFAULT '',
        seed INTEGER,
        mode TEXT NOT NULL DEFAULT 'train',
        total_timesteps INTEGER NOT NULL DEFAULT 0,
        agent_id TEXT NOT NULL DEFAULT '',
        secret_names TEXT NOT NULL DEFAULT '[]',  -- variables that were handed over and are kept in memory only
        warnings TEXT NOT NULL DEFAULT '[]',
        external INTEGER NOT NULL DEFAULT 0,
        -- admission
        priority INTEGER NOT NULL DEFAULT 0,
        queue_order INTEGER NOT NULL DEFAULT 0,
        cpus REAL NOT NULL DEFAULT 1,
        memory_mb INTEGER NOT NULL DEFAULT 0,
        gpus_requested INTEGER NOT NULL DEFAULT 0,
        gpus_mandatory INTEGER NOT NULL DEFAULT 0,
        gpus TEXT NOT NULL DEFAULT '[]',
        -- limits
        max_restarts INTEGER NOT NULL DEFAULT 0,
        max_duration REAL,
        max_steps INTEGER,
        grace REAL NOT NULL DEFAULT 120,
        -- life
        created_at REAL NOT NULL,
        started_at REAL NOT NULL DEFAULT 0,
        ended_at REAL NOT NULL DEFAULT 0,
        attempt INTEGER NOT NULL DEFAULT 1,
        restarts INTEGER NOT NULL DEFAULT 0,
        ran_seconds REAL NOT NULL DEFAULT 0,      -- of the attempts before this one
        asked TEXT NOT NULL DEFAULT '',           -- cancel | pause | continue
        asked_reason TEXT NOT NULL DEFAULT '',
        asked_grace REAL,
        asked_sent INTEGER NOT NULL DEFAULT 0,    -- the worker got its SIGTERM: a second one would end it at once
        exit_code INTEGER,
        signal TEXT NOT NULL DEFAULT '',
        deleting INTEGER NOT NULL DEFAULT 0,
        -- the worker of this attempt: the nonce is written before it is started, the rest after
        nonce TEXT NOT NULL DEFAULT '',
        slot INTEGER NOT NULL DEFAULT 0,
        pid INTEGER NOT NULL DEFAULT 0,
        start_ticks INTEGER NOT NULL DEFAULT 0,
        boot_id TEXT NOT NULL DEFAULT '',
        worker_id TEXT NOT NULL DEFAULT '',
        session_hash TEXT NOT NULL DEFAULT '',    -- '-' where the relay registered on the worker's behalf
        reads_files INTEGER NOT NULL DEFAULT 1,
        -- what was read of its files
        events_seq INTEGER NOT NULL DEFAULT 0,    -- the next one
        events_offset INTEGER NOT NULL DEFAULT 0,
        metrics_offset INTEGER NOT NULL DEFAULT 0,
        metrics_epoch INTEGER NOT NULL DEFAULT 0, -- counts the resumptions that took points back
        closing TEXT NOT NULL DEFAULT '',         -- the closing event of this attempt as JSON
        -- headline numbers
        step INTEGER NOT NULL DEFAULT 0,
        episodes INTEGER NOT NULL DEFAULT 0,
        last_return REAL,
        last_length REAL,
        sps REAL
    );
    CREATE INDEX runs_by_state ON runs (state);
    CREATE TABLE payloads (                       -- apart from runs, so that a list reads little
        run INTEGER PRIMARY KEY,
        payload TEXT NOT NULL,                    -- as accepted: JSON, secrets removed
        config TEXT NOT NULL,                     -- the worker's own flat config
        command TEXT NOT NULL                     -- the argv that starts the worker, but for its config
    );
    CREATE TABLE changes (
        cursor INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL,
        run_id TEXT NOT NULL,
        from_state TEXT,
        to_state TEXT,
        reason TEXT NOT NULL DEFAULT '',
        timestamp REAL NOT NULL
    );
    CREATE INDEX changes_by_run ON changes (run_id);
    CREATE TABLE series (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        key TEXT NOT NULL,
        count INTEGER NOT NULL DEFAULT 0,
        step INTEGER NOT NULL DEFAULT 0,          -- the last point
        time REAL NOT NULL DEFAULT 0,
        value REAL,                               -- NULL is NaN
        UNIQUE (run, key)
    );
    CREATE TABLE points (
        series INTEGER NOT NULL,
        part INTEGER NOT NULL,
        count INTEGER NOT NULL,
        min_step INTEGER NOT NULL,
        max_step INTEGER NOT NULL,
        digest BLOB,                              -- the extremes of a large part; before what it stands for
        steps BLOB NOT NULL,
        times BLOB NOT NULL,
        vals BLOB NOT NULL,
        PRIMARY KEY (series, part)
    );
    CREATE TABLE artifacts (
        run INTEGER NOT NULL,
        kind TEXT NOT NULL,
        path TEXT NOT NULL,
        step INTEGER NOT NULL DEFAULT 0,
        created_at REAL NOT NULL,
        PRIMARY KEY (run, kind, path)
    );
    CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
    """,
    # 2: what a list shows of a run; a run that has ended before keeps NULL and shows its last return.
    "ALTER TABLE runs ADD COLUMN mean_return REAL;",
    # 3: what the seeds of one configuration share; a run from before belongs to no group.
    """
    ALTER TABLE runs ADD COLUMN "group" TEXT NOT NULL DEFAULT '';
    CREATE INDEX runs_by_group ON runs ("group");
    """,
    # 4: where a run runs: the executor, the cluster's name for its job, and the node once one has it.
    """
    ALTER TABLE runs ADD COLUMN executor TEXT NOT NULL DEFAULT 'local';
    ALTER TABLE runs ADD COLUMN job TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN node TEXT NOT NULL DEFAULT '';
    """,
    # 5: a run's step does not grow although it should; a run was rebuilt from a folder, not submitted.
    """
    ALTER TABLE runs ADD COLUMN stalled INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN imported INTEGER NOT NULL DEFAULT 0;
    """,
)


class Database:
    """Connections to one file; thread-safe within one process."""

    def __init__(self, path: Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = Path(path)
        self._busy_seconds = busy_seconds
        self._writing = threading.RLock()
        self._local = threading.local()
        self._closed = False
        self._generation = 0
        """of the open file: readers of an earlier one reconnect"""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(self.path, error) from None
        self._open()

    def check_file(self) -> None:
        """Raise UnavailableError if the path no longer refers to the open file: writes would be lost."""
        if _file_at(self.path) != self._file:
            what = "replaced" if self.path.exists() else "deleted"
            raise UnavailableError(
                f"the registry {self.path} was {what} while this daemon had it open: nothing is written; "
                "let the daemon continue with: mosaic rebuild"
            )

    def reopen(self) -> Path | None:
        """Open the file now at the path; set a damaged one aside and return its new path.

        A deleted file is rewritten from the open one, which keeps its content until it is closed. An intact file stays
        open.
        """
        if self._is_sound():
            return None
        with self._writing:
            if self._closed:
                raise UnavailableError(f"the registry {self.path} is closed")
            if not self.path.exists():
                _remove_companions(self.path)
                with contextlib.suppress(sqlite3.Error, OSError):
                    self._copy()
            with contextlib.suppress(sqlite3.Error):
                self._writer.close()
            aside = set_aside_damaged(self.path, self._busy_seconds)
            self._open()
            return aside

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction: committed when the block ends, rolled back if it raises. UnavailableError: retry."""
        with self._writing:
            if self._closed:
                raise UnavailableError(f"the registry {self.path} is closed")
            with _clear_errors(self.path):
                self.check_file()
                if self._writer.in_transaction:  # a nested block belongs to the outer one
                    yield self._writer
                    return
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield self._writer
                    self._writer.execute("COMMIT")
                except BaseException:
                    # A full disk may have rolled back the transaction already.
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Yield this thread's own connection; all reads of the block are from one consistent snapshot."""
        with _clear_errors(self.path):
            if self._closed:
                raise UnavailableError(f"the registry {self.path} is closed")
            self.check_file()
            connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
            if connection is None or self._local.generation != self._generation:
                self._local.generation = self._generation
                self._local.connection = connection = self._connect()
                connection.execute("PRAGMA query_only = ON")
                connection.execute("PRAGMA cache_size = -512")  # kB; there may be hundreds of readers
            if connection.in_transaction:
                yield connection
                return
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def close(self) -> None:
        """Refuse further reads and writes; idempotent.

        Other threads' connections close with their threads: closing one while its thread reads would crash the process.
        """
        with self._writing:
            self._closed = True
            self._writer.close()

    def _open(self) -> None:
        with _clear_errors(self.path):
            self._writer = self._connect()
            try:
                self._writer.execute("PRAGMA journal_mode = WAL")
                # Full: acknowledged data survives a power cut, too. The relay combines many rows into one commit.
                self._writer.execute("PRAGMA synchronous = FULL")
                self._migrate()
                self._check_tables()
            except BaseException:
                self._writer.close()
                raise
        self._file = _file_at(self.path)
        self._generation += 1

    def _is_sound(self) -> bool:
        """Return True if the path refers to the open file and all of it is readable."""
        if _file_at(self.path) != self._file:
            return False
        try:
            with self.read() as connection:
                return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0]) == "ok"
        except DamagedError:
            return False

    def _copy(self) -> None:
        """Write the open file's content to its path, from which it was removed."""
        beside = self.path.with_name(f".{self.path.name}.copy")
        beside.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(beside)) as copy:
            self._writer.backup(copy)
        os.replace(beside, self.path)

    def _connect(self) -> sqlite3.Connection:
        # Transactions are begun explicitly. Any thread may use the writer, one at a time.
        connection = sqlite3.connect(
            self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        # A text that is not UTF-8 makes its own row unreadable, not the whole query.
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        return connection

    def _migrate(self) -> None:
        version = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise TrainerError(
                f"the registry {self.path} has format {version}, this version reads up to {len(MIGRATIONS)}: "
                "update mosaic-rl"
            )
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            self._writer.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")

    def _check_tables(self) -> None:
        """Raise DamagedError if a table or a column is missing."""
        with contextlib.closing(sqlite3.connect(":memory:")) as ours:
            ours.executescript("".join(MIGRATIONS))
            missing = _columns(ours) - _columns(self._writer)
        if missing:
            raise _damaged(self.path, f"it lacks {', '.join(sorted(missing)[:3])}")


def set_aside_damaged(path: Path, busy_seconds: float = BUSY_SECONDS) -> Path | None:
    """Rename an unreadable registry to `mosaic.db.damaged-<time>`; return None if it is sound or absent."""
    try:
        database = Database(path, busy_seconds=busy_seconds)
        try:
            if database._is_sound():
                return None
        finally:
            database.close()
    except DamagedError:
        pass
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
    try:
        for end in ("", *_COMPANIONS):
            if path.with_name(path.name + end).exists():
                os.replace(path.with_name(path.name + end), aside.with_name(aside.name + end))
    except OSError as error:
        raise storage_error(aside, error) from None
    return aside


# SQLite's files beside a database; beside another file they would be mistaken for its own.
_COMPANIONS = ("-wal", "-shm")


def _remove_companions(path: Path) -> None:
    for end in _COMPANIONS:
        path.with_name(path.name + end).unlink(missing_ok=True)


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _columns(connection: sqlite3.Connection) -> set[str]:
    query = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    return {f"{table}.{column}" for table, column in connection.execute(query)}


def _damaged(path: Path, why: object) -> DamagedError:
    return DamagedError(f"the registry {path} is damaged: {why}; recreate it from the run folders with: mosaic rebuild")


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Replace SQLite's errors by ones that a person can act on."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if any(words in str(error) for words in _FOREIGN):
            raise _damaged(path, error) from error
        remedy = next((advice for word, advice in _REMEDIES.items() if word in str(error)), "look at its disk")
        raise UnavailableError(f"the registry {path} cannot be used now: {error}; {remedy}, then try again") from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise _damaged(path, error) from error


# SQLite's errors for a file whose tables are not ours, or are missing.
_FOREIGN = ("no such table", "no such column", "already exists", "duplicate column", "malformed database schema")
_REMEDIES = {
    "locked": "another program holds the file",
    "full": "free some space on its disk",
    "readonly": "make the file and its folder writable",
    "unable to open": "make the file and its folder readable and writable",
}
