"""Which environments are offered for an algorithm, and in which order."""

from typing import Any

import pytest

from mosaic import catalog
from mosaic.contract.workers import discover_workers
from mosaic.web.forms.fit import about, algorithm_for, describe, families, lacking, look_again, offers

SCHEMA: dict[str, Any] = discover_workers()[0]["cleanrl"].schema()


def test_what_fits_and_is_installed_comes_first() -> None:
    found = offers(SCHEMA["dqn"])
    assert len(found) == len(catalog.ids()) and found[0].env_id == "CartPole-v1"
    fitting = [bool(one.trouble) for one in found]
    assert fitting == sorted(fitting)
    troubles = {one.env_id: one.trouble for one in found}
    assert troubles["Pendulum-v1"] == "continuous actions" and troubles["MiniGrid-Empty-5x5-v0"] == "grid observations"


def test_families_with_something_that_fits_come_first() -> None:
    assert list(families(SCHEMA["ppo_atari_envpool"]))[:2] == ["gymnasium", "atari"], "an image game of ours, and Atari"
    assert next(iter(families(SCHEMA["ppo"]))) == "gymnasium"


def test_an_environment_to_install_has_the_line_to_do_so() -> None:
    for one in map(catalog.find, catalog.ids()):
        assert one is not None and (not lacking(one) or "pip install" in lacking(one))


def test_the_chosen_environment_is_described_with_what_stands_in_the_way() -> None:
    doc, spaces, trouble = describe(SCHEMA["ppo"], "Pendulum-v1")
    assert "pendulum" in doc and spaces == "vector observations, continuous actions" and "continuous" in trouble
    assert describe(SCHEMA["ppo"], "CartPole-v1")[2] == ""
    assert "registry" in describe(SCHEMA["ppo"], "my:Env-v0")[0]


def test_an_environment_finds_an_algorithm_that_fits() -> None:
    assert algorithm_for(SCHEMA, "CartPole-v1", "dqn") == "dqn"
    assert algorithm_for(SCHEMA, "Pendulum-v1", "ppo") == "ppo_continuous_action"
    assert algorithm_for(SCHEMA, "my:Env-v0", "ppo") == "ppo"


def test_an_algorithm_is_told_in_a_paragraph() -> None:
    text = about("ppo", SCHEMA["ppo"])
    assert text.startswith("PPO for flat") and "discrete actions" in text and "500,000 steps" in text
    assert "your own" in about("my.py", {})


def test_reloading_the_form_sees_what_was_installed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    box = catalog.find("LunarLander-v3")
    assert box is not None
    monkeypatch.setattr(catalog, "missing_to_train", lambda environment: "Box2D is missing; run: pip install …")
    look_again()
    assert "missing" in lacking(box)
    monkeypatch.setattr(catalog, "missing_to_train", lambda environment: None)
    look_again()
    assert lacking(box) == ""
    monkeypatch.undo()
    look_again()
