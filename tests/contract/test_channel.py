"""The way to a daemon: which card is believed, and when one is stale."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.channel import daemon_card, daemon_lock, find_daemon, is_stale, read_card, token_file, user_card
from mosaic.contract.errors import NoDaemonError
from mosaic.contract.fields import CARD_BYTES, WEB_CARD
from mosaic.contract.identity import own_identity

CARD = {"home": "/home", "target": "127.0.0.1:50055", "token_file": "/home/var/trainer/token", "ca": ""}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MOSAIC_HOME", "MOSAIC_TARGET", "MOSAIC_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = tmp_path / "home"
    (home / "var/trainer").mkdir(parents=True)
    return home


def write(path: Path, **fields: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**CARD, **own_identity(), **fields}))
    return path


def test_a_card_counts_while_the_very_process_that_wrote_it_runs(home: Path) -> None:
    path = write(daemon_card(home))
    assert read_card(path)["target"] == CARD["target"] and not is_stale(path, home)
    # as after a container's restart: the same pid is another process
    write(path, start_ticks=own_identity()["start_ticks"] + 1)
    assert read_card(path) == {} and is_stale(path, home)
    write(path, boot_id="the boot before")
    assert read_card(path) == {} and is_stale(path, home)
    path.unlink()
    assert read_card(path) == {} and not is_stale(path, home)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "no JSON",
        '{"pid": 1}',
        json.dumps({**CARD, "pid": os.getpid()}),
        json.dumps({**CARD, **own_identity(), "target": 7}),
        json.dumps({**CARD, **own_identity(), "pid": "7"}),
        json.dumps({**CARD, **own_identity(), "more": "x" * CARD_BYTES}),
    ],
    ids=["empty", "list", "text", "only-pid", "no-identity", "target", "pid", "large"],
)
def test_an_invalid_card_is_ignored_and_stale(home: Path, content: str) -> None:
    path = daemon_card(home)
    path.write_text(content)
    assert read_card(path) == {} and is_stale(path, home)
    with pytest.raises(NoDaemonError, match="mosaic up"):
        find_daemon(home=home)


def test_a_pipe_in_a_cards_place_delays_no_reader(home: Path) -> None:
    os.mkfifo(daemon_card(home))
    assert read_card(daemon_card(home)) == {}


def test_each_kind_of_card_has_its_own_fields(home: Path) -> None:
    path = write(home / "var/trainer/web.json", port=8080, boot="abc")
    assert read_card(path, WEB_CARD)["port"] == 8080
    assert read_card(write(path, port=0, boot="abc"), WEB_CARD) == {}


def test_the_card_of_another_machine_is_stale_only_when_its_home_is_not_served(home: Path) -> None:
    path = write(daemon_card(home), boot_id="another machine", home=str(home))
    with daemon_lock(home).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_card(path) == {} and not is_stale(path, home)
    assert is_stale(path, home)


def test_a_homes_card_does_not_choose_the_token_that_is_sent(home: Path, tmp_path: Path) -> None:
    token_file(home).write_text("this home's token\n")
    mine = tmp_path / "mine"
    mine.write_text("my own daemon's token\n")
    write(daemon_card(home), token_file=str(mine))
    assert find_daemon(home=home).token == "this home's token"
    daemon_card(home).unlink()
    write(user_card(), token_file=str(mine))
    assert find_daemon().token == "my own daemon's token"
