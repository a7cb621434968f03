"""Checkpoints: whole training state in `checkpoints/<step>/`, written beside and renamed, checksummed, without pickle.

`state.safetensors` holds every array, `state.json` everything else and a checksum of each file. Replay data lies in
`checkpoints/replay/` as append-only segments that checkpoints share, so that one costs only what is new since the last.
"""

import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from cleanrl_worker.kit.buffers import ReplayBuffer
from mosaic.wire.errors import ConfigError

FORMAT = 1
KEPT = 2  # the newest ones; the best and the pinned stay besides
REPLAY = "replay"
PINNED = "pinned"  # an empty file of this name in a checkpoint keeps it for ever


class CheckpointError(ConfigError):
    """A checkpoint that cannot be used, and why."""


class Part(Protocol):
    """A piece of training state: its numbers and arrays by name."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> Any: ...


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read whole: every checksum held."""

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
    replay: ReplayBuffer | None = None,
) -> Path:
    """Save the state as `folder/<step>`; a crash at any moment leaves either nothing or all of it under that name."""
    final = folder / str(step)
    beside = folder / f".{step}.{os.getpid()}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    arrays: dict[str, np.ndarray] = {}
    numbers: dict[str, Any] = {}
    for name, part in parts.items():
        for key, value in _leaves(part.state_dict(), name):
            if isinstance(value, np.ndarray):
                arrays[key] = value
            else:
                numbers[key] = value
    document = {"format": FORMAT, "step": step, **about, "numbers": numbers, "random": _random_state(rng, arrays)}
    if replay is not None:
        document[REPLAY] = _write_segments(folder / REPLAY, replay)
    document["files"] = {"state.safetensors": _write_file(beside / "state.safetensors", save_arrays(arrays))}
    body = json.dumps(document, indent=1)  # orjson refuses the 128-bit numbers of numpy's generators
    _write_file(beside / "state.json", f'{{"checksum": "{_digest(body.encode())}", "state": {body}}}'.encode())
    _sync(beside)
    if final.exists():  # the same step again, after a resume from before it: the same state, so the newer copy stands
        shutil.rmtree(final)
    os.replace(beside, final)
    _sync(folder)
    return final


def read(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; CheckpointError says what is wrong with it."""
    try:
        outer = json.loads((path / "state.json").read_text())
        body = json.dumps(outer["state"], indent=1)
        if outer["checksum"] != _digest(body.encode()):
            raise CheckpointError(f"checkpoint {path}: state.json does not match its checksum")
        document = outer["state"]
        if document["format"] > FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {document['format']}, this version reads up to {FORMAT}: update mosaic-rl"
            )
        data = (path / "state.safetensors").read_bytes()
        if _digest(data) != document["files"]["state.safetensors"]:
            raise CheckpointError(f"checkpoint {path}: state.safetensors does not match its checksum")
        for segment in document.get(REPLAY, {}).get("segments", ()):
            if _digest((path.parent / REPLAY / segment["file"]).read_bytes()) != segment["sha256"]:
                raise CheckpointError(
                    f"checkpoint {path}: replay segment {segment['file']} does not match its checksum"
                )
        return Checkpoint(path, document, load_arrays(data))
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: {error.filename} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error


def restore(
    checkpoint: Checkpoint,
    parts: Mapping[str, Part],
    rng: np.random.Generator,
    replay: ReplayBuffer | None = None,
    folder: Path | None = None,
) -> None:
    """Put every part, every generator and the replay memory back into the state that was saved.

    `folder` is where the run is going to save: another run's replay segments are linked into it.
    """
    for name, part in parts.items():
        flat = {key: value for key, value in _of(checkpoint, name)}
        part.load_state_dict(_as_torch(flat) if _is_torch(part) else flat)
    _restore_random(checkpoint.document["random"], rng, checkpoint.arrays)
    if replay is not None:
        source = checkpoint.path.parent / REPLAY
        _read_segments(source, checkpoint.document[REPLAY], replay)
        _adopt_segments(source, (folder or checkpoint.path.parent) / REPLAY, replay.segments)


def size_of(parts: Mapping[str, Part]) -> int:
    """Bytes of the arrays in the state."""
    leaves = (value for name, part in parts.items() for _, value in _leaves(part.state_dict(), name))
    return sum(value.nbytes for value in leaves if isinstance(value, np.ndarray))


def find_all(folder: Path) -> list[Path]:
    """Checkpoints in a `checkpoints/` folder, newest step first; `<phase>/<step>` counts, other folders do not."""
    if not folder.is_dir():
        return []
    found = [
        path for path in (*folder.glob("*/state.json"), *folder.glob("*/*/state.json")) if path.parent.name.isdigit()
    ]
    return sorted((path.parent for path in found), key=lambda path: int(path.name), reverse=True)


def checkpoints_of(source: Path) -> list[Path]:
    """The checkpoints that a checkpoint folder, a `checkpoints/` folder or a run folder stands for, newest first."""
    if (source / "state.json").exists():
        return [source]
    return find_all(source / "checkpoints" if (source / "checkpoints").is_dir() else source)


def saved_args(source: Path) -> dict[str, Any]:
    """The arguments of the run that saved the newest checkpoint of `source` whose text can be read; {} for none."""
    for path in checkpoints_of(source):
        try:
            return dict(json.loads((path / "state.json").read_text())["state"]["args"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}


def newest(folder: Path, warn: Callable[[str], None]) -> Checkpoint:
    """The newest readable checkpoint of a `checkpoints/` folder; each unreadable one is told and passed over."""
    candidates = find_all(folder)
    if not candidates:
        raise CheckpointError(f"there is no checkpoint in {folder}")
    for path in candidates:
        try:
            return read(path)
        except CheckpointError as error:
            if "this version reads up to" in str(error):
                raise
            warn(f"{error}; falling back to the checkpoint before it")
    raise CheckpointError(f"none of the {len(candidates)} checkpoints in {folder} can be read")


def prune(folder: Path, budget_bytes: int | None) -> None:
    """Delete all but the newest two, the best and the pinned; beyond the budget, the best and the older go too."""
    paths = [path for path in find_all(folder) if path.parent == folder]
    pinned = [path for path in paths if (path / PINNED).exists()]
    others = [path for path in paths if path not in pinned]
    scored = [(score, path) for path in others if (score := _score(path)) is not None]
    best = [max(scored, key=lambda item: item[0])[1]] if scored else []
    keep = list(dict.fromkeys([*others[:KEPT], *best]))
    while budget_bytes is not None and len(keep) > 1 and _size(folder, [*pinned, *keep]) > budget_bytes:
        keep.pop()
    for path in others:
        if path not in keep:
            shutil.rmtree(path)
    used = {segment["file"] for path in [*pinned, *keep] for segment in _segments(path)}
    for segment in (folder / REPLAY).glob("*.safetensors"):
        if segment.name not in used:
            segment.unlink()


def _leaves(state: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from _leaves(value, f"{name}/{key}")
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


def _is_torch(part: Part) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(part, torch.nn.Module)


def _as_torch(state: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {key: torch.from_numpy(np.array(value)) for key, value in state.items()}


def _random_state(rng: np.random.Generator, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Python's and numpy's generators as JSON; torch's, which are bytes, among the arrays."""
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


def _write_segments(folder: Path, replay: ReplayBuffer) -> dict[str, Any]:
    """Add a segment with the transitions since the last one; list those that the memory's present content needs."""
    folder.mkdir(parents=True, exist_ok=True)
    oldest = replay.added - len(replay)
    first = max(replay.saved_to, oldest)
    if replay.added > first:
        data = save_arrays(replay.rows(first, replay.added))
        digest = _digest(data)
        # the content is part of the name: another continuation of the same run must not overwrite this one's past
        name = f"{first:012d}-{replay.added:012d}-{digest[:8]}.safetensors"
        _write_file(folder / name, data)
        replay.segments.append({"file": name, "first": first, "end": replay.added, "sha256": digest})
        replay.saved_to = replay.added
        _sync(folder)
    replay.segments = [segment for segment in replay.segments if segment["end"] > oldest]
    return {"added": replay.added, "segments": list(replay.segments)}


def _read_segments(folder: Path, saved: Mapping[str, Any], replay: ReplayBuffer) -> None:
    for segment in saved["segments"]:
        replay.put(segment["first"], load_arrays((folder / segment["file"]).read_bytes()))
    replay.added = replay.saved_to = int(saved["added"])
    replay.segments = list(saved["segments"])


def _adopt_segments(source: Path, folder: Path, segments: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for segment in segments:
        if (folder / segment["file"]).exists():
            continue
        try:
            os.link(source / segment["file"], folder / segment["file"])
        except OSError:  # another file system
            shutil.copy2(source / segment["file"], folder / segment["file"])


def _segments(path: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads((path / "state.json").read_text())["state"].get(REPLAY, {}).get("segments", ()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _score(path: Path) -> float | None:
    try:
        score = json.loads((path / "state.json").read_text())["state"].get("score")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return score if isinstance(score, int | float) else None


def _size(folder: Path, paths: list[Path]) -> int:
    segments = {folder / REPLAY / segment["file"] for path in paths for segment in _segments(path)}
    files = [*(file for path in paths for file in path.iterdir()), *segments]
    return sum(file.stat().st_size for file in files if file.exists())


def _write_file(path: Path, data: bytes) -> str:
    """Write beside, fsync, rename; returns the checksum. A segment's name may exist from a run that was killed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    return _digest(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
