"""C51, DQN that learns the distribution of returns, for flat observations and discrete actions (arXiv:1707.06887).

Siblings: dqn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.episodes import is_due
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.batches import Batches
from cleanrl_worker.learn.buffers import ReplayBuffer
from cleanrl_worker.learn.optim import FlatAdam
from cleanrl_worker.nets.layers import NumpyNet, flat_size
from cleanrl_worker.run import training
from cleanrl_worker.run.args import (
    Amount,
    Capacity,
    Count,
    CountFrom0,
    CountFrom2,
    Highest,
    Lowest,
    RunArgs,
    Share,
    as_json,
    parse,
    require,
)
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
    n_atoms: CountFrom2 = 101
    """returns that a distribution tells apart"""
    v_min: Lowest = -100.0
    """the smallest of them"""
    v_max: Highest = 100.0
    """the largest of them"""
    buffer_size: Capacity = 10000
    """transitions that the replay memory holds"""
    gamma: Share = 0.99
    """discount factor"""
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
    """Observation to the distribution of each action's return over the atoms, as logits."""

    atoms: torch.Tensor

    def __init__(self, envs: Any, atoms: torch.Tensor) -> None:
        super().__init__()
        self.actions = int(envs.single_action_space.n)
        self.register_buffer("atoms", atoms)
        self.network = nn.Sequential(
            nn.Linear(flat_size(envs.single_observation_space.shape), 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, self.actions * len(atoms)),
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Of shape (batch, actions, atoms)."""
        return self.network(obs).view(len(obs), self.actions, len(self.atoms))


class ActingPolicy:
    """Observations to the mean return of each action, in numpy."""

    def __init__(self, q_network: QNetwork) -> None:
        self._logits = NumpyNet(q_network.network)
        self._atoms = q_network.atoms.cpu().numpy()

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        logits = self._logits(obs).reshape(len(obs), -1, len(self._atoms))
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        return weights @ self._atoms / weights.sum(axis=2)

    def refresh(self) -> None:
        self._logits.refresh()


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The greedy actions of a saved network; sampled, a share `end_e` of them is random as in the end of training."""
    q_network = QNetwork(spaces, state["atoms"])
    q_network.load_state_dict(state)
    values = ActingPolicy(q_network)
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


def project(
    pmfs: torch.Tensor,
    rewards: torch.Tensor,
    alive: torch.Tensor,
    atoms: torch.Tensor,
    gamma: float,
    *,
    as_product: bool = False,
) -> torch.Tensor:
    """The distribution of `rewards + gamma * alive * returns`, back on the atoms that `pmfs` of returns is on (eq. 7).

    Each shifted atom gives its probability to the two atoms around it, the nearer one getting the more. On a GPU a sum
    whose terms arrive in any order differs from run to run; as a product it does not.
    """
    low, high, last = atoms[0], atoms[-1], len(atoms) - 1
    shifted = (rewards.unsqueeze(1) + gamma * alive.unsqueeze(1) * atoms).clamp(low, high)
    places = ((shifted - low) * (last / (high - low))).clamp_(max=last)  # rounding may lead beyond the last
    if as_product:
        apart = places.unsqueeze(2) - torch.arange(len(atoms), device=atoms.device)
        return torch.bmm(pmfs.unsqueeze(1), (1.0 - apart.abs()).clamp_(min=0.0)).squeeze(1)
    below = places.floor()
    share = (places - below) * pmfs
    below = below.long()
    projected = torch.zeros_like(pmfs).scatter_add_(1, below, pmfs - share)
    return projected.scatter_add_(1, (below + 1).clamp_(max=last), share)


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    run = training.start(args)
    device = run.device
    envs = vectors.vector(args, run.video_folder)
    atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms).to(device)
    q_network = QNetwork(envs, atoms).to(device)
    target_network = QNetwork(envs, atoms).to(device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = FlatAdam(q_network.parameters(), lr=args.learning_rate, eps=0.01 / args.batch_size)
    rows = torch.arange(args.batch_size, device=device)
    buffer = ReplayBuffer(args.buffer_size, envs.single_observation_space.shape, (), np.int64)
    batches = Batches(buffer, args.batch_size, device)
    policy = ActingPolicy(q_network)
    step = run.restore(
        {"policy": q_network, "target": target_network, "optimizer": optimizer},
        buffer,
        fixed=("n_atoms", "v_min", "v_max"),
    )
    policy.refresh()
    obs = run.reset(envs, step)

    def saved() -> dict[str, Any]:
        return {"model_weights": q_network.state_dict(), "args": as_json(args)}

    @graphs.captured(run)
    def learn(drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and the log-probabilities of the returns of the actions that were taken."""
        batch = batches.at(drawn)
        with torch.no_grad():
            next_pmfs = target_network(batch.next_obs).softmax(dim=2)
            best = (next_pmfs @ atoms).argmax(dim=1)
            shifts = (batch.rewards, 1.0 - batch.terminations)
            target_pmfs = project(next_pmfs[rows, best], *shifts, atoms, args.gamma, as_product=atoms.is_cuda)
        old_logpmfs = F.log_softmax(q_network(batch.obs)[rows, batch.actions], dim=1)
        loss = -(target_pmfs * old_logpmfs).sum(dim=1).mean()
        optimizer.step(loss)
        return loss.detach(), old_logpmfs.detach()

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
            run.keep_best(step, saved)

        # 2 learn, and move the target network: each step of each environment counts
        learned = False
        for count in range(max(previous, args.learning_starts) + 1, step + 1):
            if count % args.train_frequency == 0:
                loss, old_logpmfs = learn(batches.draw(run.rng))
                learned = True
            if count % args.target_network_frequency == 0:
                target_network.load_state_dict(q_network.state_dict())

        # 3 log
        if learned:
            policy.refresh()
            if is_due(100, previous, step):
                old_values = old_logpmfs.exp() @ atoms
                run.log(step, {"losses/loss": loss.item(), "losses/q_values": old_values.mean().item()})
                run.log_speed(step)

        # 4 checkpoint
        if run.checkpoint_due(step):
            obs = run.checkpoint(step, envs)

    if args.save_model:
        run.save_policy(step, saved())
        run.evaluate(step, load_policy(q_network.state_dict(), envs, vars(args)))
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
