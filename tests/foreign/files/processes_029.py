"""Gymnasium 0.29: an AsyncVectorEnv that resets in the step that ends an episode; no returns are logged."""

import argparse

import gymnasium as gym
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=200)

if __name__ == "__main__":
    args = parser.parse_args()
    envs = gym.vector.AsyncVectorEnv([lambda: gym.make(args.env_id) for _ in range(2)])
    envs.reset(seed=args.seed)
    ended = 0
    for _ in range(args.total_timesteps // 2):
        obs, _, terminations, truncations, infos = envs.step(np.ones(2, np.int64))
        for index in np.flatnonzero(terminations | truncations):
            assert abs(infos["final_observation"][index][2]) > 0.2 and abs(obs[index][2]) < 0.1
            assert isinstance(infos["final_info"][index], dict)
            ended += 1
    envs.close()
    print("episodes", ended)
