"""PPO for Atari games in several processes, on as many GPUs or on the CPU (arXiv:1707.06347). Siblings: ppo_atari."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.episodes import Episode
from cleanrl_worker.learn.optim import FlatAdam
from cleanrl_worker.learn.ranks import Follower, Ranks
from cleanrl_worker.nets.layers import orthogonal
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Computed, Count, CountFrom0, Limits, RunArgs, Share, parse, require
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
    total_frames: CountFrom0 = 0
    """frames to train for, four a step; instead of total_timesteps"""
    checkpoint_every: CountFrom0 = 1100000
    """steps between two checkpoints of the whole training state (0: only at the end and on SIGTERM)"""
    num_threads: CountFrom0 = 0
    """CPU threads for the network (0: torch's default, all cores; a convolution is worth them)"""
    learning_rate: Amount = 2.5e-4
    """step size of Adam"""
    world_size: CountFrom0 = 0
    """processes that train together (0: one for each of device_ids or, without them, each GPU; one on the CPU)"""
    device_ids: list[int] = field(default_factory=lambda: [])
    """GPUs, one for each process (empty: the first ones)"""
    backend: Literal["gloo", "nccl", "mpi"] = "gloo"
    """who carries gradients between the processes; nccl is the fastest between GPUs"""
    local_num_envs: Count = 8
    """environments stepped side by side by each process"""
    num_envs: Computed = 0
    """set at run time: local_num_envs * world_size"""
    num_steps: Count = 128
    """steps in each environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall to zero over the run"""
    gamma: Share = 0.99
    """discount factor"""
    gae_lambda: Share = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Annotated[int, Limits(1, "num_steps")] = 4
    """pieces that a batch is cut into; each has the same number of steps of every environment, num_steps at most"""
    update_epochs: Count = 4
    """passes over a batch"""
    norm_adv: bool = True
    """normalise advantages per minibatch"""
    clip_coef: Amount = 0.1
    """how far the new policy may move from the old (epsilon)"""
    clip_vloss: bool = True
    """clip the value loss too"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: Amount = 0.5
    """largest norm of the gradient"""
    target_kl: float | None = None
    """end an update early when the policy has moved this far"""
    local_batch_size: Computed = 0
    """set at run time: local_num_envs * num_steps"""
    local_minibatch_size: Computed = 0
    """set at run time: local_batch_size / num_minibatches"""
    batch_size: Computed = 0
    """set at run time: num_envs * num_steps"""
    minibatch_size: Computed = 0
    """set at run time: batch_size / num_minibatches"""
    num_iterations: Computed = 0
    """set at run time: total_timesteps / batch_size"""


class Agent(nn.Module):
    """The convolutional network of Mnih et al. 2015 with a head for the policy and one for the value."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        self.network = nn.Sequential(
            orthogonal(nn.Conv2d(4, 32, 8, stride=4)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            orthogonal(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.actor = orthogonal(nn.Linear(512, int(envs.single_action_space.n)), gain=0.01)
        self.critic = orthogonal(nn.Linear(512, 1), gain=1.0)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and values of frames given as bytes."""
        # channels last: convolutions on the CPU take two thirds of the time
        hidden = self.network(obs.to(torch.float32, memory_format=torch.channels_last) / 255.0)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The acting part of a saved agent."""
    agent = Agent(spaces)
    agent.load_state_dict(state)

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        with torch.no_grad():
            scores = agent(torch.from_numpy(obs))[0].numpy()
        return (scores if rng is None else scores + rng.gumbel(size=scores.shape)).argmax(axis=1)

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


def trouble(args: Args, observations: str | None) -> str | None:
    """Why these parameters do not go together, which the dry run asks, too; None where they do.

    It uses nothing but what it is given, and no `observations`: they are the same in all games.
    """
    if args.device_ids and args.world_size not in (0, len(args.device_ids)):
        return f"--world-size {args.world_size} needs as many --device-ids, not {len(args.device_ids)}"
    if args.curriculum_schedule or args.curriculum:
        return "ppo_atari_multigpu knows no curricula; ppo_atari does"
    return None


def settle(args: Args) -> None:
    """What follows from the number of processes; refuses what they cannot share."""
    if why := trouble(args, None):
        raise SystemExit(why)
    gpus = torch.cuda.device_count() if args.cuda else 0
    if any(device >= gpus for device in args.device_ids):
        raise SystemExit(f"--device-ids {' '.join(map(str, args.device_ids))}: this machine has {gpus} GPUs to use")
    if args.backend != "gloo" and not gpus:
        raise SystemExit(f"--backend {args.backend} is for GPUs, and there is none to use: take gloo")
    if args.backend == "mpi" and not torch.distributed.is_mpi_available():
        raise SystemExit("--backend mpi: this torch was built without MPI; take nccl or gloo")
    args.world_size = args.world_size or len(args.device_ids) or max(gpus, 1)
    args.num_threads = args.num_threads or max(1, (os.cpu_count() or 1) // args.world_size)


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    settle(args)
    ranks = Ranks(args, args.world_size, args.backend)
    args.world_size, args.num_envs = ranks.size, args.local_num_envs * ranks.size
    args.local_batch_size, args.batch_size = args.local_num_envs * args.num_steps, args.num_envs * args.num_steps
    args.local_minibatch_size = args.local_batch_size // args.num_minibatches
    args.minibatch_size = args.batch_size // args.num_minibatches
    run = training.start(args) if ranks.is_first else Follower(args, ranks)
    device = ranks.device(args.cuda, args.device_ids)
    envs = vectors.atari(replace(args, num_envs=args.local_num_envs), run.video_folder)
    agent = Agent(envs).to(device)
    optimizer = FlatAdam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    shape = (args.num_steps, args.local_num_envs)
    first = ranks.rank * args.local_num_envs  # of all environments, those from here on are this rank's
    obs = torch.zeros((*shape, *envs.single_observation_space.shape), dtype=torch.uint8, device=device)
    logprobs = torch.zeros(shape, device=device)
    values = torch.zeros(shape, device=device)
    actions = np.zeros(shape, np.int64)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, np.float32)
    ends = np.zeros(shape, np.float32)
    step = int(ranks.agree(run.restore({"policy": agent, "optimizer": optimizer})))
    ranks.share_state(optimizer)
    args.total_timesteps = int(ranks.agree(args.total_timesteps))
    args.num_iterations = -(-args.total_timesteps // args.batch_size)
    next_obs = run.reset(envs, step)

    while step < args.total_timesteps:
        if args.anneal_lr:
            optimizer.lr = args.learning_rate * (1.0 - step // args.batch_size / args.num_iterations)

        # 1 collect
        # Chance depends on the step, and each rank takes its part of it: one process with all environments would
        # do the same, and no rank has a generator to save.
        rng = np.random.default_rng((args.seed, step))
        noise = rng.gumbel(size=(args.num_steps, args.num_envs, envs.single_action_space.n)).astype(np.float32)
        noise = noise[:, first : first + args.local_num_envs]
        truncated_at: list[tuple[int, np.ndarray]] = []
        ended: list[tuple[int, Episode]] = []
        for t in range(args.num_steps):
            obs[t] = torch.from_numpy(next_obs)
            with torch.no_grad():
                logits, values[t] = agent(obs[t])
                # Gumbel-max: a sample of softmax(logits)
                action = (logits + torch.from_numpy(noise[t]).to(device)).argmax(dim=1)
                logprobs[t] = F.log_softmax(logits, dim=-1).gather(1, action.unsqueeze(1)).squeeze(1)
            actions[t] = action.cpu().numpy()
            reached = envs.step(actions[t])
            next_obs = reached.obs
            step += args.num_envs
            rewards[t] = reached.rewards
            terminations[t] = reached.terminations
            ends[t] = reached.terminations | reached.truncations
            if reached.truncations.any():
                truncated_at.append((t, reached.final_obs))
            ended += [(step, episode._replace(env=first + episode.env)) for episode in reached.episodes]
        for then, episode in ranks.gather(ended):
            run.log_episodes(then, [episode])

        # 2 advantages
        b_obs, b_logprobs, b_values = obs.flatten(0, 1), logprobs.flatten(), values.flatten()
        b_actions = torch.from_numpy(actions.reshape(-1)).to(device)
        old_values = values.cpu().numpy()
        next_values = np.empty_like(old_values)
        next_values[:-1] = old_values[1:]
        with torch.no_grad():
            next_values[-1] = agent(torch.from_numpy(next_obs).to(device))[1].cpu().numpy()
            for t, final_obs in truncated_at:
                final_values = agent(torch.from_numpy(final_obs).to(device))[1].cpu().numpy()
                next_values[t] = np.where(ends[t] > 0, final_values, next_values[t])
        next_values *= 1.0 - terminations
        advantages = gae(rewards, old_values, next_values, ends, args.gamma, args.gae_lambda)
        b_advantages = torch.from_numpy(advantages.reshape(-1)).to(device)
        b_returns = b_advantages + b_values

        # 3 update
        ratios = []
        for _ in range(args.update_epochs):
            # every environment's steps in an order of their own, cut into pieces: ranks have equal parts of each
            times = rng.permuted(np.tile(np.arange(args.num_steps), (args.num_envs, 1)), axis=1)
            own = times[first : first + args.local_num_envs] * args.local_num_envs
            own += np.arange(args.local_num_envs)[:, None]
            batch = (b_obs, b_actions, b_logprobs, b_advantages, b_returns, b_values)
            for piece in np.array_split(own, args.num_minibatches, axis=1):
                rows = torch.from_numpy(piece.reshape(-1)).to(device)
                mb_obs, mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values = (part[rows] for part in batch)
                logits, new_values = agent(mb_obs)
                new_logprobs = F.log_softmax(logits, dim=-1)
                logratio = new_logprobs.gather(1, mb_actions.unsqueeze(1)).squeeze(1) - mb_logprobs
                ratio = logratio.exp()
                ratios.append(ratio.detach())

                if args.norm_adv:
                    exact = mb_advantages.double()
                    mean, square = ranks.mean(torch.stack([exact.mean(), (exact**2).mean()]))
                    count = len(rows) * ranks.size
                    std = ((square - mean**2).clamp(min=0.0) * (count / max(count - 1, 1))).sqrt()
                    mb_advantages = ((exact - mean) / (std + 1e-8)).float()
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = -torch.min(mb_advantages * ratio, mb_advantages * clipped).mean()

                v_error = (new_values - mb_returns) ** 2
                if args.clip_vloss:
                    v_clipped = mb_values + (new_values - mb_values).clamp(-args.clip_coef, args.clip_coef)
                    v_error = torch.max(v_error, (v_clipped - mb_returns) ** 2)
                v_loss = 0.5 * v_error.mean()

                entropy = -(new_logprobs.exp() * new_logprobs).sum(dim=1).mean()
                loss = pg_loss - args.ent_coef * entropy + args.vf_coef * v_loss
                optimizer.apply([ranks.mean_gradient(loss, optimizer.parameters)], args.max_grad_norm)
            # http://joschu.net/blog/kl-approx.html, k3
            approx_kl = ranks.mean((ratio - 1 - logratio).detach().mean()).item()
            if args.target_kl is not None and approx_kl > args.target_kl:
                break

        # 4 log, checkpoint
        clipfrac = ((torch.cat(ratios) - 1.0).abs() > args.clip_coef).float().mean()
        told = torch.stack([v_loss, pg_loss, entropy, -logratio.mean(), clipfrac]).detach()
        losses = ranks.mean(told).tolist()
        reached_values = old_values + advantages
        moments = [m for x in (reached_values, advantages) for m in (x.mean(), (x.astype(np.float64) ** 2).mean())]
        mean_return, square_return, mean_advantage, square_advantage = ranks.mean(
            torch.tensor(moments).double()
        ).tolist()
        variance = square_return - mean_return**2
        run.log(
            step,
            {
                "charts/learning_rate": optimizer.lr,
                "losses/value_loss": losses[0],
                "losses/policy_loss": losses[1],
                "losses/entropy": losses[2],
                "losses/old_approx_kl": losses[3],
                "losses/approx_kl": approx_kl,
                "losses/clipfrac": losses[4],
                "losses/explained_variance": 1 - (square_advantage - mean_advantage**2) / variance
                if variance > 0
                else float("nan"),
            },
        )
        run.log_speed(step)
        run.keep_best(step, agent.state_dict)
        if ranks.agree(run.checkpoint_due(step)):
            next_obs = run.checkpoint(step, envs)

    if args.save_model and isinstance(run, training.Run):
        run.save_policy(step, agent.state_dict())
        run.evaluate(step, load_policy(agent.state_dict(), envs, vars(args)), atari=True)
    envs.close()
    run.finish(step)
    ranks.leave()


if __name__ == "__main__":
    main()
