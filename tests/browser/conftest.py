"""Debian's Chromium on a real GUI with a real daemon; one of each for the tests of a process."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from web_site import PATIENCE, Site

from mosaic.web.server import fresh_url

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.end_runs()
    site.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "these tests need Chromium: sudo apt-get install -y chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(site: Site, browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open an address in a window of its own, signed in; every window of a test is another person's."""
    contexts: list[Any] = []

    def opened(path: str = "/runs", *, width: int = 1280, height: int = 900, **more: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **more)
        contexts.append(context)
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        code = fresh_url(site.home).partition("?")[2]
        page.goto(f"{site.base}{path}{'&' if '?' in path else '?'}{code}")
        page.wait_for_url(lambda address: "code=" not in address)  # it is traded for a cookie, anywhere
        return page

    yield opened
    for context in contexts:
        context.close()
