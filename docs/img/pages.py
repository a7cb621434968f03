"""Takes the pictures of the GUI's pages anew: a real `mosaic up`, real runs, Chromium.

    python docs/img/pages.py [NAME …]

It trains on CartPole for some minutes on two cores; names choose among the pictures.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from mosaic.trainer.rpc.client import Client, RunHandle
from mosaic.web.server import fresh_url, read_web_card

HERE = Path(__file__).parent
SHORT, LONG = 60_000, 30_000_000


def main(wanted: list[str]) -> None:
    """Train what the pages show, then look at each page."""
    with tempfile.TemporaryDirectory(prefix="mosaic-pictures-") as folder, up(Path(folder)) as client:
        print("training what the pages show …", flush=True)
        ended = [
            client.train("ppo", "CartPole-v1", seed=seed, total_timesteps=SHORT, extras=EXTRAS, learning_rate=rate)
            for rate in (0.0025, 0.001)
            for seed in (1, 2, 3)
        ]
        for run in ended:
            run.wait(1200)
        policy = next(ended[0].folder.rglob("ppo.cleanrl_model")).relative_to(folder)
        client.evaluate(str(Path(folder) / policy), eval_episodes=20).wait(300)
        if not wanted or "sweep" in wanted:
            tune(Path(folder))
        client.train("dqn", "Acrobot-v1", seed=1, total_timesteps=SHORT)
        live = client.train("ppo", "CartPole-v1", seed=4, total_timesteps=LONG, extras=EXTRAS)
        wait_for_steps(live, 40_000)
        for name, path in pictures(live, ended, policy).items():
            if not wanted or name in wanted:
                take(Path(folder), name, path)
        for run in client.list_runs(states=["INIT", "HANDSHAKE", "READY", "EXECUTING"]).runs:
            client.cancel_run(run.run_id, 0.0)
            client.wait_run(run.run_id, 60)


def tune(home: Path) -> None:
    """A sweep of some minutes."""
    words = "ppo CartPole-v1 --trials 16 --seeds 1-2 --set total_timesteps=16384 --startup-trials 3 --name cartpole"
    environment = {**os.environ, "MOSAIC_HOME": str(home)}
    subprocess.run([sys.executable, "-m", "mosaic.cli", "sweep", *words.split()], env=environment, check=True)


EXTRAS = {"save_model": True, "tensorboard_dir": "tensorboard"}


def pictures(live: RunHandle, ended: list[RunHandle], policy: Path) -> dict[str, str]:
    """The name of each picture and the address it shows."""
    compared = ",".join(run.run_id for run in ended)
    return {
        "runs": "/runs",
        "run": f"/run/{live.run_id}?tab=live",
        "metrics": f"/run/{ended[0].run_id}?tab=metrics",
        "files": f"/run/{ended[0].run_id}?tab=files",
        "config": f"/run/{ended[0].run_id}?tab=config",
        "train": "/train",
        "script": "/script",
        "resume": "/resume",
        "policy": f"/policy?policy={policy}",
        "compare": f"/compare?runs={compared}",
        "sweep": "/sweeps/cartpole",
        "play": f"/play?policy={policy}",
        "environments": "/environments",
        "system": "/system",
    }


def take(home: Path, name: str, path: str) -> None:
    """One page, and for the runs also as a phone and in the dark."""
    shots = [(f"gui_{name}", 1280, "light")]
    if name in ("runs", "run"):
        shots += [(f"gui_{name}_phone", 390, "light"), (f"gui_{name}_dark", 1280, "dark")]
    for file, width, scheme in shots:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium") or "", args=["--no-sandbox"])
            context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=scheme)  # type: ignore[arg-type]
            context.request.get(fresh_url(home))
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{read_web_card(home)['port']}{path}", timeout=60_000)
            settle(page)
            page.screenshot(path=HERE / f"{file}.png")
            browser.close()
        print(f"{file}.png", flush=True)


def settle(page: Page) -> None:
    """Until the page has drawn what it fetches by itself."""
    page.wait_for_load_state("networkidle") if "live" not in page.url else None
    page.get_by_text("Starting the worker").wait_for(state="detached", timeout=60_000)
    page.wait_for_timeout(6000)


def wait_for_steps(run: RunHandle, steps: int) -> None:
    while run.refresh().step < steps and not run.info.ended:
        time.sleep(0.5)


@contextmanager
def up(home: Path) -> Iterator[Client]:
    environment = {**os.environ, "MOSAIC_HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    command = [sys.executable, "-m", "mosaic.cli", "up", "--port", "0", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while read_web_card(home).get("pid") != process.pid:
            assert process.poll() is None
            time.sleep(0.1)
        with Client(home=home) as client:
            yield client
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main(sys.argv[1:])
