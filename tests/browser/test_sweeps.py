"""Sweeps in a real browser: a sweep of two real trials, its pictures, its trials, and what its command tells later."""

from collections.abc import Callable

from playwright.sync_api import Page, expect
from web_site import PATIENCE, Site

from mosaic.contract.sweeps import Trial, list_sweeps, read_summary, write_summary

WAIT = PATIENCE * 1000
CHARTS = """() => JSON.stringify([...document.querySelectorAll('.mosaic-sweep-chart, .mosaic-sweep-parallel')].map(
  (one) => getElement(one.id.slice(1)).chart.getOption().series.map((series) => series.data.length)))"""


def test_sweep_is_listed_and_its_trials_lead_to_their_runs(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/sweeps")
    if not list_sweeps(site.home):  # a second try of this test finds the first one's
        expect(page.get_by_text("No sweep yet")).to_be_visible(timeout=WAIT)
    words = ["--vary", "learning_rate", "--vary", "num_steps=32,64", "--set", "total_timesteps=256", "--name", "first"]
    told = site.command("sweep", "ppo", "CartPole-v1", *words, "--trials", "2", "--set", "num_envs=1")
    assert told.returncode == 0, told.stderr
    page.reload()
    page.get_by_role("link", name="first").click()
    page.wait_for_url("**/sweeps/first")
    rows = page.locator("[data-testid=trials] tbody tr")
    expect(rows).to_have_count(2, timeout=WAIT)
    expect(page.get_by_test_id("counts")).to_contain_text("2 of 2 (2 complete)")
    expect(page.get_by_test_id("best")).to_contain_text("Best: trial")
    expect(page.get_by_text("Four completed trials are needed")).to_be_visible()

    # What its command writes while the page is open comes to the page.
    summary = read_summary(site.home, "first")
    runs = summary.trials[0].runs
    made = [
        Trial(number=number, state="complete", params={"learning_rate": 1e-4 * number, "num_steps": 32}, value=number)
        for number in range(2, 7)
    ]
    bad = Trial(number=7, state="pruned", params={"learning_rate": 1e-4}, value=0.5, reason='at 30% of "its" steps')
    importance = {"learning_rate": 0.75, "num_steps": 0.0}
    write_summary(
        site.home, summary.model_copy(update={"trials": (*summary.trials, *made, bad), "importance": importance})
    )
    expect(rows).to_have_count(8, timeout=WAIT)
    expect(rows.nth(0)).to_contain_text("pruned")
    page.wait_for_function(f"({CHARTS})() === '[[7,1,7],[2],[7]]'")
    page.get_by_role("switch", name="Best first").click()
    expect(rows.nth(7)).to_contain_text("pruned", timeout=WAIT)
    page.locator("[data-trial='0']").get_by_role("link", name="seed 1").click()
    page.wait_for_url(f"**/run/{runs[0]}")

    # Long names and many columns scroll in their table: the page is no wider than a phone.
    page = open_page("/sweeps", width=390, height=844)
    for address in ("/sweeps", "/sweeps/first"):
        page.goto(site.base + address)
        expect(page.locator("table").first).to_be_visible(timeout=WAIT)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{address} is wider than its window"

    page = open_page("/sweeps/nowhere")
    expect(page.get_by_text("no sweep 'nowhere'")).to_be_visible(timeout=WAIT)


def test_group_of_runs_is_compared_by_its_address(open_page: Callable[..., Page], site: Site) -> None:
    config = {"algo": "tiny", "env_id": "CartPole-v1", "total_timesteps": 3}
    for seed in (1, 2):
        ui = {"group": "benchmark:small/tiny CartPole-v1"}
        site.client.submit_run({"metadata": {"worker": {"config": {**config, "seed": seed}}, "ui": ui}})
    page = open_page("/compare?group=benchmark:small&env=CartPole-v1")
    expect(page.get_by_text("tiny CartPole-v1 (small) × 2").first).to_be_visible(timeout=WAIT)
    page = open_page("/compare?group=benchmark:nowhere")
    expect(page.get_by_text("no run belongs to")).to_be_visible(timeout=WAIT)
