"""The banner of a disk that fills up and the mark of a stalled run, on every page of a real browser."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from web_site import PATIENCE, Site

from mosaic.trainer.rpc.client import State

PLACES = ("runs", "train", "script", "resume", "policy", "compare", "sweeps", "play", "environments", "system")
# A disk of the test, in the GUI's process: used and free bytes as a file says.
DISK = """
import pathlib, shutil, types
def usage(path, real=shutil.disk_usage):
    file = pathlib.Path(%r)
    if not file.exists():
        return real(path)
    used, free = map(int, file.read_text().split())
    return types.SimpleNamespace(total=used + free, used=used, free=free)
shutil.disk_usage = usage
"""


expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk"


@pytest.fixture
def site(tmp_path: Path, disk: Path) -> Iterator[Site]:
    """One of its own: the disk of the others must not look full."""
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "sitecustomize.py").write_text(DISK % str(disk))
    one = Site(tmp_path, plugins)
    yield one
    one.end_runs()
    one.stop()


def test_every_page_shows_a_disk_that_fills_up(site: Site, open_page: Callable[..., Page], disk: Path) -> None:
    page = open_page("/runs")
    banner = page.get_by_test_id("disk-banner")
    disk.write_text("500000000 500000000")
    expect(banner).to_be_hidden()
    disk.write_text("920000000 80000000")
    expect(banner).to_be_visible()
    expect(banner).to_contain_text("92 % full: 80.0 MB are left")
    expect(banner).to_have_attribute("data-level", "amber")
    for place in PLACES:
        page.goto(f"{site.base}/{place}")
        expect(banner).to_contain_text("92 % full")
    disk.write_text("960000000 40000000")
    expect(banner).to_have_attribute("data-level", "red")
    disk.write_text("500000000 500000000")
    expect(banner).to_be_hidden()


def test_a_stalled_run_is_marked_in_the_list_on_its_page_and_in_a_comparison(
    site: Site, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    script = tmp_path / "stands.py"
    script.write_text(STANDS)
    extras: dict[str, Any] = {"fastlane_video_mode": "off"}
    made = site.client.submit_run(
        {"algo": str(script), "env_id": "CartPole-v1", "total_timesteps": 10_000, "seed": 1, "extras": extras}
    )
    end = time.monotonic() + PATIENCE
    while (run := site.client.get_run(made.run_id)).step < 20:
        assert time.monotonic() < end and not run.ended, run.reason
        time.sleep(0.1)
    page = open_page("/runs")
    expect(page.get_by_text(re.compile(r"STALLED \d")).first).to_be_visible(timeout=4 * PATIENCE * 1000)
    run = site.client.get_run(made.run_id)
    assert run.stalled and run.state == State.EXECUTING and (run.sps, run.eta_seconds) == (0.0, None)
    expect(page.locator(".mosaic-runs")).not_to_contain_text(" left")
    page.goto(f"{site.base}/run/{made.run_id}")
    expect(page.get_by_test_id("stalled")).to_contain_text("STALLED")
    page.goto(f"{site.base}/compare?runs={made.run_id}")
    expect(page.locator(".mosaic-compare")).to_contain_text("running, STALLED")
    told = site.command("runs").stdout
    assert "EXECUTING STALLED" in told
    assert "STALLED" in site.command("show", made.run_id).stdout
    assert site.command("cancel", made.run_id).returncode == 0
    assert site.client.wait_run(made.run_id, 4 * PATIENCE).state == State.CANCELLED


# A user's script that logs for a moment and then hangs.
STANDS = """
import argparse, json, time
parser = argparse.ArgumentParser()
parser.add_argument("--env-id"), parser.add_argument("--total-timesteps", type=int), parser.add_argument("--seed")
args = parser.parse_args()
for step in range(1, 21):
    with open("metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "time": time.time(), "charts/SPS": 50}) + "\\n")
    time.sleep(0.1)
time.sleep(3600)
"""
