"""Gymnasium 0.29: RecordVideo; and a name that only wrappers forwarded."""

import argparse

import gymnasium as gym
from gymnasium.wrappers.record_video import RecordVideo

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=30)

if __name__ == "__main__":
    args = parser.parse_args()
    env = RecordVideo(gym.make(args.env_id, render_mode="rgb_array"), "videos/films", episode_trigger=lambda n: n == 1)
    assert env.theta_threshold_radians > 0
    for episode in range(3):
        env.reset(seed=args.seed + episode)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = env.step(1)
            ended = terminated or truncated
    env.close()
