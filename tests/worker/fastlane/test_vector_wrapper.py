"""The onlooker of our own algorithms: what it shows of each backend, and that training never notices."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_envs
import torch

from cleanrl_worker.algorithms import ppo, ppo_continuous_action
from cleanrl_worker.envs import episodes, play, vectors
from cleanrl_worker.fastlane import vector_wrapper as onlooker
from cleanrl_worker.fastlane.gym_wrapper import EnvPicture
from cleanrl_worker.fastlane.pacer import Lane, Settings
from mosaic.contract.frames import FastLaneReader, FastLaneWriter

SETTINGS = Settings("single", 0, 8, 0.0, 1024, 1.0)


class Show:
    """A live view in this process, and somebody who looks."""

    def __init__(self, folder: Path) -> None:
        self.writer = FastLaneWriter.create("onlooker-test")
        self.reader = FastLaneReader.attach(self.writer.name)
        self.folder = folder

    def set_up(self, **changes: Any) -> onlooker.Onlooker:
        view = EnvPicture(Lane(SETTINGS._replace(**changes), self.writer, self.folder), wraps=False)
        self.reader.watch()
        return onlooker.Onlooker(view)

    def step(self, envs: Any, actions: Any = None) -> None:
        """Somebody looks just now, however long it took to make the environments."""
        self.reader.watch()
        envs.step(np.zeros(envs.num_envs, np.int64) if actions is None else actions)


@pytest.fixture
def show(tmp_path: Path) -> Iterator[Show]:
    (tmp_path / "logs").mkdir()
    show = Show(tmp_path)
    yield show
    show.reader.close()
    show.writer.close()


def test_nobody_looks_on_unless_a_launcher_has_let_somebody_in() -> None:
    assert episodes.onlooker is None


def test_a_pool_shows_the_chosen_environment_or_all_of_them(show: Show) -> None:
    args = ppo.Args(env_id="CartPole-v1", num_envs=3, env_backend="envpool")
    envs = show.set_up(slot=2).training(vectors.vector(args), args)
    envs.reset(1)
    show.step(envs)
    frame = show.reader.latest_frame()
    assert frame is not None and frame.array.shape == (400, 600, 3) and frame.step == 3
    envs = show.set_up(mode="grid", limit=2).training(envs.envs, args)
    show.step(envs)
    frame = show.reader.latest_frame()
    assert frame is not None and frame.array.shape == (200, 600, 3)
    envs.close()


def test_a_pool_that_a_checkpoint_makes_anew_is_shown_on(show: Show) -> None:
    args = ppo.Args(env_id="CartPole-v1", num_envs=2, env_backend="envpool")
    envs = show.set_up().training(vectors.vector(args), args)
    seen = 0
    for seed in (1, 2, 3):
        envs.reset(seed)  # another seed takes another pool
        show.step(envs)
        frame = show.reader.latest_frame(seen)
        assert frame is not None and frame.array.std() > 0
        seen = frame.index
    envs.close()


def test_every_stage_of_a_curriculum_is_shown_by_name_and_steps_go_on(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = '[{"env_id": "CartPole-v1", "steps": 2}, {"env_id": "CartPole-v0"}]'
    args = ppo.Args(env_id="CartPole-v1", num_envs=2, env_backend="envpool", curriculum_schedule=schedule)
    monkeypatch.setattr(episodes, "onlooker", show.set_up())
    envs: Any = vectors.vector(args)
    seen = 0
    for steps, env_id in ((2, "CartPole-v1"), (4, "CartPole-v0"), (6, "CartPole-v1")):
        envs.enter(env_id)
        envs.reset(1)
        show.step(envs)
        frame = show.reader.latest_frame(seen)
        assert frame is not None and frame.step == steps and frame.array.std() > 0
        assert show.reader.status().label == f"({env_id})"
        seen = frame.index
    envs.close()


def test_a_slot_that_is_not_there_and_environments_without_pictures_are_explained(show: Show) -> None:
    tiny_envs.register()
    args = ppo.Args(env_id="Tiny/Terminating-v0", num_envs=2)
    plain = vectors.vector(args)
    assert show.set_up(slot=2).training(plain, args) is plain
    assert show.reader.status().reason == "fastlane_slot 2: there are 2 environments, 0 to 1"
    assert show.set_up().training(plain, args) is plain
    assert "Tiny/Terminating-v0 has no rgb_array render mode" in show.reader.status().reason


def test_a_native_vector_that_cannot_draw_is_replaced_by_a_probe_that_says_why_it_cannot(show: Show) -> None:
    tiny_envs.register()
    args = ppo.Args(env_id="Tiny/Terminating-v0", num_envs=2, vectorization="native")
    envs = show.set_up().training(vectors.vector(args), args)
    envs.reset(1)
    show.step(envs)
    assert show.reader.status().label == "(Probe)"
    assert "no rgb_array render mode" in show.reader.status().reason


def drawn_game(*_: Any, **__: Any) -> play.FlatGame:
    """As the patch of `gymnasium.make` would have made it."""
    game = play.FlatGame(vectors.EnvMaker("CartPole-v1"))
    game.env = vectors.EnvMaker("CartPole-v1", render=True)()
    return game


def test_a_probe_plays_the_newest_policy_and_leaves_torch_as_it_was(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "make_game", drawn_game)
    args = ppo.Args(env_id="CartPole-v1", num_envs=2)
    envs = vectors.vector(args)
    agent = ppo.SeparateMLPAgent(envs)
    seen = show.set_up()
    seen.learner({"policy": agent}, args)
    probe = onlooker.Probe(seen._view, args, lambda: seen._parts)
    before = torch.random.get_rng_state()
    assert probe(0.0, 1).shape == (400, 600, 3)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.zero_()
    probe._renewed = -np.inf
    probe(0.0, 2)
    assert probe._policy is not None and isinstance(probe._game, play.FlatGame)
    actions = {int(probe._policy(probe._obs, None)[0]) for _ in range(3)}
    assert actions == {0}, "of equal values the first is the greedy one"
    assert torch.equal(torch.random.get_rng_state(), before)
    envs.close()


def test_an_evaluation_is_labelled_and_only_its_first_game_is_shown(show: Show) -> None:
    seen = show.set_up()
    first, second = drawn_game(), drawn_game()
    watched = seen.evaluation(first, "CartPole-v1")
    assert seen.evaluation(second, "CartPole-v1") is second
    watched.start(0, 1)
    obs, reward, ended = watched.step(np.zeros(1, np.int64))
    assert obs.shape == (1, 4) and reward == 1.0 and not ended
    frame = show.reader.latest_frame()
    assert frame is not None and frame.last_reward == 1.0
    seen.note("batch 0: 2 episodes")
    assert (show.reader.status().label, show.reader.status().note) == ("(Eval)", "batch 0: 2 episodes")
    watched.close()
    second.close()


def test_a_task_that_only_envpool_has_and_cannot_draw_is_explained(show: Show) -> None:
    args = ppo_continuous_action.Args(env_id="CheetahRun-v1", num_envs=2, env_backend="envpool")
    envs = show.set_up().training(vectors.vector(args), args)
    envs.reset(1)
    show.step(envs, np.zeros((2, 6)))
    reason = show.reader.status().reason
    assert reason.startswith(
        "EnvPool cannot draw CheetahRun-v1: with env_id dm_control/…-v0, the same task in Gymnasium"
    )
    envs.close()


@pytest.mark.parametrize(("env_id", "instead"), [("CheetahRun-v1", "dm_control/…-v0"), ("Hopper-v5", "env_backend")])
def test_an_evaluation_that_envpool_cannot_draw_tells_where_it_would_be_seen(
    env_id: str, instead: str, show: Show
) -> None:
    pytest.importorskip("envpool")
    game = play.make_game(env_id, atari=False, backend="envpool")
    assert show.set_up().evaluation(game, env_id) is game
    assert f"EnvPool cannot draw {env_id}: with {instead}" in show.reader.status().reason.replace("env_id ", "")
    game.close()
