"""The lock that a shell holds on its run: two live shells of one run would emit every row twice."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cleanrl_worker.config.phase import is_phase
from mosaic.contract.errors import ConfigError, storage_error

if TYPE_CHECKING:
    from mosaic.contract.paths import RunPaths

# Lustre is often mounted without locks: there, the user must ensure one shell per run.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextlib.contextmanager
def holding(paths: RunPaths) -> Iterator[None]:
    """Hold the run's lock inside; raise ConfigError while another shell is alive. A script's phases share the lock.

    The kernel releases the lock of a dead process, however it died; the file remains.
    """
    try:
        descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise storage_error(paths.lock, error) from None
    try:
        _take(descriptor, paths, fcntl.LOCK_SH if is_phase(paths.run_id) else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, paths: RunPaths, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise ConfigError(
            f"run {paths.run_id} is still alive (pid {holder}); wait for its end, stop it, or take another run_id"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise storage_error(paths.lock, error) from None
    with contextlib.suppress(OSError):  # a full disk is soon reported elsewhere; the lock works without the pid
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
