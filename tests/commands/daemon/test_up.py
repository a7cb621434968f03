"""up, down and url with real processes: started, found again, mended, ended; runs go on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from web_site import Site, wait_until

from mosaic.commands.daemon import up
from mosaic.contract.channel import daemon_card, read_card
from mosaic.contract.identity import boot_id
from mosaic.contract.paths import RunPaths

CARD = {"home": "/nowhere", "target": "127.0.0.1:1", "token_file": "/nowhere/token"}
WEB = {"port": 1, "boot": "x"}


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
    command = [sys.executable, "-m", "gym_gui", "--detach"]
    told = subprocess.run(command, env=standing._environment, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0 and "already runs" in told.stdout and "/?code=" in told.stdout


def mosaic(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of somebody with this home and no daemon elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MOSAIC_")}
    environment = kept | {"MOSAIC_HOME": str(home), "XDG_STATE_HOME": str(home.parent / "state")}
    command = [sys.executable, "-m", "mosaic.cli", *words]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )


def test_down_removes_the_cards_of_killed_ones_and_a_reused_pid_is_not_already_running(site: Site) -> None:
    folder = site.home / "var/trainer"
    daemon = daemon_pid(site)
    site.process.kill()
    site.process.wait()
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: not lives(daemon))
    for name in ("daemon.json", "web.json"):  # as in a container that was started anew: the pid is another process
        card = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(card | {"pid": os.getpid()}))
    told = site.command("url")
    assert told.returncode == 3 and "no web GUI runs" in told.stderr
    down = site.command("down")
    assert down.returncode == 0 and lives(os.getpid())
    assert "daemon.json: the process that it names has ended" in down.stdout and "web.json" in down.stdout
    assert not list(folder.glob("*.json"))
    again = site.command("down")
    assert again.returncode == 3 and "mosaic up" in again.stderr and again.stderr.count("\n") == 1
    site.start()
    assert site.stop() == 0


def test_up_after_a_restart_with_the_same_pids_starts_anew(site: Site) -> None:
    folder = site.home / "var/trainer"
    site.stop()
    for name, fields in (("daemon.json", CARD), ("web.json", WEB)):
        (folder / name).write_text(json.dumps(fields | {"pid": os.getpid(), "start_ticks": 1, "boot_id": boot_id()}))
    site.start()
    assert site.client.health()["home"] == str(site.home)


def test_down_ends_the_gui_and_a_daemon_that_does_not_answer(site: Site) -> None:
    daemon = daemon_pid(site)
    os.kill(daemon, signal.SIGSTOP)
    down = site.command("down", "--json")
    assert down.returncode == 0, down.stderr
    assert json.loads(down.stdout)["runs_going_on"] is None
    assert not lives(daemon) and site.process.wait(60) is not None


@pytest.mark.parametrize("delay", [0.1, 0.7, *(pytest.param(0.1 * n, marks=pytest.mark.full) for n in range(2, 30))])
def test_up_that_is_stopped_while_it_starts_ends_what_it_started(delay: float, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mosaic.cli", "up", "--port", "0", "--listen", "127.0.0.1:0"]
    environment = os.environ | {"MOSAIC_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (tmp_path / "var").exists(), what="its first step")
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode in (0, 130) and "Traceback" not in errors
    assert read_card(daemon_card(tmp_path)) == {}


HOMES = {"in a file": "file/home", "a file": "file", "in /proc": "/proc/nowhere/home", "too long": "x" * 300}


@pytest.mark.parametrize("words", ["up", "up --detach", "daemon", "train ppo CartPole-v1"])
@pytest.mark.parametrize("home", HOMES.values(), ids=HOMES)
def test_a_home_that_cannot_be_made_is_one_line(home: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = mosaic(tmp_path / home, *words.split())
    assert told.returncode != 0 and told.stdout == ""
    assert told.stderr.startswith("mosaic: cannot ") and told.stderr.count("\n") == 1, told.stderr


@pytest.mark.parametrize("words", ["up", "up --detach", "daemon", "train ppo CartPole-v1"])
@pytest.mark.parametrize("name", ["var", "var/trainer", "var/logs"])
def test_a_home_that_cannot_be_written_is_reported_without_a_traceback(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("a file stands in the way")
    told = mosaic(tmp_path, *words.split())
    assert told.returncode in (1, 3) and f"cannot write {tmp_path}/var" in told.stderr.splitlines()[-1]
    assert all(line.startswith("mosaic: ") for line in told.stderr.splitlines())


def test_the_daemon_under_up_gets_the_slots_for_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []

    def start(home: Path, listen: str | None, arguments: tuple[str, ...]) -> str:
        started.append(arguments)
        return "127.0.0.1:1"

    monkeypatch.setattr(up, "start_daemon", start)
    for slots in (None, 3):
        with up.Keeping(tmp_path, None, slots):
            pass
    assert started[0] == () and ("--eval-slots", "3") in started
