"""gym 0.23: four values a step, a list of infos, `env.seed`, an id of an older version, modules that are gone."""

import argparse
from distutils.util import strtobool

import gym
import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="Pendulum-v0")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=250)
parser.add_argument("--cuda", type=lambda word: bool(strtobool(word)), default=True, nargs="?", const=True)


def make_env(seed):
    def thunk():
        env = gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
        env.seed(seed)
        env.action_space.seed(seed)
        env.observation_space.seed(seed)
        return env

    return thunk


if __name__ == "__main__":
    args = parser.parse_args()
    writer = SummaryWriter("runs/classic")
    assert np.array_equal(make_env(7)().reset(), make_env(7)().reset())
    envs = gym.vector.SyncVectorEnv([make_env(args.seed)])
    assert isinstance(envs.single_action_space, gym.spaces.Box)
    envs.single_observation_space.dtype = np.float32
    spaces = envs.single_observation_space, envs.single_action_space
    buffer = ReplayBuffer(100, *spaces, "cpu", handle_timeout_termination=True)
    obs = envs.reset()
    for step in range(args.total_timesteps):
        actions = np.array([spaces[1].sample()])
        following, rewards, dones, infos = envs.step(actions)
        for info in infos:
            if "episode" in info.keys():
                writer.add_scalar("charts/episodic_return", info["episode"]["r"], step)
        real = following.copy()
        if dones[0]:
            assert infos[0]["TimeLimit.truncated"] is np.True_ or infos[0]["TimeLimit.truncated"] is True
            real[0] = infos[0]["terminal_observation"]
            assert not np.allclose(real, following)
        buffer.add(obs, real, actions, rewards, dones, infos)
        obs = following
    assert buffer.timeouts.sum() <= 1 and buffer.sample(4).rewards.shape == (4, 1)
    writer.close()
