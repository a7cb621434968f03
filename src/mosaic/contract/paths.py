"""The path of every file of a run: MOSAIC_HOME, run ids, RunPaths, and the atomic write."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, RunIdError, shown, storage_error

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def resolve_home() -> Path:
    """Return MOSAIC_HOME, or the current directory, as an absolute path; it need not exist yet."""
    return _absolute(os.environ.get(variables.MOSAIC_HOME) or os.curdir)


def new_run_id() -> str:
    """Return a new ULID: 26 characters that sort by creation time."""
    from ulid import ULID  # 60 ms: only the creator of a run pays for it

    return str(ULID())


def check_run_id(run_id: object) -> str:
    """Return `run_id` if it is safe as part of any path or name, else raise RunIdError."""
    if isinstance(run_id, str) and _RUN_ID.fullmatch(run_id):
        return run_id
    raise RunIdError(
        f"run id {shown(run_id)} is refused: 1 to 128 letters, digits, '-' and '_' are allowed; "
        "leave it out to get a new one"
    )


@dataclass(frozen=True, init=False)
class RunPaths:
    """The paths of one run below MOSAIC_HOME; no property accesses the disk."""

    run_id: str
    home: Path

    def __init__(self, run_id: str, home: Path | str | None = None) -> None:
        object.__setattr__(self, "run_id", check_run_id(run_id))
        object.__setattr__(self, "home", resolve_home() if home is None else _absolute(home))

    @property
    def var(self) -> Path:
        return self.home / "var"

    @property
    def folder(self) -> Path:
        """Return the run folder; it contains all paths below except the configs."""
        return self.var / "trainer" / "runs" / self.run_id

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def stdout_log(self) -> Path:
        """Return the log of the algorithm's stdout."""
        return self.logs / "cleanrl.stdout.log"

    @property
    def stderr_log(self) -> Path:
        """Return the log of the algorithm's stderr."""
        return self.logs / "cleanrl.stderr.log"

    @property
    def worker_stdout_log(self) -> Path:
        """Return the log of the worker's stdout, captured by the daemon: a copy of its events, or a script's output."""
        return self.logs / "worker.stdout.log"

    @property
    def worker_stderr_log(self) -> Path:
        """Return the log of the worker's own stderr."""
        return self.logs / "worker.stderr.log"

    @property
    def events(self) -> Path:
        """Return the log of every event that the worker emitted (mosaic.contract.events)."""
        return self.logs / "worker.jsonl"

    @property
    def lock(self) -> Path:
        """Return the lock that the run's shell holds while it lives; it contains its pid."""
        return self.logs / "worker.lock"

    @property
    def attempt(self) -> Path:
        """Return the marker of the present attempt: a cluster's node that can read it shares this folder."""
        return self.logs / "attempt"

    @property
    def order(self) -> Path:
        """Return the file with the part of an order that is too large for a cluster's queue."""
        return self.logs / "order"

    @property
    def exit(self) -> Path:
        """Return the file with the exit status of the last attempt's worker, as its cluster node recorded it."""
        return self.logs / "exit.json"

    @property
    def notes(self) -> Path:
        """Return the algorithm's notes to its shell besides scalars (checkpoints, resumption), a JSON line each."""
        return self.logs / "notes.jsonl"

    @property
    def phases(self) -> Path:
        """Return the records of a script's phases (mosaic.contract.phases); only scripts have it."""
        return self.logs / "phases.jsonl"

    @property
    def pause_file(self) -> Path:
        """Return the file with the seconds this run has spent paused; the steps per second exclude them."""
        return self.logs / "paused_seconds"

    @property
    def metrics(self) -> Path:
        """Return the log of every scalar (mosaic.contract.metrics)."""
        return self.folder / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def tensorboard_eval(self) -> Path:
        return self.folder / "tensorboard_eval"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def checkpoints_in(self, environment: Mapping[str, str]) -> Path:
        """Return the checkpoint folder: MOSAIC_CHECKPOINT_DIR, relative to the run folder, or its default."""
        given = environment.get(variables.MOSAIC_CHECKPOINT_DIR)
        return self.folder / given if given else self.checkpoints

    @property
    def policies(self) -> Path:
        """Return the folder of `<env>__<algo>__<seed>__<unix>/<exp>.cleanrl_model`; CleanRL calls it runs."""
        return self.folder / "runs"

    @property
    def videos(self) -> Path:
        return self.folder / "videos"

    @property
    def eval_summary(self) -> Path:
        return self.folder / "eval_summary.json"

    @property
    def analytics(self) -> Path:
        return self.folder / "analytics.json"

    @property
    def provenance(self) -> Path:
        """Return the path of the run's provenance (mosaic.contract.provenance)."""
        return self.folder / "provenance.json"

    @property
    def scripts(self) -> Path:
        """Return the folder with copies of the user's scripts that it ran."""
        return self.folder / "provenance"

    @property
    def people_notes(self) -> Path:
        """Return the file with people's notes about the run."""
        return self.folder / "notes.md"

    @property
    def fastlane(self) -> Path:
        """Return the file with the name of the run's frame ring."""
        return self.folder / "fastlane.json"

    @property
    def wandb_status(self) -> Path:
        """Return the status file of the W&B process."""
        return self.folder / "wandb.json"

    @property
    def configs_folder(self) -> Path:
        return self.var / "trainer" / "configs"

    @property
    def config_file(self) -> Path:
        """Return the file with the accepted payload, secrets removed."""
        return self.configs_folder / f"config-{self.run_id}.json"

    def worker_config(self, slot: int) -> Path:
        """Return the config file of the worker in `slot`."""
        return self.configs_folder / f"worker-{self.run_id}-{slot}.json"

    def inside(self, relative: str | Path) -> Path:
        """Return `relative` resolved below the run folder; raise ConfigError if it escapes (.., absolute, symlink)."""
        try:
            root = self.folder.resolve()
            path = (root / relative).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of symlinks, a NUL
            raise ConfigError(f"path {shown(str(relative))} is refused: {error}") from None
        if not path.is_relative_to(root):
            raise ConfigError(
                f"path {shown(str(relative), 200)} leads out of the run folder {root}; give a path inside it"
            )
        return path

    def relative(self, path: Path | str) -> str:
        """Return `path` relative to the run folder, with forward slashes."""
        return self.inside(path).relative_to(self.folder.resolve()).as_posix()

    def create(self) -> None:
        """Create the run folder and its logs folder."""
        make_var(self.home)
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(self.folder, error) from None


def make_var(home: Path) -> None:
    """Create the folder `var` of a home, accessible to its owner only; restrict one that is open to others."""
    var = home / "var"
    try:
        home.mkdir(parents=True, exist_ok=True)
        var.mkdir(mode=0o700, exist_ok=True)
        if stat.S_IMODE(var.stat().st_mode) & 0o077:
            with contextlib.suppress(PermissionError):  # another person's: their own processes restrict it
                var.chmod(0o700)
    except FileExistsError:  # it is a file: the next write reports it
        raise storage_error(var, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))) from None
    except OSError as error:
        raise storage_error(var, error) from None


def write_atomic(path: Path, data: bytes | str, mode: int = 0o666) -> None:
    """Write `path` atomically: a reader, or a crash, finds the old content or the new.

    `mode` is the permissions of the file before the umask.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    beside = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise storage_error(path, error) from None


def _sync_folder(folder: Path) -> None:
    """Fsync `folder`, so that a rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # some network file systems cannot; the rename is done
            raise
    finally:
        os.close(descriptor)


def _absolute(path: Path | str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))
