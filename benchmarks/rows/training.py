"""One seed of a row in the work folder: its run folder, how far it is, and the config of its next slice."""

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic.contract.checkpoints import CheckpointError, find_all, read_document, read_finished
from mosaic.contract.paths import RunPaths, write_atomic
from rows.queued import Row

CUT = "cut.json"


@dataclass(frozen=True)
class Progress:
    """The step that a training has reached."""

    step: int
    ended: bool
    checkpoint: Path | None = None
    exact: bool = True


@dataclass(frozen=True)
class Training:
    """One seed of a row; a home of the worker's layout lies in the work folder."""

    row: Row
    seed: int
    work: Path

    @property
    def paths(self) -> RunPaths:
        return RunPaths(f"{self.row.key}-{self.seed}", self.work)

    def progress(self, since: int = 0) -> Progress:
        """Return the state to continue from; `since` is the step at which the last slice began.

        A checkpoint that a stopped run saved between two scheduled ones cuts the episodes under way. The scheduled one
        before it is preferred if the slice reached one: then the run ends as if it had never been stopped.
        """
        if (cut := self.cut_at()) is not None:
            return Progress(cut, ended=True)
        paths = self.checkpoints()
        found = [(path, document) for path in paths if (document := _document(path))]  # the last saved first
        if not found:
            return Progress(0, ended=False)
        path, document = found[0]
        if read_finished(self.paths.checkpoints) == int(path.name):
            return Progress(int(path.name), ended=True)
        if not document.get("exact"):
            steps = range(since + 1, int(path.name))
            exact = next((one for one, other in found if other.get("exact") and int(one.name) in steps), None)
            if exact is not None:
                return Progress(int(exact.name), ended=False, checkpoint=exact)
        return Progress(int(path.name), ended=False, checkpoint=path, exact=bool(document.get("exact")))

    def newest(self) -> Progress:
        """Return the state that was saved last, scheduled or not."""
        found = ((path, document) for path in self.checkpoints() if (document := _document(path)))
        for path, document in found:
            return Progress(int(path.name), False, checkpoint=path, exact=bool(document.get("exact")))
        return Progress(0, ended=False)

    def checkpoints(self) -> list[Path]:
        """Return the kept checkpoints, the last saved first."""
        return [path for path in find_all(self.paths.checkpoints) if path.parent == self.paths.checkpoints]

    def config(self, progress: Progress, grace_seconds: float) -> dict[str, Any]:
        """Return the worker's config for a slice that begins at this progress."""
        extras: dict[str, Any] = {"algo_params": dict(self.row.flags), "fastlane_video_mode": "off"}
        extras |= {"grace_seconds": grace_seconds, "telemetry": "off"}
        if self.row.device == "cpu":
            extras["algo_params"] |= {"cuda": False}
        if progress.checkpoint is not None:
            extras |= {"mode": "resume_training", "checkpoint_path": str(progress.checkpoint)}
        about = {"run_id": self.paths.run_id, "algo": self.row.algo, "env_id": self.row.env_id, "seed": self.seed}
        return about | {"total_timesteps": self.row.steps, "extras": extras}

    def write_config(self, progress: Progress, grace_seconds: float) -> Path:
        """Write the config of a slice; a run without a checkpoint begins in an empty folder."""
        if progress.checkpoint is None:
            shutil.rmtree(self.paths.folder, ignore_errors=True)
        path = self.work / "configs" / f"{self.paths.run_id}.json"
        write_atomic(path, json.dumps(self.config(progress, grace_seconds), indent=1))
        return path

    def cut(self) -> None:
        """End the training at its newest checkpoint, before its total."""
        if paths := self.checkpoints():
            write_atomic(self.paths.folder / CUT, json.dumps({"step": int(paths[0].name)}))

    def cut_at(self) -> int | None:
        """Return the step at which the training was cut, None for one that was not."""
        with contextlib.suppress(FileNotFoundError):
            return int(json.loads((self.paths.folder / CUT).read_text())["step"])
        return None


def trainings_of(row: Row, work: Path) -> list[Training]:
    """Return the seeds of a row."""
    return [Training(row, seed, work) for seed in row.seeds]


def _document(path: Path) -> dict[str, Any]:
    try:
        return read_document(path)
    except CheckpointError:
        return {}
