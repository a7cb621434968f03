"""PPO for Atari games in JAX, rollout and update each one compiled scan (arXiv:1707.06347).

EnvPool's games are stepped inside the rollout (`envs/jax/pools.py`), other ones from Python.
Siblings: ppo_atari_envpool_xla_jax, ppo_atari_envpool, ppo_jax.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from cleanrl_worker.nets.jax.trees import Trees, compiled, prepare, tree_of

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.jax.pools import PoolRollouts, PoolStep, Standing, XlaPool
from cleanrl_worker.envs.rollouts import LastEpisodes
from cleanrl_worker.nets.jax.actor_critic import Conv, first_params, fitting, forward, logits_of
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
    env_id: str = "Breakout-v5"
    """game to learn: Breakout-v5, ALE/Breakout-v5 or BreakoutNoFrameskip-v4 are the same here"""
    total_timesteps: Count = 10000000
    """environment steps to train for, over all environments (a step is four frames)"""
    total_frames: CountFrom0 = 0
    """frames to train for, four a step; instead of total_timesteps"""
    checkpoint_every: CountFrom0 = 1100000
    """steps between two checkpoints of the whole training state (0: only at the end and on SIGTERM)"""
    num_threads: CountFrom0 = 0
    """CPU threads for the network (0: all cores; a convolution is worth them)"""
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
    batch_size: Computed = 0
    """set at run time: num_envs * num_steps"""
    minibatch_size: Computed = 0
    """set at run time: batch_size / num_minibatches"""
    num_iterations: Computed = 0
    """set at run time: total_timesteps / batch_size"""


class Network(nn.Module):
    """The convolutional network of Mnih et al. 2015."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = jnp.moveaxis(x, 1, -1).astype(jnp.float32) / 255.0
        for channels, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.relu(Conv(channels, size, stride)(x))
        return nn.relu(nn.Dense(512)(x.reshape(len(x), -1)))


class Head(nn.Module):
    """What is made of the network's features."""

    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.outputs)(x)


class Agent(nn.Module):
    """A head for the policy and one for the value."""

    actions: int

    def setup(self) -> None:
        self.network = Network()
        self.actor = Head(self.actions)
        self.critic = Head(1)

    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits and values of frames given as bytes."""
        hidden = self.network(obs)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


class Recipe(NamedTuple):
    """The numbers that an update is compiled with."""

    gamma: float
    gae_lambda: float
    minibatch_size: int
    norm_adv: bool
    clip_coef: float
    clip_vloss: bool
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    target_kl: float | None

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5))


class Learner(NamedTuple):
    """What learning changes."""

    params: Any
    optimizer: Any


class Storage(NamedTuple):
    """A rollout, its axes (steps, environments, …)."""

    obs: Any
    actions: Any
    logprobs: Any
    values: Any
    rewards: Any
    terminations: Any
    ends: Any
    finals: Any
    """the value of the last observation where another episode's follows in the next row, else NaN"""
    real: Any
    """false where EnvPool only began an episode, which is nothing to learn from"""


class Rows(NamedTuple):
    """What a minibatch learns from."""

    obs: Any
    actions: Any
    logprobs: Any
    advantages: Any
    returns: Any
    values: Any
    real: Any


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The acting part of a saved agent."""
    agent = Agent(int(spaces.single_action_space.n))
    params = jax.device_put(fitting(agent, tree_of(state)["params"], spaces))

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        scores = np.asarray(logits_of(agent, params, obs))
        return (scores if rng is None else scores + rng.gumbel(size=scores.shape)).argmax(axis=1)

    return act


def gae(rewards: Any, values: Any, next_values: Any, ends: Any, gamma: float, lam: float) -> jax.Array:
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16) over arrays of shape (steps, environments).

    `next_values` holds the value of what each action led to: 0 after a termination, of the final observation after a
    truncation. `ends` cuts the sum at the end of an episode.
    """
    deltas = rewards + gamma * next_values - values
    decay = gamma * lam * (1.0 - ends)

    def earlier(advantage: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        advantage = step[0] + step[1] * advantage
        return advantage, advantage

    return jax.lax.scan(earlier, jnp.zeros_like(deltas[0]), (deltas, decay), reverse=True)[1]


@partial(jax.jit, static_argnums=0)
def act(agent: Agent, params: Any, obs: Any, noise: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Actions, their log-probabilities, and values."""
    logits, values = forward(agent, params, obs)
    actions = (logits + noise).argmax(axis=-1).astype(jnp.int32)  # Gumbel-max: a sample of softmax(logits)
    return actions, taken(jax.nn.log_softmax(logits), actions), values


def taken(logprobs: jax.Array, actions: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logprobs, actions[..., None], axis=-1).squeeze(-1)


@partial(jax.jit, static_argnums=(0, 1))
def rollout(
    agent: Agent, pool: XlaPool, standing: Standing, params: Any, noise: Any
) -> tuple[Standing, tuple[Storage, jax.Array, PoolStep]]:
    """Steps in an EnvPool: what they brought, what is seen after the last of them, and what is counted."""

    def step_once(standing: Standing, noise: jax.Array) -> tuple[Standing, tuple[Storage, PoolStep]]:
        obs = standing.obs
        actions, logprobs, values = act(agent, params, obs, noise)
        standing, reached = pool.step(standing, actions)
        ends = (reached.terminations | reached.truncations).astype(jnp.float32)
        # the next row of an ended episode is its last observation: no value is missing
        finals = jnp.full_like(values, jnp.nan)
        terminations = reached.terminations.astype(jnp.float32)
        row = Storage(obs, actions, logprobs, values, reached.rewards, terminations, ends, finals, reached.real)
        return standing, (row, reached._replace(obs=jnp.zeros(())))

    standing, (storage, counted) = jax.lax.scan(step_once, standing, noise)
    return standing, (storage, standing.obs, counted)


def ppo_loss(params: Any, agent: Agent, recipe: Recipe, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """The loss (eq. 7 and 9) of a minibatch, and what is told of it."""
    count = jnp.maximum(rows.real.sum(), 1)

    def mean(x: jax.Array) -> jax.Array:
        return (x * rows.real).sum() / count

    advantages = rows.advantages
    if recipe.norm_adv:
        advantages = advantages - mean(advantages)
        advantages /= jnp.sqrt(mean(advantages**2) * count / jnp.maximum(count - 1, 1)) + 1e-8
    logits, values = forward(agent, params, rows.obs)
    logprobs = jax.nn.log_softmax(logits)
    logratio = taken(logprobs, rows.actions) - rows.logprobs
    ratio = jnp.exp(logratio)
    clipped = jnp.clip(ratio, 1 - recipe.clip_coef, 1 + recipe.clip_coef)
    policy_loss = -mean(jnp.minimum(advantages * ratio, advantages * clipped))
    errors = (values - rows.returns) ** 2
    if recipe.clip_vloss:
        near = rows.values + jnp.clip(values - rows.values, -recipe.clip_coef, recipe.clip_coef)
        errors = jnp.maximum(errors, (near - rows.returns) ** 2)
    value_loss = 0.5 * mean(errors)
    entropy = -mean((jnp.exp(logprobs) * logprobs).sum(axis=-1))
    loss = policy_loss - recipe.ent_coef * entropy + recipe.vf_coef * value_loss
    approx_kl = mean(ratio - 1 - logratio)  # http://joschu.net/blog/kl-approx.html, k3
    return loss, jnp.stack([loss, policy_loss, value_loss, entropy, approx_kl])


TOLD = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl")


@partial(jax.jit, static_argnums=(0, 1))
def learn(
    agent: Agent, recipe: Recipe, learner: Learner, storage: Storage, last_obs: Any, orders: Any, lr: Any
) -> tuple[Learner, jax.Array]:
    """Advantages and epochs: the learner after a rollout, and the numbers that `TOLD` names.

    `orders` holds the rows of the rollout in a new order for each epoch.
    """
    # 1 advantages
    following = jnp.concatenate([storage.values[1:], forward(agent, learner.params, last_obs)[1][None]])
    next_values = jnp.where(jnp.isnan(storage.finals), following, storage.finals) * (1.0 - storage.terminations)
    advantages = gae(storage.rewards, storage.values, next_values, storage.ends, recipe.gamma, recipe.gae_lambda)
    parts = (storage.obs, storage.actions, storage.logprobs, advantages, advantages + storage.values, storage.values)
    rows = Rows(*(part.reshape(-1, *part.shape[2:]) for part in (*parts, storage.real)))

    # 2 update
    count = len(rows.actions)
    whole = count - count % recipe.minibatch_size

    def update(learner: Learner, chosen: jax.Array) -> tuple[Learner, jax.Array]:
        some = Rows(*(part[chosen] for part in rows))
        gradients, told = jax.grad(ppo_loss, has_aux=True)(learner.params, agent, recipe, some)
        changes, state = recipe.optimizer.update(gradients, learner.optimizer)
        params = jax.tree.map(lambda param, change: param - lr * change, learner.params, changes)
        return Learner(params, state), told

    def epoch(learner: Learner, order: jax.Array) -> tuple[Learner, jax.Array]:
        learner, told = jax.lax.scan(update, learner, order[:whole].reshape(-1, recipe.minibatch_size))
        if whole < count:  # a last one with the rows that are left
            return update(learner, order[whole:])
        return learner, told[-1]

    def unless_far(carry: tuple[Learner, jax.Array], order: jax.Array) -> tuple[tuple[Learner, jax.Array], None]:
        """An epoch, unless the one before has moved the policy too far."""
        far = carry[1][TOLD.index("approx_kl")] > (jnp.inf if recipe.target_kl is None else recipe.target_kl)
        return jax.lax.cond(far, lambda: carry, lambda: epoch(carry[0], order)), None

    (learner, told), _ = jax.lax.scan(unless_far, (learner, jnp.zeros(len(TOLD))), orders)
    return learner, told


def first_learner(agent: Agent, recipe: Recipe, space: Any, rng: np.random.Generator) -> Learner:
    params = first_params(agent, np.zeros((1, *space.shape), space.dtype), rng)
    return Learner(params, _first_moments(recipe, params))


@partial(jax.jit, static_argnums=0)
def _first_moments(recipe: Recipe, params: Any) -> Any:
    return recipe.optimizer.init(params)


def blank_storage(shape: tuple[int, int], space: Any) -> Storage:
    obs, actions = np.zeros((*shape, *space.shape), space.dtype), np.zeros(shape, np.int32)
    logprobs, values, rewards, terminations, ends = (np.zeros(shape, np.float32) for _ in range(5))
    finals, real = np.full(shape, np.nan, np.float32), np.ones(shape, bool)
    return Storage(obs, actions, logprobs, values, rewards, terminations, ends, finals, real)


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    if args.norm_adv:
        check_minibatches(args.batch_size, args.num_minibatches)
    prepare(args)
    run = training.start(args)
    envs = vectors.atari(args, run.video_folder)
    agent = Agent(int(envs.single_action_space.n))
    recipe = Recipe(*(getattr(args, name) for name in Recipe._fields))
    learner = first_learner(agent, recipe, envs.single_observation_space, np.random.default_rng(args.seed))
    policy, optimizer, last = Trees(params=learner.params), Trees(adam=learner.optimizer), LastEpisodes()
    step = run.restore({"policy": policy, "optimizer": optimizer, "last_episodes": last})
    learner = Learner(policy.trees["params"], optimizer.trees["adam"])

    shape = (args.num_steps, args.num_envs)
    storage = blank_storage(shape, envs.single_observation_space)
    rows = np.tile(np.arange(args.batch_size, dtype=np.int32), (args.update_epochs, 1))
    noise = np.zeros((*shape, agent.actions), np.float32)
    compiled("the update", lambda: learn(agent, recipe, learner, storage, storage.obs[0], rows, np.float32(0.0)))
    args.num_iterations = -(-args.total_timesteps // args.batch_size)
    next_obs: Any = run.reset(envs, step)
    pool = PoolRollouts(envs, rollout, agent)
    in_pool = pool.begin(next_obs, learner.params, noise)

    while step < args.total_timesteps:
        started = time.monotonic()
        share_left = 1.0 - step // args.batch_size / args.num_iterations if args.anneal_lr else 1.0
        lr = np.float32(args.learning_rate * share_left)
        noise = run.rng.gumbel(size=(*shape, agent.actions)).astype(np.float32)
        orders = run.rng.permuted(rows, axis=1)

        # 1 collect
        if in_pool:
            collected, next_obs, counted = pool(learner.params, noise)
            for t, episodes in pool.count(counted.paid, counted.over, counted.real):
                run.log_episodes(step + (t + 1) * args.num_envs, episodes)
                last.add(episodes)
            step += args.batch_size
        else:
            collected = storage
            storage.finals[:] = np.nan
            for t in range(args.num_steps):
                storage.obs[t] = next_obs
                actions, storage.logprobs[t], storage.values[t] = act(agent, learner.params, next_obs, noise[t])
                storage.actions[t] = actions
                reached = envs.step(storage.actions[t])
                next_obs = reached.obs
                step += args.num_envs
                storage.rewards[t], storage.terminations[t] = reached.rewards, reached.terminations
                storage.ends[t] = reached.terminations | reached.truncations
                if reached.truncations.any():
                    final_values = act(agent, learner.params, reached.final_obs, noise[t])[2]
                    storage.finals[t] = np.where(reached.truncations, final_values, np.nan)
                if reached.episodes:
                    run.log_episodes(step, reached.episodes)
                    last.add(reached.episodes)

        # 2 learn
        learner, told = learn(agent, recipe, learner, collected, next_obs, orders, lr)

        # 3 log, checkpoint
        policy.trees, optimizer.trees = {"params": learner.params}, {"adam": learner.optimizer}
        losses = {f"losses/{name}": value for name, value in zip(TOLD, np.asarray(told).tolist(), strict=True)}
        speed = int(args.batch_size / (time.monotonic() - started))
        run.log(step, {"charts/learning_rate": float(lr), "charts/SPS_update": speed, **last.means(), **losses})
        run.log_speed(step)
        run.keep_best(step, policy.state_dict)
        if run.checkpoint_due(step):
            next_obs = run.checkpoint(step, envs)
            in_pool = pool.begin(next_obs, learner.params, noise)

    if args.save_model:
        run.save_policy(step, policy.state_dict())
        run.evaluate(step, load_policy(policy.state_dict(), envs, vars(args)), atari=True)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
