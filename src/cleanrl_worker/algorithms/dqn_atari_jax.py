"""DQN in JAX for Atari games (Mnih et al. 2015).

Siblings: dqn_atari, dqn_jax, c51_atari_jax, qdagger_dqn_atari_jax_impalacnn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from cleanrl_worker.nets.jax.trees import Trees, arrays_of, compiled, first_params, outputs_of, params_of, prepare

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.episodes import is_due
from cleanrl_worker.learn.buffers import Transitions
from cleanrl_worker.learn.frame_buffer import FrameReplay
from cleanrl_worker.nets.jax.images import NatureNetwork
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
    """CPU threads for the network (0: all cores; a convolution is worth them)"""
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


def linear_schedule(start: float, end: float, duration: float, step: int) -> float:
    """From start to end over `duration` steps, then constant."""
    return max(end, start + (end - start) * step / max(duration, 1))


@partial(jax.jit, static_argnums=0)
def greedy(network: NatureNetwork, params: Any, obs: np.ndarray) -> jax.Array:
    """The actions of the highest value."""
    return outputs_of(network, params, obs).argmax(axis=1)


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The greedy actions of a saved network; sampled, a share `end_e` of them is random as in the end of training."""
    network = NatureNetwork(int(spaces.single_action_space.n))
    params = params_of(network, state, np.zeros((1, *spaces.single_observation_space.shape), np.uint8))
    epsilon = float(args.get("end_e", Args.end_e))

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        actions = np.asarray(greedy(network, params, obs))
        if rng is None:
            return actions
        random_actions = rng.integers(0, network.outputs, len(obs))
        return np.where(rng.random(len(obs)) < epsilon, random_actions, actions)

    return act


class Recipe(NamedTuple):
    """The numbers that an update is compiled with."""

    learning_rate: float
    gamma: float

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)


class Learner(NamedTuple):
    """What learning changes."""

    params: Any
    target: Any
    optimizer: Any


@partial(jax.jit, static_argnums=(0, 1))
def update(
    network: NatureNetwork, recipe: Recipe, learner: Learner, sample: Transitions
) -> tuple[Learner, jax.Array, jax.Array]:
    """The learner after a batch, the loss, and the mean of what the actions taken are worth."""
    next_values = outputs_of(network, learner.target, sample.next_obs)
    td_target = sample.rewards + recipe.gamma * (1.0 - sample.terminations) * next_values.max(axis=1)

    def mse_loss(params: Any) -> tuple[jax.Array, jax.Array]:
        values = outputs_of(network, params, sample.obs)
        taken = jnp.take_along_axis(values, sample.actions[:, None], axis=1).squeeze(1)
        return ((taken - td_target) ** 2).mean(), taken.mean()

    (loss, value), gradients = jax.value_and_grad(mse_loss, has_aux=True)(learner.params)
    changes, optimizer = recipe.optimizer.update(gradients, learner.optimizer)
    return Learner(optax.apply_updates(learner.params, changes), learner.target, optimizer), loss, value


move_target = jax.jit(optax.incremental_update)


@partial(jax.jit, static_argnums=0)  # compiled as one: operation by operation it takes longer
def first_learner(recipe: Recipe, params: Any) -> Learner:
    return Learner(params, params, recipe.optimizer.init(params))


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    prepare(args)
    run = training.start(args)
    envs = vectors.atari(args, run.video_folder)
    network = NatureNetwork(int(envs.single_action_space.n))
    recipe = Recipe(args.learning_rate, args.gamma)
    buffer = FrameReplay(args.buffer_size, envs.single_observation_space.shape)
    blank = buffer.take(np.zeros(args.batch_size, np.int64))
    learner = first_learner(recipe, first_params(network, args.seed, blank.obs))
    state = Trees(**learner._asdict())
    step = run.restore({"policy": state}, buffer)
    if step == 0:  # a warm start has loaded no target
        state.trees["target"] = state.trees["params"]
    learner = Learner(**state.trees)
    compiled("the update", lambda: update(network, recipe, learner, blank))
    obs = run.reset(envs, step)

    def saved() -> dict[str, np.ndarray]:
        return arrays_of({"params": learner.params})

    while step < args.total_timesteps:
        # 1 act
        start_e = args.end_e if run.warm else args.start_e
        epsilon = linear_schedule(start_e, args.end_e, args.exploration_fraction * args.total_timesteps, step)
        explores = run.rng.random(args.num_envs) < epsilon
        if explores.all():
            actions = run.rng.integers(0, envs.single_action_space.n, args.num_envs)
        else:
            actions = np.array(greedy(network, learner.params, obs))
            if explores.any():
                actions[explores] = run.rng.integers(0, envs.single_action_space.n, explores.sum())
        reached = envs.step(actions)
        buffer.add(obs, actions, reached)
        obs = reached.obs
        previous, step = step, step + args.num_envs
        if reached.episodes:
            run.log_episodes(step, reached.episodes)
            run.keep_best(step, saved)

        # 2 learn, and move the target network: each step of each environment counts
        learned = False
        for count in range(max(previous, args.learning_starts) + 1, step + 1):
            if count % args.train_frequency == 0:
                learner, loss, value = update(network, recipe, learner, buffer.sample(args.batch_size, run.rng))
                learned = True
            if count % args.target_network_frequency == 0:
                learner = learner._replace(target=move_target(learner.params, learner.target, args.tau))

        # 3 log
        if learned and is_due(100, previous, step):
            run.log(step, {"losses/td_loss": float(loss), "losses/q_values": float(value)})
            run.log_speed(step)

        # 4 checkpoint
        state.trees = learner._asdict()
        if run.checkpoint_due(step):
            obs = run.checkpoint(step, envs)

    if args.save_model:
        run.save_policy(step, saved())
        run.evaluate(step, load_policy(saved(), envs, vars(args)), atari=True)
    envs.close()
    run.finish(step)


if __name__ == "__main__":
    main()
