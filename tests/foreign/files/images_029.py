"""Gymnasium 0.29: frames that are resized, greyed and stacked, the Atari wrappers and the replay buffer of CleanRL."""

import argparse

import gymnasium as gym
import numpy as np
from cleanrl_utils.atari_wrappers import ClipRewardEnv, EpisodicLifeEnv, FireResetEnv, MaxAndSkipEnv, NoopResetEnv
from cleanrl_utils.buffers import ReplayBuffer

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="BreakoutNoFrameskip-v4")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=80)


def thunk():
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
    env = MaxAndSkipEnv(NoopResetEnv(env, noop_max=30), skip=4)
    env = EpisodicLifeEnv(env)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = FireResetEnv(env)
    env = ClipRewardEnv(env)
    env = gym.wrappers.ResizeObservation(env, (84, 84))
    env = gym.wrappers.GrayScaleObservation(env)
    return gym.wrappers.FrameStack(env, 4)


if __name__ == "__main__":
    args = parser.parse_args()
    envs = gym.vector.SyncVectorEnv([thunk])
    spaces = envs.single_observation_space, envs.single_action_space
    assert spaces[0].shape == (4, 84, 84)
    buffer = ReplayBuffer(50, *spaces, "cpu", optimize_memory_usage=True, handle_timeout_termination=False)
    obs, _ = envs.reset(seed=args.seed)
    lost = 0
    for _ in range(args.total_timesteps):
        actions = np.array([spaces[1].sample()])
        following, rewards, terminations, truncations, infos = envs.step(actions)
        lost += int(terminations[0])
        if terminations[0]:
            assert infos["final_observation"][0].shape == (4, 84, 84)
        buffer.add(obs, following, actions, rewards, terminations, infos)
        obs = following
    batch = buffer.sample(8)
    assert batch.observations.shape == (8, 4, 84, 84) and batch.dones.shape == (8, 1)
    assert batch.observations.max() > 0 and lost
