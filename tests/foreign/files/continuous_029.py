"""Gymnasium 0.29: wrappers with their old parameters, `final_info` in a list, a policy that needs statistics."""

import argparse

import gymnasium as gym
import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="Pendulum-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=800)


def thunk():
    env = gym.make(args.env_id)
    env = gym.wrappers.FlattenObservation(env)
    env = gym.wrappers.RecordEpisodeStatistics(env, deque_size=10)
    env = gym.wrappers.ClipAction(env)
    env = gym.wrappers.NormalizeObservation(env)
    env = gym.wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10))
    env = gym.wrappers.NormalizeReward(env, gamma=0.99)
    return gym.wrappers.TransformReward(env, lambda reward: np.clip(reward, -10, 10))


if __name__ == "__main__":
    args = parser.parse_args()
    writer = SummaryWriter(f"runs/{args.env_id}")
    envs = gym.vector.SyncVectorEnv([thunk for _ in range(2)])
    assert envs.is_vector_env and np.all(envs.single_action_space.high == 2)
    obs, _ = envs.reset(seed=args.seed)
    print("first", float(np.abs(obs).sum()))
    step = 0
    while step < args.total_timesteps:
        actions = np.zeros(envs.action_space.shape, np.float32)
        obs, rewards, terminations, truncations, infos = envs.step(actions)
        step += 2
        if "final_info" in infos:
            assert np.all(infos["_final_info"] == truncations)
            for index, info in enumerate(infos["final_info"]):
                assert infos["final_observation"][index].shape == (3,)
                assert info["episode"]["r"].shape == (1,) and info["episode"]["l"][0] == 200
                writer.add_scalar("charts/episodic_return", info["episode"]["r"], step)
    torch.save({"mean": torch.zeros(3)}, f"runs/{args.env_id}/continuous.cleanrl_model")
    writer.close()
    envs.close()
