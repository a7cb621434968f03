"""Debian's Chromium on a real GUI with a real daemon; one of each for the tests of a process."""

import contextlib
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from web_site import PATIENCE, Site

from mosaic.contract.errors import MosaicError
from mosaic.trainer.rpc.client import Run, State
from mosaic.web.server import fresh_url

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Its runs may be the tiny worker's, besides real ones."""
    top = tmp_path_factory.mktemp("site")
    trainer = runpy.run_path(str(Path(__file__).resolve().parents[1] / "trainer" / "conftest.py"))
    site = Site(top, plugins=trainer["install_tiny_worker"](top))
    yield site
    site.end_runs()
    site.stop()


@pytest.fixture(autouse=True)
def nothing_goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that failed leaves no training behind: it would take a core from all that follow, its next try too."""
    site = request.getfixturevalue("site") if "site" in request.fixturenames else None
    yield
    if site is not None:
        with contextlib.suppress(MosaicError, TimeoutError):
            site.end_runs()


@pytest.fixture(scope="session")
def hostile() -> str:
    """A name of one long word, with what would close the page's title and begin a script in it."""
    return "</title><script>window.hacked=1</script><img/src=x/onerror=window.hacked=1>{{1+1}}" + "long" * 20


@pytest.fixture(scope="session")
def trained(site: Site, hostile: str) -> Run:
    """A short training with everything that a run can leave, under a hostile name; who takes of it puts it back."""
    extras = {
        "save_model": True,
        "capture_video": True,
        "tensorboard_dir": "tensorboard",
        "notes": hostile,
        "agent_id": "lab-7",
        "storage_url": f"file://{site.home.parent}/store",
        "algo_params": {"num_envs": 2},
    }
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1024, "seed": 1, "extras": extras}
    made = site.client.submit_run({"run_name": hostile, "metadata": {"worker": {"config": config}}})
    run = site.client.wait_run(made.run_id, 4 * PATIENCE)
    assert run.state == State.COMPLETED, run.reason
    return site.client.get_run(run.run_id)


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
        page.wait_for_function("() => window.socket?.connected === true")  # from here on clicks are heard
        return page

    yield opened
    for context in contexts:
        context.close()
