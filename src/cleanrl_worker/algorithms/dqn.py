"""DQN for flat observations and discrete actions (Mnih et al. 2015). Siblings: dqn_jax."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.episodes import is_due
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.batches import Batches
from cleanrl_worker.learn.buffers import ReplayBuffer
from cleanrl_worker.learn.optim import FlatAdam
from cleanrl_worker.nets.layers import NumpyNet, ReluTower, flat_size
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Capacity, Count, CountFrom0, RunArgs, Share, parse, require
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
    """step size of Adam"""
    num_envs: Count = 1
    """environments stepped side by side"""
    buffer_size: Capacity = 10000
    """transitions that the replay memory holds"""
    gamma: Share = 0.99
    """discount factor"""
    tau: Share = 1.0
    """share of the online network that enters the target network (1: a plain copy)"""
    target_network_frequency: Count = 500
    """environment steps between two updates of the target network, over all environments"""
    batch_size: Count = 128
    """transitions per update"""
    start_e: Share = 1.0
    """share of random actions at the start"""
    end_e: Share = 0.05
    """share of random actions in the end"""
    exploration_fraction: Amount = 0.5
    """part of the run over which that share falls"""
    learning_starts: CountFrom0 = 10000
    """steps before the first update"""
    train_frequency: Count = 10
    """environment steps between two updates, over all environments"""
    cudagraphs: bool = True
    """on a GPU, replay each update as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""


class QNetwork(nn.Module):
    """Observation to the value of each action."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        inputs, actions = flat_size(envs.single_observation_space.shape), int(envs.single_action_space.n)
        self.network = ReluTower(inputs, 120, 84, actions)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.network(obs)


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


def squared_error(
    values: torch.Tensor, actions: torch.Tensor, td_target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The mean squared error of the values of the actions that were taken, these values, its gradient by all values.

    The gradient is written out: autograd takes half as long again for the update of so small a network.
    """
    taken = actions.unsqueeze(1)
    old_values = values.gather(1, taken).squeeze(1)
    errors = old_values - td_target
    slopes = errors * (2.0 / len(errors))
    return errors.square().mean(), old_values, torch.zeros_like(values).scatter_(1, taken, slopes.unsqueeze(1))


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    run = training.start(args)
    device = run.device
    envs = vectors.vector(args, run.video_folder)
    q_network = QNetwork(envs).to(device)
    target_network = QNetwork(envs).to(device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = FlatAdam(q_network.parameters(), lr=args.learning_rate)
    buffer = ReplayBuffer(args.buffer_size, envs.single_observation_space.shape, (), np.int64)
    batches = Batches(buffer, args.batch_size, device)
    policy = NumpyNet(q_network.network)
    step = run.restore({"policy": q_network, "target": target_network, "optimizer": optimizer}, buffer)
    policy.refresh()
    obs = run.reset(envs, step)

    @graphs.captured(run)
    @torch.no_grad()
    def learn(drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and the values of the actions that were taken."""
        batch = batches.at(drawn)
        target_max = target_network(batch.next_obs).max(dim=1).values
        td_target = batch.rewards + args.gamma * (1.0 - batch.terminations) * target_max
        values, pull = q_network.network.vjp(batch.obs)
        loss, old_values, gradient = squared_error(values, batch.actions, td_target)
        optimizer.apply(pull(gradient))
        return loss, old_values

    while step < args.total_timesteps:
        # 1 act
        start_e = args.end_e if run.warm else args.start_e
        epsilon = linear_schedule(start_e, args.end_e, args.exploration_fraction * args.total_timesteps, step)
        explores = run.rng.random(args.num_envs) < epsilon
        if explores.all():
            actions = run.rng.integers(0, envs.single_action_space.n, args.num_envs)
        else:
            actions = policy(obs).argmax(axis=1)
            if explores.any():
                actions[explores] = run.rng.integers(0, envs.single_action_space.n, explores.sum())
        reached = envs.step(actions)
        buffer.add(obs, actions, reached.rewards, reached.final_obs, reached.terminations)
        obs = reached.obs
        previous, step = step, step + args.num_envs
        if reached.episodes:
            run.log_episodes(step, reached.episodes)
            run.keep_best(step, q_network.state_dict)

        # 2 learn, and move the target network: each step of each environment counts
        learned = False
        for count in range(max(previous, args.learning_starts) + 1, step + 1):
            if count % args.train_frequency == 0:
                loss, old_values = learn(batches.draw(run.rng))
                learned = True
            if count % args.target_network_frequency == 0:
                with torch.no_grad():
                    for target, online in zip(target_network.parameters(), q_network.parameters(), strict=True):
                        target.lerp_(online, args.tau)

        # 3 log
        if learned:
            policy.refresh()
            if is_due(100, previous, step):
                run.log(step, {"losses/td_loss": loss.item(), "losses/q_values": old_values.mean().item()})
                run.log_speed(step)

        # 4 checkpoint
        if run.checkpoint_due(step):
            obs = run.checkpoint(step, envs)

    if args.save_model:
        run.save_policy(step, q_network.state_dict())
        run.evaluate(step, load_policy(q_network.state_dict(), envs, vars(args)))
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
