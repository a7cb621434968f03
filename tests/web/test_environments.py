"""The catalog as the page shows it."""

import pytest

from mosaic import catalog
from mosaic.web.pages.environments import row_of, search_for, sections


def test_every_environment_stands_in_exactly_one_section_with_a_paragraph() -> None:
    shown = [one.env_id for section in sections() for one in section.environments]
    assert sorted(shown) == sorted(catalog.ids()) and all(section.part.doc for section in sections())
    labels = [section.part.label for section in sections()]
    for label in ("Classic control", "Toy text", "Box2D", "MuJoCo", "Atari 2600", "MiniGrid", "BabyAI", "Procgen"):
        assert label in labels


def test_mujoco_is_agent_only_and_cannot_be_played() -> None:
    (mujoco,) = [section for section in sections() if section.agent_only]
    rows = [row_of(mujoco, one) for one in mujoco.environments]
    assert len([row for row in rows if row["id"].endswith("-v5")]) == 11
    assert mujoco.part.system and not any(row["play"] for row in rows)


def test_a_search_takes_words_of_the_id_the_sentence_and_the_spaces() -> None:
    def found(text: str) -> list[str]:
        return [one.env_id for _, one in search_for(text, sections())]

    assert found("cart pole solved at 475") == ["CartPole-v1"]
    assert "HalfCheetah-v5" in found("mujoco cheetah") and "Pendulum-v1" in found("continuous classic")
    assert found("no such thing") == []


def test_a_row_leads_to_training_and_says_what_to_install() -> None:
    section = next(section for section in sections() if section.part.name == "classic-control")
    row = row_of(section, section.environments[0])
    assert row["train"] == "/train?env=CartPole-v1" and row["play"] == "/play?env=CartPole-v1"
    assert row["ready"] and row["install"] == ""


def test_what_pip_does_not_bring_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "libQt5Gui.so.5 is not there. Needs the Qt 5 libraries."
    monkeypatch.setattr(catalog, "missing_to_train", lambda environment: said)
    section = next(section for section in sections() if section.part.name == "procgen")
    assert row_of(section, section.environments[0])["install"] == said
