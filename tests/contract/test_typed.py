"""Names that a person typed are used; names from files are neither imported nor run."""

import json
from pathlib import Path

import pytest

from mosaic.contract.errors import ConfigError
from mosaic.contract.paths import RunPaths
from mosaic.contract.typed import (
    imported_by,
    refuse_untyped,
    stages,
    trusted_algo,
    typed_for,
    untyped,
    without_code,
)

EVIL = "evilmod:X-v0"
SCHEDULE = [{"env_id": "CartPole-v1", "steps": 5}, {"env_id": EVIL}]


def stored(home: Path, run_id: str = "R", **config: object) -> Path:
    """The folder of a run of this home, with the payload that the daemon stored for it."""
    paths = RunPaths(run_id, home)
    paths.create()
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(json.dumps({"metadata": {"worker": {"config": config}}}))
    return paths.folder


def test_a_module_is_named_before_the_colon() -> None:
    assert imported_by(EVIL) == "evilmod" and imported_by("a.b:C") == "a.b"
    assert imported_by("CartPole-v1") == imported_by("ALE/Pong-v5") == ""


def test_the_environments_of_curricula_are_found_in_json_and_in_its_text() -> None:
    assert list(stages(SCHEDULE)) == list(stages(json.dumps(SCHEDULE))) == ["CartPole-v1", EVIL]
    assert list(stages({"method": "plr", "tasks": ["A", EVIL]})) == ["A", EVIL]
    assert (
        list(stages("[" * 10_000)) == list(stages("")) == list(stages(None)) == list(stages([3, {"env_id": 4}])) == []
    )


def test_what_the_daemon_stored_for_a_run_is_typed_for_its_files(tmp_path: Path) -> None:
    folder = stored(tmp_path, algo="/mine.py", env_id=EVIL, extras={"algo_params": {"curriculum_schedule": SCHEDULE}})
    assert typed_for(folder / "checkpoints" / "100", tmp_path) == {"/mine.py", EVIL, "CartPole-v1"}
    assert typed_for(folder, tmp_path) and not typed_for(folder, tmp_path / "another home")


def test_nothing_is_typed_for_a_folder_from_elsewhere_or_a_run_without_its_payload(tmp_path: Path) -> None:
    stored(tmp_path, env_id=EVIL)
    RunPaths("imported", tmp_path).create()
    for path in (tmp_path / "copied" / "R", RunPaths("imported", tmp_path).folder, tmp_path, Path("/")):
        assert typed_for(path, tmp_path) == frozenset()
    RunPaths("R", tmp_path).config_file.write_text("[" * 10_000)
    assert typed_for(RunPaths("R", tmp_path).folder, tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("saved", "given", "typed", "found"),
    [
        ({"env_id": EVIL}, {}, (), EVIL),
        ({"env_id": EVIL}, {"env_id": EVIL}, (), ""),
        ({"env_id": EVIL}, {"env_id": "CartPole-v1"}, (), ""),
        ({"env_id": EVIL}, {}, (EVIL,), ""),
        ({"env_id": EVIL}, {}, ("othermod:X-v0",), EVIL),
        ({"env_id": "CartPole-v1"}, {}, (), ""),
        ({"env_id": "CartPole-v1", "curriculum_schedule": SCHEDULE}, {}, (), EVIL),
        ({"env_id": "CartPole-v1", "curriculum": '{"tasks": ["A", "evilmod:X-v0"]}'}, {}, (), EVIL),
        ({"curriculum_schedule": SCHEDULE}, {"env_id": "CartPole-v1"}, (), EVIL),
        ({"curriculum_schedule": SCHEDULE}, {"env_id": "Acrobot-v1"}, (), ""),
        ({"curriculum_schedule": SCHEDULE}, {"curriculum_schedule": SCHEDULE}, (), ""),
        ({"curriculum_schedule": SCHEDULE}, {"curriculum_schedule": [{"env_id": "CartPole-v1"}]}, (), ""),
        ({"env_id": 5, "curriculum_schedule": 7}, {}, (), ""),
    ],
)
def test_an_environment_that_imports_a_module_is_found_unless_somebody_typed_it(saved, given, typed, found) -> None:
    assert untyped(saved, given, typed) == found


def test_the_refusal_names_the_import_and_the_words_to_add() -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_untyped("checkpoint /x/state.json", {"env_id": EVIL}, {})
    assert str(refused.value) == (
        "checkpoint /x/state.json names the environment 'evilmod:X-v0', which would import 'evilmod'; "
        "add --set env_id=evilmod:X-v0 if you trust it"
    )
    with pytest.raises(ConfigError, match="add --curriculum-schedule=… with this stage if you trust it"):
        refuse_untyped("x", {"env_id": "A", "curriculum_schedule": SCHEDULE}, {}, alone=True)


def test_a_file_names_registered_algorithms_and_no_others() -> None:
    assert trusted_algo("x", "ppo", {"ppo"}) == trusted_algo("x", "cleanrl.ppo", {"ppo"}) == "ppo"
    assert trusted_algo("x", None, {"ppo"}) is trusted_algo("x", "", {"ppo"}) is None
    assert trusted_algo("x", "/mine.py", {"ppo"}, {"/mine.py"}) == "/mine.py"
    for algo in ("/tmp/evil.py", "evil.py", "../evil.py", "evil.module", "evil.ppo", "os"):
        with pytest.raises(ConfigError, match=f"names the algorithm '{algo}', which is not built in; add --set algo="):
            trusted_algo("x", algo, {"ppo"}, {"/mine.py"})


def test_an_imported_payload_loses_all_that_would_run_code() -> None:
    config = {
        "algo": "/evil.py",
        "env_id": EVIL,
        "seed": 3,
        "extras": {"python": "/evil/python", "curriculum": {"tasks": ["A", EVIL]}, "algo_params": {"gamma": 0.5}},
    }
    worker = {"script": "evil.sh", "module": "evil", "arguments": ["--x"], "config": config}
    plain = without_code({"environment": {"PYTHONPATH": "/evil"}, "metadata": {"worker": worker}})
    assert plain == {
        "environment": {},
        "metadata": {"worker": {"config": {"seed": 3, "extras": {"algo_params": {"gamma": 0.5}}}}},
    }
    assert worker["script"] == "evil.sh", "the given payload is left as it is"
    harmless = {"metadata": {"worker": {"config": {"algo": "ppo", "env_id": "CartPole-v1"}}}}
    assert without_code(harmless) == harmless


def test_a_home_behind_a_link_is_the_same_home(tmp_path: Path) -> None:
    folder = stored(tmp_path / "real", env_id=EVIL)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    linked = tmp_path / "link"
    assert typed_for(folder, linked) == typed_for(RunPaths("R", linked).folder, linked) == {EVIL}
