"""PPO that is curious: random network distillation pays for what looks new, for Atari on EnvPool (arXiv:1810.12894).

Sibling: ppo_atari_envpool, which learns from the game's rewards alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.views import view_of
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.courier import Courier
from cleanrl_worker.learn.normalize import RunningStatistics
from cleanrl_worker.learn.optim import FlatAdam
from cleanrl_worker.nets.layers import numbers, orthogonal
from cleanrl_worker.run import training
from cleanrl_worker.run.args import (
    Amount,
    Computed,
    Count,
    CountFrom0,
    Pieces,
    RunArgs,
    Share,
    check_minibatches,
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
    env_id: str = "MontezumaRevenge-v5"
    """game to learn: Breakout-v5, ALE/Breakout-v5 or BreakoutNoFrameskip-v4 are the same here"""
    total_timesteps: Count = 2000000000
    """environment steps to train for, over all environments (a step is four frames)"""
    total_frames: CountFrom0 = 0
    """frames to train for, four a step; instead of total_timesteps"""
    checkpoint_every: CountFrom0 = 20000000
    """steps between two checkpoints of the whole training state (0: only at the end and on SIGTERM)"""
    num_threads: CountFrom0 = 0
    """CPU threads for the network (0: torch's default, all cores; a convolution is worth them)"""
    learning_rate: Amount = 1e-4
    """step size of Adam"""
    num_envs: Count = 128
    """environments stepped side by side"""
    num_steps: Count = 128
    """steps in each environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall to zero over the run"""
    gamma: Share = 0.999
    """discount factor of the game's rewards"""
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
    ent_coef: float = 0.001
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: Amount = 0.5
    """largest norm of the gradient"""
    target_kl: float | None = None
    """end an update early when the policy has moved this far"""
    update_proportion: Share = 0.25
    """share of each minibatch that the predictor learns from"""
    int_coef: float = 1.0
    """weight of the advantages of curiosity"""
    ext_coef: float = 2.0
    """weight of the advantages of the game's rewards"""
    int_gamma: Share = 0.99
    """discount factor of curiosity"""
    num_iterations_obs_norm_init: CountFrom0 = 50
    """batches of random play before training, from which the scale of frames is known"""
    repeat_action_probability: Share = 0.25
    """how often the game takes the last action again instead of the new one; CleanRL's is 0.25"""
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


class Agent(nn.Module):
    """The convolutional network of Mnih et al. 2015 with a policy and two values: of the game and of curiosity."""

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
            orthogonal(nn.Linear(64 * 7 * 7, 256)),
            nn.ReLU(),
            orthogonal(nn.Linear(256, 448)),
            nn.ReLU(),
        )
        self.extra_layer = nn.Sequential(orthogonal(nn.Linear(448, 448), gain=0.1), nn.ReLU())
        self.actor = nn.Sequential(
            orthogonal(nn.Linear(448, 448), gain=0.01),
            nn.ReLU(),
            orthogonal(nn.Linear(448, int(envs.single_action_space.n)), gain=0.01),
        )
        self.critic_ext = orthogonal(nn.Linear(448, 1), gain=0.01)
        self.critic_int = orthogonal(nn.Linear(448, 1), gain=0.01)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits, values of the game and of curiosity, of frames given as bytes."""
        # channels last: convolutions on the CPU take two thirds of the time
        hidden = self.network(obs.to(torch.float32, memory_format=torch.channels_last) / 255.0)
        features = hidden + self.extra_layer(hidden)
        return self.actor(hidden), self.critic_ext(features).squeeze(-1), self.critic_int(features).squeeze(-1)


class Novelty(nn.Module):
    """A random network, and one that learns to foretell it: where it fails, little like this was seen before."""

    def __init__(self) -> None:
        super().__init__()
        self.predictor = nn.Sequential(
            *_convolutions(),
            orthogonal(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
            orthogonal(nn.Linear(512, 512)),
            nn.ReLU(),
            orthogonal(nn.Linear(512, 512)),
        )
        self.target = nn.Sequential(*_convolutions(), orthogonal(nn.Linear(64 * 7 * 7, 512))).requires_grad_(False)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """By how much each feature of each normalised frame is foretold wrongly, squared."""
        frames = frames.contiguous(memory_format=torch.channels_last)
        return (self.predictor(frames) - self.target(frames)) ** 2


def _convolutions() -> list[nn.Module]:
    return [
        orthogonal(nn.Conv2d(1, 32, 8, stride=4)),
        nn.LeakyReLU(),
        orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
        nn.LeakyReLU(),
        orthogonal(nn.Conv2d(64, 64, 3, stride=1)),
        nn.LeakyReLU(),
        nn.Flatten(),
    ]


class FrameScale:
    """Mean and variance of each pixel of the frames so far: curiosity sees them at unit scale, clipped to ±5."""

    def __init__(self, device: torch.device) -> None:
        self.statistics = RunningStatistics((1, 84, 84))
        self._shift, self._scale = torch.zeros((2, 1, 84, 84), device=device)
        self.refresh()

    def observe(self, obs: torch.Tensor) -> None:
        """Take the newest of each four frames into account, where they are: on a GPU they stay there."""
        total, squares = torch.zeros((2, 1, 84, 84), dtype=torch.float64, device=obs.device)
        newest = obs[:, :, 3].flatten(0, 1)
        for part in newest.split(256):  # of so many bytes float32 adds even the squares without rounding
            pixels = part.float()
            total += pixels.sum(dim=0)
            squares += (pixels * pixels).sum(dim=0)
        mean = total / len(newest)
        self.statistics.merge(mean.cpu().numpy(), (squares - total * mean).cpu().numpy(), len(newest))
        self.refresh()

    def refresh(self) -> None:
        """Take today's statistics."""
        self._shift.copy_(torch.from_numpy(self.statistics.mean.astype(np.float32)))
        self._scale.copy_(torch.from_numpy(np.sqrt(self.statistics.var + 1e-8).astype(np.float32)))

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        """Frames given as bytes, normalised."""
        return ((frames.float() - self._shift) / self._scale).clamp(-5, 5)


class CuriosityScale:
    """Curiosity divided by the deviation of its discounted sum; a sum never ends, as no life ends being curious."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma, self.sums, self.statistics = gamma, np.zeros(num_envs), RunningStatistics(())

    def observe(self, curiosity: np.ndarray) -> np.ndarray:
        """Rewards of shape (steps, environments), scaled."""
        for t in range(len(curiosity)):
            self.sums = self.sums * self.gamma + curiosity[t]
            self.statistics.update(self.sums)
        return (curiosity / np.sqrt(self.statistics.var + 1e-8)).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums, "statistics": self.statistics.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if len(state["sums"]) == len(self.sums):  # with another number of environments the sums start anew
            self.sums = np.array(state["sums"])
        self.statistics.load_state_dict({key.removeprefix("statistics/"): state[key] for key in state})


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


def play_at_random(
    args: Args, envs: vectors.VectorEnvs, rng: np.random.Generator, obs: torch.Tensor, frames: FrameScale
) -> None:
    """Some batches of steps, kept in `obs` one after the other, from which the scale of frames is known."""
    envs.reset(args.seed)
    batches = args.num_iterations_obs_norm_init
    for batch in range(batches):
        if batch % max(batches // 10, 1) == 0:
            played, planned = batch * args.batch_size, batches * args.batch_size
            print(f"playing at random, to know the scale of frames: {played:,} of {planned:,} steps", flush=True)
        for t in range(args.num_steps):
            chosen = rng.integers(0, envs.single_action_space.n, args.num_envs)
            obs[t] = torch.from_numpy(envs.step(chosen).obs)
        frames.observe(obs)


class Losses(NamedTuple):
    """Means over a minibatch, and how much likelier each of its actions has become."""

    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    forward: torch.Tensor
    logratio: torch.Tensor
    ratio: torch.Tensor


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    if args.norm_adv:
        check_minibatches(args.batch_size, args.num_minibatches)
    run = training.start(args)
    device = run.device
    view = view_of(args.env_id, vars(args))
    envs = vectors.atari(args, run.video_folder, view)
    agent = Agent(envs).to(device)
    novelty = Novelty().to(device)
    learned = [*agent.parameters(), *novelty.predictor.parameters()]
    optimizer = FlatAdam(learned, lr=args.learning_rate, eps=1e-5)
    frames, curiosity_scale = FrameScale(device), CuriosityScale(args.num_envs, args.int_gamma)
    courier = Courier(device)

    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros((*shape, *envs.single_observation_space.shape), dtype=torch.uint8, device=device)
    logprobs = torch.zeros(shape, device=device)
    values = torch.zeros((2, *shape), device=device)  # of the game, of curiosity
    curiosity = torch.zeros(shape, device=device)
    actions = np.zeros(shape, np.int64)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, np.float32)
    ends = np.zeros(shape, np.float32)
    step = run.restore(
        {
            "policy": agent,
            "optimizer": optimizer,
            "novelty": novelty,
            "frames": frames.statistics,
            "curiosity": curiosity_scale,
        }
    )
    frames.refresh()
    args.num_iterations = -(-args.total_timesteps // args.batch_size)
    if step == 0:  # before the run's own reset: a signal still ends it at once, and its time is not the training's
        play_at_random(args, envs, run.rng, obs, frames)
    next_obs = run.reset(envs, step)

    @graphs.captured(run)
    @torch.no_grad()
    def act(seen: torch.Tensor, gumbel: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Actions, their log-probabilities, and the values of the game and of curiosity."""
        logits, ext_values, int_values = agent(seen)
        action = (logits + gumbel).argmax(dim=1)  # Gumbel-max: a sample of softmax(logits)
        logprob = F.log_softmax(logits, dim=-1).gather(1, action.unsqueeze(1)).squeeze(1)
        return action, logprob, ext_values, int_values

    @graphs.captured(run)
    @torch.no_grad()
    def wonder(led_to: torch.Tensor) -> torch.Tensor:
        """How new the frames are that actions led to."""
        return novelty(frames(led_to)).sum(dim=1) / 2

    @graphs.captured(run)
    def update(
        mb_obs: torch.Tensor,
        mb_actions: torch.Tensor,
        mb_logprobs: torch.Tensor,
        mb_advantages: torch.Tensor,
        mb_ext_returns: torch.Tensor,
        mb_int_returns: torch.Tensor,
        mb_values: torch.Tensor,
    ) -> Losses:
        """Learn from a minibatch."""
        # a minibatch lies in random order: its first rows are a random share of it
        learned_from = math.ceil(len(mb_obs) * args.update_proportion - 1e-9)  # 100 * 0.07 is a little over 7
        error = novelty(frames(mb_obs[:learned_from, 3:])).mean(dim=1)
        forward_loss = error.sum() / max(len(error), 1)

        logits, ext_values, int_values = agent(mb_obs)
        new_logprobs = F.log_softmax(logits, dim=-1)
        logratio = new_logprobs.gather(1, mb_actions.unsqueeze(1)).squeeze(1) - mb_logprobs
        ratio = logratio.exp()

        if args.norm_adv:
            mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
        clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
        pg_loss = -torch.min(mb_advantages * ratio, mb_advantages * clipped).mean()

        v_error = (ext_values - mb_ext_returns) ** 2
        if args.clip_vloss:
            v_clipped = mb_values + (ext_values - mb_values).clamp(-args.clip_coef, args.clip_coef)
            v_error = torch.max(v_error, (v_clipped - mb_ext_returns) ** 2)
        v_loss = 0.5 * v_error.mean() + 0.5 * F.mse_loss(int_values, mb_int_returns)

        entropy = -(new_logprobs.exp() * new_logprobs).sum(dim=1).mean()
        loss = pg_loss - args.ent_coef * entropy + args.vf_coef * v_loss + forward_loss
        optimizer.step(loss, args.max_grad_norm)
        return Losses(*(found.detach() for found in (pg_loss, v_loss, entropy, forward_loss, logratio, ratio)))

    while step < args.total_timesteps:
        if args.anneal_lr:
            optimizer.lr = args.learning_rate * (1.0 - step // args.batch_size / args.num_iterations)

        # 1 collect
        noise = numbers(run.rng.gumbel(size=(*shape, envs.single_action_space.n)), device)
        truncated_at: list[tuple[int, np.ndarray]] = []
        for t in range(args.num_steps):
            seen = courier.send(next_obs)
            action, logprobs[t], values[0, t], values[1, t] = act(seen, noise[t])
            obs[t] = seen
            actions[t] = courier.fetch(action)
            reached = envs.step(actions[t])
            next_obs = reached.obs
            step += args.num_envs
            rewards[t] = reached.rewards
            terminations[t] = reached.terminations
            ends[t] = reached.terminations | reached.truncations
            curiosity[t] = wonder(courier.send(reached.final_obs[:, 3:]))
            if reached.truncations.any():
                truncated_at.append((t, reached.final_obs))
            if reached.episodes:
                run.log_episodes(step, reached.episodes)
                run.log(step, {"charts/avg_episodic_return": float(np.mean(list(run.recent)[-20:]))})
                for episode in reached.episodes:
                    run.log(step, {"charts/episode_curiosity_reward": float(curiosity[t, episode.env])})

        # 2 advantages: those of the game end with an episode, those of curiosity never
        b_obs, b_logprobs, b_values = obs.flatten(0, 1), logprobs.flatten(), values.flatten(1)
        b_actions = torch.from_numpy(actions.reshape(-1)).to(device)
        old_values = values.cpu().numpy()
        next_values = np.empty_like(old_values)
        next_values[:, :-1] = old_values[:, 1:]
        with torch.no_grad():
            last = agent(torch.from_numpy(next_obs).to(device))[1:]
            next_values[:, -1] = torch.stack(last).cpu().numpy()
            for t, final_obs in truncated_at:
                final_values = agent(torch.from_numpy(final_obs).to(device))[1].cpu().numpy()
                next_values[0, t] = np.where(ends[t] > 0, final_values, next_values[0, t])
        next_values[0] *= 1.0 - terminations
        ext_advantages = gae(rewards, old_values[0], next_values[0], ends, args.gamma, args.gae_lambda)
        paid = curiosity_scale.observe(curiosity.cpu().numpy())
        never = np.zeros_like(ends)
        int_advantages = gae(paid, old_values[1], next_values[1], never, args.int_gamma, args.gae_lambda)
        advantages = args.ext_coef * ext_advantages + args.int_coef * int_advantages
        b_advantages = torch.from_numpy(advantages.reshape(-1)).to(device)
        b_ext_returns = torch.from_numpy(ext_advantages.reshape(-1)).to(device) + b_values[0]
        b_int_returns = torch.from_numpy(int_advantages.reshape(-1)).to(device) + b_values[1]
        frames.observe(obs)

        # 3 update
        batch = (b_obs, b_actions, b_logprobs, b_advantages, b_ext_returns, b_int_returns, b_values[0])
        for _ in range(args.update_epochs):
            order = torch.randperm(args.batch_size, device=device)
            for rows in order.split(args.minibatch_size):
                losses = update(*(whole[rows] for whole in batch))
            # http://joschu.net/blog/kl-approx.html, k3
            approx_kl = (losses.ratio - 1 - losses.logratio).mean()
            if args.target_kl is not None and approx_kl.item() > args.target_kl:
                break

        # 4 log, checkpoint
        run.log(
            step,
            {
                "charts/learning_rate": optimizer.lr,
                "losses/value_loss": losses.value.item(),
                "losses/policy_loss": losses.policy.item(),
                "losses/entropy": losses.entropy.item(),
                "losses/old_approx_kl": -losses.logratio.mean().item(),
                "losses/approx_kl": approx_kl.item(),
                "losses/fwd_loss": losses.forward.item(),
            },
        )
        run.log_speed(step)
        run.keep_best(step, agent.state_dict)
        if run.checkpoint_due(step):
            next_obs = run.checkpoint(step, envs)

    if args.save_model:
        run.save_policy(step, agent.state_dict())
        run.evaluate(step, load_policy(agent.state_dict(), envs, vars(args)), atari=True, view=view)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
