"""Compare in a real browser: two configurations of three seeds each, their bands, numbers and files."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from web_site import PATIENCE, Site

from mosaic.trainer.rpc.client import Run, State

WAIT = PATIENCE * 1000
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def runs(site: Site) -> list[Run]:
    """Of the tiny worker, since nothing is told of a run but its numbers: two scales, three seeds."""
    made = [
        site.client.train("tiny", "CartPole-v1", seed=seed, extras={"scale": scale, "spread": 0.5, "episodes": 20})
        for scale in (0.5, 2.5)
        for seed in SEEDS
    ]
    ended = [run.wait(3 * PATIENCE).info for run in made]
    assert [run.state for run in ended] == [State.COMPLETED] * 6
    return ended


def address(runs: list[Run]) -> str:
    return f"/compare?runs={','.join(run.run_id for run in runs)}"


def saved(page: Page, button: str, folder: Path) -> Path:
    with page.expect_download(timeout=WAIT) as waiting:
        page.get_by_role("button", name=button, exact=True).click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def test_two_groups_of_three_seeds_are_compared_and_taken_away(
    open_page: Callable[..., Page], runs: list[Run], tmp_path: Path
) -> None:
    page = open_page(address(runs))
    table = page.locator("[data-testid=table]")
    expect(table.locator("tbody tr")).to_have_count(8, timeout=WAIT)
    expect(table.get_by_text("tiny CartPole-v1 × 3 · scale=0.5")).to_be_visible()
    # Two lines and two bands, each an invisible edge and an area above it.
    chart = "getElement(document.querySelector('.mosaic-chart').id.slice(1)).chart"
    names = page.evaluate(f"() => {chart}.getOption().series.map(series => series.name)")
    assert len(names) == 6 and sum(name.endswith("95 %") for name in names) == 2
    expect(page.locator("[data-testid=improvement]")).to_contain_text("95 % interval", timeout=WAIT)

    rows = list(csv.DictReader(saved(page, "Curves (CSV)", tmp_path).open()))
    assert {row["kind"] for row in rows} == {"group", "run"}
    assert {row["run_id"] for row in rows if row["kind"] == "run"} == {run.run_id for run in runs}
    middle = [row for row in rows if row["kind"] == "group" and row["seeds"] == "3"]
    assert middle and all(float(row["iqm_low"]) <= float(row["iqm"]) <= float(row["iqm_high"]) for row in middle)
    table_rows = list(csv.DictReader(io.StringIO(saved(page, "Table (CSV)", tmp_path).read_text())))
    by_id = {row["run_id"]: row for row in table_rows}
    for run in runs:
        told = by_id[run.run_id]
        assert run.mean_return is not None and float(told["return"]) == pytest.approx(run.mean_return)
        assert float(told["hours"]) > 0
    assert saved(page, "PNG", tmp_path).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert b"<svg" in saved(page, "SVG", tmp_path).read_bytes()[:500]


def test_seeds_can_be_looked_at_one_by_one(open_page: Callable[..., Page], runs: list[Run]) -> None:
    page = open_page(address(runs[:3]))
    table = page.locator("[data-testid=table]")
    expect(table.locator("tbody tr")).to_have_count(4, timeout=WAIT)
    expect(page.get_by_text("Add runs of another configuration")).to_be_visible()
    page.get_by_label("Group seeds").click()
    expect(table.locator("tbody tr")).to_have_count(3, timeout=WAIT)
    expect(page.locator("[data-testid=improvement]")).to_be_visible(timeout=WAIT)


def test_runs_are_chosen_in_the_page(open_page: Callable[..., Page], runs: list[Run]) -> None:
    page = open_page("/compare")
    page.get_by_role("button", name="Choose runs").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Search").fill(runs[0].run_id)
    expect(dialog.get_by_role("checkbox")).to_have_count(1, timeout=WAIT)
    dialog.get_by_role("checkbox").click()
    dialog.get_by_role("button", name="Compare").click()
    page.wait_for_url(f"**/compare?runs={runs[0].run_id}")
    expect(page.locator("[data-testid=table] tbody tr")).to_have_count(1, timeout=WAIT)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("..%2F..%2Fetc", "is refused"),
        ("never-was", "Not there any more, or never were: never-was"),
        ("x" * 300, "refused"),
    ],
)
def test_what_is_no_run_is_told(open_page: Callable[..., Page], asked: str, answer: str) -> None:
    page = open_page(f"/compare?runs={asked}")
    expect(page.get_by_role("alert")).to_contain_text(answer, timeout=WAIT)


def test_a_phone_shows_the_picture_within_its_width(open_page: Callable[..., Page], runs: list[Any]) -> None:
    page = open_page(address(runs), width=390, height=844)
    expect(page.locator(".mosaic-chart svg")).to_be_visible(timeout=WAIT)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
