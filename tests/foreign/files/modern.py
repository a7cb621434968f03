"""Gymnasium 1: nothing may be changed for this file."""

import argparse

import gymnasium as gym
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=40)

if __name__ == "__main__":
    args = parser.parse_args()
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(args.env_id)], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    assert type(envs).__module__.startswith("gymnasium.") and not hasattr(gym.wrappers, "GrayScaleObservation")
    envs.reset(seed=args.seed)
    for _ in range(args.total_timesteps):
        _, _, terminations, _, infos = envs.step(np.ones(1, np.int64))
        if terminations[0]:
            assert isinstance(infos["final_info"], dict) and "final_obs" in infos
    envs.close()
