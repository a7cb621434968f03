"""up, down and url with real processes: started, found again, mended, ended; runs go on."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from web_site import Site, wait_until

from mosaic.wire.paths import RunPaths


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    if site.process.poll() is None:
        site.end_runs()
        site.stop()


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For all tests that leave it as it was."""
    site = Site(tmp_path_factory.mktemp("standing"))
    yield site
    site.stop()


def daemon_pid(site: Site) -> int:
    return int(site.client.health()["pid"])


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_up_serves_until_sigterm_ends_gui_and_daemon_and_runs_go_on(site: Site) -> None:
    again = site.command("up", "--detach", "--json")
    assert json.loads(again.stdout)["url"].startswith(site.base)
    run = site.client.train("ppo", "CartPole-v1", seed=1, total_timesteps=10_000_000)
    wait_until(lambda: run.state == "EXECUTING")
    worker, daemon = run.refresh().pid, daemon_pid(site)
    assert site.stop() == 0
    assert lives(worker) and not lives(daemon)
    gone = site.command("url")
    assert gone.returncode == 3 and "mosaic up" in gone.stderr

    by_hand = RunPaths("by-hand", site.home)
    by_hand.create()
    by_hand.metrics.write_text("")
    told = site.command("up", "--detach", "--port", "0", "--listen", "127.0.0.1:0", "--json")
    assert (
        "1 run folder has no row in the registry (by-hand); recreate from the folders with: mosaic rebuild"
        in told.stderr
    )
    up = json.loads(told.stdout)
    assert up["runs"] == {"EXECUTING": 1} and "/?code=" in up["url"]
    assert site.command("cancel", run.run_id, "--grace", "0").returncode == 0
    down = json.loads(site.command("down", "--json").stdout)
    assert down["pid"] == up["pid"] and down["web_pid"]
    assert not lives(down["web_pid"])


def test_daemon_that_is_killed_under_up_is_started_again_at_its_address(site: Site) -> None:
    target, daemon = site.client.address.target, daemon_pid(site)
    os.kill(daemon, signal.SIGKILL)

    def other() -> bool:
        card = json.loads((site.home / "var" / "trainer" / "daemon.json").read_text())
        return bool(card["pid"] != daemon and card["target"] == target)

    wait_until(other)
    wait_until(lambda: "started again" in site.log.read_text())
    assert site.stop() == 0


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_port_out_of_range_is_refused_in_one_line(standing: Site, port: str, tmp_path: Path) -> None:
    told = standing.command("up", "--port", port, MOSAIC_HOME=str(tmp_path))
    assert told.returncode == 2 and "--port" in told.stderr and len(told.stderr.splitlines()) == 1


def test_port_that_is_taken_is_told(standing: Site, tmp_path: Path) -> None:
    taken = standing.command("up", "--port", standing.base.rpartition(":")[2], MOSAIC_HOME=str(tmp_path))
    assert taken.returncode == 1 and "another program has it" in taken.stderr


def test_gym_gui_is_another_name_for_up(standing: Site) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "gym_gui", "--detach"]
    told = subprocess.run(command, env=standing._environment, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0 and "already runs" in told.stdout and "/?code=" in told.stdout
