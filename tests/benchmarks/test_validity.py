"""How long a row stands: sources by digest, then the pinned update by its weights."""

import copy
import json
from pathlib import Path

import pytest
from rows import campaign, pinned, queued, sources, validity
from rows.campaign import Places
from rows.queued import Row

ROW = Row(algo="ppo", env_id="CartPole-v1", steps=100, seeds=(1,), device="cpu", state="done", checkpoints={"1": 100})
UPDATE = {"recipe": {"seed": 1}, "arrays": {"policy/a": {"shape": [2], "norm": 5.0, "values": [3.0, 4.0]}}}


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A measured row whose sources have changed since."""
    monkeypatch.setattr(campaign, "report", lambda places: None)  # its bundle has no scores
    folder = tmp_path / "results" / ROW.key
    folder.mkdir(parents=True)
    digests = sources.digests_of("ppo") | {"src/cleanrl_worker/algorithms/ppo.py": "of then"}
    (folder / "bundle.json").write_text(json.dumps({"sources": digests}))
    (folder / "pinned.json").write_text(json.dumps(UPDATE))
    queued.save(tmp_path / "queue.json", [ROW])
    return Places(tmp_path / "queue.json", tmp_path / "work", tmp_path / "results", tmp_path / "results.md", "")


def other(**values: object) -> dict[str, object]:
    changed = copy.deepcopy(UPDATE)
    changed["arrays"]["policy/a"] |= values  # type: ignore[index]
    return changed


def test_digests_cover_what_the_algorithm_imports_and_not_the_command_line() -> None:
    names = set(sources.digests_of("ppo"))
    assert {"src/cleanrl_worker/algorithms/ppo.py", "src/cleanrl_worker/envs/vectors.py"} <= names
    assert not {name for name in names if "/mosaic/" in name or name.endswith(("cli.py", "dqn.py"))}


def test_a_changed_file_with_an_equal_update_stays_valid(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "compute", lambda row: other(values=[3.0, 4.00001]))
    assert campaign.check(places, []) == 0 and queued.load(places.queue) == [ROW]
    monkeypatch.setattr(pinned, "compute", None)  # the new digests are kept: nothing is computed
    assert campaign.check(places, []) == 0


def test_a_changed_update_queues_the_row_again_with_the_reason(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "compute", lambda row: other(values=[3.0, 4.001]))
    assert campaign.check(places, [ROW.key]) == 1
    (row,) = queued.load(places.queue)
    assert row.state == "queued" and row.checkpoints == {}
    assert row.why.startswith("the pinned update changed: policy/a by 1.4e-04 relative") and "ppo.py" in row.why


def test_other_shapes_arrays_and_parameters_are_changes() -> None:
    assert "shape" in pinned.change(UPDATE, other(shape=[1, 2]))
    assert "other arrays" in pinned.change(UPDATE, {**UPDATE, "arrays": {}})
    assert "other parameters: seed" in pinned.change(UPDATE, {**UPDATE, "recipe": {"seed": 2}})


def test_a_missing_bundle_is_a_reason(tmp_path: Path) -> None:
    assert validity.reason_against(ROW, tmp_path) == ("its bundle is missing", None)


def test_the_pinned_update_is_one_rollout_of_the_network() -> None:
    found = pinned.compute(ROW)
    assert found["recipe"]["total_timesteps"] == 64 and "batch_size" not in found["recipe"]
    assert all(name.startswith("policy/") and one["norm"] > 0 for name, one in found["arrays"].items())


@pytest.mark.full
def test_the_pinned_update_is_the_same_twice_and_notices_another_learning_rate() -> None:
    first, second = pinned.compute(ROW), pinned.compute(ROW)
    assert pinned.change(first, second) == ""
    changed = pinned.compute(Row(**vars(ROW) | {"flags": {"learning_rate": 2.6e-4}}))
    assert "other parameters: learning_rate" in pinned.change(first, changed)
    assert "the pinned update changed" in pinned.change(first, changed | {"recipe": first["recipe"]})
