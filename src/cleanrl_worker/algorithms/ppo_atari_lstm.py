"""PPO for Atari games seen one frame at a time, with an LSTM that remembers (arXiv:1707.06347). Siblings: ppo_atari.

Only its choices are replayed as CUDA graphs: an update calls the LSTM from one start of an episode to the next, which
no recording can know beforehand.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cleanrl_worker.envs import vectors
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.courier import Courier
from cleanrl_worker.learn.optim import FlatAdam
from cleanrl_worker.nets.layers import numbers, orthogonal
from cleanrl_worker.nets.memory import RememberingPolicy
from cleanrl_worker.run import training
from cleanrl_worker.run.args import (
    Amount,
    Computed,
    Count,
    CountFrom0,
    Limits,
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
    num_envs: Count = 8
    """environments stepped side by side"""
    num_steps: Count = 128
    """steps in each environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall to zero over the run"""
    gamma: Share = 0.99
    """discount factor"""
    gae_lambda: Share = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Annotated[int, Limits(1, "num_envs", divides="num_envs")] = 4
    """pieces that a batch is cut into; each holds all steps of some environments"""
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
    """on a GPU, replay each choice as one CUDA graph"""
    compile: bool = False
    """compile the choices with torch.compile: a slower start"""
    batch_size: Computed = 0
    """set at run time: num_envs * num_steps"""
    minibatch_size: Computed = 0
    """set at run time: batch_size / num_minibatches"""
    num_iterations: Computed = 0
    """set at run time: total_timesteps / batch_size"""


State = tuple[torch.Tensor, torch.Tensor]
"""what the LSTM keeps of each environment: its hidden state and its cell, (1, environments, 128) each"""


class Agent(nn.Module):
    """The convolutional network of Mnih et al. 2015, an LSTM, a head for the policy and one for the value."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        self.network = nn.Sequential(
            orthogonal(nn.Conv2d(1, 32, 8, stride=4)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            orthogonal(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.lstm = nn.LSTM(512, 128)
        for name, parameter in self.lstm.named_parameters():
            nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)
        self.actor = orthogonal(nn.Linear(128, int(envs.single_action_space.n)), gain=0.01)
        self.critic = orthogonal(nn.Linear(128, 1), gain=1.0)

    def forward(
        self, obs: torch.Tensor, state: State, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """Logits, values and what is kept, of frames given as bytes.

        Rows of `obs` are those of `starts` (steps, environments), which is 1 where a step begins an episode: what was
        kept before it is forgotten there.
        """
        hidden = self.network(obs.to(torch.float32) / 255.0)
        features = hidden.view(*starts.shape, -1)
        outputs = []
        told = starts.any(dim=1).tolist() if len(starts) > 1 else [False]  # of a single step nothing need be known
        # from one start of an episode, in whatever environment, to the next: a single call
        cuts = [0, *(t for t in range(1, len(told)) if told[t]), len(told)]
        for begin, end in pairwise(cuts):
            kept = (1.0 - starts[begin]).view(1, -1, 1)
            output, state = self.lstm(features[begin:end], (kept * state[0], kept * state[1]))
            outputs.append(output)
        remembered = torch.cat(outputs).flatten(0, 1)
        return self.actor(remembered), self.critic(remembered).squeeze(-1), state

    def blank(self, num_envs: int) -> State:
        """What is kept where nothing has been seen yet."""
        zeros = self.critic.weight.new_zeros(1, num_envs, 128)
        return zeros, zeros.clone()


def copy_of(state: State) -> State:
    return state[0].clone(), state[1].clone()


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The acting part of a saved agent."""
    agent = Agent(spaces)
    agent.load_state_dict(state)

    def begin() -> Policy:
        state = agent.blank(1)

        def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
            nonlocal state
            with torch.no_grad():
                logits, _, state = agent(torch.from_numpy(obs[:, -1:]), state, torch.zeros(1, len(obs)))
            scores = logits.numpy()
            return (scores if rng is None else scores + rng.gumbel(size=scores.shape)).argmax(axis=1)

        return act

    return RememberingPolicy(begin)


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


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    if args.norm_adv:
        check_minibatches(args.batch_size, args.num_minibatches)
    run = training.start(args)
    device = run.device
    envs = vectors.atari(args, run.video_folder)
    agent = Agent(envs).to(device)
    # the optimizer's one vector is no layout of cuDNN's, which copies the LSTM's weights (half a megabyte) at each call
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    optimizer = FlatAdam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    courier = Courier(device)

    shape = (args.num_steps, args.num_envs)
    frame = (1, *envs.single_observation_space.shape[1:])  # the newest of the stack: the LSTM is for the others
    obs = torch.zeros((*shape, *frame), dtype=torch.uint8, device=device)
    logprobs = torch.zeros(shape, device=device)
    values = torch.zeros(shape, device=device)
    actions = np.zeros(shape, np.int64)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, np.float32)
    ends = np.zeros(shape, np.float32)
    starts = torch.zeros(shape, device=device)
    step = run.restore({"policy": agent, "optimizer": optimizer})
    args.num_iterations = -(-args.total_timesteps // args.batch_size)
    next_obs = run.reset(envs, step)
    state, next_starts = agent.blank(args.num_envs), torch.zeros(args.num_envs, device=device)

    @graphs.captured(run)
    @torch.no_grad()
    def act(
        seen: torch.Tensor, begins: torch.Tensor, gumbel: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions, their log-probabilities, and the values of what is seen, which `state` then has in it."""
        logits, seen_values, kept = agent(seen, state, begins.unsqueeze(0))
        for mine, new in zip(state, kept, strict=True):
            mine.copy_(new)
        action = (logits + gumbel).argmax(dim=1)  # Gumbel-max: a sample of softmax(logits)
        return action, F.log_softmax(logits, dim=-1).gather(1, action.unsqueeze(1)).squeeze(1), seen_values

    while step < args.total_timesteps:
        if args.anneal_lr:
            optimizer.lr = args.learning_rate * (1.0 - step // args.batch_size / args.num_iterations)

        # 1 collect
        noise = numbers(run.rng.gumbel(size=(*shape, envs.single_action_space.n)), device)
        truncated_at: list[tuple[int, np.ndarray, State]] = []
        before = copy_of(state)
        for t in range(args.num_steps):
            seen = courier.send(np.ascontiguousarray(next_obs[:, -1:]))
            action, logprobs[t], values[t] = act(seen, next_starts, noise[t])
            obs[t], starts[t] = seen, next_starts
            actions[t] = courier.fetch(action)
            reached = envs.step(actions[t])
            next_obs = reached.obs
            step += args.num_envs
            rewards[t] = reached.rewards
            terminations[t] = reached.terminations
            ends[t] = reached.terminations | reached.truncations
            next_starts = courier.send(ends[t])
            if reached.truncations.any():
                truncated_at.append((t, reached.final_obs, copy_of(state)))
            if reached.episodes:
                run.log_episodes(step, reached.episodes)

        # 2 advantages
        b_obs, b_logprobs, b_values = obs.flatten(0, 1), logprobs.flatten(), values.flatten()
        b_actions = torch.from_numpy(actions.reshape(-1)).to(device)
        old_values = values.cpu().numpy()
        next_values = np.empty_like(old_values)
        next_values[:-1] = old_values[1:]
        with torch.no_grad():
            last = torch.from_numpy(next_obs[:, -1:]).to(device)
            next_values[-1] = agent(last, state, next_starts.unsqueeze(0))[1].cpu().numpy()
            for t, final_obs, then in truncated_at:
                final = torch.from_numpy(final_obs[:, -1:]).to(device)
                final_values = agent(final, then, torch.zeros_like(starts[:1]))[1].cpu().numpy()
                next_values[t] = np.where(ends[t] > 0, final_values, next_values[t])
        next_values *= 1.0 - terminations
        advantages = gae(rewards, old_values, next_values, ends, args.gamma, args.gae_lambda)
        b_advantages = torch.from_numpy(advantages.reshape(-1)).to(device)
        b_returns = b_advantages + b_values

        # 3 update
        ratios = []
        for _ in range(args.update_epochs):
            # a minibatch holds all steps of some environments, one after the other
            chosen = torch.randperm(args.num_envs, device=device).split(args.num_envs // args.num_minibatches)
            rows = torch.arange(args.batch_size, device=device).view(shape)
            order = torch.cat([rows[:, of].reshape(-1) for of in chosen])
            batch = (b_obs, b_actions, b_logprobs, b_advantages, b_returns, b_values)
            minibatches = zip(chosen, *(whole[order].split(args.minibatch_size) for whole in batch), strict=True)
            for of, mb_obs, mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values in minibatches:
                logits, new_values, _ = agent(mb_obs, (before[0][:, of], before[1][:, of]), starts[:, of])
                new_logprobs = F.log_softmax(logits, dim=-1)
                logratio = new_logprobs.gather(1, mb_actions.unsqueeze(1)).squeeze(1) - mb_logprobs
                ratio = logratio.exp()
                ratios.append(ratio.detach())

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
            approx_kl = (ratio - 1 - logratio).mean()  # http://joschu.net/blog/kl-approx.html, k3
            if args.target_kl is not None and approx_kl.item() > args.target_kl:
                break

        # 4 log, checkpoint
        variance = np.var(old_values + advantages)
        run.log(
            step,
            {
                "charts/learning_rate": optimizer.lr,
                "losses/value_loss": v_loss.item(),
                "losses/policy_loss": pg_loss.item(),
                "losses/entropy": entropy.item(),
                "losses/old_approx_kl": -logratio.mean().item(),
                "losses/approx_kl": approx_kl.item(),
                "losses/clipfrac": ((torch.cat(ratios) - 1.0).abs() > args.clip_coef).float().mean().item(),
                "losses/explained_variance": float(1 - np.var(advantages) / variance) if variance > 0 else float("nan"),
            },
        )
        run.log_speed(step)
        run.keep_best(step, agent.state_dict)
        if run.checkpoint_due(step):
            next_obs = run.checkpoint(step, envs)
            next_starts = torch.zeros(args.num_envs, device=device)
            for part in state:
                part.zero_()

    if args.save_model:
        run.save_policy(step, agent.state_dict())
        run.evaluate(step, load_policy(agent.state_dict(), envs, vars(args)), atari=True)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
