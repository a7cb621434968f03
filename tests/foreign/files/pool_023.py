"""gym 0.23 and EnvPool as it was then: spaces and `num_envs` that can be set, four values, a wrapper around it."""

import argparse

import envpool
import gym
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=300)


class Lengths(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.num_envs = getattr(env, "num_envs", 1)

    def reset(self, **kwargs):
        self.lengths = np.zeros(self.num_envs)
        return super().reset(**kwargs)

    def step(self, action):
        observations, rewards, dones, infos = super().step(action)
        self.lengths += 1
        infos["l"] = self.lengths.copy()
        self.lengths *= 1 - dones
        return observations, rewards, dones, infos


if __name__ == "__main__":
    args = parser.parse_args()
    envs = envpool.make(args.env_id, env_type="gym", num_envs=3, seed=args.seed)
    envs.num_envs = 3
    envs.single_action_space = envs.action_space
    envs.single_observation_space = envs.observation_space
    envs.is_vector_env = True
    envs = Lengths(envs)
    assert isinstance(envs.single_action_space, gym.spaces.Discrete)
    assert envs.reset().shape == (3, 4)
    longest = 0
    for _ in range(args.total_timesteps // 3):
        obs, rewards, dones, infos = envs.step(np.ones(3, np.int32))
        assert infos["TimeLimit.truncated"].shape == dones.shape == (3,)
        longest = max([longest, *infos["l"][dones]])
    assert 8 <= longest <= 12
    envs.close()
