"""TD3 in JAX for flat observations and continuous actions (arXiv:1802.09477).

Siblings: td3_continuous_action, ddpg_continuous_action_jax.
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


@dataclass(kw_only=True)
class Args(RunArgs):
    env_id: str = "Hopper-v5"
    """environment to learn"""
    total_timesteps: Count = 1000000
    """environment steps to train for, over all environments"""
    num_threads: CountFrom0 = 0
    """CPU threads for the networks (0: all cores)"""
    learning_rate: Amount = 3e-4
    """step size of Adam, for the actor and the critics"""
    num_envs: Count = 1
    """environments stepped side by side"""
    buffer_size: Capacity = 1000000
    """transitions that the replay memory holds"""
    gamma: Share = 0.99
    """discount factor"""
    tau: Share = 0.005
    """share of the online networks that enters the target networks"""
    batch_size: Count = 256
    """transitions per update"""
    policy_noise: Amount = 0.2
    """deviation of the noise on the target actor's actions, as a share of half the action range"""
    exploration_noise: Amount = 0.1
    """deviation of the noise on the actions that are taken, as a share of half the action range"""
    learning_starts: CountFrom0 = 25000
    """steps of random actions before the first update"""
    policy_frequency: Count = 2
    """critic updates between two updates of the actor and the target networks"""
    noise_clip: Amount = 0.5
    """largest noise on the target actor's actions, as a share of half the action range"""


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
    """Observation to action, squashed by tanh into the action space."""

    limits: Limits

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.relu(dense(256, x))
        return nn.tanh(dense(len(self.limits.low), x)) * self.limits.scale + self.limits.bias


class Recipe(NamedTuple):
    """The numbers that an update is compiled with."""

    learning_rate: float
    gamma: float
    tau: float
    policy_noise: float
    noise_clip: float

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)


class Learner(NamedTuple):
    """What learning changes; `params` are the actor's."""

    params: Any
    qf1: Any
    qf2: Any
    target: Any
    target_qf1: Any
    target_qf2: Any
    actor_optimizer: Any
    q_optimizer: Any


def acting(params: Any, space: Any, noise: float) -> Policy:
    """The actor in numpy, with noise if given a generator."""
    outputs, limits = dense_layers(params, lambda x: np.maximum(x, 0.0)), Limits.of(space)
    scale, bias, deviation = limits.scale, limits.bias, np.float32(noise) * limits.scale

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        actions = np.tanh(outputs(obs.astype(np.float32))) * scale + bias
        if rng is not None:
            actions = actions + deviation * rng.standard_normal(actions.shape, np.float32)
        return np.minimum(np.maximum(actions, space.low), space.high)

    return act


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The saved actor; sampled, with the noise of its exploration."""
    noise = float(args.get("exploration_noise", Args.exploration_noise))
    return acting(tree_of(state)["params"], spaces.single_action_space, noise)


def act_by(limits: Limits, params: Any, obs: Any) -> jax.Array:
    return outputs_of(Actor(limits), params, obs)


def value_of(params: Any, obs: Any, actions: Any) -> jax.Array:
    return outputs_of(QNetwork(), params, obs, actions)


@partial(jax.jit, static_argnums=(0, 1))
def update_critics(
    limits: Limits, recipe: Recipe, learner: Learner, sample: Transitions, seed: Any
) -> tuple[Learner, jax.Array]:
    """The learner with better critics; of each critic the mean value and the loss."""
    noise = jax.random.normal(jax.random.key(seed), sample.actions.shape) * recipe.policy_noise
    noise = jnp.clip(noise, -recipe.noise_clip, recipe.noise_clip) * limits.scale
    next_actions = act_by(limits, learner.target, sample.next_obs) + noise
    next_actions = jnp.clip(next_actions, jnp.array(limits.low), jnp.array(limits.high))
    targets = (value_of(slow, sample.next_obs, next_actions) for slow in (learner.target_qf1, learner.target_qf2))
    target = sample.rewards + recipe.gamma * (1.0 - sample.terminations) * jnp.minimum(*targets)

    def mse(critics: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
        values = jnp.stack([value_of(critic, sample.obs, sample.actions) for critic in critics])
        losses = ((values - target) ** 2).mean(axis=1)
        return losses.sum(), jnp.concatenate([values.mean(axis=1), losses])

    critics = (learner.qf1, learner.qf2)
    gradients, told = jax.grad(mse, has_aux=True)(critics)
    changes, q_optimizer = recipe.optimizer.update(gradients, learner.q_optimizer)
    qf1, qf2 = optax.apply_updates(critics, changes)
    return learner._replace(qf1=qf1, qf2=qf2, q_optimizer=q_optimizer), told


@partial(jax.jit, static_argnums=(0, 1))
def update_actor(limits: Limits, recipe: Recipe, learner: Learner, sample: Transitions) -> tuple[Learner, jax.Array]:
    """The learner with a better actor and target networks moved towards the others; the actor's loss."""

    def loss_of(params: Any) -> jax.Array:
        return -value_of(learner.qf1, sample.obs, act_by(limits, params, sample.obs)).mean()

    loss, gradients = jax.value_and_grad(loss_of)(learner.params)
    changes, actor_optimizer = recipe.optimizer.update(gradients, learner.actor_optimizer)
    params = optax.apply_updates(learner.params, changes)
    moved = learner._replace(
        params=params,
        actor_optimizer=actor_optimizer,
        target=optax.incremental_update(params, learner.target, recipe.tau),
        target_qf1=optax.incremental_update(learner.qf1, learner.target_qf1, recipe.tau),
        target_qf2=optax.incremental_update(learner.qf2, learner.target_qf2, recipe.tau),
    )
    return moved, loss


@partial(jax.jit, static_argnums=(0, 1, 2))  # compiled as one: operation by operation it takes seconds
def first_learner(limits: Limits, recipe: Recipe, obs_shape: tuple[int, ...], seed: Any) -> Learner:
    keys, obs = jax.random.split(jax.random.key(seed), 3), jnp.zeros((1, *obs_shape))
    params = Actor(limits).init(keys[0], obs)["params"]
    qf1, qf2 = (QNetwork().init(key, obs, jnp.zeros((1, len(limits.low))))["params"] for key in keys[1:])
    states = recipe.optimizer.init(params), recipe.optimizer.init((qf1, qf2))
    return Learner(params, qf1, qf2, params, qf1, qf2, *states)


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
    blank = Transitions(**buffer.rows(0, args.batch_size))
    state = Trees(**learner._asdict())
    step = run.restore({"policy": state}, buffer)
    if step == 0:  # a warm start has loaded no targets
        trees = state.trees
        trees |= {"target": trees["params"], "target_qf1": trees["qf1"], "target_qf2": trees["qf2"]}
    learner = Learner(**state.trees)
    compiled("the critics' update", lambda: update_critics(limits, recipe, learner, blank, np.uint32(0)))
    compiled("the actor's update", lambda: update_actor(limits, recipe, learner, blank))
    policy = acting(learner.params, space, args.exploration_noise)
    obs = run.reset(envs, step)
    losses: dict[str, Any] = {}

    def saved() -> dict[str, np.ndarray]:
        return arrays_of({"params": learner.params, "qf1": learner.qf1, "qf2": learner.qf2})

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
            seed = run.rng.integers(2**32, dtype=np.uint32)
            learner, told = update_critics(limits, recipe, learner, sample, seed)
            # the actor, and the target networks
            if count % args.policy_frequency == 0:
                learner, losses["losses/actor_loss"] = update_actor(limits, recipe, learner, sample)
                policy = acting(learner.params, space, args.exploration_noise)

        # 3 log, checkpoint
        if is_due(100, previous, step):
            tags = ("qf1_values", "qf2_values", "qf1_loss", "qf2_loss")
            losses |= {f"losses/{tag}": value for tag, value in zip(tags, told.tolist(), strict=True)}
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
