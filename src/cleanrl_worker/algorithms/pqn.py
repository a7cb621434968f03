"""PQN, Q-learning on parallel environments without replay, for flat observations (arXiv:2407.04811).

Siblings: dqn, ppo.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from cleanrl_worker.envs import vectors
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.optim import FlatRAdam
from cleanrl_worker.nets.layers import NumpyNet, Pullback, flat_size, numbers, orthogonal
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Count, Pieces, RunArgs, Share, parse, require
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("discrete",)
OBSERVATION_SPACES = ("vector", "discrete", "tuple", "dict")


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "CartPole-v1"
    """environment to learn"""
    total_timesteps: Count = 500000
    """environment steps to train for, over all environments"""
    learning_rate: Amount = 2.5e-4
    """step size of RAdam"""
    num_envs: Count = 4
    """environments stepped side by side"""
    num_steps: Count = 128
    """steps in each environment between two updates"""
    num_minibatches: Pieces = 4
    """pieces that a batch is cut into"""
    update_epochs: Count = 4
    """passes over a batch"""
    anneal_lr: bool = True
    """let the learning rate fall to zero over the run"""
    gamma: Share = 0.99
    """discount factor"""
    start_e: Share = 1.0
    """share of random actions at the start"""
    end_e: Share = 0.05
    """share of random actions in the end"""
    exploration_fraction: Amount = 0.5
    """part of the run over which that share falls"""
    max_grad_norm: Amount = 10.0
    """largest norm of the gradient"""
    q_lambda: Share = 0.65
    """lambda of the returns (0: one step and the next value, 1: as far as the batch goes)"""
    cudagraphs: bool = True
    """on a GPU, replay each update as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""


class QNetwork(nn.Module):
    """Observation to the value of each action; normalised layers stand in for a target network."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        self.network = nn.Sequential(
            orthogonal(nn.Linear(flat_size(envs.single_observation_space.shape), 120)),
            nn.LayerNorm(120),
            nn.ReLU(),
            orthogonal(nn.Linear(120, 84)),
            nn.LayerNorm(84),
            nn.ReLU(),
            orthogonal(nn.Linear(84, int(envs.single_action_space.n))),
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.network(obs)

    @torch.no_grad()
    def vjp(self, obs: torch.Tensor) -> tuple[torch.Tensor, Pullback]:
        """The values, and what takes their gradient to those of the parameters (`parameters()` gives the order).

        Written out, because autograd's book-keeping takes as long as the arithmetic of so small a network.
        """
        layers: list[Any] = list(self.network)
        blocks, last = [layers[0:2], layers[3:5]], layers[-1]
        kept, x = [], obs
        for linear, norm in blocks:
            summed = torch.addmm(linear.bias, x, linear.weight.t())
            scaled, *statistics = torch.native_layer_norm(
                summed, norm.normalized_shape, norm.weight, norm.bias, norm.eps
            )
            kept.append((x, summed, statistics, scaled.relu_()))
            x = scaled

        @torch.no_grad()
        def pull(gradient: torch.Tensor) -> list[torch.Tensor]:
            found = [gradient.sum(dim=0), gradient.t() @ x]
            gradient = gradient @ last.weight
            for (linear, norm), (given, summed, statistics, alive) in zip(blocks[::-1], kept[::-1], strict=True):
                gradient = torch.ops.aten.threshold_backward(gradient, alive, 0)
                gradient, scale, shift = torch.ops.aten.native_layer_norm_backward(
                    gradient, summed, norm.normalized_shape, *statistics, norm.weight, norm.bias, [True, True, True]
                )
                found += [shift, scale, gradient.sum(dim=0), gradient.t() @ given]
                if given is not obs:
                    gradient = gradient @ linear.weight
            return found[::-1]

        return torch.addmm(last.bias, x, last.weight.t()), pull


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The greedy actions of a saved network; sampled, a share `end_e` of them is random as in the end of training."""
    q_network = QNetwork(spaces)
    q_network.load_state_dict(state)
    values = NumpyNet(q_network.network)
    epsilon = float(args.get("end_e", Args.end_e))

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        actions = values(obs.astype(np.float32)).argmax(axis=1)
        if rng is None:
            return actions
        random_actions = rng.integers(0, spaces.single_action_space.n, len(obs))
        return np.where(rng.random(len(obs)) < epsilon, random_actions, actions)

    return act


def linear_schedule(start: float, end: float, duration: float, step: int) -> float:
    """From start to end over `duration` steps, then constant."""
    return max(end, start + (end - start) * step / max(duration, 1))


def lambda_returns(
    rewards: np.ndarray, next_values: np.ndarray, ends: np.ndarray, gamma: float, lam: float
) -> np.ndarray:
    """Returns of Q(lambda) (section 3 of the paper) over arrays of shape (steps, environments).

    `next_values` holds the value of what each action led to: 0 after a termination, of the final observation after a
    truncation. `ends` cuts the sum at the end of an episode.
    """
    returns = rewards + gamma * next_values
    decay = gamma * lam * (1.0 - ends)
    for t in reversed(range(len(rewards) - 1)):
        returns[t] += decay[t] * (returns[t + 1] - next_values[t])
    return returns


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    batch_size = args.num_envs * args.num_steps
    run = training.start(args)
    device = run.device
    envs = vectors.vector(args, run.video_folder)
    q_network = QNetwork(envs).to(device)
    optimizer = FlatRAdam(q_network.parameters(), lr=args.learning_rate)

    shape = (args.num_steps, args.num_envs)
    obs = np.zeros((*shape, *envs.single_observation_space.shape), np.float32)
    actions = np.zeros(shape, np.int64)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, np.float32)
    ends = np.zeros(shape, np.float32)
    policy = NumpyNet(q_network.network)
    step = run.restore({"policy": q_network, "optimizer": optimizer})
    num_iterations = -(-args.total_timesteps // batch_size)
    next_obs = run.reset(envs, step)

    @graphs.captured(run)
    def update(
        mb_obs: torch.Tensor, mb_actions: torch.Tensor, mb_returns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Learn from a minibatch: the errors, and the values of the actions that were taken."""
        values, pull = q_network.vjp(mb_obs)
        old_values = values.gather(1, mb_actions).squeeze(1)
        errors = old_values - mb_returns
        # of the mean of their squares
        slope = torch.zeros_like(values).scatter_(1, mb_actions, (errors * (2 / len(errors))).unsqueeze(1))
        optimizer.apply(pull(slope), args.max_grad_norm)
        return errors, old_values

    while step < args.total_timesteps:
        if args.anneal_lr:
            optimizer.lr = args.learning_rate * (1.0 - step // batch_size / num_iterations)

        # 1 collect: act in numpy; values follow for the whole batch at once
        policy.refresh()
        duration = args.exploration_fraction * args.total_timesteps
        steps = range(step, step + batch_size, args.num_envs)
        epsilons = [linear_schedule(args.start_e, args.end_e, duration, at) for at in steps]
        explored = run.rng.random(shape) < np.array(epsilons)[:, None]
        actions[:] = run.rng.integers(0, envs.single_action_space.n, shape)
        terminations[:] = ends[:] = 0.0
        truncated_at: list[tuple[int, np.ndarray]] = []
        for t in range(args.num_steps):
            obs[t] = next_obs
            if not explored[t].all():
                actions[t] = np.where(explored[t], actions[t], policy(obs[t]).argmax(axis=1))
            reached = envs.step(actions[t])
            step += args.num_envs
            next_obs = reached.obs
            rewards[t] = reached.rewards
            if reached.episodes:
                terminations[t] = reached.terminations
                ends[t] = reached.terminations | reached.truncations
                if reached.truncations.any():
                    truncated_at.append((t, reached.final_obs))
                run.log_episodes(step, reached.episodes)

        # 2 returns
        b_obs = numbers(obs.reshape(batch_size, -1), device)
        next_values = np.empty(shape, np.float32)
        with torch.no_grad():
            next_values[:-1] = q_network(b_obs).amax(dim=1).cpu().numpy().reshape(shape)[1:]
            next_values[-1] = q_network(numbers(next_obs, device)).amax(dim=1).cpu().numpy()
            for t, final_obs in truncated_at:
                final_values = q_network(numbers(final_obs, device)).amax(dim=1).cpu().numpy()
                next_values[t] = np.where(ends[t] > 0, final_values, next_values[t])
        next_values *= 1.0 - terminations
        returns = lambda_returns(rewards, next_values, ends, args.gamma, args.q_lambda)
        b_actions = torch.from_numpy(actions.reshape(-1, 1)).to(device)
        b_returns = torch.from_numpy(returns.reshape(-1)).to(device)

        # 3 update
        for _ in range(args.update_epochs):
            order = torch.randperm(batch_size, device=device)
            batch = (b_obs, b_actions, b_returns)
            minibatches = zip(*(whole[order].split(batch_size // args.num_minibatches) for whole in batch), strict=True)
            for minibatch in minibatches:
                errors, old_values = update(*minibatch)

        # 4 log, checkpoint
        loss = errors.square().mean().item()
        run.log(step, {"losses/td_loss": loss, "losses/q_values": old_values.mean().item()})
        run.log_speed(step)
        run.keep_best(step, q_network.state_dict)
        if run.checkpoint_due(step):
            next_obs = run.checkpoint(step, envs)

    if args.save_model:
        run.save_policy(step, q_network.state_dict())
        run.evaluate(step, load_policy(q_network.state_dict(), envs, vars(args)))
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
