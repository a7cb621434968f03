"""Episodes that a policy plays: what it remembers, and when it forgets."""

import numpy as np
import pytest

from cleanrl_worker.envs.play import make_game, play_episode
from cleanrl_worker.nets.memory import RememberingPolicy
from cleanrl_worker.play.game_view import open_scene
from cleanrl_worker.play.session import Request, Session
from cleanrl_worker.run.policy import Policy

LIVES = 5  # of Breakout, which are all lost without a move


class Memories(RememberingPolicy):
    """Counts the steps that each memory lasts; never moves."""

    def __init__(self) -> None:
        self.lasted: list[int] = []
        super().__init__(self._begin_counting)
        self.lasted.clear()

    def _begin_counting(self) -> Policy:
        self.lasted.append(0)

        def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
            self.lasted[-1] += 1
            return np.zeros(len(obs), np.int64)

        return act


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_a_policy_forgets_at_a_lost_life_when_it_plays_whole_games_as_it_did_when_it_learned(backend: str) -> None:
    pytest.importorskip("ale_py" if backend == "gymnasium" else "envpool")
    policy, game = Memories(), make_game("Breakout-v5", atari=True, backend=backend)
    played = play_episode(policy, game, 0, 1)
    game.close()
    assert played is not None and not game.lost_life, "the last life ends the game for everybody"
    assert len(policy.lasted) == LIVES and sum(policy.lasted) == played.length


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_a_policy_forgets_at_a_lost_life_when_somebody_looks_on(backend: str) -> None:
    pytest.importorskip("ale_py" if backend == "gymnasium" else "envpool")
    policy, scene = Memories(), open_scene("Breakout-v5", atari=True, backend=backend)
    scene.no_picture = "nobody needs it"
    session = Session(Request("r", env_id="Breakout-v5", seed=1), scene, policy)
    list(session.answer(b'{"cmd": "reset"}'))
    while not any(message["type"] == "episode_done" for message in session.answer(b'{"cmd": "step"}')):
        assert sum(policy.lasted) < 5000
    session.close()
    assert len(policy.lasted) == LIVES
