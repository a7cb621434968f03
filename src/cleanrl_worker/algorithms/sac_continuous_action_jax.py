"""Soft actor-critic in JAX for flat observations and continuous actions (arXiv:1812.05905).

Siblings: sac_continuous_action, td3_continuous_action_jax.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from cleanrl_worker.nets.jax.trees import Trees, arrays_of, compiled, dense, dense_layers, outputs_of, prepare, tree_of

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.actions import require_bounded
from cleanrl_worker.envs.episodes import is_due
from cleanrl_worker.learn.buffers import ReplayBuffer, Transitions
from cleanrl_worker.run import training
from cleanrl_worker.run.args import Amount, Capacity, Count, CountFrom0, RunArgs, Share, parse, require
from cleanrl_worker.run.policy import Policy

ACTION_SPACES = ("continuous",)
OBSERVATION_SPACES = ("vector", "discrete", "tuple", "dict")
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
LOG_TWO_PI = float(np.log(2 * np.pi))


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "Hopper-v5"
    """environment to learn"""
    total_timesteps: Count = 1000000
    """environment steps to train for, over all environments"""
    num_threads: CountFrom0 = 0
    """CPU threads for the networks (0: all cores)"""
    num_envs: Count = 1
    """environments stepped side by side"""
    buffer_size: Capacity = 1000000
    """transitions that the replay memory holds"""
    gamma: Share = 0.99
    """discount factor"""
    tau: Share = 0.005
    """share of the online critics that enters the target critics"""
    batch_size: Count = 256
    """transitions per update"""
    learning_starts: CountFrom0 = 5000
    """steps of random actions before the first update"""
    policy_lr: Amount = 3e-4
    """step size of the actor's Adam"""
    q_lr: Amount = 1e-3
    """step size of the critics' Adam"""
    policy_frequency: Count = 2
    """critic updates between two rounds of actor updates (a round makes as many updates)"""
    target_network_frequency: Count = 1
    """critic updates between two updates of the target critics"""
    alpha: Amount = 0.2
    """weight of the entropy when it is not tuned"""
    autotune: bool = True
    """tune the weight of the entropy"""


class Limits(NamedTuple):
    """The least and the greatest of each action; a tuple, so that functions can be compiled for it."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, space: Any) -> "Limits":
        return cls(tuple(space.low.tolist()), tuple(space.high.tolist()))

    @property
    def scale(self) -> np.ndarray:
        return (np.array(self.high, np.float32) - np.array(self.low, np.float32)) / 2

    @property
    def bias(self) -> np.ndarray:
        return (np.array(self.high, np.float32) + np.array(self.low, np.float32)) / 2


class QNetwork(nn.Module):
    """Observation and action to value."""

    @nn.compact
    def __call__(self, obs: jax.Array, actions: jax.Array) -> jax.Array:
        """Values of shape (batch)."""
        x = jnp.concatenate([obs, actions], axis=-1)
        for _ in range(2):
            x = nn.relu(dense(256, x))
        return dense(1, x).squeeze(-1)


class Actor(nn.Module):
    """A Gaussian, to be squashed by tanh into the action space."""

    actions: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and log-deviation before squashing: the two halves of the last layer."""
        for _ in range(2):
            x = nn.relu(dense(256, x))
        mean, log_std = jnp.split(dense(2 * self.actions, x), 2, axis=-1)
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (nn.tanh(log_std) + 1.0)


class Recipe(NamedTuple):
    """The numbers that an update is compiled with."""

    gamma: float
    tau: float
    policy_lr: float
    q_lr: float
    policy_frequency: int
    alpha: float
    autotune: bool


class Learner(NamedTuple):
    """What learning changes; `params` are the actor's."""

    params: Any
    qf1: Any
    qf2: Any
    target_qf1: Any
    target_qf2: Any
    log_alpha: Any
    actor_optimizer: Any
    q_optimizer: Any
    alpha_optimizer: Any


def acting(params: Any, space: Any) -> Policy:
    """The actor in numpy: greedily its mean, else a sample, squashed into the action space."""
    outputs, limits = dense_layers(params, lambda x: np.maximum(x, 0.0)), Limits.of(space)
    scale, bias = limits.scale, limits.bias

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        mean, log_std = np.split(outputs(obs.astype(np.float32)), 2, axis=-1)
        if rng is not None:
            deviation = np.exp(LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (np.tanh(log_std) + 1.0))
            mean = mean + deviation * rng.standard_normal(mean.shape, np.float32)
        return np.tanh(mean) * scale + bias

    return act


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The saved actor: greedily its mean, else a sample."""
    return acting(tree_of(state)["params"], spaces.single_action_space)


def sample_actions(limits: Limits, params: Any, obs: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions and their log-probabilities, differentiable in the parameters (the reparametrisation trick)."""
    outputs: Any = Actor(len(limits.low)).apply({"params": params}, obs)
    mean, log_std = outputs
    noise = jax.random.normal(key, mean.shape)
    squashed = jnp.tanh(mean + jnp.exp(log_std) * noise)
    logprob = -0.5 * noise**2 - log_std - 0.5 * LOG_TWO_PI
    logprob = logprob - jnp.log(limits.scale * (1.0 - squashed**2) + 1e-6)  # appendix C: change of variables
    return squashed * limits.scale + limits.bias, logprob.sum(axis=-1)


def value_of(params: Any, obs: Any, actions: Any) -> jax.Array:
    return outputs_of(QNetwork(), params, obs, actions)


def alpha_of(recipe: Recipe, learner: Learner) -> jax.Array:
    """The weight of the entropy."""
    return jnp.exp(learner.log_alpha) if recipe.autotune else jnp.asarray(recipe.alpha)


@partial(jax.jit, static_argnums=(0, 1))
def update_critics(
    limits: Limits, recipe: Recipe, learner: Learner, sample: Transitions, seed: Any
) -> tuple[Learner, jax.Array]:
    """The learner with better critics; of each critic the mean value and the loss."""
    next_actions, next_logprobs = sample_actions(limits, learner.params, sample.next_obs, jax.random.key(seed))
    targets = (value_of(slow, sample.next_obs, next_actions) for slow in (learner.target_qf1, learner.target_qf2))
    next_values = jnp.minimum(*targets) - alpha_of(recipe, learner) * next_logprobs
    target = sample.rewards + recipe.gamma * (1.0 - sample.terminations) * next_values

    def mse(critics: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
        values = jnp.stack([value_of(critic, sample.obs, sample.actions) for critic in critics])
        losses = ((values - target) ** 2).mean(axis=1)
        return losses.sum(), jnp.concatenate([values.mean(axis=1), losses])

    critics = (learner.qf1, learner.qf2)
    gradients, told = jax.grad(mse, has_aux=True)(critics)
    changes, q_optimizer = optax.adam(recipe.q_lr).update(gradients, learner.q_optimizer)
    qf1, qf2 = optax.apply_updates(critics, changes)
    return learner._replace(qf1=qf1, qf2=qf2, q_optimizer=q_optimizer), told


@partial(jax.jit, static_argnums=(0, 1))
def update_actor(
    limits: Limits, recipe: Recipe, learner: Learner, sample: Transitions, seed: Any
) -> tuple[Learner, jax.Array]:
    """A round of `policy_frequency` updates of the actor and of the entropy's weight; the last two losses."""

    def loss_of(params: Any, learner: Learner, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        actions, logprobs = sample_actions(limits, params, sample.obs, key)
        values = jnp.minimum(*(value_of(critic, sample.obs, actions) for critic in (learner.qf1, learner.qf2)))
        return (alpha_of(recipe, learner) * logprobs - values).mean(), logprobs

    def once(learner: Learner, key: jax.Array) -> tuple[Learner, jax.Array]:
        (loss, logprobs), gradients = jax.value_and_grad(loss_of, has_aux=True)(learner.params, learner, key)
        changes, state = optax.adam(recipe.policy_lr).update(gradients, learner.actor_optimizer)
        params = optax.apply_updates(learner.params, changes)
        # the actions are those of the actor's own loss; the loss of alpha is its own derivative by log alpha
        alpha_loss = (-alpha_of(recipe, learner) * (logprobs - len(limits.low))).mean()
        moved = learner._replace(params=params, actor_optimizer=state)
        if recipe.autotune:
            change, state = optax.adam(recipe.q_lr).update(alpha_loss, learner.alpha_optimizer)
            moved = moved._replace(log_alpha=learner.log_alpha + change, alpha_optimizer=state)
        return moved, jnp.stack([loss, alpha_loss])

    learner, told = jax.lax.scan(once, learner, jax.random.split(jax.random.key(seed), recipe.policy_frequency))
    return learner, told[-1]


@partial(jax.jit, static_argnums=0)
def move_targets(recipe: Recipe, learner: Learner) -> Learner:
    return learner._replace(
        target_qf1=optax.incremental_update(learner.qf1, learner.target_qf1, recipe.tau),
        target_qf2=optax.incremental_update(learner.qf2, learner.target_qf2, recipe.tau),
    )


@partial(jax.jit, static_argnums=(0, 1, 2))  # compiled as one: operation by operation it takes seconds
def first_learner(limits: Limits, recipe: Recipe, obs_shape: tuple[int, ...], seed: Any) -> Learner:
    keys, obs = jax.random.split(jax.random.key(seed), 3), jnp.zeros((1, *obs_shape))
    params = Actor(len(limits.low)).init(keys[0], obs)["params"]
    qf1, qf2 = (QNetwork().init(key, obs, jnp.zeros((1, len(limits.low))))["params"] for key in keys[1:])
    log_alpha, q_adam = jnp.zeros(()), optax.adam(recipe.q_lr)
    states = optax.adam(recipe.policy_lr).init(params), q_adam.init((qf1, qf2)), q_adam.init(log_alpha)
    return Learner(params, qf1, qf2, qf1, qf2, log_alpha, *states)


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    prepare(args)
    run = training.start(args)
    envs = vectors.vector(args, run.video_folder)
    space = envs.single_action_space
    require_bounded(space, args.env_id)
    limits = Limits.of(space)
    recipe = Recipe(*(getattr(args, name) for name in Recipe._fields))
    learner = first_learner(limits, recipe, envs.single_observation_space.shape, np.uint32(args.seed % 2**32))
    buffer = ReplayBuffer(args.buffer_size, envs.single_observation_space.shape, space.shape, np.float32)
    blank, some_seed = Transitions(**buffer.rows(0, args.batch_size)), np.uint32(0)
    state = Trees(**learner._asdict())
    step = run.restore({"policy": state}, buffer)
    learner = Learner(**state.trees)
    compiled("the critics' update", lambda: update_critics(limits, recipe, learner, blank, some_seed))
    compiled("the actor's update", lambda: update_actor(limits, recipe, learner, blank, some_seed))
    policy = acting(learner.params, space)
    obs = run.reset(envs, step)
    losses: dict[str, Any] = {}

    def saved() -> dict[str, np.ndarray]:
        return arrays_of({"params": learner.params})

    while step < args.total_timesteps:
        # 1 act
        if step < args.learning_starts and not run.warm:
            actions = run.rng.uniform(space.low, space.high, (args.num_envs, *space.shape)).astype(np.float32)
        else:
            actions = policy(obs, run.rng)
        reached = envs.step(actions)
        buffer.add(obs, actions, reached.rewards, reached.final_obs, reached.terminations)
        obs = reached.obs
        previous, step = step, step + args.num_envs
        if reached.episodes:
            run.log_episodes(step, reached.episodes)
            run.keep_best(step, saved)
        if step <= args.learning_starts:
            if run.checkpoint_due(step):
                obs = run.checkpoint(step, envs)
            continue

        # 2 learn: one update for each step of each environment
        for count in range(max(previous, args.learning_starts) + 1, step + 1):
            sample = buffer.sample(args.batch_size, run.rng)
            seeds = run.rng.integers(2**32, size=2, dtype=np.uint32)
            learner, told = update_critics(limits, recipe, learner, sample, seeds[0])
            # the actor, and the weight of its entropy
            if count % args.policy_frequency == 0:
                learner, of_actor = update_actor(limits, recipe, learner, sample, seeds[1])
                policy = acting(learner.params, space)
                losses["losses/actor_loss"] = of_actor[0]
                if args.autotune:
                    losses["losses/alpha_loss"] = of_actor[1]
            # the target critics
            if count % args.target_network_frequency == 0:
                learner = move_targets(recipe, learner)

        # 3 log, checkpoint
        if is_due(100, previous, step):
            tags, each = ("qf1_values", "qf2_values", "qf1_loss", "qf2_loss"), told.tolist()
            losses |= {f"losses/{tag}": value for tag, value in zip(tags, each, strict=True)}
            losses |= {"losses/qf_loss": (each[2] + each[3]) / 2, "losses/alpha": alpha_of(recipe, learner)}
            run.log(step, {tag: float(value) for tag, value in losses.items()})
            run.log_speed(step)
        state.trees = learner._asdict()
        if run.checkpoint_due(step):
            obs = run.checkpoint(step, envs)

    if args.save_model:
        run.save_policy(step, saved())
        run.evaluate(step, load_policy(saved(), envs, vars(args)))
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
