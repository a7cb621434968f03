"""Checkpoints of the training state as arrays: every part, every generator and the replay memory. No pickle."""

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from mosaic.contract import checkpoints, weights
from mosaic.contract.checkpoints import REPLAY, CheckpointError, read_checkpoint, write_checkpoint, write_segment
from mosaic.contract.fields import TENSORS_BYTES, read_bytes

STATE = "state.safetensors"
SEGMENT_ROWS = 25_000  # a segment of frames has 180 MB, and writing it holds three copies in memory


class Part(Protocol):
    """A part of the training state, with its numbers and arrays by name."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> Any: ...


class Memory(Protocol):
    """A replay memory's interface to checkpoints; `saved_to` transitions are in `segments`, the files so far."""

    capacity: int
    added: int
    saved_to: int
    segments: list[dict[str, Any]]

    def __len__(self) -> int: ...

    def rows(self, first: int, end: int) -> dict[str, np.ndarray]: ...

    def put(self, first: int, rows: Mapping[str, np.ndarray]) -> None: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class Checkpoint:
    """A fully read checkpoint with verified checksums."""

    path: Path
    document: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def step(self) -> int:
        return int(self.document["step"])

    @property
    def exact(self) -> bool:
        return bool(self.document["exact"])


def write(
    folder: Path,
    step: int,
    parts: Mapping[str, Part],
    rng: np.random.Generator,
    about: Mapping[str, Any],
    replay: Memory | None = None,
) -> Path:
    """Save the state of this step; of the replay memory, only the rows since the last save."""
    arrays: dict[str, np.ndarray] = {}
    numbers: dict[str, Any] = {}
    for name, part in parts.items():
        for key, value in leaves(part.state_dict(), name):
            if isinstance(value, np.ndarray):
                arrays[key] = value
            else:
                numbers[key] = value
    document = {**about, "numbers": numbers, "random": _random_state(rng, arrays)}
    if replay is None:
        return write_checkpoint(folder, step, document, {STATE: save_arrays(arrays)})
    before = replay.saved_to, replay.segments
    try:
        document[REPLAY] = _write_segments(folder / REPLAY, replay)
        return write_checkpoint(folder, step, document, {STATE: save_arrays(arrays)})
    except OSError:  # segments that no checkpoint lists may be removed: the next save must write these rows again
        replay.saved_to, replay.segments = before
        raise


def read(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; raise CheckpointError if it is damaged."""
    document, files = read_checkpoint(path)
    try:
        weights.check_safetensors(files[STATE])
        return Checkpoint(path, document, load_arrays(files[STATE]))
    except (LookupError, TypeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error


def restore(
    checkpoint: Checkpoint,
    parts: Mapping[str, Part],
    rng: np.random.Generator,
    replay: Memory | None = None,
) -> None:
    """Restore every part, every generator and the replay memory from a checkpoint."""
    for name, part in parts.items():
        flat = dict(_of(checkpoint, name))
        if name != "curriculum":  # its states differ by method, and it validates each number itself
            now = dict(leaves(part.state_dict(), name))
            weights.require_like(now, {f"{name}/{key}": value for key, value in flat.items()}, shapes=False)
        part.load_state_dict(_as_torch(flat) if is_torch(part) else flat)
    _restore_random(checkpoint.document["random"], rng, checkpoint.arrays)
    if replay is not None:
        _read_segments(checkpoint.path.parent / REPLAY, checkpoint.document[REPLAY], replay)


def size_of(parts: Mapping[str, Part]) -> int:
    """Return the size of the state's arrays in bytes."""
    values = (value for name, part in parts.items() for _, value in leaves(part.state_dict(), name))
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def weights_hash(part: Part) -> str:
    """Return the SHA-256 over a network's arrays in the order of their names: name, dtype, shape and bytes of each."""
    digest = hashlib.sha256()
    for name, value in sorted(leaves(part.state_dict(), "policy"), key=lambda leaf: leaf[0]):
        if isinstance(value, np.ndarray):
            digest.update(f"{name} {value.dtype.str} {value.shape}\n".encode())
            digest.update(value.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def newest(source: Path, warn: Callable[[str], None]) -> Checkpoint:
    """Return the newest readable checkpoint of a checkpoint, `checkpoints/` or run folder; warn of unreadable ones."""
    return checkpoints.newest(source, read, warn)


def leaves(state: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every number, string and array of a state with its path."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from leaves(value, f"{name}/{key}")
    elif isinstance(state, tuple | list) and state and isinstance(state[0], Mapping):  # DDPG's and TD3's networks
        for index, value in enumerate(state):
            yield from leaves(value, f"{name}/{index}")
    elif hasattr(state, "detach"):
        yield name, np.array(state.detach().cpu().numpy(), order="C")
    elif state is None or isinstance(state, bool | int | float | str):
        yield name, state
    else:
        yield name, np.array(state, order="C")  # not ascontiguousarray, which makes scalars one-dimensional


def _of(checkpoint: Checkpoint, name: str) -> Iterator[tuple[str, Any]]:
    for values in (checkpoint.arrays, checkpoint.document["numbers"]):
        for key, value in values.items():
            if key.startswith(f"{name}/"):
                yield key.removeprefix(f"{name}/"), value


def is_torch(part: Part | None) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(part, torch.nn.Module)


def _as_torch(state: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {key: torch.from_numpy(np.array(value)) for key, value in state.items()}


def _random_state(rng: np.random.Generator, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return Python's and numpy's generators as JSON; add torch's, which are bytes, to the arrays."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    if "torch" in sys.modules:
        import torch

        arrays["random/torch"] = torch.get_rng_state().numpy()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            for index, state in enumerate(torch.cuda.get_rng_state_all()):
                arrays[f"random/cuda/{index}"] = state.numpy()
    return {
        "python": [version, list(words), gauss],
        "numpy": [kind, [int(key) for key in keys], position, has_gauss, cached],
        "run": rng.bit_generator.state,
    }


def _restore_random(saved: dict[str, Any], rng: np.random.Generator, arrays: Mapping[str, np.ndarray]) -> None:
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
    rng.bit_generator.state = saved["run"]
    if "torch" in sys.modules and "random/torch" in arrays:
        import torch

        torch.set_rng_state(torch.from_numpy(arrays["random/torch"].copy()))
        cuda = [
            torch.from_numpy(value.copy()) for key, value in sorted(arrays.items()) if key.startswith("random/cuda/")
        ]
        if cuda and torch.cuda.device_count() == len(cuda):
            torch.cuda.set_rng_state_all(cuda)


def _write_segments(folder: Path, replay: Memory) -> dict[str, Any]:
    """Write the transitions since the last segment; return the segments that the memory's current content needs."""
    oldest = replay.added - len(replay)
    first = max(replay.saved_to, oldest)
    for start in range(first, replay.added, SEGMENT_ROWS):
        replay.saved_to = min(start + SEGMENT_ROWS, replay.added)
        data = save_arrays(replay.rows(start, replay.saved_to))
        replay.segments = [*replay.segments, write_segment(folder, start, replay.saved_to, data)]
    replay.segments = [segment for segment in replay.segments if segment["end"] > oldest]
    return {"added": replay.added, "capacity": replay.capacity, "segments": list(replay.segments)}


def _read_segments(folder: Path, saved: Mapping[str, Any], replay: Memory) -> None:
    segments, added = checkpoints.segments_of(saved), int(saved["added"])
    oldest = segments[0]["first"] if segments else added
    # a larger memory than the saved one: renumber, or rows would be missing
    if replay.capacity > saved.get("capacity", added - oldest):
        segments = [{**entry, "first": entry["first"] - oldest, "end": entry["end"] - oldest} for entry in segments]
        added -= oldest
    for entry in segments:
        data = read_bytes(folder / entry["file"], entry["file"], TENSORS_BYTES)
        weights.check_safetensors(data)
        rows = load_arrays(data)
        weights.require_like({name: getattr(replay, name, None) for name in rows}, rows, shapes=False)
        if len(rows["rewards"]) != entry["end"] - entry["first"]:
            raise ValueError(f"segment {entry['file']} has {len(rows['rewards'])} transitions")
        replay.put(entry["first"], rows)
    replay.added = replay.saved_to = added
    replay.segments = segments
