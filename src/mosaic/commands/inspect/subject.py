"""The subject of a verification: a run of this home, or a bundle of a benchmark's row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.contract.checkpoints import find_all
from mosaic.contract.errors import ConfigError
from mosaic.contract.fields import CONFIG_BYTES, read_object
from mosaic.contract.kinds import FieldError
from mosaic.contract.paths import RunPaths

if TYPE_CHECKING:
    from mosaic.trainer.run import Run

BUNDLE = "bundle.json"
CONFIG = "config.json"


@dataclass(frozen=True)
class Subject:
    """A recorded training, with the trust level of its files."""

    run_id: str
    algo: str
    env_id: str
    paths: RunPaths
    mode: str = "train"
    typed: bool = False
    """the user of this home submitted it with this environment"""
    submitted: Mapping[str, str] = field(default_factory=dict)
    """the variables that came with its submission"""
    thinned: bool = False
    """its metrics.jsonl holds a part of the recorded rows"""


@dataclass(frozen=True, init=False)
class BundlePaths(RunPaths):
    """The paths of one seed of a bundle: a run folder without a home around it."""

    seed_folder: Path

    def __init__(self, seed_folder: Path) -> None:
        super().__init__(seed_folder.name, seed_folder)
        object.__setattr__(self, "seed_folder", seed_folder)

    @property
    def folder(self) -> Path:
        return self.seed_folder


def is_bundle(name: str) -> bool:
    """Return True for the folder of a bundle, or of one of its seeds."""
    folder = Path(name).resolve()
    return (folder / BUNDLE).is_file() or (folder.parent / BUNDLE).is_file()


def from_bundle(name: str) -> Subject:
    """Return the named seed of a bundle; for a whole bundle the first seed with a checkpoint, else its first."""
    folder = Path(name).resolve()
    if (folder / BUNDLE).is_file():
        seeds = sorted(folder.glob("seed-*"), key=lambda seed: (not find_all(seed / "checkpoints"), seed.name))
        if not seeds:
            raise ConfigError(f"bundle {name} cannot be verified: it has no folder seed-N")
        folder = seeds[0]
    try:
        config = read_object(folder / CONFIG, CONFIG, CONFIG_BYTES)
    except (OSError, FieldError) as error:
        raise ConfigError(f"bundle {folder} cannot be verified: {CONFIG} cannot be read: {error}") from None
    algo, env_id = str(config.get("algo")), str(config.get("env_id"))
    return Subject(folder.name, algo, env_id, BundlePaths(folder), thinned=True)


def from_run(run: Run) -> Subject:
    """Return a run of this home."""
    folder = Path(run.folder)
    if not folder.is_dir():
        raise ConfigError(f"run {run.run_id} has no folder on this machine ({run.folder}); verify it where it lies")
    payload: Mapping[str, Any] = {} if run.imported else run.payload.get("environment") or {}
    paths = RunPaths(run.run_id, folder.parents[3])
    return Subject(run.run_id, run.algo, run.env_id, paths, run.mode, not run.imported, dict(payload))
