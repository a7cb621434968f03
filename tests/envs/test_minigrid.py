import re
from contextlib import redirect_stdout
from io import StringIO

import gymnasium as gym
import minigrid
import numpy as np
import pytest

from cleanrl_worker.envs import pools
from cleanrl_worker.envs.minigrid import WORDS, GridView, view_of, word_numbers
from cleanrl_worker.envs.vectors import EnvMaker
from mosaic import catalog

OWN_WORDS = """a after and at avoid ball behind blue box door end fetch find from front get go goal green grey hallway
in key lava left matching must near next object of on open opening pick purple put reach red right room rooms square the
then to traverse unlock up use yellow you your""".split()


@pytest.mark.parametrize("flat", [False, True])
def test_cells_are_seen_as_they_are_and_the_mission_follows_them(flat):
    plain = gym.make("BabyAI-GoToRedBall-v0")
    cells = plain.reset(seed=3)[0]["image"]
    for mission in (False, True):
        env = EnvMaker("BabyAI-GoToRedBall-v0", view=GridView(mission, flat))()
        obs, _ = env.reset(seed=3)
        assert env.observation_space.contains(obs)
        assert (obs.reshape(-1)[:147] == cells.reshape(-1)).all()
        if mission:
            assert tuple(obs[147:]) == word_numbers("go to the red ball")
        else:
            assert obs.shape == ((147,) if flat else (7, 7, 3))


def test_a_pool_is_seen_as_single_environments_are():
    view = GridView(mission=True)
    pool = pools.PoolEnvs(lambda seeds: pools.make_pool("BabyAI-GoToLocal-v0", seeds), 3, 1, view=view)
    obs = pool.reset(1)
    assert obs.shape == (3, 147 + WORDS) and obs.dtype == np.uint8
    assert pool.single_observation_space.contains(obs[0])
    assert obs[:, 147].tolist() == [word_numbers("go")[0]] * 3
    raw = {"image": np.zeros((7, 7, 3), np.uint8), "mission": "go to the grey key"}
    many = {"image": raw["image"][None], "mission": np.frombuffer(b"go to the grey key\0\0", np.uint8)[None]}
    assert (view(many)[0] == view(raw)).all()


def test_no_two_words_of_the_missions_are_the_same_number():
    numbers = word_numbers(" ".join(OWN_WORDS))
    assert len({*numbers} - {0}) == len(OWN_WORDS) and max(numbers) < 256
    missions = []
    for env_id in ("BabyAI-BossLevel-v0", "BabyAI-PutNextLocal-v0", "MiniGrid-MemoryS7-v0", "MiniGrid-LavaGapS5-v0"):
        with redirect_stdout(StringIO()):
            missions += [gym.make(env_id).reset(seed=seed)[0]["mission"] for seed in range(3)]
    assert {word for mission in missions for word in re.findall("[a-z]+", mission)} <= {*OWN_WORDS}
    assert minigrid.__name__ == "minigrid"


def test_the_longest_mission_fits():
    thing = "the yellow door in front of you"
    both = f"put {thing} next to {thing} and put {thing} next to {thing}"
    assert len(f"{both} after you {both}".split()) == WORDS
    assert 0 not in word_numbers(f"{both} after you {both}")
    assert len(word_numbers("go " * 500)) == WORDS


def test_grids_are_told_by_their_ids_or_by_the_network():
    assert view_of("CartPole-v1", {"network": "separate"}) is None
    assert view_of("MiniGrid-Empty-5x5-v0", {}) == GridView()
    assert view_of("BabyAI-GoTo-v0", {"network": "auto", "mission": True}) == GridView(mission=True)
    assert view_of("BabyAI-GoTo-v0", {"network": "shared"}) == GridView(flat=True)
    assert view_of("Mine-v0", {"network": "grid"}) == GridView()
    assert all(view_of(env_id, {}) is not None for family in ("minigrid", "babyai") for env_id in catalog.ids(family))


def test_auto_takes_envpool_only_for_ids_that_it_has():
    chosen = [env_id for env_id in catalog.ids() if env_id.startswith(tuple(pools.FASTER_SEEN))]
    assert "MiniGrid-DoorKey-5x5-v0" in chosen and not any("MultiRoom" in env_id for env_id in chosen)
    assert [env_id for env_id in chosen if "envpool" not in catalog.find(env_id).backends] == []


def test_what_babyai_prints_while_it_looks_for_a_level_is_dropped(capsys):
    env = EnvMaker("BabyAI-PutNextLocal-v0", view=GridView())()
    for seed in range(40):
        env.reset(seed=seed)
    assert capsys.readouterr().out == ""
