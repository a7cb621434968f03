"""The tables of a run's files: what our own writers write fits them, and what others forge does not."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from mosaic.contract.files import CHECKPOINT, PHASE, RING, SIDECAR, STORED, read_note
from mosaic.contract.kinds import PARAMETERS, FieldError

VERSION, WORDS, GAUSS = random.Random(1).getstate()
RANDOM = {
    "python": [VERSION, list(WORDS), GAUSS],
    "numpy": ["MT19937", [int(word) for word in np.random.RandomState(1).get_state()[1]], 624, 0, 0.0],
    "run": np.random.default_rng(1).bit_generator.state,
}
SEGMENT = {"file": "0-5.safetensors", "first": 0, "end": 5, "sha256": "0" * 64}
STATE = {
    **{"format": 1, "step": 5, "algo": "ppo", "env_id": "CartPole-v1", "seed": 2**40, "score": float("nan")},
    **{"args": {"gamma": 0.9, "grace_seconds": float("inf")}, "numbers": {"run/best_return": float("-inf")}},
    **{"random": RANDOM, "replay": {"added": 5, "segments": [SEGMENT]}, "files": {"state.safetensors": "a" * 64}},
}


def changed(document, place, value):
    """A copy with another value at `a.b.0`."""
    copy = json.loads(json.dumps(document))
    *way, last = place.split(".")
    inner = copy
    for part in way:
        inner = inner[int(part) if isinstance(inner, list) else part]
    inner[int(last) if isinstance(inner, list) else last] = value
    return copy


def test_a_checkpoint_as_ours_are_is_accepted():
    CHECKPOINT.check_fields(STATE, "")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(("step", value) for value in (-1, 1.5, "5", True, None, 2**63)),
        *(("files", value) for value in ([], {"../x": "a" * 64}, {"a/b": "a" * 64}, {".x": "a" * 64}, {"x": "short"})),
        *(("replay.segments.0.file", value) for value in ("../../x", "/etc/passwd", "a\0b", "", 7)),
        *(("replay.segments.0.first", value) for value in (-1, "0", 2**64)),
        *(("args", value) for value in ([], "x", {"seed": 2**64}, {"a\0": 1}, {"a": "\0"})),
        *(("random.numpy.2", value) for value in (625, -1, 10**6, "0")),
        *(("random.numpy.1.3", value) for value in (-1, 2**32, 1.0, "x")),
        *(("random.python.1", value) for value in ([], [1] * 3, [2**32] * 625, [0] * 624 + [625])),
        *(("random.run", value) for value in ([], {"has_uint32": 7}, {"bit_generator": 3})),
        *(("random", value) for value in ({}, [], 7)),
        *((name, value) for name in ("algo", "env_id", "run_folder", "spaces") for value in (3, ["x"], "a\0b")),
        *(("score", value) for value in ("NaN", [1.0], True)),
    ],
)
def test_a_forged_checkpoint_is_refused_with_its_field(place, value):
    with pytest.raises(FieldError) as refused:
        CHECKPOINT.check_fields(changed(STATE, place, value), "")
    assert place.split(".")[0] in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "sidecar",
    [
        {"observation_statistics": {"mean": [0.0], "var": [[1.0, "x"]]}},
        {"observation_statistics": {"mean": [0.0]}},
        {"observation_statistics": {"mean": [float("nan")], "var": [1.0]}},
        {"args": {"seed": 2**70}},
        {"env_id": "x" * 301},
        {"step": -1},
        {"versions": {"a": 3}},
    ],
)
def test_a_forged_sidecar_is_refused(sidecar):
    with pytest.raises(FieldError):
        SIDECAR.check_fields(sidecar, "")


FILES = {"checkpoints/5/state.json": {"chunks": [[3, "a" * 64]], "changed_at": 1.0}}
KEPT = {"checkpoints/5": {"step": 5, "saved_at": 1.0, "files": ["checkpoints/5/state.json"]}}
PATHS = ("../x", "/etc/x", "a//b", ".ssh/x", "a/../b")
CHUNKS = ([[1 << 40, "a" * 64]], [[1]], [["1", "a"]])
MANIFEST = {"format": 1, "run_id": "R", "generation": 1, "files": FILES, "checkpoints": KEPT}


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "../R"},
        {"generation": -1},
        *({"files": {path: FILES["checkpoints/5/state.json"]}} for path in PATHS),
        *({"files": {"x": {"chunks": chunks, "changed_at": 1.0}}} for chunks in CHUNKS),
        {"checkpoints": {"checkpoints/5": {**KEPT["checkpoints/5"], "evil": 1}}},
        {"checkpoints": {"checkpoints/5": {"step": 5}}},
    ],
)
def test_a_forged_manifest_is_refused(change):
    STORED.check_fields(MANIFEST, "")
    with pytest.raises(FieldError):
        STORED.check_fields({**MANIFEST, **change}, "")


def test_a_note_that_cannot_be_used_is_as_if_it_were_not_there(tmp_path: Path):
    note = tmp_path / "fastlane.json"
    assert read_note(note, RING) == {}
    for text in ("[", '{"name": "../../etc/passwd"}', '{"name": "fl-a-1/2-3"}', '{"name": 3}', "{}", "[" * 10_000):
        note.write_text(text)
        assert read_note(note, RING) == {}, text
    note.write_text('{"name": "fl-0123456789-12-abc"}')
    assert read_note(note, RING)["name"] == "fl-0123456789-12-abc"
    note.unlink()
    note.symlink_to("/dev/zero")
    assert read_note(note, RING) == {}


def test_a_phase_has_the_fields_of_a_phase_and_no_others():
    phase = {"number": 1, "name": "a", "algo": "ppo", "env_id": "x", "first_step": 0, "metrics_offset": 0, "pid": 1}
    PHASE.check_fields({**phase, "end_step": None}, "")
    with pytest.raises(FieldError, match="unknown field"):
        PHASE.check_fields({**phase, "evil": 1}, "")


@pytest.mark.parametrize("name", ["num_envs", "local_num_envs", "buffer_size"])
def test_a_file_asks_for_no_sizes_that_fill_the_memory(name: str) -> None:
    PARAMETERS.check({name: 4096}, "args")
    with pytest.raises(FieldError, match=rf"args\.{name}: a whole number from 0 to"):
        PARAMETERS.check({name: 10**10}, "args")
