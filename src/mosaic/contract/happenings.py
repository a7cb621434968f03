"""The log of the daemon and the GUI: one line per happening, under a stable dotted name."""

from __future__ import annotations

import logging
import logging.handlers
import threading
from pathlib import Path

from mosaic.contract.errors import storage_error
from mosaic.contract.secrets import mask_secrets

# 10 MB each: `grep <run>` over all of them stays instant.
FILE_BYTES, FILES = 10_000_000, 5

NAMES: dict[str, str] = {
    "daemon.started": "the daemon serves; address, home, process id",
    "daemon.stopped": "the daemon ends; runs go on",
    "daemon.trouble": "something the daemon could not do and tries again",
    "daemon.recovered": "what could not be done works again",
    "registry.unavailable": "the registry cannot be written; nothing is lost, it is tried again",
    "registry.unlisted": "run folders have no row; `mosaic rebuild` gives them one",
    "registry.rebuilt": "a rebuild has ended; how many rows it made, skipped and found, and where a damaged file lies",
    "run.submitted": "a run was accepted and queued",
    "run.refused": "a submission was refused, with the reason",
    "run.starting": "a queued run gets a worker",
    "run.started": "its worker runs",
    "run.adopted": "a new daemon has found the worker of a run that lives",
    "run.waits": "its cluster is not there yet, with the reason",
    "run.placed": "a node of its cluster has it",
    "run.executing": "the first telemetry came",
    "run.pause_requested": "a person asked it to pause",
    "run.paused": "it stands still",
    "run.continue_requested": "a person asked it to go on",
    "run.continued": "it goes on",
    "run.cancel_requested": "a person, or one of its limits, asked it to end",
    "run.killed": "its processes were ended by force, the grace period being over",
    "run.checkpoint": "it saved its whole state",
    "run.phase": "a phase of a script has started or ended",
    "run.resumed": "it went on from a checkpoint",
    "run.warning": "its worker warns",
    "run.stalled": "its step has not grown for too long; for how many seconds",
    "run.moves_again": "its step grows again, or need not for a while",
    "run.requeued": "it goes back into the queue, with the reason",
    "run.completed": "it ended as it should",
    "run.failed": "it failed, with the reason",
    "run.cancelled": "it was ended on request",
    "run.lost": "its remote worker has fallen silent, or its node is gone",
    "run.broken": "its row or its payload cannot be read, or the daemon cannot handle it, with the reason",
    "run.odd": "handling it raised an unexpected exception; it is tried again, and BROKEN if that lasts",
    "run.delete_refused": "a deletion that an earlier daemon began is refused by the disk; the run stays",
    "run.rebuilt": "its row was recreated from its folder",
    "run.deleted": "its folder and rows were deleted",
    "run.secrets_gone": "the daemon was restarted and no longer has its keys: it tracks offline",
    "worker.registered": "its worker, or the relay on its behalf, has registered",
    "worker.secrets_withheld": "a distant worker did not get the run's keys: the daemon listens without TLS",
    "worker.refused": "a registration was refused, with the reason",
    "worker.discovered": "a worker plug-in was found",
    "worker.broken": "a worker plug-in was left out, with the reason",
    "policy.eval_started": "the evaluation of a policy runs",
    "policy.eval_completed": "an evaluation ended as it should, with its mean return",
    "policy.warning": "an evaluation's worker warns",
    "policy.error": "an evaluation failed",
    "telemetry.starved": "a subscriber had no credit left and is passed over",
    "telemetry.resumed": "a subscriber has credit again",
    "telemetry.bad_line": "a line of the run's files is neither an event nor a row of metrics",
    "runbus.subscribed": "somebody reads the run's events",
    "runbus.unsubscribed": "a reader has left",
    "access.denied": "a call without the daemon's token, or with a foreign session token",
    "fastlane.connected": "somebody watches the run and has got a frame; its size",
    "fastlane.unavailable": "somebody watches the run and there is no frame, with the reason",
    "fastlane.header_invalid": "the run names a ring that cannot be read",
    "fastlane.frame_read_error": "a frame could not be read from the ring",
    "fastlane.frame_published": "somebody has left off watching; how many frames were sent",
    "fastlane.queue_depth": "how many frames were passed over meanwhile, newer ones having come",
    "ui.started": "the web GUI serves; address, process id",
    "ui.stopped": "the web GUI ends",
    "ui.signed_in": "somebody signed in with a one-time code",
    "ui.sign_in_refused": "a sign-in was refused, with the reason",
    "ui.page_trouble": "a page could not do something, with the reason",
    "ui.run_subscribed": "somebody opened a run's page",
    "ui.fastlane.eval_summary_update": "the line of an evaluation's latest batch changed on an open page",
    "ui.fastlane.eval_summary_warning": "an evaluation's summary could not be read",
    "fastlane.swept": "the frame ring of a dead process was removed",
    "ui.train_form.opened": "somebody opened a form that trains: train, script or resume",
    "ui.train_form.validated": "a form's dry run went well; nothing was submitted",
    "ui.train_form.refused": "a form's dry run or submission was refused, with the reason",
    "ui.train_form.submitted": "a form has started a run",
    "ui.train_form.again": "a run was started once more with another's config",
    "ui.policy_form.opened": "somebody opened the form that evaluates a policy",
    "ui.policy_form.validated": "its dry run went well; nothing was submitted",
    "ui.policy_form.refused": "its dry run or submission was refused, with the reason",
    "ui.policy_form.submitted": "it has started an evaluation",
    "ui.policy_form.uploaded": "a policy file, or the sidecar of one, was uploaded; its name and size",
}
"""Every name and its meaning; docs/trainer.md holds the same table, and a test compares the two."""


class Happenings:
    """A log file, rotated; a line is time, level, name, run, then key=value. Values passed to `hide` never appear."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handler = logging.handlers.RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILES)
        except OSError as error:
            raise storage_error(path, error) from None
        self._handler.setFormatter(_Formatter())
        self._handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk costs a line
        self._hidden: set[str] = set()
        self._lock = threading.Lock()

    def note(self, name: str, run_id: str = "-", level: int = logging.INFO, **values: object) -> None:
        """Write one happening."""
        assert name in NAMES, name
        text = " ".join(f"{key}={_one_word(value)}" for key, value in values.items() if value not in (None, ""))
        line = f"{name} run={run_id} {text}".rstrip()
        record = logging.LogRecord(name, level, "", 0, self.masked(line), None, None)
        self._handler.handle(record)

    def warn(self, name: str, run_id: str = "-", **values: object) -> None:
        """Write one happening that needs attention."""
        self.note(name, run_id, logging.WARNING, **values)

    def hide(self, *values: str) -> None:
        """Never write these values in later happenings; short ones would mask ordinary words."""
        with self._lock:
            self._hidden.update(value for value in values if len(value) >= 6)

    def masked(self, text: str) -> str:
        """Return the text without secrets."""
        with self._lock:
            hidden = sorted(self._hidden, key=len, reverse=True)
        for value in hidden:
            text = text.replace(value, "***")
        return str(mask_secrets(text))

    def close(self) -> None:
        self._handler.close()


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        return f"{stamp}.{int(record.msecs):03d} {record.levelname} {record.msg}"


def _one_word(value: object) -> str:
    """Return a value quoted and shortened to fit its place in the line."""
    text = " ".join(str(value).split())
    text = text if len(text) <= 500 else text[:499] + "…"
    return f'"{text}"' if " " in text else text
