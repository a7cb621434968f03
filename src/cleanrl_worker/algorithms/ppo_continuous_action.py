"""PPO for flat observations and continuous actions (arXiv:1707.06347). Siblings: ppo, ppo_atari_envpool."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from cleanrl_worker.agents.adam import FlatAdam
from cleanrl_worker.agents.layers import NumpyNet, flat_size, numbers, orthogonal
from cleanrl_worker.kit import envs as kit_envs
from cleanrl_worker.kit import experiment
from cleanrl_worker.kit.args import RunArgs, check_minibatches, parse, refuse_derived, require
from cleanrl_worker.kit.normalize import ObservationNormalizer, RewardNormalizer
from cleanrl_worker.kit.policy import Policy, normalized

ACTION_SPACES = ("continuous",)
OBSERVATION_SPACES = ("vector", "discrete", "tuple", "dict")
LOG_TWO_PI = float(np.log(2 * np.pi))


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "HalfCheetah-v5"
    """environment to learn"""
    total_timesteps: int = 1000000
    """environment steps to train for, over all environments"""
    learning_rate: float = 3e-4
    """step size of Adam"""
    num_envs: int = 1
    """environments stepped side by side"""
    num_steps: int = 2048
    """steps in each environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall to zero over the run"""
    gamma: float = 0.99
    """discount factor"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: int = 32
    """pieces that a batch is cut into"""
    update_epochs: int = 10
    """passes over a batch"""
    norm_adv: bool = True
    """normalise advantages per minibatch"""
    clip_coef: float = 0.2
    """how far the new policy may move from the old (epsilon)"""
    clip_vloss: bool = True
    """clip the value loss too"""
    ent_coef: float = 0.0
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """largest norm of the gradient"""
    target_kl: float | None = None
    """end an update early when the policy has moved this far"""
    batch_size: int = 0
    """set at run time: num_envs * num_steps"""
    minibatch_size: int = 0
    """set at run time: batch_size / num_minibatches"""
    num_iterations: int = 0
    """set at run time: total_timesteps / batch_size"""


class Agent(nn.Module):
    """Two tanh networks: the value, and the mean of a Gaussian whose deviation is a free parameter."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        inputs = flat_size(envs.single_observation_space.shape)
        actions = flat_size(envs.single_action_space.shape)
        self.critic = self._tower(inputs, 1, gain=1.0)
        self.actor_mean = self._tower(inputs, actions, gain=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(1, actions))

    def _tower(self, inputs: int, outputs: int, gain: float) -> nn.Sequential:
        return nn.Sequential(
            orthogonal(nn.Linear(inputs, 64)),
            nn.Tanh(),
            orthogonal(nn.Linear(64, 64)),
            nn.Tanh(),
            orthogonal(nn.Linear(64, outputs), gain=gain),
        )

    def evaluate(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of the actions, and values."""
        deviations = (actions - self.actor_mean(obs)) * torch.exp(-self.actor_logstd)
        logprobs = -0.5 * (deviations**2).sum(dim=1) - self.actor_logstd.sum() - 0.5 * actions.shape[1] * LOG_TWO_PI
        return logprobs, self.critic(obs).squeeze(-1)

    def entropy(self) -> torch.Tensor:
        """Of the Gaussian: the same for every observation."""
        return (self.actor_logstd + 0.5 + 0.5 * LOG_TWO_PI).sum()

    def numpy_policy(self) -> NumpyNet:
        """Observations to means, for acting."""
        return NumpyNet(self.actor_mean)


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The acting part of a saved agent, for observations that are already normalised."""
    agent = Agent(spaces)
    agent.load_state_dict(state)
    means, deviation = agent.numpy_policy(), agent.actor_logstd.detach().exp().numpy()
    space = spaces.single_action_space

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        actions = means(obs.astype(np.float32))
        if rng is not None:
            actions = actions + deviation * rng.standard_normal(actions.shape, np.float32)
        return np.clip(actions.reshape(len(obs), *space.shape), space.low, space.high)

    return act


def gae(
    rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray, ends: np.ndarray, gamma: float, lam: float
) -> np.ndarray:
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16) over arrays of shape (steps, environments).

    `next_values` holds the value of what each action led to: 0 after a termination, of the final observation after a
    truncation. `ends` cuts the sum at the end of an episode.
    """
    advantages = np.zeros_like(rewards)
    deltas = rewards + gamma * next_values - values
    decay = gamma * lam * (1.0 - ends)
    advantage = np.zeros(rewards.shape[1], rewards.dtype)
    for t in reversed(range(len(rewards))):
        advantages[t] = advantage = deltas[t] + decay[t] * advantage
    return advantages


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args, "num_steps", "num_minibatches", "update_epochs", shares=("gamma", "gae_lambda"))
    refuse_derived(args, "batch_size", "minibatch_size", "num_iterations")
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    check_minibatches(args.batch_size, args.num_minibatches, args.norm_adv)
    run = experiment.start(args)
    device = run.device
    envs = kit_envs.vector(args, run.video_folder)
    agent = Agent(envs).to(device)
    optimizer = FlatAdam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    shape = (args.num_steps, args.num_envs)
    obs_shape, action_space = envs.single_observation_space.shape, envs.single_action_space
    obs = np.zeros((*shape, *obs_shape), np.float32)
    actions = np.zeros((*shape, *action_space.shape), np.float32)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, np.float32)
    ends = np.zeros(shape, np.float32)
    obs_normalizer = ObservationNormalizer(obs_shape)
    reward_normalizer = RewardNormalizer(args.num_envs, args.gamma)
    policy = agent.numpy_policy()
    networks: dict[str, Any] = {"policy": agent, "optimizer": optimizer}
    step = run.restore(networks | {"observations": obs_normalizer.statistics, "rewards": reward_normalizer})
    args.num_iterations = -(-args.total_timesteps // args.batch_size)
    next_obs = obs_normalizer.observe(run.reset(envs, step))

    while step < args.total_timesteps:
        if args.anneal_lr:
            optimizer.lr = args.learning_rate * (1.0 - step // args.batch_size / args.num_iterations)

        # 1 collect: act in numpy; values and probabilities follow for the whole batch at once
        policy.refresh()
        noise = run.rng.standard_normal(actions.shape, np.float32) * agent.actor_logstd.detach().exp().cpu().numpy()
        truncated_at: list[tuple[int, np.ndarray]] = []
        for t in range(args.num_steps):
            obs[t] = next_obs
            actions[t] = policy(obs[t]) + noise[t]
            reached = envs.step(np.clip(actions[t], action_space.low, action_space.high))
            step += args.num_envs
            terminations[t] = reached.terminations
            ended = reached.terminations | reached.truncations
            ends[t] = ended
            rewards[t] = reward_normalizer.observe(reached.rewards, ended)
            # what the actions led to enters the statistics, and so do the first observations of new episodes
            next_obs = obs_normalizer.observe(reached.final_obs)
            if reached.episodes:
                if reached.truncations.any():
                    truncated_at.append((t, next_obs))
                next_obs = next_obs.copy()
                next_obs[ended] = obs_normalizer.observe(reached.obs[ended])
                run.log_episodes(step, reached.episodes)

        # 2 advantages
        b_obs = numbers(obs.reshape(args.batch_size, -1), device)
        b_actions = numbers(actions.reshape(args.batch_size, -1), device)
        with torch.no_grad():
            b_logprobs, b_values = agent.evaluate(b_obs, b_actions)
            old_values = b_values.cpu().numpy().reshape(shape)
            next_values = np.empty_like(old_values)
            next_values[:-1] = old_values[1:]
            next_values[-1] = agent.critic(numbers(next_obs, device)).squeeze(-1).cpu().numpy()
            for t, final_obs in truncated_at:
                final_values = agent.critic(numbers(final_obs, device)).squeeze(-1).cpu().numpy()
                next_values[t] = np.where(ends[t] > 0, final_values, next_values[t])
        next_values *= 1.0 - terminations
        advantages = gae(rewards, old_values, next_values, ends, args.gamma, args.gae_lambda)
        b_advantages = torch.from_numpy(advantages.reshape(-1)).to(device)
        b_returns = b_advantages + b_values

        # 3 update
        ratios = []
        for _ in range(args.update_epochs):
            order = torch.randperm(args.batch_size, device=device)
            batch = (b_obs, b_actions, b_logprobs, b_advantages, b_returns, b_values)
            minibatches = zip(*(whole[order].split(args.minibatch_size) for whole in batch), strict=True)
            for mb_obs, mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values in minibatches:
                logprobs, values = agent.evaluate(mb_obs, mb_actions)
                logratio = logprobs - mb_logprobs
                ratio = logratio.exp()
                ratios.append(ratio.detach())

                if args.norm_adv:
                    mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = -torch.min(mb_advantages * ratio, mb_advantages * clipped).mean()

                v_error = (values - mb_returns) ** 2
                if args.clip_vloss:
                    v_clipped = mb_values + (values - mb_values).clamp(-args.clip_coef, args.clip_coef)
                    v_error = torch.max(v_error, (v_clipped - mb_returns) ** 2)
                v_loss = 0.5 * v_error.mean()

                entropy = agent.entropy()
                optimizer.step(pg_loss - args.ent_coef * entropy + args.vf_coef * v_loss, args.max_grad_norm)
            approx_kl = (ratio - 1 - logratio).mean().item()  # http://joschu.net/blog/kl-approx.html, k3
            if args.target_kl is not None and approx_kl > args.target_kl:
                break

        # 4 log, checkpoint
        variance = np.var(old_values + advantages)
        run.log(
            step,
            {
                "charts/learning_rate": optimizer.lr,
                "losses/value_loss": v_loss.item(),
                "losses/policy_loss": pg_loss.item(),
                "losses/entropy": entropy.item(),
                "losses/old_approx_kl": -logratio.mean().item(),
                "losses/approx_kl": approx_kl,
                "losses/clipfrac": ((torch.cat(ratios) - 1.0).abs() > args.clip_coef).float().mean().item(),
                "losses/explained_variance": float(1 - np.var(advantages) / variance) if variance > 0 else float("nan"),
            },
        )
        run.log_speed(step)
        run.keep_best(step, agent.state_dict, obs_normalizer.frozen)
        if run.checkpoint_due(step - args.batch_size, step):
            reward_normalizer.restart()
            next_obs = obs_normalizer.observe(run.checkpoint(step - args.batch_size, step, envs))

    if args.save_model:
        run.save_policy(step, agent.state_dict(), obs_normalizer.frozen())
        acting = load_policy(agent.state_dict(), envs, vars(args))
        run.evaluate(step, normalized(acting, obs_normalizer.frozen()))
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
