import json
import sys

import gymnasium as gym
import numpy as np
import pytest
import tiny_envs

from cleanrl_worker.envs import episodes, pools, registration, vectors
from cleanrl_worker.envs.minigrid import GridView
from cleanrl_worker.run.args import RunArgs

tiny_envs.register()
VECTORIZATIONS = ("sync", "async", "native")


def steps_of(envs, count, action=0):
    for _ in range(count):
        yield envs.step(np.full(envs.num_envs, action))


@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
@pytest.mark.parametrize("ending", ["Terminating", "Truncating"])
def test_an_episode_ends_in_the_same_step_on_every_gymnasium_backend(vectorization, ending):
    envs = vectors.vector(RunArgs(env_id=f"Tiny/{ending}-v0", num_envs=3, vectorization=vectorization))
    assert envs.reset(seed=1)[:, 0].tolist() == [0, 0, 0]
    for t, step in enumerate(steps_of(envs, 11), start=1):
        ended = t % 5 == 0
        assert step.obs[:, 0].tolist() == [t % 5] * 3, "after an end the next episode's first observation"
        assert step.final_obs[:, 0].tolist() == [5 if ended else t % 5] * 3, "what the action led to"
        assert step.final_obs[:, 1].tolist() == [(t - 1) // 5] * 3, "no transition crosses a reset"
        assert step.terminations.tolist() == [ended and ending == "Terminating"] * 3
        assert step.truncations.tolist() == [ended and ending == "Truncating"] * 3
        assert [(e.env, e.ret, e.length) for e in step.episodes] == ([(i, 5.0, 5) for i in range(3)] if ended else [])
    envs.close()


@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
def test_a_step_is_not_overwritten_by_the_next(vectorization):
    envs = vectors.vector(RunArgs(env_id="Tiny/Terminating-v0", num_envs=2, vectorization=vectorization))
    first = envs.reset(seed=1)
    steps = list(steps_of(envs, 6))
    assert first[:, 0].tolist() == [0, 0]
    assert [int(step.obs[0, 0]) for step in steps] == [1, 2, 3, 4, 0, 1]
    assert [int(step.final_obs[0, 0]) for step in steps] == [1, 2, 3, 4, 5, 1]
    envs.close()


def test_environments_that_end_at_different_times_keep_their_own_final_observation():
    lengths = (2, 3)
    envs = vectors.SyncEnvs([lambda n=n: tiny_envs.Corridor(length=n) for n in lengths])
    envs.reset(seed=0)
    for t, step in enumerate(steps_of(envs, 12), start=1):
        assert step.final_obs[:, 0].tolist() == [(t - 1) % n + 1 for n in lengths]
        assert step.obs[:, 0].tolist() == [t % n for n in lengths]


def test_a_native_environment_that_resets_one_step_late_is_refused():
    if "Tiny/Late-v0" not in gym.registry:
        gym.register("Tiny/Late-v0", entry_point=tiny_envs.Corridor, vector_entry_point=tiny_envs.LateCorridor)
    with pytest.raises(SystemExit, match="resets one step late"):
        vectors.vector(RunArgs(env_id="Tiny/Late-v0", vectorization="native"))


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_an_image_is_taken_for_no_row_whoever_makes_the_vector(vectorization):
    pytest.importorskip("ale_py")
    with pytest.raises(SystemExit, match=r"of ALE/Pong-v5 cannot be made flat: .*; for images take ppo_jax"):
        vectors.vector(RunArgs(env_id="ALE/Pong-v5", vectorization=vectorization))


def test_a_native_environment_that_does_not_exist_is_refused():
    with pytest.raises(SystemExit, match="no vector version of its own"):
        vectors.vector(RunArgs(env_id="Acrobot-v1", vectorization="native"))


def test_envpool_truncates_with_the_final_observation():
    envs = pools.PoolEnvs(lambda seeds: pools.make_pool("CartPole-v1", seeds, max_episode_steps=5), 3, seed=1)
    envs.reset(1)
    for t, step in enumerate(steps_of(envs, 15, action=1), start=1):
        ended = t % 5 == 0
        assert step.truncations.tolist() == [ended] * 3
        assert not step.terminations.any()
        assert [(e.ret, e.length) for e in step.episodes] == ([(5.0, 5)] * 3 if ended else [])
        if ended:
            assert (np.abs(step.final_obs[:, 1]) > 0.5).all(), "five pushes to the right: the cart is fast"
            assert (np.abs(step.obs) <= 0.05).all(), "a new episode starts near zero"
        else:
            assert step.final_obs is step.obs


def test_envpool_terminates_with_the_final_observation_and_steps_for_real_afterwards():
    envs = pools.PoolEnvs(lambda seeds: pools.make_pool("CartPole-v1", seeds), 2, seed=1)
    obs = envs.reset(1)
    lengths = []
    for step in steps_of(envs, 60, action=1):
        ended = step.terminations
        assert not step.truncations.any()
        # pushed to the right the cart's speed only grows: a transition across a reset would show as a fall
        assert (step.final_obs[:, 1] > obs[:, 1]).all()
        assert (np.abs(step.final_obs[ended, 2]) > 0.2).all()
        lengths += [e.length for e in step.episodes]
        obs = step.obs
    assert lengths and all(8 <= length <= 11 for length in lengths)


def test_envpool_repeats_itself_after_a_reset_with_the_same_seed():
    envs = pools.PoolEnvs(lambda seeds: pools.make_pool("CartPole-v1", seeds), 2, seed=3)
    runs = []
    for seed in (3, 3, 4):
        first = envs.reset(seed)
        runs.append(np.concatenate([first, *(step.obs for step in steps_of(envs, 30))]))
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


@pytest.mark.parametrize(
    ("backend", "vectorization"), [("gymnasium", "sync"), ("gymnasium", "native"), ("envpool", "sync")]
)
def test_an_atari_episode_spans_all_lives_while_the_learner_sees_each_one_end(backend, vectorization):
    asked = {"env_backend": backend, "vectorization": vectorization}
    envs = vectors.atari(RunArgs(env_id="SpaceInvaders-v5", num_envs=2, **asked))
    obs = envs.reset(1)
    assert obs.shape == (2, 4, 84, 84)
    assert obs.dtype == np.uint8
    ends, episodes, paid = 0, [], 0.0
    rng = np.random.default_rng(0)
    while len(episodes) < 2:
        step = envs.step(rng.integers(0, 6, 2))
        ends += int(step.terminations.sum())
        paid += step.rewards.sum()
        episodes += step.episodes
        assert set(np.unique(step.rewards)) <= {-1.0, 0.0, 1.0}
    assert 2 * 3 <= ends <= 4 * 3, "Space Invaders has three lives"
    assert all(e.ret % 5 == 0 and e.length > 50 for e in episodes)
    assert paid < sum(e.ret for e in episodes), "an invader pays 5 or more, and 1 to the learner"
    envs.close()


@pytest.mark.parametrize("env_id", ["ALE/TicTacToe3D-v5", "TicTacToe3d-v5"])
@pytest.mark.parametrize(
    ("backend", "vectorization"), [("gymnasium", "sync"), ("gymnasium", "native"), ("envpool", "sync")]
)
def test_a_game_is_made_whatever_its_capitals(env_id, backend, vectorization):
    envs = vectors.atari(RunArgs(env_id=env_id, env_backend=backend, vectorization=vectorization))
    assert envs.backend == backend
    envs.close()


@pytest.mark.parametrize(
    ("num_envs", "vectorization", "backend"),
    [(1, "sync", "gymnasium"), (2, "sync", "envpool"), (2, "native", "gymnasium")],
)
def test_auto_takes_envpool_for_several_games_but_where_their_native_vector_is_asked_for(
    num_envs, vectorization, backend
):
    envs = vectors.atari(RunArgs(env_id="ALE/Pong-v5", num_envs=num_envs, vectorization=vectorization))
    assert envs.backend == backend
    envs.close()


def test_auto_takes_envpool_for_a_single_game_too_where_it_alone_is_installed(monkeypatch):
    monkeypatch.setattr(pools, "find_spec", lambda name: None if name == "ale_py" else name)
    envs = vectors.atari(RunArgs(env_id="ALE/Pong-v5"))
    assert envs.backend == "envpool"
    envs.close()


def test_an_environment_of_another_family_is_not_taken_for_a_misspelled_game():
    with pytest.raises(SystemExit, match="'CartPole-v1' is no id of an Atari game here; other environments: ppo"):
        vectors.atari(RunArgs(env_id="CartPole-v1"))


@pytest.mark.parametrize(
    "env_id",
    [
        *("Pong-v4", "PongNoFrameskip-v0", "Pong", "ALE/Pong", "PongDeterministic-v4"),
        *("PongNoFrameskip-v5", "pong-v5", "TetrisNoFrameskip-v4"),
    ],
)
@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_an_id_that_means_another_preparation_of_a_game_is_refused_with_the_nearest(env_id, backend):
    if backend == "envpool":
        pytest.importorskip("envpool")
    game = "Tetris" if "Tetris" in env_id else "Pong"
    near = rf"did you mean '(ALE/)?{game}-v5'\? Other"
    with pytest.raises(SystemExit, match=f"'{env_id}' is no id of an Atari game here; {near}"):
        vectors.atari(RunArgs(env_id=env_id, env_backend=backend))


def test_discrete_observations_become_flat():
    envs = vectors.vector(RunArgs(env_id="FrozenLake-v1", num_envs=2))
    assert envs.reset(1).shape == (2, 16)


def test_video_of_the_first_environment_is_an_mp4_per_filmed_episode(tmp_path):
    import av

    envs = vectors.vector(RunArgs(env_id="CartPole-v1", num_envs=2), video_folder=tmp_path)
    envs.reset(1)
    lengths = [e.length for step in steps_of(envs, 40, action=1) for e in step.episodes if e.env == 0]
    envs.close()
    assert {path.name for path in tmp_path.iterdir()} == {"episode-0.mp4", "episode-1.mp4"}
    with av.open(str(tmp_path / "episode-0.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == lengths[0] + 1


def test_a_native_or_pooled_environment_says_that_it_is_not_filmed(tmp_path):
    with pytest.raises(SystemExit, match="capture-video needs"):
        vectors.vector(RunArgs(env_id="Tiny/Terminating-v0", vectorization="native"), video_folder=tmp_path)
    with pytest.raises(SystemExit, match="capture-video needs"):
        native = {"env_backend": "gymnasium", "vectorization": "native"}
        vectors.atari(RunArgs(env_id="Pong-v5", **native), video_folder=tmp_path)


def test_what_envpool_cannot_draw_is_refused_with_a_film_before_anything_is_stepped(tmp_path):
    pytest.importorskip("envpool")
    with pytest.raises(SystemExit, match=r"cannot be filmed: leave the video out, or use --env-backend gymnasium$"):
        vectors.vector(RunArgs(env_id="FrozenLake-v1", env_backend="envpool"), video_folder=tmp_path)


def test_an_environment_that_envpool_lacks_is_refused():
    with pytest.raises(SystemExit, match=r"EnvPool has no environment '.*', or use --env-backend gymnasium"):
        vectors.vector(RunArgs(env_id="Tiny/Terminating-v0", env_backend="envpool"))
    with pytest.raises(SystemExit, match=r"EnvPool has no environment 'None-v0'$"):
        vectors.vector(RunArgs(env_id="None-v0", env_backend="envpool"))


@pytest.mark.parametrize(
    ("env_id", "backend", "said"),
    [
        ("Plugin/Known-v0", "envpool", "EnvPool has no environment"),
        ("Plugin/Known-v0", "envpool", "EnvPool is not installed"),
        ("tests.tiny_envs:Tiny/Terminating-v0", "envpool", "EnvPool has no environment"),
        ("CartPol-v1", "gymnasium", "cannot make the environment"),
    ],
)
def test_another_backend_is_offered_where_it_has_the_environment_and_only_there(
    env_id, backend, said, monkeypatch, tmp_path
):
    (tmp_path / "fresh_plugin.py").write_text("import gymnasium\ngymnasium.register('Plugin/Known-v0', 'nowhere:No')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fresh_plugin", raising=False)
    monkeypatch.setattr(registration, "PLUGINS", (("Plugin/", "fresh_plugin"),))
    gym.registry.pop("Plugin/Known-v0", None)
    if "not installed" in said:
        monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(SystemExit, match=said) as refused:
        vectors.vector(RunArgs(env_id=env_id, env_backend=backend))
    assert ("or use --env-backend gymnasium" in str(refused.value)) is (backend == "envpool")
    assert "EnvPool alone" not in str(refused.value)


@pytest.mark.parametrize("env_id", ["CheetahRun-v1", "MiniGrid-WFC-MazeSimple-v0"])
def test_auto_is_envpool_for_the_whole_run_where_nobody_else_makes_the_environment(env_id):
    pytest.importorskip("envpool")
    args = RunArgs(env_id=env_id, num_envs=2)
    envs = vectors.vector(args, view=GridView(flat=True) if "Grid" in env_id else None)
    assert (envs.backend, args.env_backend) == ("envpool", "envpool")
    assert envs.reset(seed=1).shape == (2, *envs.single_observation_space.shape)
    envs.close()
    with pytest.raises(SystemExit, match=rf"'{env_id}'.* \(ids of EnvPool alone need --env-backend envpool\)$"):
        vectors.vector(RunArgs(env_id=env_id, env_backend="gymnasium"))


@pytest.mark.parametrize(
    ("env_id", "newer"),
    [
        *(("LunarLander-v2", "LunarLander-v3"), ("CliffWalking-v0", "CliffWalking-v1"), ("Taxi-v3", "Taxi-v4")),
        *(("Pendulum-v0", "Pendulum-v1"), ("HalfCheetah-v3", "HalfCheetah-v5")),
    ],
)
def test_a_version_that_envpool_keeps_and_gymnasium_has_replaced_is_refused_with_the_newer(env_id, newer):
    pytest.importorskip("envpool")
    for backend in ("envpool",) if env_id == "HalfCheetah-v3" else ("auto", "envpool"):
        with pytest.raises(SystemExit, match=f"^environment '{env_id}' is out of date; use '{newer}'$"):
            vectors.vector(RunArgs(env_id=env_id, env_backend=backend))


def test_auto_stays_gymnasium_where_one_stage_of_a_curriculum_is_its_own():
    stages = [{"env_id": "CheetahRun-v1", "steps": 10}, {"env_id": "Tiny/Terminating-v0", "steps": 10}]
    args = RunArgs(env_id="Tiny/Terminating-v0", curriculum_schedule=json.dumps(stages))
    with pytest.raises(SystemExit, match="'CheetahRun-v1'"):
        vectors.vector(args)
    assert args.env_backend == "auto"


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("CheetahRun-v1", r"\(ids of EnvPool alone need pip install 'mosaic-rl\[envpool\]'\)$"),
        ("CheetahRun-v1 envpool", r"^EnvPool is not installed: pip install 'mosaic-rl\[envpool\]'$"),
        ("CartPole-v1 envpool", r"^EnvPool is not installed: .*, or use --env-backend gymnasium$"),
        ("Pong-v5 envpool", r"^EnvPool is not installed: .*, or use --env-backend gymnasium$"),
    ],
)
def test_without_envpool_a_line_says_what_installs_it_and_names_only_a_way_that_is_open(env_id, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    env_id, _, backend = env_id.partition(" ")
    make = vectors.atari if env_id == "Pong-v5" else vectors.vector
    with pytest.raises(SystemExit, match=said):
        make(RunArgs(env_id=env_id, env_backend=backend or "auto"))


@pytest.mark.parametrize(
    ("module", "env_id", "said"),
    [
        ("dm_control", "dm_control/cheetah-run-v0", "needs dm-control: pip install 'mosaic-rl[dm_control]'"),
        ("ale_py", "ALE/Pong-v5", "needs ale-py: pip install 'mosaic-rl[atari]'"),
        ("minigrid", "BabyAI-GoToObj-v0", "needs minigrid: pip install mosaic-rl"),
    ],
)
def test_a_plugin_that_is_not_installed_is_named_with_what_installs_it(module, env_id, said, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as refused:
        vectors.register_plugins(env_id)
    assert str(refused.value) == f"{env_id} {said}"


def test_dm_control_is_made_through_shimmy():
    pytest.importorskip("dm_control")
    pytest.importorskip("shimmy")
    envs = vectors.vector(RunArgs(env_id="dm_control/cartpole-balance-v0", num_envs=2))
    assert envs.reset(seed=1).shape == (2, 5)
    assert envs.step(np.zeros((2, 1), np.float32)).obs.shape == (2, 5)
    envs.close()


SEEDED = ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", "BipedalWalker-v3", "HalfCheetah-v5"]
SEEDED += ["MiniGrid-DoorKey-5x5-v0", "dm_control/cartpole-swingup-v0", "mosaic/Catch-v0"]
NEEDS = {"LunarLander": "Box2D", "Bipedal": "Box2D", "Cheetah": "mujoco", "dm_control": "dm_control"}


@pytest.mark.parametrize("vectorization", ["sync", pytest.param("async", marks=pytest.mark.full)])
@pytest.mark.parametrize("env_id", SEEDED)
def test_every_episode_can_be_played_again_from_its_seed_alone(env_id, vectorization):
    for part, module in NEEDS.items():
        if part in env_id:
            pytest.importorskip(module)
    view = GridView() if env_id.startswith("MiniGrid") else None
    frames = env_id.startswith("mosaic/")
    if frames and vectorization == "async":
        pytest.skip("games of frames are stepped in one process")
    args = RunArgs(env_id=env_id, num_envs=2, vectorization=vectorization, env_backend="gymnasium")
    both = vectors.atari(args) if frames else vectors.vector(args, view=view)
    both.reset(7)
    space, rng, played, taken = both.single_action_space, np.random.default_rng(3), [], [[], []]
    for _ in range(2500):
        if isinstance(space, gym.spaces.Discrete):
            actions = rng.integers(0, int(space.n), 2)
        else:
            actions = rng.uniform(space.low, space.high, (2, *space.shape)).astype(space.dtype)
        reached = both.step(actions)
        for index in range(2):
            taken[index].append(actions[index])
        for one in reached.episodes:
            played.append((one.env, taken[one.env], one.ret, reached.final_obs[one.env]))
            taken[one.env] = []
        if len(played) >= 6:
            break
    both.close()
    assert len(played) >= 2, "the first of each environment is followed by others"
    number = [0, 0]
    for index, actions, ret, last in played:
        env = vectors.EnvMaker(env_id, view=view, frames=frames)()
        own = episodes.env_seeds(7, 2)[index]
        env.reset(seed=episodes.episode_seed(own, number[index]) if number[index] else own)
        number[index] += 1
        total, obs = 0.0, None
        for action in actions:
            obs, reward, *_ = env.step(int(action) if isinstance(space, gym.spaces.Discrete) else action)
            total += float(reward)
        env.close()
        assert total == ret and np.array_equal(np.asarray(obs), last), (index, number)


def test_seeds_of_environments_and_episodes_do_not_repeat_across_runs():
    seeds = [seed for run in range(1, 20) for seed in episodes.env_seeds(run, 16)]
    assert len(set(seeds)) == len(seeds) and episodes.env_seeds(5, 8)[3:] == episodes.env_seeds(5, 5, first=3)
    assert all(0 <= seed < 2**31 for seed in seeds)
