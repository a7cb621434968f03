"""The web GUI: its first page with 10,000 runs, a run page with 20 curves of a million points, what a viewer costs.

    python benchmarks/web.py [--only first,curves,viewer] [--repetitions 5]

A real `mosaic up`, a real Chromium started anew for each repetition (so its cache is cold, too), on loopback.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from daemons import cpu_seconds, home, megabytes
from filled import fill_curves, fill_runs
from playwright.sync_api import Page, sync_playwright
from report import markdown, save

from mosaic.trainer.rpc.client import Client
from mosaic.web.server import fresh_url, read_web_card

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
WATCHED_SECONDS = 20.0


def main() -> None:
    """Measure each part, print the tables, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    args = parser.parse_args()
    for name in args.only.split(","):
        figures = PARTS[name](args)
        save("web", {name: figures})
        print(markdown([{"what": f"{name}: {key}", "measured": value} for key, value in figures.items()]), flush=True)


def first(args: argparse.Namespace) -> dict[str, Any]:
    """From the address to the newest row of the table."""
    with home() as folder:
        fill_runs(folder, args.runs)
        newest = f"run-{args.runs - 1:06d}"
        with up(folder) as web:
            times = opened(folder, args, "/runs", lambda page: page.get_by_text(newest).first.wait_for())
            return {
                "finished runs": args.runs,
                "until the newest run is on the screen, s": _spread(times),
                "web process's memory, MB": megabytes(web),
            }


def curves(args: argparse.Namespace) -> dict[str, Any]:
    """From the address to twenty drawn curves."""
    drawn = "() => document.querySelectorAll('canvas[data-zr-dom-id]').length >= 20"
    with home() as folder:
        fill_curves(folder, args.points)
        with up(folder) as web:
            times = opened(folder, args, "/run/curves?tab=metrics", lambda page: page.wait_for_function(drawn))
            return {
                "points per curve": args.points,
                "until 20 curves are drawn, s": _spread(times),
                "web process's memory, MB": megabytes(web),
            }


def viewer(args: argparse.Namespace) -> dict[str, Any]:
    """CPU of daemon and web while a run is watched and while it is not, in turns."""
    with home() as folder, up(folder) as web, Client(home=folder) as client:
        config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 50_000_000}
        # A budget that lets every frame be drawn which is asked for: the view's cost is measured, not the training's.
        run = client.submit_run(
            {"environment": {"CLEANRL_FASTLANE_BUDGET": "1.0"}, "metadata": {"worker": {"config": config}}}
        )
        while client.get_run(run.run_id).state != "EXECUTING":
            time.sleep(0.2)
        pids = [int(client.health()["pid"]), web.pid]
        watched, alone, rates = [], [], []
        for _ in range(args.repetitions):
            with chromium(folder) as page:
                page.goto(_base(folder) + f"/run/{run.run_id}?tab=live")
                page.get_by_text("Fast lane: connected").wait_for()
                time.sleep(2.0)
                watched.append(_share(pids))
                rates.append(float(re.findall(r"[\d.]+", page.get_by_text("Frames/s").locator("..").inner_text())[-1]))
            time.sleep(5.0)  # the heartbeat of a viewer that has left grows stale
            alone.append(_share(pids))
        client.cancel_run(run.run_id, 0.0)
        client.wait_run(run.run_id, 60)
        return {
            "daemon and web, watched, % of a core": _spread([100 * share for share in watched]),
            "the same, not watched": _spread([100 * share for share in alone]),
            "frames/s shown": _spread(rates),
        }


def opened(folder: Path, args: argparse.Namespace, path: str, seen: Callable[[Page], Any]) -> list[float]:
    """Seconds from asking for a page to what is awaited on it, in a new browser each time."""
    times = []
    for _ in range(args.repetitions):
        with chromium(folder) as page:
            began = time.perf_counter()
            page.goto(_base(folder) + path, wait_until="commit")
            seen(page)
            times.append(time.perf_counter() - began)
    return times


@contextmanager
def up(folder: Path) -> Iterator[psutil.Process]:
    """`mosaic up` on this home; yields its web process."""
    environment = {**os.environ, "MOSAIC_HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "mosaic.cli", "up", "--port", "0", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while read_web_card(folder).get("pid") != process.pid:
            assert process.poll() is None
            time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A new browser, signed in; its cache holds nothing but the sign-in page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium") or "", args=FLAGS)
        context = browser.new_context(viewport={"width": 1280, "height": 900}, java_script_enabled=True)
        context.set_default_timeout(60_000)
        # Signs in without running a page: the cookie comes with the answer.
        context.request.get(fresh_url(folder))
        yield context.new_page()
        browser.close()


def _base(folder: Path) -> str:
    return f"http://127.0.0.1:{read_web_card(folder)['port']}"


def _share(pids: list[int]) -> float:
    """Share of a core that these processes take, over some seconds."""
    began, spent = time.perf_counter(), sum(cpu_seconds(pid) for pid in pids)
    time.sleep(WATCHED_SECONDS)
    return (sum(cpu_seconds(pid) for pid in pids) - spent) / (time.perf_counter() - began)


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f}, n={len(values)})"


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"first": first, "curves": curves, "viewer": viewer}

if __name__ == "__main__":
    main()
