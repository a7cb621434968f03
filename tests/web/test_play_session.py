"""A worker's interactive process under a page's hand."""

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from web_site import in_a_loop

from mosaic.contract.errors import ConfigError, WorkerError
from mosaic.contract.workers import discover_workers
from mosaic.web import play_session
from mosaic.web.play_session import PlaySession, find_policy

WORKER = discover_workers()[0]["cleanrl"].command


def played(home: Path, game: Callable[[PlaySession], Awaitable[Any]], **asked: Any) -> Any:
    async def whole() -> Any:
        session = await PlaySession.start(WORKER, home, **asked)
        try:
            return await game(session)
        finally:
            await session.close()
            assert not psutil.pid_exists(session.pid) and not session.alive

    return in_a_loop(whole())


def test_a_person_plays_an_episode_to_its_end_and_the_process_ends_with_the_game(tmp_path: Path) -> None:
    async def game(session: PlaySession) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        ready = await session.reset(7)
        answers = await session.step(0)
        while len(answers) == 1:
            answers = await session.step(0)
        with pytest.raises(WorkerError, match="the episode is over"):
            await session.step(0)
        with pytest.raises(WorkerError, match="needs an"):
            await session.reset()
            await session.step()
        return ready, answers

    ready, answers = played(tmp_path, game, env_id="CartPole-v1")
    assert ready["seed"] == 7 and ready["action_space"]["n"] == 2 and ready["render_payload"]["encoding"] == "png"
    assert [answer["type"] for answer in answers] == ["step", "episode_done"]
    assert answers[1]["total_reward"] == answers[1]["episode_length"] > 5


def test_an_environment_that_cannot_be_made_is_a_clear_refusal(tmp_path: Path) -> None:
    async def game(session: PlaySession) -> None: ...

    with pytest.raises((ConfigError, WorkerError), match="CartPoole"):
        played(tmp_path, game, env_id="CartPoole-v1")
    assert PlaySession._open == 0


def test_a_game_that_dies_says_its_last_words_and_the_next_command_says_so_too(tmp_path: Path) -> None:
    script = "import sys; print('{\"type\": \"init\"}', flush=True); sys.stdin.readline(); sys.exit('out of memory')"

    async def whole() -> None:
        session = await PlaySession.start([sys.executable, "-c", script], tmp_path, env_id="x")
        with pytest.raises(WorkerError, match="the game has ended: out of memory"):
            await session.reset()
        with pytest.raises(WorkerError, match="ended"):
            await session.reset()
        await session.close()
        await session.close()

    in_a_loop(whole())


def test_a_process_that_ignores_the_end_of_its_stdin_and_signals_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play_session, "CLOSE_SECONDS", 0.2)
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        'print(\'{"type": "init"}\', flush=True); time.sleep(600)'
    )

    async def whole() -> int:
        session = await PlaySession.start([sys.executable, "-c", script], tmp_path, env_id="x")
        await session.close()
        return session.pid

    assert not psutil.pid_exists(in_a_loop(whole()))


def test_what_is_no_answer_and_silence_are_said(tmp_path: Path) -> None:
    async def whole() -> None:
        with pytest.raises(WorkerError, match="no answer"):
            await PlaySession.start([sys.executable, "-c", "print('hello')"], tmp_path, env_id="x")
        with pytest.raises(WorkerError, match="did not answer"):
            sleeper = [sys.executable, "-c", "input()"]
            await PlaySession.start(sleeper, tmp_path, env_id="x", start_seconds=0.5)
        with pytest.raises(WorkerError, match="cannot start"):
            await PlaySession.start(["/no/such/program"], tmp_path, env_id="x")
        with pytest.raises(ConfigError, match="nothing to play"):
            await PlaySession.start(WORKER, tmp_path)

    in_a_loop(whole())
    assert PlaySession._open == 0


def test_no_more_games_than_the_machine_bears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play_session, "MOST_SESSIONS", 0)
    with pytest.raises(WorkerError, match="close one of those pages"):
        in_a_loop(PlaySession.start(WORKER, tmp_path, env_id="x"))


@pytest.mark.parametrize(
    "given",
    [
        *("../out.cleanrl_model", "/etc/passwd", "a/../../out.cleanrl_model", "link.cleanrl_model", ""),
        *("..\\out.cleanrl_model", "%2e%2e/out.cleanrl_model", "x\0.cleanrl_model", "x" * 5000, "notes.txt"),
        "none.cleanrl_model",
    ],
)
def test_no_file_outside_the_home_is_a_policy(tmp_path: Path, given: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "out.cleanrl_model").write_bytes(b"")
    (home / "notes.txt").write_text("")
    os.symlink(tmp_path / "out.cleanrl_model", home / "link.cleanrl_model")
    with pytest.raises(ConfigError):
        find_policy(home, given)


def test_a_policy_inside_the_home_is_found(tmp_path: Path) -> None:
    path = tmp_path / "var" / "ppo.cleanrl_model"
    path.parent.mkdir()
    path.write_bytes(b"")
    assert find_policy(tmp_path, "var/ppo.cleanrl_model") == path
