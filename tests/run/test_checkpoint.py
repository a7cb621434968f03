import json
import random

import numpy as np
import pytest
import torch

from cleanrl_worker.learn.buffers import ReplayBuffer
from cleanrl_worker.learn.normalize import RewardNormalizer, RunningStatistics
from cleanrl_worker.run import checkpoint
from mosaic.contract import checkpoints
from mosaic.contract.checkpoints import CheckpointError

ABOUT = {"algo": "ppo", "args": {}, "exact": True, "score": None}


def parts():
    return {"statistics": RunningStatistics((3,)), "rewards": RewardNormalizer(2, 0.9)}


def filled_buffer(count, capacity=8):
    buffer = ReplayBuffer(capacity, (2,), (), np.int64)
    for index in range(count):
        add(buffer, index)
    return buffer


def add(buffer, index):
    obs = np.full((1, 2), index, np.float32)
    buffer.add(obs, np.array([index]), np.array([float(index)]), obs + 1, np.array([index % 2]))


def test_a_state_comes_back_as_it_was_with_every_generator(tmp_path):
    rng = np.random.default_rng(1)
    saved = parts()
    saved["statistics"].update(rng.normal(size=(50, 3)))
    saved["rewards"].observe(np.array([1.0, 2.0]), np.array([False, False]))
    path = checkpoint.write(tmp_path, 100, saved, rng, ABOUT)
    expected = (rng.random(), random.random(), np.random.random())
    restored, other = parts(), np.random.default_rng(2)
    random.seed(0)
    found = checkpoint.read(path)
    checkpoint.restore(found, restored, other)
    assert (other.random(), random.random(), np.random.random()) == expected
    assert np.array_equal(restored["statistics"].mean, saved["statistics"].mean)
    assert restored["rewards"].statistics.mean.shape == ()
    assert (found.step, found.exact) == (100, True)
    assert {file.name for file in path.iterdir()} == {"state.json", "state.safetensors"}


def test_replay_is_saved_by_what_is_new_and_comes_back_whole(tmp_path):
    rng = np.random.default_rng(0)
    buffer = filled_buffer(5)
    checkpoint.write(tmp_path, 5, {}, rng, ABOUT, buffer)
    for index in range(5, 11):
        add(buffer, index)
    path = checkpoint.write(tmp_path, 11, {}, rng, ABOUT, buffer)
    segments = checkpoint.read(path).document["replay"]["segments"]
    assert [(segment["first"], segment["end"]) for segment in segments] == [(0, 5), (5, 11)]
    again = ReplayBuffer(8, (2,), (), np.int64)
    checkpoint.restore(checkpoint.read(path), {}, rng, again)
    assert again.added == buffer.added
    for name in ("obs", "next_obs", "actions", "rewards", "terminations"):
        assert np.array_equal(getattr(again, name), getattr(buffer, name)), name


def test_another_run_that_goes_on_from_here_keeps_its_own_copy_of_the_replay(tmp_path):
    rng = np.random.default_rng(0)
    path = checkpoint.write(tmp_path / "old", 5, {}, rng, ABOUT, filled_buffer(5))
    buffer = ReplayBuffer(8, (2,), (), np.int64)
    checkpoint.restore(checkpoint.read(path), {}, rng, buffer)
    checkpoints.adopt_segments(path.parent / "replay", tmp_path / "new" / "replay", buffer.segments)
    add(buffer, 5)
    newer = checkpoint.write(tmp_path / "new", 6, {}, rng, ABOUT, buffer)
    for file in (tmp_path / "old").rglob("*.safetensors"):
        file.unlink()
    assert checkpoint.read(newer).document["replay"]["added"] == 6


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_a_checkpoint_cut_or_flipped_anywhere_is_never_taken_for_whole(name, tmp_path):
    path = checkpoint.write(tmp_path, 7, parts(), np.random.default_rng(0), ABOUT)
    whole = (path / name).read_bytes()
    positions = np.linspace(0, len(whole) - 1, 60).astype(int)
    for position in positions:
        (path / name).write_bytes(whole[:position])
        with pytest.raises(CheckpointError):
            checkpoint.read(path)
        flipped = bytearray(whole)
        flipped[position] ^= 1
        (path / name).write_bytes(flipped)
        with pytest.raises(CheckpointError):
            checkpoint.read(path)


def test_an_unreadable_newest_falls_back_to_the_one_before_with_a_warning(tmp_path):
    for step in (10, 20):
        path = checkpoint.write(tmp_path, step, parts(), np.random.default_rng(0), ABOUT)
    (path / "state.safetensors").write_bytes(b"")
    warnings = []
    assert checkpoint.newest(tmp_path, warnings.append).step == 10
    assert len(warnings) == 1 and "20" in warnings[0] and "falling back" in warnings[0]


def test_a_newer_format_is_refused_by_its_number(tmp_path):
    path = checkpoint.write(tmp_path, 1, {}, np.random.default_rng(0), ABOUT)
    document = json.loads((path / "state.json").read_text())["state"] | {"format": 9}
    body = json.dumps(document, indent=1)
    outer = f'{{"checksum": "{checkpoints.digest(body.encode())}", "state": {body}}}'
    (path / "state.json").write_text(outer)
    with pytest.raises(CheckpointError, match="format 9, this version reads up to 1"):
        checkpoint.newest(tmp_path, print)


def test_what_was_half_written_is_not_seen_and_other_folders_are_left_alone(tmp_path):
    checkpoint.write(tmp_path, 5, {}, np.random.default_rng(0), ABOUT)
    (tmp_path / ".9.123").mkdir()
    (tmp_path / ".7.removed").mkdir()
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / ".0-1.safetensors.123").touch()
    (tmp_path / "mine").mkdir()
    checkpoint.write(tmp_path / "phase1", 8, {}, np.random.default_rng(0), ABOUT)
    assert [path.name for path in checkpoints.find_all(tmp_path)] == ["8", "5"]
    checkpoints.prune(tmp_path, None)
    assert (tmp_path / "mine").is_dir() and (tmp_path / "phase1" / "8").is_dir()
    assert not [*tmp_path.glob(".*"), *(tmp_path / "replay").iterdir()], "what a killed process left"


def test_the_last_two_the_best_and_the_pinned_are_kept_with_their_replay(tmp_path):
    rng, buffer = np.random.default_rng(0), filled_buffer(1, capacity=2)
    for step, score in ((1, 5.0), (2, 99.0), (3, 1.0), (4, 2.0), (5, 3.0)):
        path = checkpoint.write(tmp_path, step, {}, rng, ABOUT | {"score": score}, buffer)
        if step == 1:
            (path / checkpoints.PINNED).touch()
        add(buffer, step)
    checkpoints.prune(tmp_path, None)
    kept = checkpoints.find_all(tmp_path)
    assert [path.name for path in kept] == ["5", "4", "2", "1"]
    assert all(checkpoint.read(path) for path in kept)


def test_a_byte_budget_drops_the_best_first_and_never_the_newest(tmp_path):
    for step, score in ((1, 9.0), (2, 1.0), (3, 1.0)):
        checkpoint.write(tmp_path, step, parts(), np.random.default_rng(0), ABOUT | {"score": score})
    checkpoints.prune(tmp_path, budget_bytes=1)
    assert [path.name for path in checkpoints.find_all(tmp_path)] == ["3"]


def test_half_a_file_does_not_keep_a_full_disk_full(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.os, "fsync", full)
    with pytest.raises(OSError):
        checkpoint.write(tmp_path, 1, {}, np.random.default_rng(0), ABOUT, filled_buffer(3))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_larger_memory_than_the_saved_one_holds_only_what_was_saved(tmp_path):
    rng, buffer = np.random.default_rng(0), filled_buffer(0, capacity=4)
    for index in range(6):  # a segment per transition: the first two are forgotten
        add(buffer, index)
        path = checkpoint.write(tmp_path, index, {}, rng, ABOUT, buffer)
    larger = ReplayBuffer(100, (2,), (), np.int64)
    checkpoint.restore(checkpoint.read(path), {}, rng, larger)
    assert larger.rewards[: len(larger)].tolist() == [2.0, 3.0, 4.0, 5.0]
    add(larger, 6)
    again = ReplayBuffer(100, (2,), (), np.int64)
    checkpoint.restore(checkpoint.read(checkpoint.write(tmp_path, 7, {}, rng, ABOUT, larger)), {}, rng, again)
    assert again.rewards[: len(again)].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_save_that_fails_leaves_the_next_one_whole(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    rng, buffer = np.random.default_rng(0), filled_buffer(3)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write_checkpoint", full)
        with pytest.raises(OSError):
            checkpoint.write(tmp_path, 1, {}, rng, ABOUT, buffer)
    checkpoints.prune(tmp_path, None)  # takes the segment that no checkpoint lists
    add(buffer, 3)
    path = checkpoint.write(tmp_path, 2, {}, rng, ABOUT, buffer)
    assert checkpoint.read(path).document["replay"]["added"] == 4


def test_a_run_that_went_on_from_an_earlier_checkpoint_is_not_taken_for_the_one_it_left(tmp_path):
    for step in (10, 20, 30, 15):
        checkpoint.write(tmp_path, step, {}, np.random.default_rng(0), ABOUT)
    assert checkpoint.newest(tmp_path, print).step == 15
    checkpoints.prune(tmp_path, None)
    assert [path.name for path in checkpoints.find_all(tmp_path)] == ["15", "30"]


def test_a_clock_that_was_set_back_makes_no_checkpoint_older(tmp_path, monkeypatch):
    checkpoint.write(tmp_path, 10, {}, np.random.default_rng(0), ABOUT)
    monkeypatch.setattr(checkpoints.time, "time", lambda: 1.0)
    checkpoint.write(tmp_path, 20, {}, np.random.default_rng(0), ABOUT)
    assert [path.name for path in checkpoints.find_all(tmp_path)] == ["20", "10"]


def test_damaged_checkpoints_push_out_no_whole_one(tmp_path):
    for step in (10, 20, 30):
        path = checkpoint.write(tmp_path, step, {}, np.random.default_rng(0), ABOUT)
        if step > 10:
            (path / "state.json").write_bytes(b"{")
    checkpoint.write(tmp_path, 15, {}, np.random.default_rng(0), ABOUT)
    checkpoints.prune(tmp_path, None)
    assert [path.name for path in checkpoints.find_all(tmp_path)] == ["15", "10"]


def test_what_a_damaged_document_says_of_its_run_is_not_believed(tmp_path):
    for step in (10, 20):
        path = checkpoint.write(tmp_path, step, {}, np.random.default_rng(0), ABOUT | {"args": {"gamma": 0.9}})
    (path / "state.json").write_text((path / "state.json").read_text().replace("0.9", "0.1"))
    assert checkpoints.saved_state(tmp_path)["args"] == {"gamma": 0.9}


def reseal(path, **changes):
    """A document that somebody changed, with a checksum that fits."""
    state = json.loads((path / "state.json").read_text())["state"] | changes
    (path / "state.json").write_bytes(checkpoints.sealed(json.dumps(state).encode()))


@pytest.mark.parametrize("linked", ["state.safetensors", "segment"])
def test_a_link_in_a_checkpoint_is_not_followed(linked, tmp_path):
    path = checkpoint.write(
        tmp_path / "run" / "checkpoints", 5, parts(), np.random.default_rng(0), ABOUT, filled_buffer(5)
    )
    (segment,) = (path.parent / "replay").iterdir()
    file = segment if linked == "segment" else path / linked
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a link, and is not followed"):
        checkpoint.read(path)


def test_segments_that_leave_transitions_out_are_refused(tmp_path):
    path = checkpoint.write(tmp_path, 5, {}, np.random.default_rng(0), ABOUT, filled_buffer(5))
    replay = checkpoint.read(path).document["replay"]
    (segment,) = replay["segments"]
    for changed in (
        {"added": 6},
        {"segments": [segment | {"first": 1}]},
        {"segments": [segment | {"end": 2}, segment | {"first": 3}]},
        {"segments": [segment | {"end": 10**15, "first": 0}], "added": 10**15},
    ):
        reseal(path, replay=replay | changed)
        with pytest.raises(ValueError, match=r"segment|transitions"):
            checkpoint.restore(checkpoint.read(path), {}, np.random.default_rng(0), ReplayBuffer(8, (2,), (), np.int64))


@pytest.mark.parametrize("name", ["obs", "rewards", "actions"])
def test_a_segment_with_numbers_of_another_type_or_shape_is_refused(name, tmp_path):
    path = checkpoint.write(tmp_path, 5, {}, np.random.default_rng(0), ABOUT, filled_buffer(5))
    (segment,) = checkpoint.read(path).document["replay"]["segments"]
    for change in (lambda array: array.astype(np.float16), lambda array: array[..., None]):
        rows = checkpoint.load_arrays((tmp_path / "replay" / segment["file"]).read_bytes())
        data = checkpoint.save_arrays({**rows, name: change(rows[name])})
        entry = checkpoints.write_segment(tmp_path / "replay", 0, 5, data)
        reseal(path, replay={"added": 5, "segments": [entry]})
        with pytest.raises(ValueError, match=f"{name} is "):
            checkpoint.restore(checkpoint.read(path), {}, np.random.default_rng(0), ReplayBuffer(8, (2,), (), np.int64))


def test_numbers_where_arrays_are_expected_are_refused_and_the_other_way_round(tmp_path):
    path = checkpoint.write(tmp_path, 5, parts(), np.random.default_rng(0), ABOUT)
    document = checkpoint.read(path).document
    for numbers in ({"statistics/count": "many"}, {"statistics/mean": 0.5}, {"statistics/var": [1.0]}):
        reseal(path, numbers=document["numbers"] | numbers)
        with pytest.raises(ValueError, match=f"{next(iter(numbers))} is "):
            checkpoint.restore(checkpoint.read(path), parts(), np.random.default_rng(0))


def test_a_generator_that_would_be_read_beyond_its_words_is_refused(tmp_path):
    path = checkpoint.write(tmp_path, 5, {}, np.random.default_rng(0), ABOUT)
    saved = checkpoint.read(path).document["random"]
    saved["numpy"][2] = 10**6
    reseal(path, random=saved)
    with pytest.raises(CheckpointError, match=r"random\.numpy: the state of numpy's Mersenne Twister is needed"):
        checkpoint.read(path)


def test_segments_that_no_checkpoint_refers_to_are_removed_and_others_stay(tmp_path):
    buffer = filled_buffer(3)
    checkpoint.write(tmp_path, 3, {}, np.random.default_rng(0), ABOUT, buffer)
    (kept,) = (tmp_path / "replay").iterdir()
    checkpoints.write_segment(tmp_path / "replay", 3, 4, b"of a process that was killed before its checkpoint")
    checkpoints.adopt_segments(tmp_path / "replay", tmp_path / "resumed" / "replay", buffer.segments)
    checkpoints.drop_segments(tmp_path)
    assert list((tmp_path / "replay").iterdir()) == [kept]
    checkpoints.drop_segments(tmp_path / "resumed")
    assert not list((tmp_path / "resumed" / "replay").iterdir()), "adopted by a run that never saved"
    assert kept.exists(), "each folder has its own"


def test_a_curve_is_taken_from_the_run_itself_or_a_run_of_this_home(tmp_path, monkeypatch):
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "home"))
    path, own = tmp_path / "from elsewhere" / "checkpoints" / "5", tmp_path / "own"
    path.mkdir(parents=True)
    secret, other = tmp_path / "secret", tmp_path / "home" / "var" / "trainer" / "runs" / "R"
    for folder in (own, secret, other):
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("{}")
    assert checkpoints.curve_of(path, {"run_folder": str(secret)}, own) is None
    assert (
        checkpoints.curve_of(path, {"run_folder": str(other / ".." / ".." / ".." / ".." / ".." / "secret")}, own)
        is None
    )
    assert checkpoints.curve_of(path, {"run_folder": str(other)}, own) == other / "metrics.jsonl"
    assert checkpoints.curve_of(path, {"run_folder": str(own)}, own) == own / "metrics.jsonl"
    (path.parent.parent / "metrics.jsonl").symlink_to(secret / "metrics.jsonl")
    assert checkpoints.curve_of(path, {}, own) is None, "a link to another file"
    (path.parent.parent / "metrics.jsonl").unlink()
    (path.parent.parent / "metrics.jsonl").write_text("{}")
    assert checkpoints.curve_of(path, {}, own) == path.parent.parent / "metrics.jsonl"


def test_a_weight_hash_depends_on_names_types_shapes_and_values_only():
    class Net:
        def __init__(self, **arrays):
            self.arrays = arrays

        def state_dict(self):
            return self.arrays

    one, two = np.arange(4, dtype=np.float32), np.float32(7)
    first = checkpoint.weights_hash(Net(a=one, b=two))
    assert first == checkpoint.weights_hash(Net(b=two.copy(), a=one.copy())) and len(first) == 64
    assert first == checkpoint.weights_hash(Net(a=torch.from_numpy(one), b=torch.tensor(7.0)))
    others = [
        Net(a=one, c=two),
        Net(a=one.reshape(2, 2), b=two),
        Net(a=one.astype(np.float64), b=two),
        Net(a=-one, b=two),
    ]
    assert len({first, *map(checkpoint.weights_hash, others)}) == 5
