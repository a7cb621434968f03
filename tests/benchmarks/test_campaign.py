"""The campaign: slices that resume, bundles that verify, packs that continue elsewhere."""

import dataclasses
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import campaign as command
import pytest
from rows import bundle, campaign, carry, pinned, queued, slices, training
from rows.campaign import Places
from rows.queued import Row

from mosaic import cli
from mosaic.contract.metrics import comparable

ROOT = Path(__file__).resolve().parents[2]
STUB = {"recipe": {}, "arrays": {"policy/a": {"shape": [2], "norm": 5.0, "values": [3.0, 4.0]}}}
ROW = Row(
    algo="ppo",
    env_id="CartPole-v1",
    steps=12_000,
    seeds=(1,),
    device="cpu",
    flags={"checkpoint_every": 2_000, "checkpoint_episodes": 1},
)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setattr(pinned, "compute", lambda row: STUB)
    queued.save(tmp_path / "queue.json", [ROW])
    return Places(
        tmp_path / "queue.json", tmp_path / "work", tmp_path / "results", tmp_path / "docs/results.md", "0123456789"
    )


def row_of(places: Places) -> Row:
    (row,) = queued.load(places.queue)
    return row


def end_of_time_after_a_checkpoint(self: slices.Pace, end: float) -> bool:
    return any(self._one.paths.checkpoints.glob("[0-9]*"))


def test_a_run_cut_into_slices_ends_as_an_uncut_one_and_its_bundle_is_verified(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(slices.Pace, "is_last_before", end_of_time_after_a_checkpoint)
        assert campaign.train(places, 60, device="cpu") == 0
    row = row_of(places)
    assert row.state == "running" and 0 < row.checkpoints["1"] < ROW.steps
    assert not (places.results / ROW.key).exists()

    elsewhere = dataclasses.replace(places, work=tmp_path / "work2", queue=tmp_path / "queue2.json")
    queued.save(elsewhere.queue, [ROW])
    assert (
        carry.pack(places, tmp_path / "state.tgz", part_mb=0.05)
        == carry.unpack(elsewhere, tmp_path / "state.tgz")
        == [ROW.key]
    )
    assert row_of(elsewhere).checkpoints == row.checkpoints and len(list(tmp_path.glob("state.tgz.0*"))) > 1

    assert campaign.train(elsewhere, 60, device="cpu") == 0
    assert row_of(elsewhere).state == "done" and row_of(elsewhere).commit == "0123456789"
    (cut,) = training.trainings_of(ROW, elsewhere.work)
    (uncut,) = training.trainings_of(ROW, tmp_path / "uncut")
    slices.run_slice([uncut], 60, "")
    assert comparable(cut.paths.metrics) == comparable(uncut.paths.metrics)
    last = [one.checkpoints()[0] / "state.safetensors" for one in (cut, uncut)]
    assert last[0].read_bytes() == last[1].read_bytes()

    document = bundle.read(places.results, ROW.key)
    assert document is not None and document["seeds"]["1"]["episodes"] == 100 and len(document["slices"]) == 2
    folder = places.results / ROW.key
    assert str(tmp_path) not in "".join(p.read_text() for p in folder.rglob("*.json*"))
    assert list(folder.glob("seed-1/checkpoints/*/state.safetensors"))
    assert "| `ppo` | CartPole-v1 | 12," in places.page.read_text()

    capsys.readouterr()
    assert cli.main(["verify", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["windows"][0]["rows"] > 0


@pytest.mark.full
def test_a_bundle_without_checkpoint_is_verified_from_step_0_and_a_changed_hash_is_found(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "CHECKPOINT_BYTES", 10)
    assert campaign.train(places, 60, device="cpu") == 0
    seed = places.results / ROW.key / "seed-1"
    assert not (seed / "checkpoints").exists()
    events = (seed / "logs/worker.jsonl").read_text()
    (seed / "logs/worker.jsonl").write_text(re.sub('"weights": "[0-9a-f]{5}', '"weights": "00000', events))
    assert cli.main(["verify", str(seed)]) == 1
    assert "step 2,048: weights 00000" in capsys.readouterr().out


def test_a_run_that_cannot_start_is_failed_with_the_reason(places: Places) -> None:
    queued.save(places.queue, [dataclasses.replace(ROW, flags={"num_minibatches": 7})])
    campaign.train(places, 60, device="cpu")
    assert row_of(places).state == "failed" and "num-minibatches=7" in row_of(places).why


def test_a_row_of_another_device_waits_for_it(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.train(places, 60, device="gpu") == 0
    assert "no row for a gpu is queued" in capsys.readouterr().err


def test_only_replay_memories_are_too_large_to_carry() -> None:
    assert campaign.needed_mb(ROW) == 0
    atari = dataclasses.replace(ROW, algo="dqn_atari", env_id="BreakoutNoFrameskip-v4", steps=10_000_000)
    assert campaign.needed_mb(atari) > 1_000


@pytest.mark.parametrize("word", ["status", "next"])
def test_the_command_runs_without_an_installation_and_answers_in_one_line(word: str, tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_text("[]")
    command = [sys.executable, str(ROOT / "benchmarks/campaign.py"), "--queue", str(tmp_path / "queue.json"), word]
    found = subprocess.run([*command, *(["--minutes", "1"] * (word == "next"))], capture_output=True, text=True)
    assert found.returncode == 1 and found.stderr.count("\n") == 1 and 'expected {"format": 1' in found.stderr


def test_a_name_that_no_row_has_is_refused_by_check(places: Places) -> None:
    with pytest.raises(SystemExit, match="no row named 'ppo__CartPole'; did you mean 'ppo__CartPole-v1'"):
        campaign.check(places, ["ppo__CartPole"])


def test_an_empty_queue_is_shown_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queued.save(tmp_path / "queue.json", [])
    assert command.main(["--queue", str(tmp_path / "queue.json"), "status"]) == 0
    assert "queue.json: no rows" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("next", "--minutes", "nan"), ("measure", "x", "--processes", "0")])
def test_amounts_that_allow_nothing_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="are needed"):
        command.main(list(words))


def test_a_damaged_pack_is_refused_in_one_line_and_changes_nothing(places: Places, tmp_path: Path) -> None:
    slices._append(slices.log_of(ROW, places.work), slices.Slice(0.0))
    assert carry.pack(places, tmp_path / "state.tgz") == [ROW.key]
    whole = (tmp_path / "state.tgz").read_bytes()
    with tarfile.open(tmp_path / "other.tgz", "w:gz") as archive:
        archive.add(places.queue, "work/queue.json")
    elsewhere = dataclasses.replace(places, work=tmp_path / "work2")
    for data in (b"", b"x", whole[: len(whole) // 2], (tmp_path / "other.tgz").read_bytes()):
        (tmp_path / "bad.tgz").write_bytes(data)
        with pytest.raises(SystemExit, match=r"^[^\n]*bad\.tgz is not a whole file of campaign\.py pack: [^\n]*$"):
            carry.unpack(elsewhere, tmp_path / "bad.tgz")
    assert not elsewhere.work.exists()


def test_a_damaged_bundle_is_named(places: Places) -> None:
    (places.results / ROW.key).mkdir(parents=True)
    (places.results / ROW.key / "bundle.json").write_text("{")
    with pytest.raises(SystemExit, match=r"bundle .*bundle\.json cannot be read: .*; restore it"):
        campaign.report(places)
