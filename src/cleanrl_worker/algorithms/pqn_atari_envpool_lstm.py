"""PQN that sees one frame at a time and remembers with an LSTM, for Atari games on EnvPool (arXiv:2407.04811).

Sibling: pqn_atari_envpool, which sees four frames and remembers nothing.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cleanrl_worker.envs import vectors
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.courier import Courier
from cleanrl_worker.learn.optim import FlatRAdam
from cleanrl_worker.nets.layers import orthogonal
from cleanrl_worker.nets.memory import RememberingPolicy
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Computed, Count, CountFrom0, Limits, RunArgs, Share, parse, require
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("discrete",)
OBSERVATION_SPACES = ("image",)
FAMILIES = ("atari", "image-games")
DEFAULT_BACKEND = "envpool"


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "Breakout-v5"
    """game to learn: Breakout-v5, ALE/Breakout-v5 or BreakoutNoFrameskip-v4 are the same here"""
    total_timesteps: Count = 10000000
    """environment steps to train for, over all environments (a step is four frames)"""
    total_frames: CountFrom0 = 0
    """frames to train for, four a step; instead of total_timesteps"""
    checkpoint_every: CountFrom0 = 1100000
    """steps between two checkpoints of the whole training state (0: only at the end and on SIGTERM)"""
    num_threads: CountFrom0 = 0
    """CPU threads for the network (0: torch's default, all cores; a convolution is worth them)"""
    learning_rate: Amount = 2.5e-4
    """step size of RAdam"""
    num_envs: Count = 8
    """environments stepped side by side"""
    num_steps: Count = 128
    """steps in each environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall to zero over the run"""
    gamma: Share = 0.99
    """discount factor"""
    num_minibatches: Annotated[int, Limits(1, "num_envs", divides="num_envs")] = 4
    """pieces that a batch is cut into; each holds all steps of some environments"""
    update_epochs: Count = 4
    """passes over a batch"""
    max_grad_norm: Amount = 0.5
    """largest norm of the gradient"""
    start_e: Share = 1.0
    """share of random actions at the start"""
    end_e: Share = 0.01
    """share of random actions in the end"""
    exploration_fraction: Amount = 0.10
    """part of the run over which that share falls"""
    q_lambda: Share = 0.65
    """lambda of the returns (0: one step and the next value, 1: as far as the batch goes)"""
    cudagraphs: bool = True
    """on a GPU, replay each update and each choice as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""
    batch_size: Computed = 0
    """set at run time: num_envs * num_steps"""
    minibatch_size: Computed = 0
    """set at run time: batch_size / num_minibatches"""
    num_iterations: Computed = 0
    """set at run time: total_timesteps / batch_size"""


Memory = tuple[torch.Tensor, torch.Tensor]
"""what an LSTM keeps of its environments: hidden and cell state, each of shape (1, environments, REMEMBERED)"""
REMEMBERED = 128


class QNetwork(nn.Module):
    """The convolutional network of Mnih et al. 2015 on one frame, an LSTM, and the value of each action."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        self.network = nn.Sequential(
            orthogonal(nn.Conv2d(1, 32, 8, stride=4)),
            nn.LayerNorm([32, 20, 20]),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
            nn.LayerNorm([64, 9, 9]),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, stride=1)),
            nn.LayerNorm([64, 7, 7]),
            nn.ReLU(),
            nn.Flatten(),
            orthogonal(nn.Linear(64 * 7 * 7, 512)),
            nn.LayerNorm(512),
            nn.ReLU(),
        )
        self.lstm = nn.LSTM(512, REMEMBERED)
        for name, parameter in self.lstm.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter)
        self.q_func = orthogonal(nn.Linear(REMEMBERED, int(envs.single_action_space.n)))

    def forward(self, frames: torch.Tensor, memory: Memory, starts: torch.Tensor) -> tuple[torch.Tensor, Memory]:
        """Values of frames of shape (steps, environments, 1, 84, 84), and what is remembered after the last.

        `memory` is what is known before the first step; where `starts` (steps, environments) is 1 it is forgotten.
        """
        pixels = frames.flatten(0, 1).to(torch.float32, memory_format=torch.channels_last) / 255.0
        known = []
        for seen, begins in zip(self.network(pixels).unflatten(0, starts.shape), starts, strict=True):
            alive = (1.0 - begins).unsqueeze(1)
            hidden, memory = self.lstm(seen.unsqueeze(0), (memory[0] * alive, memory[1] * alive))
            known.append(hidden)
        return self.q_func(torch.cat(known)), memory

    def nothing(self, num_envs: int) -> Memory:
        """The memory of environments that have shown nothing yet."""
        empty = self.q_func.weight.new_zeros(1, num_envs, REMEMBERED)
        return empty, empty.clone()


def newest(obs: np.ndarray) -> np.ndarray:
    """Of four stacked frames the last one, as bytes; environments come first."""
    return np.ascontiguousarray(obs[:, -1:])


def copy_of(memory: Memory) -> Memory:
    return memory[0].clone(), memory[1].clone()


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The greedy actions of a saved network; sampled, a share `end_e` of them is random as in the end of training."""
    q_network = QNetwork(spaces)
    q_network.load_state_dict(state)
    epsilon = float(args.get("end_e", Args.end_e))

    def begin() -> Policy:
        memory: Memory | None = None

        def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
            nonlocal memory
            if memory is None or memory[0].shape[1] != len(obs):
                memory = q_network.nothing(len(obs))
            with torch.no_grad():
                frames = torch.from_numpy(newest(obs)).unsqueeze(0)
                values, memory = q_network(frames, memory, torch.zeros(1, len(obs)))
            actions: np.ndarray = values[0].argmax(dim=1).numpy()
            if rng is None:
                return actions
            random_actions = rng.integers(0, spaces.single_action_space.n, len(obs))
            return np.where(rng.random(len(obs)) < epsilon, random_actions, actions)

        return act

    return RememberingPolicy(begin)


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
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    run = training.start(args)
    device = run.device
    envs = vectors.atari(args, run.video_folder)
    q_network = QNetwork(envs).to(device)
    # the optimizer's one vector is no layout of cuDNN's, which copies the LSTM's weights at each call
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    optimizer = FlatRAdam(q_network.parameters(), lr=args.learning_rate)
    courier = Courier(device)

    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros((*shape, 1, *envs.single_observation_space.shape[1:]), dtype=torch.uint8, device=device)
    values = torch.zeros(shape, device=device)
    actions = np.zeros(shape, np.int64)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, np.float32)
    ends = np.zeros(shape, np.float32)
    starts = torch.zeros(shape, device=device)
    fresh = torch.zeros(args.num_envs, device=device)  # 1 where the next observation is the first of a life
    on = torch.zeros((1, args.num_envs), device=device)
    step = run.restore({"policy": q_network, "optimizer": optimizer})
    args.num_iterations = -(-args.total_timesteps // args.batch_size)
    next_obs, memory = run.reset(envs, step), q_network.nothing(args.num_envs)

    @graphs.captured(run)
    @torch.no_grad()
    def judge(seen: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The values of the best actions, and these, for what is seen and from then on remembered."""
        found, remembered = q_network(seen.unsqueeze(0), memory, begins.unsqueeze(0))
        for mine, new in zip(memory, remembered, strict=True):
            mine.copy_(new)
        best = found[0].max(dim=1)
        return best.values, best.indices

    @graphs.captured(run)
    def update(
        mb_obs: torch.Tensor,
        hidden: torch.Tensor,
        cell: torch.Tensor,
        mb_starts: torch.Tensor,
        mb_actions: torch.Tensor,
        mb_returns: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Learn from whole environments: the loss, and the values of the actions that were taken."""
        old_values = q_network(mb_obs, (hidden, cell), mb_starts)[0]
        old_values = old_values.gather(2, mb_actions).squeeze(2)
        loss = F.mse_loss(old_values, mb_returns)
        optimizer.step(loss, args.max_grad_norm)
        return loss.detach(), old_values.detach()

    while step < args.total_timesteps:
        if args.anneal_lr:
            optimizer.lr = args.learning_rate * (1.0 - step // args.batch_size / args.num_iterations)

        # 1 collect
        duration = args.exploration_fraction * args.total_timesteps
        steps = range(step, step + args.batch_size, args.num_envs)
        epsilons = [linear_schedule(args.start_e, args.end_e, duration, at) for at in steps]
        explored = run.rng.random(shape) < np.array(epsilons)[:, None]
        random_actions = run.rng.integers(0, envs.single_action_space.n, shape)
        truncated_at: list[tuple[int, np.ndarray, Memory]] = []
        before = copy_of(memory)
        for t in range(args.num_steps):
            seen = courier.send(newest(next_obs))
            values[t], best = judge(seen, fresh)
            obs[t], starts[t] = seen, fresh
            actions[t] = np.where(explored[t], random_actions[t], courier.fetch(best))
            reached = envs.step(actions[t])
            next_obs = reached.obs
            step += args.num_envs
            rewards[t] = reached.rewards
            terminations[t] = reached.terminations
            ends[t] = reached.terminations | reached.truncations
            if reached.truncations.any():
                truncated_at.append((t, reached.final_obs, copy_of(memory)))
            fresh = courier.send(ends[t])
            if reached.episodes:
                run.log_episodes(step, reached.episodes)
                run.log(step, {"charts/avg_episodic_return": float(np.mean(list(run.recent)[-20:]))})

        # 2 returns
        next_values = np.empty(shape, np.float32)
        next_values[:-1] = values[1:].cpu().numpy()
        with torch.no_grad():
            last = q_network(torch.from_numpy(newest(next_obs)).to(device).unsqueeze(0), memory, fresh.unsqueeze(0))[0]
            next_values[-1] = last[0].amax(dim=1).cpu().numpy()
            for t, final_obs, then in truncated_at:
                final = q_network(torch.from_numpy(newest(final_obs)).to(device).unsqueeze(0), then, on)[0]
                next_values[t] = np.where(ends[t] > 0, final[0].amax(dim=1).cpu().numpy(), next_values[t])
        next_values *= 1.0 - terminations
        returns = lambda_returns(rewards, next_values, ends, args.gamma, args.q_lambda)
        b_actions = torch.from_numpy(actions).to(device).unsqueeze(2)
        b_returns = torch.from_numpy(returns).to(device)

        # 3 update
        for _ in range(args.update_epochs):
            for chosen in torch.randperm(args.num_envs, device=device).chunk(args.num_minibatches):
                kept = (before[0][:, chosen], before[1][:, chosen])
                others = (starts[:, chosen], b_actions[:, chosen], b_returns[:, chosen])
                loss, old_values = update(obs[:, chosen], *kept, *others)

        # 4 log, checkpoint
        run.log(step, {"losses/td_loss": loss.item(), "losses/q_values": old_values.mean().item()})
        run.log_speed(step)
        run.keep_best(step, q_network.state_dict)
        if run.checkpoint_due(step):
            next_obs = run.checkpoint(step, envs)
            fresh = torch.zeros_like(fresh)
            for part in memory:
                part.zero_()

    if args.save_model:
        run.save_policy(step, q_network.state_dict())
        run.evaluate(step, load_policy(q_network.state_dict(), envs, vars(args)), atari=True)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
