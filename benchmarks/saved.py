"""What a run folder's newest checkpoint holds, for benchmarks that play with its policy."""

from functools import partial
from pathlib import Path

import torch

from cleanrl_worker.run.checkpoint import Checkpoint, newest
from mosaic.contract.checkpoints import CheckpointError


def newest_of(folder: Path, algo: str) -> Checkpoint:
    """The newest checkpoint of a run of that algorithm; one line for anything else."""
    try:
        found = newest(folder, partial(print, flush=True))
    except CheckpointError as error:
        raise SystemExit(str(error)) from error
    if found.document["algo"] != algo:
        raise SystemExit(f"{folder} is a run of {found.document['algo']}; give one of {algo}")
    return found


def weights(found: Checkpoint, part: str) -> dict[str, torch.Tensor]:
    """The arrays of one part of the state, by the names it gave them."""
    own = {key: value for key, value in found.arrays.items() if key.startswith(f"{part}/")}
    return {key.removeprefix(f"{part}/"): torch.from_numpy(value) for key, value in own.items()}
