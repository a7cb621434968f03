"""What all pages share, in a real browser: they fit a phone, name their controls, and outlive the daemon's death."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from web_site import PATIENCE, Site, wait_until

from mosaic.contract.channel import daemon_card, read_card
from mosaic.trainer.rpc.client import Run

PLACES = ("runs", "train", "script", "resume", "policy", "compare", "sweeps", "play", "environments", "system")
TABS = ("live", "metrics", "logs", "events", "config", "files", "wandb", "notes")
# What a screen reader stops at, and must have a word for.
CONTROLS = {
    *("button", "checkbox", "combobox", "dialog", "Iframe", "image", "img", "link", "menuitem", "progressbar", "radio"),
    *("searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "Video"),
}
# The banner may be there for a second only, which a busy machine's test would miss.
WATCH_BANNER = """() => {
  const look = () => {
    const banners = [...document.querySelectorAll('[role=status]')].filter((one) => one.offsetParent);
    if (banners.some((one) => one.textContent.includes('does not answer'))) window.seenAway = true;
  };
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true });
}"""

expect.set_options(timeout=PATIENCE * 1000)


def nameless(page: Page) -> list[str]:
    """The controls for which a screen reader has no word."""
    session = page.context.new_cdp_session(page)
    found = []
    for node in session.send("Accessibility.getFullAXTree")["nodes"]:
        role, name = (str((node.get(part) or {}).get("value", "")) for part in ("role", "name"))
        if role in CONTROLS and not node.get("ignored") and not name.strip():
            found.append(f"{role}: {markup(session, node['backendDOMNodeId'])}")
    session.detach()
    return found


def markup(session: Any, number: int) -> str:
    found = session.send("DOM.resolveNode", {"backendNodeId": number})["object"]["objectId"]
    script = "function() { return (this.outerHTML || '').slice(0, 200) }"
    told = session.send(
        "Runtime.callFunctionOn", {"objectId": found, "functionDeclaration": script, "returnByValue": True}
    )
    return str(told["result"].get("value"))


@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_its_window_names_its_controls_and_runs_nothing_of_a_run(
    site: Site, open_page: Callable[..., Page], trained: Run, width: int, hostile: str
) -> None:
    page = open_page("/runs", width=width, height=844)
    addresses = [f"/{place}" for place in PLACES]
    addresses += [f"/compare?runs={trained.run_id}", *(f"/run/{trained.run_id}?tab={tab}" for tab in TABS)]
    for address in addresses:
        page.goto(site.base + address)
        page.wait_for_function("() => window.socket?.connected === true")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{address} is wider than its window"
        assert nameless(page) == [], address
        assert page.evaluate("window.hacked") is None, address
    # the last one has the name in its heading and in its title
    assert page.title().startswith(hostile)


def test_a_daemon_that_is_killed_is_told_and_come_back_to_without_a_reload(
    site: Site, open_page: Callable[..., Page]
) -> None:
    extras = {"algo_params": {"checkpoint_every": 0}}  # told to stop, it saves at once
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 50_000_000, "extras": extras}
    run_id = site.client.submit_run({"metadata": {"worker": {"config": config}}}).run_id
    one, table = open_page(f"/run/{run_id}"), open_page(f"/runs?text={run_id}")
    expect(one.get_by_text("Fast lane: connected", exact=True)).to_be_visible()
    expect(table.locator("[data-state=EXECUTING]")).to_have_count(1)
    for page in (one, table):
        page.evaluate(WATCH_BANNER)
    frames = "Number(document.querySelector('.mosaic-lane canvas').dataset.frames)"
    step = site.client.get_run(run_id).step
    os.kill(int(read_card(daemon_card(site.home))["pid"]), signal.SIGKILL)
    for page in (one, table):
        page.wait_for_function("() => window.seenAway")
        expect(page.get_by_text("The trainer daemon does not answer")).to_be_hidden()
    expect(one.get_by_text("Fast lane: connected", exact=True)).to_be_visible()
    seen = int(one.evaluate(frames))
    wait_until(lambda: one.evaluate(frames) > seen, what="more pictures")
    wait_until(lambda: site.client.get_run(run_id).step > step, what="the run to go on")
    site.client.cancel_run(run_id)
    for page in (one, table):
        expect(page.locator("[data-state=CANCELLED]")).to_have_count(1)
        assert page.evaluate("window.seenAway") is True, "nobody reloaded the page"


def test_a_question_stays_when_the_run_moves_on_meanwhile(site: Site, open_page: Callable[..., Page]) -> None:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1000}
    run_id = site.client.submit_run({"metadata": {"worker": {"config": config}}}, external=True).run_id
    one, other = open_page(f"/run/{run_id}"), open_page(f"/run/{run_id}")
    for page in (one, other):
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_be_visible()
    other.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(one.locator("[data-state=CANCELLED]")).to_be_visible()
    one.get_by_role("dialog").get_by_role("button", name="Leave it").click()
    expect(one.get_by_role("dialog")).to_be_hidden()
    said = site.log.read_text()
    assert "Traceback" not in said, said


def test_the_key_that_signs_people_in_is_in_its_own_file_only(site: Site) -> None:
    words = [path for path in (site.home / "var").rglob("*") if path.is_file() and path.stat().st_size < 5_000_000]
    key = (site.home / "var" / "trainer" / "web.key").read_bytes()
    assert [path.name for path in words if key in _bytes(path)] == ["web.key"]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # a file that was only there for a moment
        return b""
