"""gym 0.23: an environment and wrappers of one's own with four values a step; no returns are logged."""

import argparse

import gym
import numpy as np
from gym.wrappers.normalize import RunningMeanStd

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="Corridor-v0")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=60)


class Corridor(gym.Env):
    """Five steps to the right; a reward of one at its end."""

    metadata = {"render.modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, length=5):
        self.length = length
        self.observation_space = gym.spaces.Box(0, length, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def seed(self, seed=None):
        self.seeded = seed
        return [seed]

    def reset(self):
        self.place = 0
        return np.array([0], np.float32)

    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        done = self.place == self.length
        return np.array([self.place], np.float32), float(done), done, {}

    def render(self, mode="human"):
        assert mode == "rgb_array"
        return np.full((8, 8, 3), self.place, np.uint8)


class Doubled(gym.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


gym.register("Corridor-v0", entry_point=Corridor, max_episode_steps=20)

if __name__ == "__main__":
    args = parser.parse_args()
    env = Doubled(gym.make(args.env_id, length=5))
    assert isinstance(env, gym.Wrapper) and env.length == 5
    env.seed(args.seed)
    assert env.unwrapped.seeded == args.seed
    env = gym.wrappers.RecordEpisodeStatistics(env)
    statistics = RunningMeanStd(shape=(1,))
    obs = env.reset()
    assert env.render("rgb_array").shape == (8, 8, 3)
    for _ in range(args.total_timesteps):
        obs, reward, done, info = env.step(1)
        statistics.update(obs[None])
        if done:
            assert (reward, info["episode"]["r"], info["episode"]["l"]) == (2.0, 2.0, 5)
            obs = env.reset()
    assert statistics.count > 1
