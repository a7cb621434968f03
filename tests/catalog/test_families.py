"""Families: their docs, and extras that the project really has."""

import tomllib
from pathlib import Path

import pytest

from mosaic.catalog import FAMILIES, Family, ids

ROOT = Path(__file__).parents[2]

EVERY_FAMILY = [each for family in FAMILIES.values() for each in (family, *family.groups)]


def test_families_are_those_that_a_worker_declares() -> None:
    assert tuple(FAMILIES) == ("gymnasium", "atari", "procgen", "mujoco", "dm_control", "minigrid", "babyai")


@pytest.mark.parametrize("family", EVERY_FAMILY, ids=lambda family: family.name)
def test_a_family_has_a_paragraph_and_packages(family: Family) -> None:
    assert family.doc.endswith(".") and len(family.doc) > 80 and "\n" not in family.doc
    assert family.packages


@pytest.mark.parametrize("family", EVERY_FAMILY, ids=lambda family: family.name)
def test_the_extra_of_a_family_exists(family: Family) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert family.extra is None or family.extra in extras


@pytest.mark.parametrize("family", EVERY_FAMILY, ids=lambda family: family.name)
def test_the_page_on_environments_says_what_a_family_needs(family: Family) -> None:
    page = (ROOT / "docs" / "environments.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("|") and f"`{family.name}`" in line)
    needs = f"`{family.pip_line}`" if family.extra else "nothing more"
    assert needs in row


@pytest.mark.parametrize("name", FAMILIES)
def test_the_page_on_environments_counts_the_ids_of_a_family(name: str) -> None:
    page = (ROOT / "docs" / "environments.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line)
    assert f"| {len(ids(name))} |" in row
