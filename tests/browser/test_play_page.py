"""Play in a real browser: a policy acts, a person takes over by keyboard and hands back; the game ends with it."""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from playwright.sync_api import Page, expect
from web_site import PATIENCE, Site, wait_until

from mosaic.trainer.rpc.client import Run

WAIT = PATIENCE * 1000


@pytest.fixture(scope="module")
def policy(site: Site, trained: Run) -> str:
    """Of a real run, relative to the home."""
    saved = [one.path for one in trained.artifacts if one.kind == "policy"]
    assert saved, trained
    return str((Path(trained.folder) / saved[-1]).relative_to(site.home))


def number(page: Page, name: str) -> str:
    return page.locator(f"[data-number={name}]").inner_text()


def games(site: Site) -> list[psutil.Process]:
    """Interactive processes below the site's own."""
    found = []
    for process in psutil.Process(site.process.pid).children(recursive=True):
        try:
            if "--interactive" in process.cmdline() or "cleanrl_worker.play.protocol" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_policy_plays_a_person_takes_over_by_keyboard_and_hands_back(
    open_page: Callable[..., Page], site: Site, policy: str
) -> None:
    page = open_page(f"/play?policy={quote(policy, safe='')}")
    picture = page.locator("[data-testid=picture]")
    expect(picture).to_have_attribute("src", re.compile("^data:image/png"), timeout=WAIT)
    before = picture.get_attribute("src")
    page.get_by_role("button", name="Step", exact=True).click()
    expect(page.locator("[data-number=step]")).to_have_text("1", timeout=WAIT)
    assert number(page, "acts") == "the policy" and number(page, "action") in ("push left", "push right")
    wait_until(lambda: picture.get_attribute("src") != before, what="another picture")

    page.get_by_role("button", name="Take over").click()
    expect(page.locator("[data-number=acts]")).to_have_text("you", timeout=WAIT)
    expect(page.locator(".mosaic-stage")).to_be_focused(timeout=WAIT)
    page.keyboard.press("ArrowLeft")
    expect(page.locator("[data-number=step]")).to_have_text("2", timeout=WAIT)
    assert number(page, "action") == "push left"
    page.keyboard.press("2")
    expect(page.locator("[data-number=action]")).to_have_text("push right", timeout=WAIT)
    assert number(page, "step") == "3"

    page.get_by_role("button", name="Hand back to the policy").click()
    page.get_by_role("button", name="60/s").click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("[data-testid=episodes]")).to_contain_text("2 of them yours", timeout=WAIT)
    page.get_by_role("button", name="Pause", exact=True).click()

    page.get_by_label("Seed", exact=True).fill("42")
    page.get_by_role("button", name="Reset", exact=True).click()
    expect(page.locator("[data-number=seed]")).to_have_text("42", timeout=WAIT)
    assert number(page, "step") == "0"
    assert games(site)
    page.goto(f"{site.base}/system")
    wait_until(lambda: not games(site), what="the game's process to end with its page")


def test_a_person_plays_an_environment_and_pendulum_takes_the_arrows(open_page: Callable[..., Page]) -> None:
    page = open_page("/play?env=Pendulum-v1", width=390, height=844)
    expect(page.locator("[data-testid=picture]")).to_have_attribute("src", re.compile("^data:image/png"), timeout=WAIT)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(".mosaic-stage").click()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-number=action]")).to_have_text("2", timeout=WAIT)
    page.keyboard.press("ArrowLeft")
    expect(page.locator("[data-number=action]")).to_have_text("-2", timeout=WAIT)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("policy=..%2F..%2Fetc%2Fpasswd", "lies outside"),
        ("policy=%252e%252e%252fx.cleanrl_model", "is not there"),
        ("policy=var%2Ftrainer%2Fmosaic.db", "is no policy"),
        ("env=CartPoole-v1", "CartPoole-v1"),
    ],
)
def test_what_cannot_be_played_is_told_with_what_to_do(open_page: Callable[..., Page], asked: str, answer: str) -> None:
    page = open_page(f"/play?{asked}")
    expect(page.get_by_role("alert")).to_contain_text(answer, timeout=WAIT)


def test_policies_are_offered(open_page: Callable[..., Page], policy: str) -> None:
    page = open_page("/play")
    expect(page.locator(f'a[title="{policy}"]')).to_be_visible(timeout=WAIT)
