"""What runs have left, as a form finds it; paths that lead out; uploads."""

import json
import os
import re
from pathlib import Path

import pytest

from mosaic.contract.errors import ConfigError
from mosaic.contract.paths import RunPaths
from mosaic.web.forms.found import (
    MOST_UPLOAD_BYTES,
    UPLOADS,
    find_checkpoints,
    find_policies,
    inside_home,
    keep_upload,
    policy_inside,
    read_policy,
    refuse_code,
    safe_name,
)


def test_checkpoints_are_found_with_what_they_are_of(trained: Path) -> None:
    found = find_checkpoints(trained)
    assert [one.step for one in found] == [1024, 512] and {one.run_id for one in found} == {"first"}
    newest = found[0]
    assert (newest.algo, newest.env_id, newest.seed) == ("ppo", "CartPole-v1", 3)
    assert newest.mean_return and newest.size > 10_000 and newest.saved_at > 1e9 and newest.exact
    assert newest.args and newest.args["checkpoint_every"] == 512
    assert find_checkpoints(trained, "first") == found and find_checkpoints(trained, "other") == []


def test_policies_are_found_and_their_live_view_comes_from_the_runs_config(trained: Path) -> None:
    found = {one.path.name: one for one in find_policies(trained)}
    last = found["ppo.cleanrl_model"]
    assert (last.algo, last.env_id, last.seed, last.step) == ("ppo", "CartPole-v1", 3, 1024)
    assert last.fastlane == {"fastlane_mode": "grid", "fastlane_grid_limit": 3} and not last.best
    assert last.source == "ppo.cleanrl_model.json" and last.run_id == "first"


def test_a_policy_without_a_sidecar_is_told_by_a_sibling_config_or_its_runs(trained: Path, tmp_path: Path) -> None:
    beside = tmp_path / "old"
    beside.mkdir()
    policy = beside / "theirs.cleanrl_model"
    policy.write_bytes(b"x")
    assert read_policy(policy, tmp_path).algo == "" and read_policy(policy, tmp_path).seed is None
    (beside / "config.json").write_text(json.dumps({"algo": "dqn", "env_id": "Acrobot-v1", "seed": 0}))
    told = read_policy(policy, tmp_path)
    assert (told.algo, told.env_id, told.seed, told.source) == ("dqn", "Acrobot-v1", 0, "config.json")
    inner = trained / "var" / "trainer" / "runs" / "first" / "bare.cleanrl_model"
    inner.write_bytes(b"x")
    told = read_policy(inner, trained)
    inner.unlink()
    assert (told.algo, told.source) == ("ppo", "config-first.json")


def test_damaged_files_are_left_out(tmp_path: Path) -> None:
    step = tmp_path / "var" / "trainer" / "runs" / "r" / "checkpoints" / "10"
    step.mkdir(parents=True)
    (step / "state.json").write_text("{")
    assert find_checkpoints(tmp_path) == []
    policy = tmp_path / "p.cleanrl_model"
    policy.write_bytes(b"")
    (tmp_path / "p.cleanrl_model.json").write_text("[1, 2")
    assert read_policy(policy, tmp_path).env_id == ""


@pytest.mark.parametrize("text", ["../x", "/etc/passwd", "a/../../x", "link", "\0", "x" * 5000, "", "missing"])
def test_no_path_leads_out_of_the_home(tmp_path: Path, text: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "x").write_text("")
    os.symlink("/etc/passwd", home / "link")
    with pytest.raises(ConfigError):
        inside_home(text, home)


def test_a_path_inside_the_home_may_be_relative_or_absolute(tmp_path: Path) -> None:
    (tmp_path / "p.cleanrl_model").write_bytes(b"x")
    assert policy_inside("p.cleanrl_model", tmp_path) == policy_inside(str(tmp_path / "p.cleanrl_model"), tmp_path)
    with pytest.raises(ConfigError, match="is no file"):
        policy_inside(".", tmp_path)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("ppo.cleanrl_model", "ppo.cleanrl_model"),
        ("../../etc/passwd", "passwd.cleanrl_model"),
        ("..\\..\\boot.ini", "boot.ini.cleanrl_model"),
        ("…", "policy.cleanrl_model"),
        ("a b\n<script>.pt", "a_b_script_.pt.cleanrl_model"),
    ],
)
def test_an_uploaded_file_gets_a_safe_name(given: str, kept: str) -> None:
    assert safe_name(given) == kept


def test_uploads_are_kept_apart_and_found(tmp_path: Path) -> None:
    first = keep_upload("p.cleanrl_model", b"one", tmp_path)
    assert keep_upload("p.cleanrl_model", b"one", tmp_path) == first
    second = keep_upload("p.cleanrl_model", b"two", tmp_path)
    assert second != first and first.read_bytes() == b"one" and first.parent == tmp_path / "var/trainer/uploads"
    sidecar = keep_upload("p.cleanrl_model.json", b'{"algo": "ppo", "env_id": "CartPole-v1", "seed": 1}', tmp_path)
    assert sidecar.name == "p.cleanrl_model.json"
    found = {one.path: one for one in find_policies(tmp_path)}
    assert set(found) == {first, second} and found[first].algo == "ppo" and found[second].algo == ""


def test_what_is_too_large_or_no_sidecar_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a policy has at most"):
        keep_upload("p", bytes(MOST_UPLOAD_BYTES + 1), tmp_path)
    with pytest.raises(ConfigError, match="is not a sidecar"):
        keep_upload("p.json", b"[]", tmp_path)


def test_a_policy_whose_files_name_code_is_refused_until_a_person_enters_it(tmp_path: Path) -> None:
    path = tmp_path / UPLOADS / "x.cleanrl_model"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    for teller in ("x.cleanrl_model.json", "config.json"):
        for known, reason in (
            ({"algo": "ppo", "env_id": "evilmod:X-v0"}, "would import 'evilmod'; turn on “Override environment”"),
            ({"algo": "/evil.py", "env_id": "CartPole-v1"}, "names the algorithm '/evil.py', which is not built in"),
        ):
            (path.parent / teller).write_text(json.dumps(known))
            with pytest.raises(ConfigError, match=re.escape(reason)):
                refuse_code(read_policy(path, tmp_path), tmp_path, {"ppo"})
        (path.parent / teller).unlink()
    (path.parent / "config.json").write_text('{"algo": "ppo", "env_id": "CartPole-v1"}')
    refuse_code(read_policy(path, tmp_path), tmp_path, {"ppo"})


def test_a_policy_of_a_run_that_was_submitted_here_keeps_its_own_environment(tmp_path: Path) -> None:
    paths = RunPaths("mine", tmp_path)
    path = paths.policies / "a" / "ppo.cleanrl_model"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text('{"metadata": {"worker": {"config": {"algo": "ppo", "env_id": "mymod:X-v0"}}}}')
    refuse_code(read_policy(path, tmp_path), tmp_path, {"ppo"})


@pytest.mark.parametrize("text", ['{"args": []}', '{"env_id": 5}', '{"a": ' + "[" * 10_000, "x" * 5_000_001])
def test_an_uploaded_sidecar_is_checked_before_it_is_kept(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="is not a sidecar"):
        keep_upload("x.cleanrl_model.json", text.encode(), tmp_path)
    assert not list((tmp_path / UPLOADS).glob("*"))
