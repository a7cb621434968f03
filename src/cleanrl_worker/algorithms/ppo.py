"""PPO for flat and grid observations and discrete actions (arXiv:1707.06347).

Siblings: ppo_continuous_action, ppo_atari_envpool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.minigrid import WORDS, is_grid, view_of
from cleanrl_worker.learn import graphs
from cleanrl_worker.learn.optim import FlatAdam
from cleanrl_worker.nets.grid import GridPolicy, MinigridAgent
from cleanrl_worker.nets.layers import numbers
from cleanrl_worker.nets.memory import RememberingPolicy
from cleanrl_worker.nets.mlp import MLPAgent, SeparateMLPAgent
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Computed, Count, Pieces, RunArgs, Share, check_minibatches, parse, require
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("discrete",)
OBSERVATION_SPACES = ("vector", "discrete", "tuple", "dict", "grid")


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "CartPole-v1"
    """environment to learn"""
    total_timesteps: Count = 500000
    """environment steps to train for, over all environments"""
    network: Literal["auto", "shared", "separate", "grid"] = "auto"
    """one trunk with two heads, CleanRL's two networks, or convolutions; auto: grid for MiniGrid, else separate"""
    mission: bool = False
    """read the instruction, too (grids only; most BabyAI levels need it)"""
    memory: bool = False
    """remember the episode with a GRU (grids only); minibatches are then whole environments"""
    learning_rate: Amount = 2.5e-4
    """step size of Adam"""
    num_envs: Count = 4
    """environments stepped side by side"""
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
    clip_coef: Amount = 0.2
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
    """on a GPU, replay each update as one CUDA graph"""
    compile: bool = False
    """compile the updates with torch.compile: a slower start, other random numbers"""
    batch_size: Computed = 0
    """set at run time: num_envs * num_steps"""
    minibatch_size: Computed = 0
    """set at run time: batch_size / num_minibatches"""
    num_iterations: Computed = 0
    """set at run time: total_timesteps / batch_size"""


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The acting part of a saved agent; its keys tell which network it is."""
    remembers = "memory.weight_hh" in state
    network = "grid" if "network.linear.weight" in state else "shared" if "trunk.0.weight" in state else "separate"
    agent = make_agent(network, spaces, mission="mission.words.weight" in state, memory=remembers)
    agent.load_state_dict(state)

    def begin() -> Policy:
        logits = agent.numpy_policy()

        def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
            scores = logits(obs.astype(np.float32))
            return (scores if rng is None else scores + rng.gumbel(size=scores.shape)).argmax(axis=1)

        return act

    return RememberingPolicy(begin) if remembers else begin()


def make_agent(network: str, envs: Any, mission: bool, memory: bool) -> MLPAgent | SeparateMLPAgent | MinigridAgent:
    """The network that these names stand for."""
    if network == "grid":
        return MinigridAgent(envs, WORDS if mission else 0, memory)
    return MLPAgent(envs) if network == "shared" else SeparateMLPAgent(envs)


def trouble(args: Args, observations: str | None) -> str | None:
    """Why these parameters do not go together; None where they do.

    The dry run asks this function alone, before anything is imported: it uses nothing but what it is given.
    `observations` is the catalog's word for what the environment gives; None where that is not known.
    """
    for name in ("mission", "memory"):
        if not getattr(args, name):
            continue
        if observations not in ("grid", None):
            return f"--{name} is for grids, and this environment gives {observations} observations: leave it out"
        if args.network not in ("grid", "auto"):
            return f"--{name} is for grids: use --network grid, not {args.network}, or leave it out"
    if args.memory and args.num_envs % args.num_minibatches:
        return (
            f"--memory learns from whole environments: --num-envs ({args.num_envs}) must be a multiple of "
            f"--num-minibatches ({args.num_minibatches})"
        )
    return None


def check_network(args: Args) -> None:
    """Say which network `auto` is, and refuse what only grids have."""
    grid = is_grid(args.env_id)
    if args.network == "auto":
        args.network = "grid" if grid else "separate"
    if why := trouble(args, None if grid or args.network == "grid" else "other"):
        raise SystemExit(why)


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


Context = tuple[torch.Tensor, ...]
"""what a memory needs besides observations: what it kept before the first step, and which steps start an episode"""


def shuffled(args: Args, context: Context, device: torch.device) -> tuple[torch.Tensor, list[Context]]:
    """The rows of a batch in a new order, and the context of each minibatch.

    A memory needs its steps in a row: there, a minibatch holds all steps of some environments.
    """
    if not context:
        count = -(-args.batch_size // args.minibatch_size)
        return torch.randperm(args.batch_size, device=device), [()] * count
    kept, starts = context
    chosen = torch.randperm(args.num_envs, device=device).split(args.num_envs // args.num_minibatches)
    steps = torch.arange(args.num_steps, device=device).unsqueeze(1) * args.num_envs
    rows = torch.cat([(steps + envs).reshape(-1) for envs in chosen])
    return rows, [(kept[envs], starts[:, envs]) for envs in chosen]


class Losses(NamedTuple):
    """Of each sample of a minibatch, and how much likelier its action has become."""

    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    logratio: torch.Tensor
    ratio: torch.Tensor


@torch.no_grad()
def clipped_losses(
    logits: torch.Tensor,
    values: torch.Tensor,
    actions: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    returns: torch.Tensor,
    old_values: torch.Tensor,
    args: Args,
) -> tuple[Losses, tuple[torch.Tensor, torch.Tensor]]:
    """The losses (eq. 7 and 9), and the gradients of their weighted mean with respect to logits and values.

    The gradients are written out: for these few numbers autograd takes five times as long.
    """
    logprobs = F.log_softmax(logits, dim=-1)
    probs = logprobs.exp()
    chosen = actions.unsqueeze(1)
    logratio = logprobs.gather(1, chosen).squeeze(1) - old_logprobs
    ratio = logratio.exp()

    # policy: -min(A r, A clip(r)); where the clipped one is smaller, nothing depends on the policy any more
    surrogate, clipped = advantages * ratio, advantages * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -torch.minimum(surrogate, clipped)
    d_logprob = torch.where(surrogate <= clipped, -surrogate, 0.0).unsqueeze(1)  # d r / d log pi = r

    # entropy: H = -sum(p log p), d H / d logit = -p (log p + H)
    entropy = -(probs * logprobs).sum(dim=1)
    d_entropy = -probs * (logprobs + entropy.unsqueeze(1))

    # value: (V - R)^2 / 2, or that of V kept near its old self where that is larger: it does not depend on V then
    error = values - returns
    value_loss, d_values = 0.5 * error**2, error
    if args.clip_vloss:
        moved = values - old_values
        near = moved.clamp(-args.clip_coef, args.clip_coef)
        clipped_loss = 0.5 * (old_values + near - returns) ** 2
        d_values = torch.where((value_loss >= clipped_loss) | (near == moved), error, 0.0)
        value_loss = torch.maximum(value_loss, clipped_loss)

    # d log pi(a) / d logit = [this is a] - p
    d_logits = (-probs * d_logprob).scatter_add_(1, chosen, d_logprob) - args.ent_coef * d_entropy
    count = len(values)
    gradients = (d_logits / count, d_values * (args.vf_coef / count))
    return Losses(policy_loss, value_loss, entropy, logratio, ratio), gradients


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    if args.norm_adv:
        check_minibatches(args.batch_size, args.num_minibatches)
    check_network(args)
    run = training.start(args)
    device = run.device
    view = view_of(args.env_id, vars(args))
    envs = vectors.vector(args, run.video_folder, view)
    agent = make_agent(args.network, envs, args.mission, args.memory).to(device)
    optimizer = FlatAdam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    shape = (args.num_steps, args.num_envs)
    obs_shape = envs.single_observation_space.shape
    obs = np.zeros((*shape, *obs_shape), np.float32)
    actions = np.zeros(shape, np.int64)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, np.float32)
    ends = np.zeros(shape, np.float32)
    policy = agent.numpy_policy()
    memory = policy if args.memory and isinstance(policy, GridPolicy) else None
    step = run.restore({"policy": agent, "optimizer": optimizer})
    args.num_iterations = -(-args.total_timesteps // args.batch_size)
    next_obs = run.reset(envs, step)
    if memory:
        memory.clear(args.num_envs)

    @graphs.captured(run)
    def update(
        mb_obs: torch.Tensor,
        mb_actions: torch.Tensor,
        mb_logprobs: torch.Tensor,
        mb_advantages: torch.Tensor,
        mb_returns: torch.Tensor,
        mb_values: torch.Tensor,
        *mb_context: torch.Tensor,
    ) -> Losses:
        """Learn from a minibatch."""
        if args.norm_adv:
            mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
        (logits, values), pull = agent.vjp(mb_obs, *mb_context)
        minibatch = (mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values)
        losses, gradients = clipped_losses(logits, values, *minibatch, args)
        optimizer.apply(pull(*gradients), args.max_grad_norm)
        return losses

    while step < args.total_timesteps:
        if args.anneal_lr:
            optimizer.lr = args.learning_rate * (1.0 - step // args.batch_size / args.num_iterations)

        # 1 collect: act in numpy; values and probabilities follow for the whole batch at once
        policy.refresh()
        noise = run.rng.gumbel(size=(*shape, envs.single_action_space.n)).astype(np.float32)
        truncated_at: list[tuple[int, np.ndarray, Context]] = []
        before: Context = memory.context() if memory else ()
        for t in range(args.num_steps):
            obs[t] = next_obs
            actions[t] = (policy(obs[t]) + noise[t]).argmax(axis=1)  # Gumbel-max: a sample of softmax(logits)
            reached = envs.step(actions[t])
            next_obs = reached.obs
            step += args.num_envs
            rewards[t] = reached.rewards
            terminations[t] = reached.terminations
            ends[t] = reached.terminations | reached.truncations
            if reached.final_obs is not reached.obs and reached.truncations.any():
                truncated_at.append((t, reached.final_obs, memory.context() if memory else ()))
            if memory:
                memory.forget(ends[t])
            if reached.episodes:
                run.log_episodes(step, reached.episodes)

        # 2 advantages
        context: Context = ()
        if memory:  # kept before the first step, and the steps that follow the end of an episode
            context = (before[0], numbers(np.concatenate([np.zeros_like(ends[:1]), ends[:-1]]), device))
        b_obs = numbers(obs.reshape(args.batch_size, *obs_shape), device)
        b_actions = torch.from_numpy(actions.reshape(-1)).to(device)
        with torch.no_grad():
            logits, b_values = agent(b_obs, *context)
            b_logprobs = F.log_softmax(logits, dim=-1).gather(1, b_actions.unsqueeze(1)).squeeze(1)
            old_values = b_values.cpu().numpy().reshape(shape)
            next_values = np.empty_like(old_values)
            next_values[:-1] = old_values[1:]
            after = memory.context() if memory else ()
            next_values[-1] = agent(numbers(next_obs, device), *after)[1].cpu().numpy()
            for t, final_obs, then in truncated_at:
                final_values = agent(numbers(final_obs, device), *then)[1].cpu().numpy()
                next_values[t] = np.where(ends[t] > 0, final_values, next_values[t])
        next_values *= 1.0 - terminations
        advantages = gae(rewards, old_values, next_values, ends, args.gamma, args.gae_lambda)
        b_advantages = torch.from_numpy(advantages.reshape(-1)).to(device)
        b_returns = b_advantages + b_values

        # 3 update
        ratios = []
        for _ in range(args.update_epochs):
            order, contexts = shuffled(args, context, device)
            batch = (b_obs, b_actions, b_logprobs, b_advantages, b_returns, b_values)
            pieces = (whole[order].split(args.minibatch_size) for whole in batch)
            for mb_context, *minibatch in zip(contexts, *pieces, strict=True):
                losses = update(*minibatch, *mb_context)
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
                "losses/value_loss": losses.value.mean().item(),
                "losses/policy_loss": losses.policy.mean().item(),
                "losses/entropy": losses.entropy.mean().item(),
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
            if memory:  # every environment has started anew
                memory.clear(args.num_envs)

    if args.save_model:
        run.save_policy(step, agent.state_dict())
        run.evaluate(step, load_policy(agent.state_dict(), envs, vars(args)), view=view)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
