"""DQN for Atari games (Mnih et al. 2015). Siblings: dqn, c51_atari, rainbow_atari, qdagger_dqn_atari_impalacnn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from cleanrl_worker.run.args import Amount, Count, CountFrom0, RunArgs, Share, Stacks, parse, require
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
    learning_rate: Amount = 1e-4
    """step size of Adam"""
    num_envs: Count = 1
    """environments stepped side by side"""
    buffer_size: Stacks = 1000000
    """transitions that the replay memory holds (a million takes 7.6 GB)"""
    gamma: Share = 0.99
    """discount factor"""
    tau: Share = 1.0
    """share of the online network that enters the target network (1: a plain copy)"""
    target_network_frequency: Count = 1000
    """environment steps between two updates of the target network, over all environments"""
    batch_size: Count = 32
    """transitions per update"""
    start_e: Share = 1.0
    """share of random actions at the start"""
    end_e: Share = 0.01
    """share of random actions in the end"""
    exploration_fraction: Amount = 0.1
    """part of the run over which that share falls"""
    learning_starts: CountFrom0 = 80000
    """steps before the first update"""
    train_frequency: Count = 4
    """environment steps between two updates, over all environments"""
    cudagraphs: bool = True
    """on a GPU, replay each update and each choice as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""


class QNetwork(nn.Module):
    """Four grey frames to the value of each action."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
            nn.Linear(512, int(envs.single_action_space.n)),
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Values of frames given as bytes."""
        # channels last: convolutions on the CPU take two thirds of the time
        return self.network(obs.to(torch.float32, memory_format=torch.channels_last) / 255.0)


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The greedy actions of a saved network; sampled, a share `end_e` of them is random as in the end of training."""
    q_network = QNetwork(spaces)
    q_network.load_state_dict(state)
    epsilon = float(args.get("end_e", Args.end_e))

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        with torch.no_grad():
            actions = q_network(torch.from_numpy(obs)).numpy().argmax(axis=1)
        if rng is None:
            return actions
        random_actions = rng.integers(0, spaces.single_action_space.n, len(obs))
        return np.where(rng.random(len(obs)) < epsilon, random_actions, actions)

    return act


def linear_schedule(start: float, end: float, duration: float, step: int) -> float:
    """From start to end over `duration` steps, then constant."""
    return max(end, start + (end - start) * step / max(duration, 1))


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    run = training.start(args)
    device = run.device
    envs = vectors.atari(args, run.video_folder)
    q_network = QNetwork(envs).to(device)
    target_network = QNetwork(envs).to(device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = FlatAdam(q_network.parameters(), lr=args.learning_rate)
    target = flattened(target_network.parameters())
    buffer = FrameReplay(args.buffer_size, envs.single_observation_space.shape)
    batches = FrameBatches(buffer, args.batch_size, device)
    courier = Courier(device)
    step = run.restore({"policy": q_network, "target": target_network, "optimizer": optimizer}, buffer)
    obs = run.reset(envs, step)
    seen_last: list[tuple[np.ndarray, np.ndarray, Step]] = []

    def remember() -> None:
        """Put the last step into the memory: not at once, but while a GPU chooses the next actions."""
        if seen_last:
            buffer.add(*seen_last.pop())

    @courier.both_ways(run)
    @torch.no_grad()
    def choose(seen: torch.Tensor) -> torch.Tensor:
        """The greedy actions."""
        return q_network(seen).argmax(dim=1)

    @graphs.captured(run)
    def learn(drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and the values of the actions that were taken."""
        batch = batches.at(drawn)
        with torch.no_grad():
            target_max = target_network(batch.next_obs).max(dim=1).values
            td_target = batch.rewards + args.gamma * (1.0 - batch.terminations) * target_max
        old_values = q_network(batch.obs).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        loss = F.mse_loss(old_values, td_target)
        optimizer.step(loss)
        return loss.detach(), old_values.detach()

    while step < args.total_timesteps:
        previous, step = step, step + args.num_envs

        # 1 choose
        start_e = args.end_e if run.warm else args.start_e
        epsilon = linear_schedule(start_e, args.end_e, args.exploration_fraction * args.total_timesteps, previous)
        explores = run.rng.random(args.num_envs) < epsilon
        random_actions = run.rng.integers(0, envs.single_action_space.n, args.num_envs)
        if not explores.all():
            greedy = choose(obs)

        # 2 remember, learn, move the target network: before acting, so that a GPU computes while the environments step
        remember()
        learns = False
        for count in range(max(previous, args.learning_starts) + 1, step + 1):  # each step of each environment
            if count % args.train_frequency == 0 and len(buffer) > 0:
                loss, old_values = learn(batches.draw(run.rng))
                learns = True
            if count % args.target_network_frequency == 0:
                target.lerp_(optimizer.flat, args.tau)

        # 3 act
        actions = random_actions if explores.all() else np.where(explores, random_actions, greedy.fetch())
        reached = envs.step(actions)
        seen_last.append((obs, actions, reached))
        obs = reached.obs
        if reached.episodes:
            run.log_episodes(step, reached.episodes)
            run.keep_best(step, q_network.state_dict)
        if learns and is_due(100, previous, step):
            run.log(step, {"losses/td_loss": loss.item(), "losses/q_values": old_values.mean().item()})
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
