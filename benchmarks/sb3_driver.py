"""Train with stable-baselines3 on CleanRL's hyper-parameters and print its speed; runs in SB3's own interpreter.

    /tmp/sb3-venv/bin/python benchmarks/sb3_driver.py --algo ppo --env-id CartPole-v1 --total-timesteps 50000

Two of CleanRL's settings do not exist in SB3: its DQN takes the Huber loss and clips gradients, its SAC has one
learning rate for all networks. Both leave the amount of work the same.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch


def main() -> None:
    """Measure one run and print {"steps_per_second", "steps", "seconds", "versions"} as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", choices=sorted(MAKERS), required=True)
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--total-timesteps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, default=0, help="steps before the clock starts")
    parser.add_argument("--threads", type=int, default=0, help="torch's threads; 0 leaves its default")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    import stable_baselines3

    model = MAKERS[args.algo](args.env_id, args.seed)
    marks = learn(model, args.total_timesteps)
    first = next(mark for mark in marks if mark[0] >= args.warm_up)
    last = marks[-1]
    speed = (last[0] - first[0]) / (last[1] - first[1])
    versions = {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}
    print(json.dumps({"steps_per_second": speed, "steps": last[0] - first[0], "versions": versions}))


def learn(model: Any, total_timesteps: int) -> list[tuple[int, float]]:
    """Train, noting (step, time) whenever collecting starts anew, and at the end."""
    from stable_baselines3.common.callbacks import BaseCallback

    marks: list[tuple[int, float]] = []

    class Clock(BaseCallback):  # type: ignore[misc, unused-ignore]
        def _on_rollout_start(self) -> None:
            marks.append((self.num_timesteps, time.perf_counter()))

        def _on_step(self) -> bool:
            return True

    model.learn(total_timesteps, callback=Clock())
    return [*marks, (model.num_timesteps, time.perf_counter())]


def ppo(env_id: str, seed: int) -> Any:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    return PPO(
        "MlpPolicy",
        make_vec_env(env_id, n_envs=4, seed=seed),
        learning_rate=_falling(2.5e-4),
        n_steps=128,
        batch_size=128,
        n_epochs=4,
        clip_range_vf=0.2,
        ent_coef=0.01,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        seed=seed,
        device="cpu",
    )


def ppo_continuous_action(env_id: str, seed: int) -> Any:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    return PPO(
        "MlpPolicy",
        VecNormalize(make_vec_env(env_id, n_envs=1, seed=seed)),
        learning_rate=_falling(3e-4),
        n_steps=2048,
        batch_size=64,
        n_epochs=10,
        clip_range_vf=0.2,
        ent_coef=0.0,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        seed=seed,
        device="cpu",
    )


def dqn(env_id: str, seed: int) -> Any:
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    return DQN(
        "MlpPolicy",
        make_vec_env(env_id, n_envs=1, seed=seed),
        learning_rate=2.5e-4,
        buffer_size=10_000,
        learning_starts=10_000,
        batch_size=128,
        tau=1.0,
        train_freq=10,
        target_update_interval=500,
        exploration_fraction=0.5,
        exploration_final_eps=0.05,
        policy_kwargs={"net_arch": [120, 84]},
        seed=seed,
        device="cpu",
    )


def sac_continuous_action(env_id: str, seed: int) -> Any:
    from stable_baselines3 import SAC
    from stable_baselines3.common.env_util import make_vec_env

    return SAC(
        "MlpPolicy",
        make_vec_env(env_id, n_envs=1, seed=seed),
        learning_rate=3e-4,
        buffer_size=1_000_000,
        learning_starts=5_000,
        batch_size=256,
        tau=0.005,
        train_freq=1,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device="cpu",
    )


def td3_continuous_action(env_id: str, seed: int) -> Any:
    from stable_baselines3 import TD3

    return _deterministic(TD3, env_id, seed)


def ddpg_continuous_action(env_id: str, seed: int) -> Any:
    from stable_baselines3 import DDPG

    return _deterministic(DDPG, env_id, seed)


def _deterministic(algorithm: Any, env_id: str, seed: int) -> Any:
    from stable_baselines3.common.env_util import make_vec_env

    return algorithm(
        "MlpPolicy",
        make_vec_env(env_id, n_envs=1, seed=seed),
        learning_rate=3e-4,
        buffer_size=1_000_000,
        learning_starts=25_000,
        batch_size=256,
        tau=0.005,
        train_freq=1,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device="cpu",
    )


def ppo_atari(env_id: str, seed: int) -> Any:
    from stable_baselines3 import PPO

    return PPO("CnnPolicy", _games(env_id, 8, seed), **_PPO_ATARI, seed=seed)


def ppo_atari_lstm(env_id: str, seed: int) -> Any:
    from sb3_contrib import RecurrentPPO

    # one LSTM for policy and value, as in CleanRL's file; one frame at a time
    network = {"lstm_hidden_size": 128, "shared_lstm": True, "enable_critic_lstm": False}
    return RecurrentPPO(
        "CnnLstmPolicy", _games(env_id, 8, seed, frames=1), **_PPO_ATARI, policy_kwargs=network, seed=seed
    )


def dqn_atari(env_id: str, seed: int) -> Any:
    """With the short random phase and the small memory that the measurement gives all contenders."""
    from stable_baselines3 import DQN

    return DQN(
        "CnnPolicy",
        _games(env_id, 1, seed),
        learning_rate=1e-4,
        buffer_size=20_000,
        learning_starts=1_000,
        batch_size=32,
        tau=1.0,
        train_freq=4,
        target_update_interval=1_000,
        exploration_fraction=0.1,
        exploration_final_eps=0.01,
        optimize_memory_usage=False,
        seed=seed,
        device="cpu",
    )


def _games(env_id: str, count: int, seed: int, frames: int = 4) -> Any:
    import ale_py  # noqa: F401  (registers the games)
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    return VecFrameStack(make_atari_env(env_id, n_envs=count, seed=seed), n_stack=frames)


def _falling(rate: float) -> Callable[[float], float]:
    """A learning rate that falls to zero; SB3 passes the share of the run that is left."""
    return lambda left: left * rate


_PPO_ATARI: dict[str, Any] = {
    "learning_rate": _falling(2.5e-4),
    "n_steps": 128,
    "batch_size": 256,
    "n_epochs": 4,
    "clip_range": 0.1,
    "clip_range_vf": 0.1,
    "ent_coef": 0.01,
    "device": "cpu",
}
MAKERS: dict[str, Callable[[str, int], Any]] = {
    "ppo": ppo,
    "ppo_continuous_action": ppo_continuous_action,
    "dqn": dqn,
    "sac_continuous_action": sac_continuous_action,
    "td3_continuous_action": td3_continuous_action,
    "ddpg_continuous_action": ddpg_continuous_action,
    "ppo_atari": ppo_atari,
    "ppo_atari_lstm": ppo_atari_lstm,
    "dqn_atari": dqn_atari,
}


if __name__ == "__main__":
    main()
