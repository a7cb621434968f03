"""Gymnasium 0.29: a Q-network that is saved and evaluated by `cleanrl_utils.evals`."""

from dataclasses import dataclass

import gymnasium as gym
import torch
import tyro
from cleanrl_utils.evals.dqn_eval import evaluate


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    seed: int = 1
    total_timesteps: int = 100
    end_e: float = 0.05


def make_env(env_id, seed, idx, capture_video, run_name):
    def thunk():
        env = gym.make(env_id, render_mode="rgb_array" if capture_video else None)
        if capture_video and idx == 0:
            env = gym.wrappers.RecordVideo(env, f"videos/{run_name}")
        return gym.wrappers.RecordEpisodeStatistics(env)

    return thunk


class QNetwork(torch.nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.network = torch.nn.Linear(envs.single_observation_space.shape[0], envs.single_action_space.n)

    def forward(self, obs):
        return self.network(obs)


if __name__ == "__main__":
    args = tyro.cli(Args)
    envs = gym.vector.SyncVectorEnv([make_env(args.env_id, args.seed, 0, False, "training")])
    network = QNetwork(envs)
    torch.save(network.state_dict(), "evaluated.cleanrl_model")
    returns = evaluate(
        "evaluated.cleanrl_model", make_env, args.env_id, eval_episodes=2, run_name="eval", Model=QNetwork, epsilon=0.1
    )
    assert len(returns) == 2 and all(value[0] >= 8 for value in returns)
    infos = envs.reset(seed=args.seed)[1]
    assert "final_observation" not in infos
