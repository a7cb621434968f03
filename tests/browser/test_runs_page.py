"""The page of runs in a real browser: filters, groups, live rows, what is done to a selection, cards on a phone."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from web_site import PATIENCE, Site, wait_until

from mosaic.trainer.rpc.client import Run, State

WAIT = PATIENCE * 1000
HOSTILE = "<img src=x onerror=\"document.title='owned'\">{{ 7*7 }}"


def submit(site: Site, **config: Any) -> Run:
    """A run that nobody starts: the daemon only waits for its worker."""
    name = config.pop("run_name", None)
    given = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1000, **config}
    return site.client.submit_run({"run_name": name, "metadata": {"worker": {"config": given}}}, external=True)


@pytest.fixture
def waiting(site: Site) -> Iterator[Callable[..., Run]]:
    """Makes queued runs, and takes them away afterwards."""
    made: list[str] = []

    def one(**config: Any) -> Run:
        run = submit(site, **config)
        made.append(run.run_id)
        return run

    yield one
    for run_id in made:
        known = site.client.list_runs(text=run_id).runs
        if known and not known[0].ended:
            site.client.cancel_run(run_id, 0.0)
        if known:
            site.client.delete_run(run_id)


def rows(page: Page) -> Any:
    return page.locator("tbody tr")


def tick(page: Page, run: Run) -> None:
    page.locator("tbody tr", has=page.locator(f'a[href="/run/{run.run_id}"]')).get_by_role("checkbox").click()


def test_a_search_and_filters_are_the_daemons_and_stand_in_the_address(
    open_page: Callable[..., Page], waiting: Callable[..., Run]
) -> None:
    ours = waiting(run_name="needle-in-hay", seed=1)
    other = waiting(algo="dqn", env_id="Acrobot-v1", run_name="needle-too", seed=2)
    page = open_page("/runs?text=needle")
    expect(rows(page)).to_have_count(2, timeout=WAIT)
    page.get_by_label("Search").fill("needle-in")
    expect(rows(page)).to_have_count(1, timeout=WAIT)
    expect(page.locator(f'a[href="/run/{ours.run_id}"]')).to_have_text("needle-in-hay")
    page.wait_for_url("**/runs?text=needle-in")
    page.get_by_label("Search").fill("needle")
    page.get_by_label("Environment").fill("Acrobot-v1")
    expect(rows(page)).to_have_count(1, timeout=WAIT)
    expect(page.locator(f'a[href="/run/{other.run_id}"]')).to_be_visible()
    page.get_by_label("Environment").fill("NoSuchEnv-v0")
    expect(page.get_by_text("No run matches.")).to_be_visible(timeout=WAIT)


def test_rows_come_and_move_by_themselves_and_two_people_see_the_same(
    open_page: Callable[..., Page], waiting: Callable[..., Run], site: Site
) -> None:
    first, second = open_page("/runs?text=by-itself"), open_page("/runs?text=by-itself")
    expect(first.get_by_text("No run matches.")).to_be_visible(timeout=WAIT)
    run = waiting(run_name="by-itself")
    for page in (first, second):
        expect(page.locator("[data-state=INIT]")).to_have_count(1, timeout=WAIT)
    box = first.locator("tbody").get_by_role("checkbox").element_handle()
    site.client.cancel_run(run.run_id)
    for page in (first, second):
        expect(page.locator("[data-state=CANCELLED]")).to_have_count(1, timeout=WAIT)
    assert box.evaluate("box => box.isConnected"), "a cell that is made anew under a finger loses the press"


def test_seeds_fold_into_a_group_that_opens_and_is_selected_as_a_whole(
    open_page: Callable[..., Page], waiting: Callable[..., Run]
) -> None:
    made = [waiting(run_name="folded", seed=seed) for seed in (1, 2, 3)]
    page = open_page("/runs?text=folded")
    expect(rows(page)).to_have_count(3, timeout=WAIT)
    page.get_by_label("Group seeds").click()
    expect(rows(page)).to_have_count(1, timeout=WAIT)
    rows(page).get_by_role("checkbox").click()
    expect(page.get_by_text("3 selected")).to_be_visible(timeout=WAIT)
    page.get_by_role("button", name="ppo CartPole-v1 × 3").click()
    expect(rows(page)).to_have_count(4, timeout=WAIT)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.wait_for_url("**/compare?runs=*")
    assert all(run.run_id in page.url for run in made)


def test_a_selection_is_cancelled_and_deleted_after_a_question(
    open_page: Callable[..., Page], waiting: Callable[..., Run], site: Site
) -> None:
    run, other = waiting(run_name="unwanted", seed=1), waiting(run_name="unwanted", seed=2)
    page = open_page("/runs?text=unwanted")
    tick(page, run)
    tick(page, other)
    expect(page.get_by_role("button", name="Delete", exact=True)).to_be_disabled(timeout=WAIT)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel them").click()
    expect(page.locator("[data-state=CANCELLED]")).to_have_count(2, timeout=WAIT)
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Leave it").click()
    expect(page.get_by_role("dialog")).to_have_count(0, timeout=WAIT)  # as it fades, its Delete is a second one
    assert site.client.get_run(run.run_id).state == State.CANCELLED
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("No run matches.")).to_be_visible(timeout=WAIT)
    wait_until(lambda: site.client.list_runs(text="unwanted").total == 0, what="both to be gone")


def test_a_selection_is_paused_continued_cancelled_and_resumed(open_page: Callable[..., Page], site: Site) -> None:
    name = f"from-the-bar-{os.urandom(4).hex()}"  # another in each try
    run = started(site, name, 50_000_000)
    page = open_page(f"/runs?text={name}")
    tick(page, run)
    expect(page.locator("[data-state=EXECUTING]")).to_have_count(1, timeout=WAIT)
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("[data-state=PAUSED]")).to_have_count(1, timeout=WAIT)
    assert site.client.get_run(run.run_id).state == State.PAUSED
    page.get_by_role("button", name="Continue", exact=True).click()
    expect(page.locator("[data-state=EXECUTING]")).to_have_count(1, timeout=WAIT)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel it").click()
    expect(page.locator("[data-state=CANCELLED]")).to_have_count(1, timeout=WAIT)
    page.get_by_role("button", name="Resume", exact=True).click()
    page.wait_for_url(f"**/resume?run={run.run_id}")
    expect(page.locator('[data-told="true"]')).to_contain_text("ppo on CartPole-v1, seed 1", timeout=WAIT)


def test_a_selected_run_is_evaluated(open_page: Callable[..., Page], trained: Run) -> None:
    page = open_page(f"/runs?text={trained.run_id}")
    tick(page, trained)
    page.get_by_role("button", name="Evaluate", exact=True).click()
    page.wait_for_url("**/policy?policy=*")
    expect(page.get_by_label("Environment", exact=True)).to_have_value("CartPole-v1", timeout=WAIT)


def started(site: Site, name: str, steps: int) -> Run:
    """A run that a worker takes up; told to stop, it saves at once instead of training on to the next checkpoint."""
    extras = {"save_model": True, "algo_params": {"num_envs": 2, "checkpoint_every": 0}}
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": steps, "seed": 1, "extras": extras}
    return site.client.submit_run({"run_name": name, "metadata": {"worker": {"config": config}}})


def test_a_run_without_a_policy_cannot_be_evaluated_and_the_page_says_what_to_do(
    open_page: Callable[..., Page], waiting: Callable[..., Run]
) -> None:
    run = waiting(run_name="no-policy")
    page = open_page("/runs?text=no-policy")
    tick(page, run)
    page.get_by_role("button", name="Evaluate", exact=True).click()
    expect(page.get_by_text("has saved no policy yet; train with save_model on")).to_be_visible(timeout=WAIT)
    page.get_by_role("button", name="Resume", exact=True).click()
    page.wait_for_url(f"**/resume?run={run.run_id}")


def test_a_hostile_name_is_shown_and_never_run(open_page: Callable[..., Page], waiting: Callable[..., Run]) -> None:
    run = waiting(run_name=HOSTILE)
    for width in (1280, 390):
        page = open_page(f"/runs?text={run.run_id}", width=width)
        expect(page.locator(f'a[href="/run/{run.run_id}"]')).to_have_text(HOSTILE, timeout=WAIT)
        assert page.title() == "Runs · MOSAIC" and page.locator("main img, table img").count() == 0


def test_a_phone_gets_cards_that_fit_its_width(open_page: Callable[..., Page], waiting: Callable[..., Run]) -> None:
    run = waiting(run_name="on-a-phone", seed=5, extras={"agent_id": "lab-7"})
    page = open_page("/runs?text=on-a-phone", width=390, height=844)
    expect(page.locator(f'a[href="/run/{run.run_id}"]')).to_be_visible(timeout=WAIT)
    expect(page.get_by_text("agent lab-7")).to_be_visible()
    assert page.locator("tbody tr").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("checkbox", name="Select on-a-phone").click()
    expect(page.get_by_text("1 selected")).to_be_visible(timeout=WAIT)


def test_older_runs_are_on_the_next_page(open_page: Callable[..., Page], waiting: Callable[..., Run]) -> None:
    for seed in range(26):
        waiting(run_name="many", seed=seed)
    page = open_page("/runs?text=many")
    expect(rows(page)).to_have_count(26, timeout=WAIT)
    page.get_by_label("per page").click()
    page.get_by_role("option", name="25", exact=True).click()
    expect(rows(page)).to_have_count(25, timeout=WAIT)
    page.get_by_role("button", name="Older runs").click()
    expect(rows(page)).to_have_count(1, timeout=WAIT)
    expect(page.locator("[data-testid=count]")).to_have_text("26–26 of 26")
    page.get_by_role("button", name="Newer runs").click()
    expect(rows(page)).to_have_count(25, timeout=WAIT)
