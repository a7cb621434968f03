"""Rainbow for Atari games (arXiv:1710.02298): C51 with double and n-step targets, duelling heads, priorities and noise.

Transitions are drawn by how much they surprise, on the CPU: each update's losses are read back before the next draw.
Siblings: dqn_atari, c51_atari.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.episodes import Step, is_due
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.batches import FrameBatches
from cleanrl_worker.learn.courier import Courier
from cleanrl_worker.learn.frame_buffer import FrameReplay
from cleanrl_worker.learn.optim import FlatAdam, flattened
from cleanrl_worker.run import training
from cleanrl_worker.run.args import (
    Amount,
    Count,
    CountFrom0,
    CountFrom2,
    Highest,
    Lowest,
    RunArgs,
    Share,
    Stacks,
    parse,
    require,
)
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("discrete",)
OBSERVATION_SPACES = ("image",)
FAMILIES = ("atari", "image-games")
DEFAULT_BACKEND = "envpool"


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "BreakoutNoFrameskip-v4"
    """game to learn: Breakout-v5, ALE/Breakout-v5 or BreakoutNoFrameskip-v4 are the same here"""
    total_timesteps: Count = 10000000
    """environment steps to train for, over all environments (a step is four frames)"""
    checkpoint_every: CountFrom0 = 150000
    """steps between two checkpoints of the whole training state (0: only at the end and on SIGTERM)"""
    num_threads: CountFrom0 = 0
    """CPU threads for the network (0: torch's default, all cores; a convolution is worth them)"""
    learning_rate: Amount = 6.25e-5
    """step size of Adam"""
    num_envs: Count = 1
    """environments stepped side by side"""
    buffer_size: Stacks = 1000000
    """transitions that the replay memory holds (a million takes 7.6 GB)"""
    gamma: Share = 0.99
    """discount factor"""
    tau: Share = 1.0
    """share of the online network that enters the target network (1: a plain copy)"""
    target_network_frequency: Count = 8000
    """environment steps between two updates of the target network, over all environments"""
    batch_size: Count = 32
    """transitions per update"""
    start_e: Share = 1.0
    """not used, as in CleanRL: noisy layers explore"""
    end_e: Share = 0.01
    """share of random actions where the policy is evaluated by sampling; in training, noisy layers explore"""
    exploration_fraction: Amount = 0.1
    """not used, as in CleanRL: noisy layers explore"""
    learning_starts: CountFrom0 = 80000
    """steps before the first update"""
    train_frequency: Count = 4
    """environment steps between two updates, over all environments"""
    n_step: Count = 3
    """rewards that a target adds up before it trusts the network"""
    prioritized_replay_alpha: Amount = 0.5
    """how much surprise counts in drawing transitions (0: not at all)"""
    prioritized_replay_beta: Share = 0.4
    """how much of that bias the loss corrects at the start; it rises to 1 over the run"""
    prioritized_replay_eps: Amount = 1e-6
    """surprise that even a known transition keeps"""
    n_atoms: CountFrom2 = 51
    """returns that a distribution tells apart"""
    v_min: Lowest = -10.0
    """the smallest of them"""
    v_max: Highest = 10.0
    """the largest of them"""
    cudagraphs: bool = True
    """on a GPU, replay each update and each choice as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""


class NoisyLinear(nn.Module):
    """A linear layer that also learns how much noise its weights take (arXiv:1706.10295, factorised).

    The noise of a weight is the product of one number per input and one per output, so that it need not be written
    out: it scales what goes into a second product with the deviations, and what comes out.
    """

    noise_in: torch.Tensor
    noise_out: torch.Tensor

    def __init__(self, inputs: int, outputs: int, deviation: float = 0.5) -> None:
        super().__init__()
        reach = inputs**-0.5
        self.weight_mu = nn.Parameter(torch.empty(outputs, inputs).uniform_(-reach, reach))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), deviation * reach))
        self.bias_mu = nn.Parameter(torch.empty(outputs).uniform_(-reach, reach))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), deviation * reach))
        self.register_buffer("noise_in", torch.zeros(inputs))
        self.register_buffer("noise_out", torch.zeros(outputs))

    def draw_noise(self) -> None:
        for noise in (self.noise_in, self.noise_out):
            drawn = torch.randn_like(noise)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = F.linear(x, self.weight_mu, self.bias_mu)
        if not self.training:
            return mean
        return mean + F.linear(x * self.noise_in, self.weight_sigma, self.bias_sigma) * self.noise_out


class QNetwork(nn.Module):
    """Four grey frames to the distribution of each action's return over the atoms, as logits."""

    support: torch.Tensor

    def __init__(self, envs: Any, atoms: torch.Tensor) -> None:
        super().__init__()
        self.actions = int(envs.single_action_space.n)
        self.register_buffer("support", atoms)
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.value_head = nn.Sequential(NoisyLinear(64 * 7 * 7, 512), nn.ReLU(), NoisyLinear(512, len(atoms)))
        self.advantage_head = nn.Sequential(
            NoisyLinear(64 * 7 * 7, 512), nn.ReLU(), NoisyLinear(512, self.actions * len(atoms))
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Of frames given as bytes; of shape (batch, actions, atoms)."""
        # channels last: convolutions on the CPU take two thirds of the time
        hidden = self.network(obs.to(torch.float32, memory_format=torch.channels_last) / 255.0)
        value = self.value_head(hidden).unsqueeze(1)
        advantage = self.advantage_head(hidden).view(len(obs), self.actions, len(self.support))
        return value + advantage - advantage.mean(dim=1, keepdim=True)

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        """The mean return of each action."""
        return self(obs).softmax(dim=2) @ self.support

    def draw_noise(self) -> None:
        for layer in self.modules():
            if isinstance(layer, NoisyLinear):
                layer.draw_noise()


class Priorities:
    """How surprising each transition of a memory was, and draws in proportion to that (arXiv:1511.05952).

    Sums over blocks of 1,024 find a transition in two looks, and are made anew from their block, so that a resumed run
    has the same bits.
    """

    block = 1024

    def __init__(self, memory: FrameReplay, alpha: float) -> None:
        self._memory, self._alpha = memory, alpha
        self._weights = np.zeros((-(-memory.capacity // self.block), self.block))
        self._sums = np.zeros(len(self._weights))
        self._admitted = self._first = 0
        self._largest = 1.0

    def admit(self) -> None:
        """Let what the memory got be drawn soon, and what it has lost no more."""
        added, first, capacity = self._memory.added, self._memory.first, self._memory.capacity
        self._set(np.arange(max(self._first, added - capacity), first), 0.0)
        self._set(np.arange(max(self._admitted, first), added), self._largest**self._alpha)
        self._admitted, self._first = added, first

    def draw(self, size: int, beta: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of transitions, one from each of `size` equal parts of the sum, and the weights of their losses."""
        ends = self._sums.cumsum()
        wanted = (np.arange(size) + rng.random(size)) * (ends[-1] / size)
        blocks = np.searchsorted(ends, np.minimum(wanted, np.nextafter(ends[-1], 0)), side="right")
        within = self._weights[blocks].cumsum(axis=1)
        # rounding may lead before a block or beyond it, to what weighs nothing
        rest = np.clip(wanted - (ends[blocks] - self._sums[blocks]), 0.0, np.nextafter(within[:, -1], 0))
        places = blocks * self.block + (within <= rest[:, None]).sum(axis=1)
        shares = self._weights.reshape(-1)[places] / ends[-1]
        corrections = (len(self._memory) * shares) ** -beta
        newest = self._memory.added - 1
        return newest - (newest - places) % self._memory.capacity, (corrections / corrections.max()).astype(np.float32)

    def update(self, numbers: np.ndarray, surprise: np.ndarray) -> None:
        self._largest = max(self._largest, float(surprise.max()))
        self._set(numbers, surprise**self._alpha)

    def _set(self, numbers: np.ndarray, weights: np.ndarray | float) -> None:
        places = numbers % self._memory.capacity
        self._weights.reshape(-1)[places] = weights
        blocks = np.unique(places // self.block)
        self._sums[blocks] = self._weights[blocks].sum(axis=1)

    def state_dict(self) -> dict[str, Any]:
        counts = {"admitted": self._admitted, "first": self._first, "capacity": self._memory.capacity}
        return {"weights": self._weights, "largest": self._largest, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._largest = float(state["largest"])
        if state["capacity"] == self._memory.capacity:  # else all are admitted anew
            self._weights[:] = state["weights"]
            self._sums[:] = self._weights.sum(axis=1)
            self._admitted, self._first = int(state["admitted"]), int(state["first"])


class Outlook(NamedTuple):
    """What followed on transitions: discounted rewards, the last transition, and what a value of its end counts."""

    returns: np.ndarray
    last: np.ndarray
    discounts: np.ndarray


def look_ahead(memory: FrameReplay, numbers: np.ndarray, n_step: int, gamma: float) -> Outlook:
    """Up to `n_step` rewards of the same episode; fewer at its end, or where nothing more is known."""
    returns, discounts, last = np.zeros(len(numbers), np.float32), np.ones(len(numbers), np.float32), numbers
    later = numbers
    for _ in range(n_step):
        going = later >= 0
        last = np.where(going, later, last)
        returns += np.where(going, discounts * memory.rewards[last % memory.capacity], 0.0)
        discounts = np.where(going, np.float32(gamma) * discounts, discounts)
        later = np.where(going, memory.after(last), -1)
    return Outlook(returns, last, discounts * (1.0 - memory.terminations[last % memory.capacity]))


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The greedy actions of a saved network without its noise; sampled, a share `end_e` of them is random."""
    q_network = QNetwork(spaces, state["support"].cpu()).eval()
    q_network.load_state_dict(state)
    epsilon = float(args.get("end_e", Args.end_e))

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        with torch.no_grad():
            actions = q_network.values(torch.from_numpy(obs)).numpy().argmax(axis=1)
        if rng is None:
            return actions
        random_actions = rng.integers(0, spaces.single_action_space.n, len(obs))
        return np.where(rng.random(len(obs)) < epsilon, random_actions, actions)

    return act


def linear_schedule(start: float, end: float, duration: float, step: int) -> float:
    """From start to end over `duration` steps, then constant."""
    return start + (end - start) * min(step / max(duration, 1), 1.0)


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
    envs = vectors.atari(args, run.video_folder)
    atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms).to(device)
    q_network = QNetwork(envs, atoms).to(device)
    target_network = QNetwork(envs, atoms).to(device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = FlatAdam(q_network.parameters(), lr=args.learning_rate, eps=1.5e-4)
    target = flattened(target_network.parameters())
    rows = torch.arange(args.batch_size, device=device)
    buffer = FrameReplay(args.buffer_size, envs.single_observation_space.shape)
    priorities = Priorities(buffer, args.prioritized_replay_alpha)
    batches = FrameBatches(buffer, 2 * args.batch_size, device)
    courier = Courier(device)
    networks = {"policy": q_network, "target": target_network}
    step = run.restore(
        {**networks, "optimizer": optimizer, "priorities": priorities},
        buffer,
        fixed=("n_atoms", "v_min", "v_max"),
    )
    obs = run.reset(envs, step)
    seen_last: list[tuple[np.ndarray, np.ndarray, Step]] = []

    def remember() -> None:
        """Put the last step into the memory: not at once, but while a GPU chooses the next actions."""
        if seen_last:
            buffer.add(*seen_last.pop())
            priorities.admit()

    surprised: list[tuple[np.ndarray, torch.Tensor]] = []

    def note_surprise() -> None:
        """Set the priorities of the last batch; deferred until its losses are computed."""
        if surprised:
            drawn, losses = surprised.pop()
            priorities.update(drawn, courier.fetch(losses) + args.prioritized_replay_eps)

    @courier.both_ways(run)
    @torch.no_grad()
    def choose(seen: torch.Tensor) -> torch.Tensor:
        """The greedy actions, under the noise of the day."""
        return q_network.values(seen).argmax(dim=1)

    @graphs.captured(run)
    def draw_noise() -> None:
        q_network.draw_noise()

    @graphs.captured(run)
    def learn(drawn: torch.Tensor, known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The losses, their weighted mean, and the log-probabilities of the returns of the actions that were taken.

        Drawn are transitions, then the last ones that were looked ahead to; known are the returns up to these, what a
        value counts there, and the weights of the losses.
        """
        batch, (returns, discounts, weights) = batches.at(drawn), known
        target_network.draw_noise()
        with torch.no_grad():
            next_obs = batch.next_obs[args.batch_size :]
            best = q_network.values(next_obs).argmax(dim=1)  # double: one network chooses, the other judges
            next_pmfs = target_network(next_obs)[rows, best].softmax(dim=1)
            target_pmfs = project(next_pmfs, returns, discounts, atoms, 1.0, as_product=atoms.is_cuda)
        taken = batch.actions[: args.batch_size]
        old_logpmfs = F.log_softmax(q_network(batch.obs[: args.batch_size])[rows, taken], dim=1)
        losses = -(target_pmfs * old_logpmfs).sum(dim=1)
        loss = (losses * weights).mean()
        optimizer.step(loss)
        return losses.detach(), loss.detach(), old_logpmfs.detach()

    while step < args.total_timesteps:
        previous, step = step, step + args.num_envs

        # 1 choose
        greedy = choose(obs)

        # 2 remember, learn, move the target network: before acting, so that a GPU computes while the environments step
        remember()
        beta = linear_schedule(args.prioritized_replay_beta, 1.0, args.total_timesteps, step)
        learns = False
        for count in range(previous + 1, step + 1):  # each step of each environment
            if count % args.train_frequency == 0:
                draw_noise()
            if count % args.train_frequency == 0 and count > args.learning_starts and len(buffer) > 0:
                note_surprise()
                drawn, weights = priorities.draw(args.batch_size, beta, run.rng)
                ahead = look_ahead(buffer, drawn, args.n_step, args.gamma)
                known = courier.send(np.stack([ahead.returns, ahead.discounts, weights]))
                losses, loss, old_logpmfs = learn(batches.send(np.concatenate([drawn, ahead.last])), known)
                surprised.append((drawn, losses))
                learns = True
            if count > args.learning_starts and count % args.target_network_frequency == 0:
                target.lerp_(optimizer.flat, args.tau)

        # 3 act, and note how much the batch surprised
        actions = greedy.fetch()
        reached = envs.step(actions)
        seen_last.append((obs, actions, reached))
        obs = reached.obs
        if reached.episodes:
            run.log_episodes(step, reached.episodes)
            run.keep_best(step, q_network.state_dict)
        note_surprise()
        if learns and is_due(100, previous, step):
            old_values = old_logpmfs.exp() @ atoms
            told = {"losses/td_loss": loss.item(), "losses/q_values": old_values.mean().item()}
            run.log(step, {**told, "charts/beta": beta})
            run.log_speed(step)

        # 4 checkpoint
        if run.checkpoint_due(step):
            remember()
            obs = run.checkpoint(step, envs)

    remember()
    if args.save_model:
        run.save_policy(step, q_network.state_dict())
        run.evaluate(step, load_policy(q_network.state_dict(), envs, vars(args)), atari=True)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
