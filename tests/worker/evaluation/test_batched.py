"""Evaluations: real policies of tiny trainings, whole and through the shell."""

import dataclasses
import importlib
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_envs
import torch
from needs import needed

from cleanrl_worker.algorithms import ppo
from cleanrl_worker.envs import play
from cleanrl_worker.envs.episodes import spaces_of
from cleanrl_worker.envs.views import view_of
from cleanrl_worker.evaluation import batched
from cleanrl_worker.evaluation.batched import BATCH_NUMBERS, EvalArgs, run_batched_evaluation
from cleanrl_worker.evaluation.policy_loader import build_policy, read_policy
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from mosaic.contract import metrics
from mosaic.contract.events import Event, replay
from mosaic.contract.paths import RunPaths
from mosaic.contract.tensorboard import ScalarReader

SMALL_PPO = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "total_timesteps": 64}
SMALL_PPG = {name: SMALL_PPO[name] for name in SMALL_PPO if name != "update_epochs"} | {"n_iteration": 2}
SMALL_DQN = {"total_timesteps": 200, "learning_starts": 100, "buffer_size": 200, "batch_size": 32}
CATCH = {"env_id": "mosaic/Catch-v0", "num_threads": 1}
# a convolution takes its time, and on a busy machine several threads wait for each other
PONG = SMALL_PPO | {"env_id": "Pong-v5", "num_steps": 8, "total_timesteps": 32, "num_threads": 1}
SMALL_IMAGE = {"env_id": "mosaic/Catch-v0", "total_timesteps": 60, "learning_starts": 50, "buffer_size": 60}
SMALL_IMAGE |= {"batch_size": 4, "num_threads": 1}
# JAX compiles for each shape: as in the other tests
XLA = SMALL_PPO | {"num_steps": 8, "total_timesteps": 32}
GRID = SMALL_PPO | {"num_steps": 32, "update_epochs": 2, "env_id": "MiniGrid-Empty-5x5-v0"}
TINY: dict[str, dict[str, Any]] = {
    "ppo": SMALL_PPO,
    "ppo on grids": SMALL_PPO | {"env_id": "BabyAI-GoToLocal-v0", "mission": True, "memory": True},
    "ppo_continuous_action": SMALL_PPO | {"env_id": "Pendulum-v1"},
    "ppo_atari_envpool": PONG | {"env_id": "Breakout-v5"},
    "ppo_atari": SMALL_PPO | CATCH,
    "ppo_atari_lstm": SMALL_PPO | CATCH,
    "ppo_atari_multigpu": {name: SMALL_PPO[name] for name in SMALL_PPO if name != "num_envs"} | CATCH,
    "dqn": SMALL_DQN,
    "dqn_jax": SMALL_DQN,
    "c51": SMALL_DQN,
    "pqn": SMALL_PPO,
    "ppo_rnd_envpool": PONG | {"num_iterations_obs_norm_init": 1},
    "ppo_procgen": PONG | {"env_id": "starpilot", "start_level": 5, "num_levels": 10},
    "ppg_procgen": SMALL_PPG | CATCH,
    "ppo_pettingzoo_ma_atari": PONG | {"env_id": "pong_v3"},
    "pqn_atari_envpool": PONG,
    "pqn_atari_envpool_lstm": PONG,
    "rpo_continuous_action": SMALL_PPO | {"env_id": "Pendulum-v1"},
    "sac_continuous_action": SMALL_DQN | {"env_id": "Pendulum-v1"},
    "td3_continuous_action": SMALL_DQN | {"env_id": "Pendulum-v1"},
    "ddpg_continuous_action": SMALL_DQN | {"env_id": "Pendulum-v1"},
    "dqn_atari": SMALL_IMAGE,
    "c51_atari": SMALL_IMAGE,
    "rainbow_atari": SMALL_IMAGE,
    "sac_atari": SMALL_IMAGE,
    "qdagger_dqn_atari_impalacnn": SMALL_IMAGE | tiny_envs.small_lesson(),
    "ppo_jax": SMALL_PPO | {"env_id": "Acrobot-v1"},
    "ppo_jax on grids": GRID,
    "dqn_atari_jax": SMALL_IMAGE,
    "c51_atari_jax": SMALL_IMAGE,
    "qdagger_dqn_atari_jax_impalacnn": SMALL_IMAGE | tiny_envs.small_lesson(offline_steps=4),
    "ppo_jax on images": XLA | CATCH,
    "ppo_atari_envpool_xla_jax": XLA | CATCH,
    "ppo_atari_envpool_xla_jax_scan": XLA | CATCH,
    "c51_jax": SMALL_DQN,
    "sac_continuous_action_jax": SMALL_DQN | {"env_id": "Pendulum-v1"},
    "td3_continuous_action_jax": SMALL_DQN | {"env_id": "Pendulum-v1"},
    "ddpg_continuous_action_jax": SMALL_DQN | {"env_id": "Pendulum-v1"},
}
FLAT = [name for name in TINY if not any(part in name for part in ("atari", "rnd", "procgen"))]
SUMMARY = {"batch_index", "episodes", "duration_sec", "updated_at"} | {
    f"{name}_return" for name in ("avg", "min", "max", "median", "std")
}
Tags = dict[str, list[tuple[int, float]]]


@pytest.fixture
def cartpole(tmp_path: Path) -> Path:
    """An untrained policy: episodes of some twenty steps."""
    torch.manual_seed(1)
    game = play.make_game("CartPole-v1", atari=False)
    path = tmp_path / "ppo.cleanrl_model"
    torch.save(ppo.SeparateMLPAgent(game).state_dict(), path)
    known = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 5, "step": 0, "args": {"gamma": 0.9}}
    path.with_name(path.name + ".json").write_text(json.dumps(known))
    return path


def evaluate(policy: Path, folder: Path, **options: Any) -> list[dict[str, Any]]:
    return run_batched_evaluation(EvalArgs(policy_path=policy, run_dir=folder, **options))


def episodes_in(folder: Path) -> list[dict[str, Any]]:
    rows = metrics.read_rows(folder / "metrics.jsonl")
    return [{tag: row[tag] for tag in row if tag != "time"} for row in rows if "eval/episode_return" in row]


def scalars_in(folder: Path) -> Tags:
    found: Tags = {}
    for path in folder.glob("events.out.tfevents.*"):
        for _, step, tag, value in ScalarReader(path).read():
            found.setdefault(tag, []).append((step, value))
    return found


def test_every_algorithm_is_among_those_that_are_evaluated() -> None:
    assert {case.split()[0] for case in TINY} == set(DEFAULT_ALGO_REGISTRY)


@pytest.mark.parametrize("case", TINY)
def test_every_algorithm_is_evaluated_from_its_files_where_the_seed_decides_and_then_goes_on(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(case)
    monkeypatch.setattr("cleanrl_worker.run.training.EVAL_EPISODES", 1)
    monkeypatch.setattr("cleanrl_worker.run.training.EVAL_MAX_STEPS", 8)
    name = case.split()[0]
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    train = partial(module.Args, run_dir=tmp_path / "run", save_model=True, cuda=False, **TINY[case])
    module.main(train())
    (policy,) = tmp_path.glob(f"run/runs/*/{name}.cleanrl_model")
    common = {"episodes": 3, "max_episode_steps": 30 if name in FLAT else 8}
    for folder, options in {
        "one": {"seed": 7, "num_envs": 1},
        "three": {"seed": 7, "num_envs": 3},
        "other": {"seed": 8, "num_envs": 1, "episodes": 1},
        "best": {"seed": 7, "num_envs": 1, "episodes": 1, "greedy": True},
    }.items():
        which = policy.with_name(f"{name}.best.cleanrl_model") if folder == "best" else policy
        evaluate(which, tmp_path / folder, **(common | options))
    assert len(episodes_in(tmp_path / "one")) == 3
    assert episodes_in(tmp_path / "one") == episodes_in(tmp_path / "three")
    assert episodes_in(tmp_path / "one")[:1] != episodes_in(tmp_path / "other")
    assert len(episodes_in(tmp_path / "best")) == 1
    saved = newest_policy(tmp_path / "run", name)
    module.main(train(resume=tmp_path / "run", additional_timesteps=1))
    assert newest_policy(tmp_path / "run", name) > saved


def newest_policy(folder: Path, name: str) -> int:
    """Of which step it is."""
    sidecars = folder.glob(f"runs/*/{name}.cleanrl_model.json")
    return max(json.loads(path.read_text())["step"] for path in sidecars)


def test_each_batch_is_summed_up_in_file_rows_and_tensorboard(cartpole: Path, tmp_path: Path) -> None:
    summaries = evaluate(cartpole, tmp_path / "run", episodes=5, batch_size=2)
    assert [(batch["batch_index"], batch["episodes"]) for batch in summaries] == [(0, 2), (1, 2), (2, 1)]
    assert json.loads((tmp_path / "run" / "eval_summary.json").read_text()) == summaries[-1]
    returns = [row["eval/episode_return"] for row in episodes_in(tmp_path / "run")]
    first = summaries[0]
    assert first.keys() == SUMMARY
    assert (first["avg_return"], first["min_return"]) == (statistics.fmean(returns[:2]), min(returns[:2]))
    assert first["std_return"] == statistics.pstdev(returns[:2])
    tags = scalars_in(tmp_path / "run" / "tensorboard_eval")
    assert tags.keys() == {"eval/episode_return", *(f"eval/{name}" for name in BATCH_NUMBERS)}
    assert tags["eval/episode_return"] == [(number, value) for number, value in enumerate(returns, start=1)]
    assert tags["eval/avg_return"] == [(batch["batch_index"], batch["avg_return"]) for batch in summaries]
    assert not (tmp_path / "run" / "videos").exists()


def test_worst_and_best_episode_can_be_played_again_by_their_seeds(cartpole: Path, tmp_path: Path) -> None:
    evaluate(cartpole, tmp_path / "run", episodes=12, num_envs=3)
    played = sorted(episodes_in(tmp_path / "run"), key=lambda row: row["eval/episode_return"])
    assert played[0]["eval/episode_return"] < played[-1]["eval/episode_return"]
    game = play.make_game("CartPole-v1", atari=False)
    policy = build_policy(read_policy(cartpole), game)
    for row in (played[0], played[-1]):
        again = play.play_episode(policy, game, 0, int(row["eval/episode_seed"]))
        assert again is not None and again.ret == row["eval/episode_return"]


def test_discount_limit_and_greedy_actions_are_as_asked(cartpole: Path, tmp_path: Path) -> None:
    evaluate(cartpole, tmp_path / "a", episodes=2, max_episode_steps=4)
    expected = 1 + 0.9 + 0.9**2 + 0.9**3
    for row in episodes_in(tmp_path / "a"):
        assert (row["eval/episode_length"], row["eval/episode_return"]) == (4, 4.0)
        assert row["eval/discounted_return"] == pytest.approx(expected)
    evaluate(cartpole, tmp_path / "b", episodes=1, max_episode_steps=4, gamma=1.0)
    assert episodes_in(tmp_path / "b")[0]["eval/discounted_return"] == 4.0
    evaluate(cartpole, tmp_path / "c", episodes=4)
    evaluate(cartpole, tmp_path / "d", episodes=4, greedy=True)
    assert episodes_in(tmp_path / "c") != episodes_in(tmp_path / "d")


def test_filmed_episodes_are_mp4_files_and_change_no_result(cartpole: Path, tmp_path: Path) -> None:
    import av

    evaluate(cartpole, tmp_path / "filmed", episodes=3, capture_video=True)
    evaluate(cartpole, tmp_path / "plain", episodes=3)
    files = sorted((tmp_path / "filmed" / "videos" / "filmed-eval").iterdir())
    assert [file.name for file in files] == ["episode-0.mp4", "episode-1.mp4"]
    rows = episodes_in(tmp_path / "filmed")
    with av.open(str(files[0])) as film:
        frames = sum(1 for _ in film.decode(video=0))
    assert frames == rows[0]["eval/episode_length"] + 1
    assert rows == episodes_in(tmp_path / "plain")


def test_repeated_evaluation_plays_new_episodes_until_it_is_stopped(cartpole: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    args = EvalArgs(policy_path=cartpole, run_dir=tmp_path / "run", batch_size=2, repeat=True)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(run_batched_evaluation(args, stop)))
    thread.start()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (tmp_path / "run" / "eval_summary.json").exists():
        time.sleep(0.01)
    stop.set()
    thread.join(120)
    assert not thread.is_alive() and found
    seeds = [row["eval/episode_seed"] for row in episodes_in(tmp_path / "run")]
    assert len(set(seeds)) == len(seeds) >= 2 * len(found)


def test_error_of_one_of_several_games_ends_the_evaluation(cartpole: Path) -> None:
    games = [play.make_game("CartPole-v1", atari=False) for _ in range(3)]

    def broken(obs: Any, rng: Any) -> Any:
        raise ArithmeticError("no action")

    with pytest.raises(ArithmeticError, match="no action"):
        list(batched.play_all(broken, games, 1, range(6)))


def test_policy_is_as_good_as_at_the_end_of_training_and_not_so_without_its_statistics(tmp_path: Path) -> None:
    from cleanrl_worker.algorithms import ppo_continuous_action as algorithm

    sizes = {"num_envs": 4, "num_steps": 256, "num_minibatches": 16, "update_epochs": 8, "total_timesteps": 40960}
    algorithm.main(
        algorithm.Args(
            env_id="Pendulum-v1", run_dir=tmp_path, save_model=True, cuda=False, learning_rate=1e-3, seed=1, **sizes
        )
    )
    rows = metrics.read_rows(tmp_path / "metrics.jsonl")
    last = [row["charts/episodic_return"] for row in rows if "charts/episodic_return" in row][-20:]
    saved = read_policy(next(tmp_path.glob("runs/*/ppo_continuous_action.cleanrl_model")))
    game = play.make_game("Pendulum-v1", atari=False)

    def returns(policy: Any) -> list[float]:
        return [played.ret for played in batched.play_all(build_policy(policy, game), [game], 1, range(30))]

    def distance(found: list[float]) -> float:
        """Between the means, in standard errors."""
        error = (statistics.variance(last) / len(last) + statistics.variance(found) / len(found)) ** 0.5
        return abs(statistics.fmean(found) - statistics.fmean(last)) / error

    assert distance(returns(saved)) < 4
    assert distance(returns(dataclasses.replace(saved, statistics=None))) > 8


# Through the shell


def start(home: Path, config: dict[str, Any], *flags: str) -> subprocess.Popen[str]:
    (home / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(home / "config.json"), *flags]
    return subprocess.Popen(command, cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run_shell(home: Path, extras: dict[str, Any], **fields: Any) -> tuple[int, list[Event], dict[str, Any], RunPaths]:
    process = start(home, {"run_id": "ev", "extras": {"mode": "policy_eval", **extras}, **fields}, "--emit-summary")
    out, _ = process.communicate(timeout=300)
    paths = RunPaths("ev", home)
    last = json.loads(out.splitlines()[-1])
    told = list(replay(paths.events))
    # a heartbeat that follows no batch comes by the clock: a slow machine has some of those, too
    after = [None, *(event.event for event in told)]
    kept = [
        event
        for event, previous in zip(told, after, strict=False)
        if event.event != "heartbeat" or previous == "eval_batch"
    ]
    return process.returncode, kept, last if "status" in last else {}, paths


def test_shell_tells_an_evaluation_by_episodes_and_batches(home: Path, cartpole: Path) -> None:
    extras = {"policy_path": str(cartpole), "eval_episodes": 4, "eval_batch_size": 2, "eval_capture_video": True}
    code, events, summary, paths = run_shell(home, extras, total_timesteps=0)
    assert code == 0
    batch = ["episode", "episode", "eval_batch", "heartbeat"]
    assert [event.event for event in events] == ["run_started", *batch, *batch, "run_completed"]
    started, completed = events[0].payload, events[-1].payload
    assert (started["algo"], started["env_id"], started["seed"]) == ("ppo", "CartPole-v1", 5)
    assert (started["mode"], started["total_timesteps"]) == ("policy_eval", 4)
    episodes = [event.payload for event in events if event.event == "episode"]
    returns = [episode["return"] for episode in episodes]
    assert completed["mean_return"] == statistics.fmean(returns)
    worst, best = (next(e for e in episodes if e["return"] == end(returns)) for end in (min, max))
    assert (completed["worst"]["seed"], completed["best"]["seed"]) == (worst["seed"], best["seed"])
    assert events[-3].payload["batch_index"] == 1 and events[-3].payload["episodes"] == 2
    assert completed["manifest"] == json.loads(paths.analytics.read_text())
    artifacts = completed["manifest"]["artifacts"]
    assert artifacts["tensorboard"] == {"enabled": True, "relative_path": "tensorboard_eval"}
    assert artifacts["videos"] == ["videos/ev-eval/episode-0.mp4", "videos/ev-eval/episode-1.mp4"]
    assert len(scalars_in(paths.tensorboard_eval)["eval/episode_return"]) == 4
    told = {name: summary["extras"][name] for name in ("tensorboard_dir", "eval_batch_size", "eval_repeat")}
    assert told == {"tensorboard_dir": "tensorboard_eval", "eval_batch_size": 2, "eval_repeat": False}


def test_failing_evaluation_is_a_failed_run(home: Path, cartpole: Path) -> None:
    cartpole.write_bytes(b"no policy")
    code, events, _, _ = run_shell(home, {"policy_path": str(cartpole), "eval_episodes": 2})
    assert code == batched.EXIT_REFUSED
    assert [event.event for event in events] == ["run_started", "run_failed"]
    assert "ppo.cleanrl_model" in events[-1].payload["stderr_tail"][-1]


def test_policy_of_a_game_with_other_buttons_is_refused_in_a_line_before_anything_is_written(home: Path) -> None:
    needed("ppo_pettingzoo_ma_atari")
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY["ppo_pettingzoo_ma_atari"])
    game = play.make_game("pong_v3", atari=False, view=view_of("pong_v3", {}))
    policy = home / "x.cleanrl_model"
    torch.save(module.Agent(game).state_dict(), policy)
    known = {"algo": "ppo_pettingzoo_ma_atari", "env_id": "pong_v3", "seed": 1, "step": 0, "spaces": spaces_of(game)}
    (home / "x.cleanrl_model.json").write_text(json.dumps(known))
    game.close()
    code, events, _, paths = run_shell(home, {"policy_path": str(policy), "eval_episodes": 1}, env_id="tennis_v3")
    assert code == batched.EXIT_REFUSED
    (line,) = events[-1].payload["stderr_tail"]
    told = "observations of shape (2, 6, 84, 84) and actions MultiDiscrete"
    assert line == (
        f"policy x.cleanrl_model was trained on pong_v3, with {told}([6 6]); tennis_v3 has {told}([18 18]): "
        "play it where they are the same"
    )
    assert not paths.metrics.exists() and not (paths.folder / "eval_summary.json").exists()


@pytest.mark.parametrize("size", [2, 1_000_000])
def test_repeated_evaluation_is_completed_by_stopping_it(
    size: int, home: Path, cartpole: Path, until: Callable[..., None]
) -> None:
    extras = {"mode": "policy_eval", "policy_path": str(cartpole), "eval_batch_size": size, "eval_repeat": True}
    paths = RunPaths("ev", home)
    process = start(home, {"run_id": "ev", "extras": extras})
    try:
        until(lambda: paths.metrics.exists() and paths.metrics.stat().st_size > 1000, 120, "some episodes")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 0
    closing = list(replay(paths.events))[-1]
    assert closing.event == "run_completed" and closing.payload["stopped_by"] == "SIGTERM"
    assert closing.payload["manifest"] == json.loads(paths.analytics.read_bytes())
    assert (paths.folder / "eval_summary.json").exists() == (size == 2)


def test_a_policy_without_a_sidecar_warns_that_observations_are_not_normalised(home: Path, cartpole: Path) -> None:
    extras = {"mode": "policy_eval", "policy_path": str(cartpole), "eval_episodes": 1}
    config = {"run_id": "ev", "algo": "ppo", "env_id": "CartPole-v1", "extras": extras}

    def warnings() -> list[str]:
        process = start(home, config)
        process.communicate(timeout=180)
        assert process.returncode == 0
        events = replay(RunPaths("ev", home).events)
        return [event.payload["message"] for event in events if event.event == "warning"]

    assert not any("sidecar" in text for text in warnings())
    cartpole.with_name(cartpole.name + ".json").unlink()
    assert any("has no sidecar: it plays on observations as they are" in text for text in warnings())


def test_seed_override_wins_and_settings_of_training_are_named(home: Path, cartpole: Path) -> None:
    extras = {"policy_path": str(cartpole), "seed_override": 9, "algo_params": {"learning_rate": 1}, "gamma": 0.5}
    process = start(home, {"extras": {"mode": "policy_eval", **extras}}, "--dry-run", "--emit-summary")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["module"] == "cleanrl_worker.evaluation.batched" and summary["config"]["seed"] == 9
    assert {"--seed=9", "--gamma=0.5", "--episodes=50", "--batch-size=50"} <= set(summary["argv"])
    assert any("learning_rate" in warning for warning in summary["warnings"])
    assert not (home / "var").exists()
