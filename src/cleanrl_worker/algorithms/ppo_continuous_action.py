"""PPO for flat observations and continuous actions (arXiv:1707.06347). Siblings: ppo, ppo_atari_envpool."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.actions import require_row
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.normalize import ObservationNormalizer, RewardNormalizer
from cleanrl_worker.learn.optim import FlatAdam
from cleanrl_worker.nets.layers import NumpyNet, Pullback, TanhTower, flat_size, numbers
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Computed, Count, Pieces, RunArgs, Share, check_minibatches, parse, require
from cleanrl_worker.run.policy import Policy, normalized

ACTION_SPACES = ("continuous",)
OBSERVATION_SPACES = ("vector", "discrete", "tuple", "dict")
LOG_TWO_PI = float(np.log(2 * np.pi))


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "HalfCheetah-v5"
    """environment to learn"""
    total_timesteps: Count = 1000000
    """environment steps to train for, over all environments"""
    learning_rate: Amount = 3e-4
    """step size of Adam"""
    num_envs: Count = 1
    """environments stepped side by side"""
    num_steps: Count = 2048
    """steps in each environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall to zero over the run"""
    gamma: Share = 0.99
    """discount factor"""
    gae_lambda: Share = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Pieces = 32
    """pieces that a batch is cut into"""
    update_epochs: Count = 10
    """passes over a batch"""
    norm_adv: bool = True
    """normalise advantages per minibatch"""
    clip_coef: Amount = 0.2
    """how far the new policy may move from the old (epsilon)"""
    clip_vloss: bool = True
    """clip the value loss too"""
    ent_coef: float = 0.0
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: Amount = 0.5
    """largest norm of the gradient"""
    target_kl: float | None = None
    """end an update early when the policy has moved this far"""
    cudagraphs: bool = True
    """on a GPU, replay each update as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""
    batch_size: Computed = 0
    """set at run time: num_envs * num_steps"""
    minibatch_size: Computed = 0
    """set at run time: batch_size / num_minibatches"""
    num_iterations: Computed = 0
    """set at run time: total_timesteps / batch_size"""


class Agent(nn.Module):
    """Two tanh networks: the value, and the mean of a Gaussian whose deviation is a free parameter."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        inputs = flat_size(envs.single_observation_space.shape)
        actions = flat_size(envs.single_action_space.shape)
        self.critic = TanhTower(inputs, 64, 64, 1, gain=1.0)
        self.actor_mean = TanhTower(inputs, 64, 64, actions, gain=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(1, actions))

    def logprobs(self, means: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Of the actions, under independent Gaussians."""
        deviations = (actions - means) * torch.exp(-self.actor_logstd)
        return -0.5 * (deviations**2).sum(dim=1) - self.actor_logstd.sum() - 0.5 * actions.shape[1] * LOG_TWO_PI

    def vjp(self, obs: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], Pullback]:
        """Means and values, and what takes their gradients and that of the deviation to those of the parameters."""
        (values, to_critic), (means, to_actor) = self.critic.vjp(obs), self.actor_mean.vjp(obs)
        return (means, values.squeeze(-1)), lambda d_means, d_values, d_logstd: [
            d_logstd,  # a parameter of its own comes before those of the towers
            *to_critic(d_values.unsqueeze(-1)),
            *to_actor(d_means),
        ]

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


class Losses(NamedTuple):
    """Of each sample of a minibatch (the entropy is the same for all), and how much likelier its action has become."""

    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    logratio: torch.Tensor
    ratio: torch.Tensor


@torch.no_grad()
def clipped_losses(
    means: torch.Tensor,
    values: torch.Tensor,
    logstd: torch.Tensor,
    actions: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    returns: torch.Tensor,
    old_values: torch.Tensor,
    args: Args,
) -> tuple[Losses, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The losses (eq. 7 and 9), and the gradients of their weighted mean with respect to means, values and deviation.

    The gradients are written out: for these few numbers autograd takes five times as long.
    """
    inverse_std = torch.exp(-logstd)
    deviations = (actions - means) * inverse_std
    squares = deviations**2
    # entropy: the sum of log(std) and constants, so that d H / d log(std) = 1
    entropy = (logstd + 0.5 + 0.5 * LOG_TWO_PI).sum()
    logprobs = -0.5 * squares.sum(dim=1) - entropy + 0.5 * actions.shape[1]
    logratio = logprobs - old_logprobs
    ratio = logratio.exp()

    # policy: -min(A r, A clip(r)); where the clipped one is smaller, nothing depends on the policy any more
    surrogate, clipped = advantages * ratio, advantages * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -torch.minimum(surrogate, clipped)
    d_logprob = torch.where(surrogate <= clipped, -surrogate, 0.0).unsqueeze(1)  # d r / d log pi = r

    # value: (V - R)^2 / 2, or that of V kept near its old self where that is larger: it does not depend on V then
    error = values - returns
    value_loss, d_values = 0.5 * error**2, error
    if args.clip_vloss:
        moved = values - old_values
        near = moved.clamp(-args.clip_coef, args.clip_coef)
        clipped_loss = 0.5 * (old_values + near - returns) ** 2
        d_values = torch.where((value_loss >= clipped_loss) | (near == moved), error, 0.0)
        value_loss = torch.maximum(value_loss, clipped_loss)

    # d log pi / d mean = (a - mean) / std^2, d log pi / d log(std) = ((a - mean) / std)^2 - 1
    count = len(values)
    d_means = d_logprob * deviations * (inverse_std / count)
    d_logstd = (d_logprob * (squares - 1.0)).mean(dim=0, keepdim=True) - args.ent_coef
    return Losses(policy_loss, value_loss, entropy, logratio, ratio), (
        d_means,
        d_values * (args.vf_coef / count),
        d_logstd,
    )


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    if args.norm_adv:
        check_minibatches(args.batch_size, args.num_minibatches)
    run = training.start(args)
    device = run.device
    envs = vectors.vector(args, run.video_folder)
    require_row(envs.single_action_space, args.env_id)
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

    @graphs.captured(run)
    def update(
        mb_obs: torch.Tensor,
        mb_actions: torch.Tensor,
        mb_logprobs: torch.Tensor,
        mb_advantages: torch.Tensor,
        mb_returns: torch.Tensor,
        mb_values: torch.Tensor,
    ) -> Losses:
        """Learn from a minibatch."""
        if args.norm_adv:
            mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
        (means, values), pull = agent.vjp(mb_obs)
        minibatch = (mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values)
        losses, gradients = clipped_losses(means, values, agent.actor_logstd, *minibatch, args)
        optimizer.apply(pull(*gradients), args.max_grad_norm)
        return losses

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
            b_logprobs = agent.logprobs(agent.actor_mean(b_obs), b_actions)
            b_values = agent.critic(b_obs).squeeze(-1)
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
            for minibatch in zip(*(whole[order].split(args.minibatch_size) for whole in batch), strict=True):
                losses = update(*minibatch)
                ratios.append(losses.ratio.clone())  # the next update may write over it
            # http://joschu.net/blog/kl-approx.html, k3
            approx_kl = (losses.ratio - 1 - losses.logratio).mean()
            if args.target_kl is not None and approx_kl.item() > args.target_kl:
                break

        # 4 log, checkpoint
        variance = np.var(old_values + advantages)
        run.log(
            step,
            {
                "charts/learning_rate": optimizer.lr,
                "losses/value_loss": losses.value.mean().item(),
                "losses/policy_loss": losses.policy.mean().item(),
                "losses/entropy": losses.entropy.item(),
                "losses/old_approx_kl": -losses.logratio.mean().item(),
                "losses/approx_kl": approx_kl.item(),
                "losses/clipfrac": ((torch.cat(ratios) - 1.0).abs() > args.clip_coef).float().mean().item(),
                "losses/explained_variance": float(1 - np.var(advantages) / variance) if variance > 0 else float("nan"),
            },
        )
        run.log_speed(step)
        run.keep_best(step, agent.state_dict, obs_normalizer.frozen)
        if run.checkpoint_due(step):
            reward_normalizer.restart()
            next_obs = obs_normalizer.observe(run.checkpoint(step, envs))

    if args.save_model:
        run.save_policy(step, agent.state_dict(), obs_normalizer.frozen())
        acting = load_policy(agent.state_dict(), envs, vars(args))
        run.evaluate(step, normalized(acting, obs_normalizer.frozen()))
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
