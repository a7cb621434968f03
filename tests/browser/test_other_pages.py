"""Environments and System in a real browser."""

from collections.abc import Callable

from playwright.sync_api import Page, expect
from web_site import PATIENCE

WAIT = PATIENCE * 1000


def test_the_catalog_opens_by_section_is_searched_and_leads_to_training(open_page: Callable[..., Page]) -> None:
    page = open_page("/environments")
    page.get_by_text("Classic control").first.click()
    expect(page.get_by_role("cell", name="CartPole-v1", exact=True)).to_be_visible(timeout=WAIT)
    expect(page.locator('a[href="/train?env=CartPole-v1"]')).to_be_visible()
    expect(page.get_by_text("agent only: no human control").first).to_be_visible()
    page.get_by_label("Search").fill("HalfCheetah-v5")
    expect(page.get_by_role("cell", name="HalfCheetah-v5", exact=True)).to_be_visible(timeout=WAIT)
    assert page.locator('a[href="/play?env=HalfCheetah-v5"]').count() == 0
    page.locator('a[href="/train?env=HalfCheetah-v5"]').click()
    page.wait_for_url("**/train?env=HalfCheetah-v5")
    # The form begins with an algorithm that drives continuous actions.
    expect(page.get_by_text("HalfCheetah-v5").first).to_be_visible(timeout=WAIT)
    expect(page.get_by_text("ppo_continuous_action").first).to_be_visible(timeout=WAIT)


def test_a_search_that_finds_nothing_says_so(open_page: Callable[..., Page]) -> None:
    page = open_page("/environments?text=no+such+environment")
    expect(page.get_by_text("No environment of the catalog matches.")).to_be_visible(timeout=WAIT)


def test_the_system_page_tells_machine_daemon_disk_and_the_doctors_findings(open_page: Callable[..., Page]) -> None:
    page = open_page("/system")
    expect(page.locator("[data-testid=health]")).to_have_text("healthy", timeout=WAIT)
    expect(page.get_by_text("cores, load")).to_be_visible()
    expect(page.locator("[data-testid=doctor]")).to_contain_text("python", timeout=WAIT)
    expect(page.locator("[data-testid=disk]")).to_contain_text("run", timeout=WAIT)


def test_both_fit_a_phone(open_page: Callable[..., Page]) -> None:
    for path in ("/environments", "/system"):
        page = open_page(path, width=390, height=844)
        expect(page.get_by_role("heading", level=1)).to_be_attached(timeout=WAIT)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
