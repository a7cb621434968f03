"""PPO that plays all sides of an Atari game for several players, from PettingZoo (arXiv:1707.06347).

One network learns from all players at once (self-play). Its best policy is the one whose players win the most on
average; where one's gain is another's loss that is 0 for all, and the newest is kept. Sibling: ppo_atari_envpool.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.players import FRAMES, MatchView, register
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.courier import Courier
from cleanrl_worker.learn.optim import FlatAdam
from cleanrl_worker.nets.layers import numbers, orthogonal
from cleanrl_worker.run import training
from cleanrl_worker.run.args import (
    Amount,
    Count,
    CountFrom0,
    CountFrom2,
    Pieces,
    RunArgs,
    Share,
    check_minibatches,
    parse,
    require,
)
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("multi_discrete",)
OBSERVATION_SPACES = ("image",)
FAMILIES = ("multiplayer",)


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "pong_v3"
    """game to learn, one of PettingZoo's: pong_v3, boxing_v2, tennis_v3, …"""
    total_timesteps: Count = 20000000
    """steps to train for, over all players (a step is four frames)"""
    checkpoint_every: CountFrom0 = 1100000
    """steps between two checkpoints of the whole training state (0: only at the end and on SIGTERM)"""
    num_threads: CountFrom0 = 0
    """CPU threads for the network (0: torch's default, all cores; a convolution is worth them)"""
    learning_rate: Amount = 2.5e-4
    """step size of Adam"""
    num_envs: CountFrom2 = 16
    """players in all games side by side: 16 are 8 games for two"""
    vectorization: Literal["sync"] = "sync"
    """games for several players are stepped in one process"""
    num_steps: Count = 128
    """steps in each environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall to zero over the run"""
    gamma: Share = 0.99
    """discount factor"""
    gae_lambda: Share = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Pieces = 4
    """pieces that a batch is cut into"""
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
    cudagraphs: bool = True
    """on a GPU, replay each update and each choice as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""


class Agent(nn.Module):
    """The convolutional network of Mnih et al. 2015 with a head for the policy and one for the value."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        channels, actions = envs.single_observation_space.shape[1], int(envs.single_action_space.nvec[0])
        self.network = nn.Sequential(
            orthogonal(nn.Conv2d(channels, 32, 8, stride=4)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            orthogonal(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.actor = orthogonal(nn.Linear(512, actions), gain=0.01)
        self.critic = orthogonal(nn.Linear(512, 1), gain=1.0)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and values of frames given as bytes, behind which a plane of ones tells whose they are."""
        # channels last: convolutions on the CPU take two thirds of the time
        pixels = obs.to(torch.float32, memory_format=torch.channels_last)
        pixels[:, :FRAMES] /= 255.0
        hidden = self.network(pixels)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The acting part of a saved agent, for all players of a game."""
    agent = Agent(spaces)
    agent.load_state_dict(state)

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        with torch.no_grad():
            scores = agent(torch.from_numpy(obs).flatten(0, 1))[0].numpy().reshape(*obs.shape[:2], -1)
        return (scores if rng is None else scores + rng.gumbel(size=scores.shape)).argmax(axis=2)

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
    """Means over a minibatch, and how much likelier each of its actions has become."""

    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    logratio: torch.Tensor
    ratio: torch.Tensor


def count_players(args: Args) -> int:
    """How many players the game is for; what cannot be played is refused."""
    players = register(args.env_id)
    if args.num_envs % players:
        raise SystemExit(
            f"--num-envs ({args.num_envs}) counts players: for {args.env_id} it must be a multiple of {players}"
        )
    if args.curriculum_schedule or args.curriculum:
        raise SystemExit("a curriculum is for one player: leave --curriculum-schedule and --curriculum out")
    return players


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    players = count_players(args)
    batch_size = args.num_envs * args.num_steps
    minibatch_size = batch_size // args.num_minibatches
    if args.norm_adv:
        check_minibatches(batch_size, args.num_minibatches)
    run = training.start(args)
    device = run.device
    view = MatchView()
    envs = vectors.vector(replace(args, num_envs=args.num_envs // players), run.video_folder, view)
    obs_shape, num_actions = envs.single_observation_space.shape[1:], int(envs.single_action_space.nvec[0])
    agent = Agent(envs).to(device)
    optimizer = FlatAdam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    courier = Courier(device)

    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros((*shape, *obs_shape), dtype=torch.uint8, device=device)
    logprobs = torch.zeros(shape, device=device)
    values = torch.zeros(shape, device=device)
    actions = np.zeros(shape, np.int64)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, np.float32)
    ends = np.zeros(shape, np.float32)
    step = run.restore({"policy": agent, "optimizer": optimizer})
    num_iterations = -(-args.total_timesteps // batch_size)
    next_obs = run.reset(envs, step)
    returns = np.zeros((len(view.matches), players))
    zero_sum = True  # as far as was seen

    @graphs.captured(run)
    @torch.no_grad()
    def act(seen: torch.Tensor, gumbel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions, their log-probabilities, and the values of what is seen."""
        logits, seen_values = agent(seen)
        action = (logits + gumbel).argmax(dim=1)  # Gumbel-max: a sample of softmax(logits)
        return action, F.log_softmax(logits, dim=-1).gather(1, action.unsqueeze(1)).squeeze(1), seen_values

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
        logits, new_values = agent(mb_obs)
        new_logprobs = F.log_softmax(logits, dim=-1)
        logratio = new_logprobs.gather(1, mb_actions.unsqueeze(1)).squeeze(1) - mb_logprobs
        ratio = logratio.exp()

        if args.norm_adv:
            mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
        clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
        pg_loss = -torch.min(mb_advantages * ratio, mb_advantages * clipped).mean()

        v_error = (new_values - mb_returns) ** 2
        if args.clip_vloss:
            v_clipped = mb_values + (new_values - mb_values).clamp(-args.clip_coef, args.clip_coef)
            v_error = torch.max(v_error, (v_clipped - mb_returns) ** 2)
        v_loss = 0.5 * v_error.mean()

        entropy = -(new_logprobs.exp() * new_logprobs).sum(dim=1).mean()
        optimizer.step(pg_loss - args.ent_coef * entropy + args.vf_coef * v_loss, args.max_grad_norm)
        return Losses(*(found.detach() for found in (pg_loss, v_loss, entropy, logratio, ratio)))

    while step < args.total_timesteps:
        if args.anneal_lr:
            optimizer.lr = args.learning_rate * (1.0 - step // batch_size / num_iterations)

        # 1 collect
        noise = numbers(run.rng.gumbel(size=(*shape, num_actions)), device)
        truncated_at: list[tuple[int, np.ndarray]] = []
        for t in range(args.num_steps):
            seen = courier.send(next_obs.reshape(-1, *obs_shape))
            action, logprobs[t], values[t] = act(seen, noise[t])
            obs[t] = seen
            actions[t] = courier.fetch(action)
            reached = envs.step(actions[t].reshape(-1, players))
            next_obs = reached.obs
            step += args.num_envs
            raw = np.stack([match.rewards for match in view.matches])
            rewards[t] = raw.clip(-1, 1).reshape(-1)
            terminations[t] = reached.terminations.repeat(players)
            ends[t] = (reached.terminations | reached.truncations).repeat(players)
            if reached.truncations.any():
                truncated_at.append((t, reached.final_obs))
            returns += raw
            zero_sum = zero_sum and not raw.sum(axis=1).any()
            if reached.episodes:  # whose returns are the first player's
                run.log_episodes(step, reached.episodes, [returns[one.env].mean() for one in reached.episodes])
                for episode in reached.episodes:
                    for player, whole in enumerate(returns[episode.env].tolist()):
                        told = {"return": whole, "length": episode.length}
                        run.log(step, {f"charts/episodic_{name}-player{player}": told[name] for name in told})
                    returns[episode.env] = 0.0

        # 2 advantages
        b_obs, b_logprobs, b_values = obs.flatten(0, 1), logprobs.flatten(), values.flatten()
        b_actions = torch.from_numpy(actions.reshape(-1)).to(device)
        old_values = values.cpu().numpy()
        next_values = np.empty_like(old_values)
        next_values[:-1] = old_values[1:]
        with torch.no_grad():
            next_values[-1] = agent(torch.from_numpy(next_obs).flatten(0, 1).to(device))[1].cpu().numpy()
            for t, final_obs in truncated_at:
                final_values = agent(torch.from_numpy(final_obs).flatten(0, 1).to(device))[1].cpu().numpy()
                next_values[t] = np.where(ends[t] > 0, final_values, next_values[t])
        next_values *= 1.0 - terminations
        advantages = gae(rewards, old_values, next_values, ends, args.gamma, args.gae_lambda)
        b_advantages = torch.from_numpy(advantages.reshape(-1)).to(device)
        b_returns = b_advantages + b_values

        # 3 update
        ratios = []
        for _ in range(args.update_epochs):
            order = torch.randperm(batch_size, device=device)
            batch = (b_obs, b_actions, b_logprobs, b_advantages, b_returns, b_values)
            for minibatch in zip(*(whole[order].split(minibatch_size) for whole in batch), strict=True):
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
                "losses/value_loss": losses.value.item(),
                "losses/policy_loss": losses.policy.item(),
                "losses/entropy": losses.entropy.item(),
                "losses/old_approx_kl": -losses.logratio.mean().item(),
                "losses/approx_kl": approx_kl.item(),
                "losses/clipfrac": ((torch.cat(ratios) - 1.0).abs() > args.clip_coef).float().mean().item(),
                "losses/explained_variance": float(1 - np.var(advantages) / variance) if variance > 0 else float("nan"),
            },
        )
        run.log_speed(step)
        run.keep_best(step, agent.state_dict)
        if run.checkpoint_due(step):
            next_obs = run.checkpoint(step, envs)
            returns[:] = 0.0

    if args.save_model:
        if zero_sum:
            print("one player's gain is another's loss: no policy is the best by returns, the newest is kept as such")
        run.save_policy(step, agent.state_dict())
        run.evaluate(step, load_policy(agent.state_dict(), envs, vars(args)), view=MatchView())
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
