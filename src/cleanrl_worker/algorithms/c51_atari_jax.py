"""C51 in JAX, DQN that learns the distribution of returns, for Atari games (arXiv:1707.06887).

Siblings: c51_atari, c51_jax, dqn_atari_jax.
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
from cleanrl_worker.run.args import (
    Amount,
    Count,
    CountFrom0,
    CountFrom2,
    Highest,
    Lowest,
    RunArgs,
    Share,
    Stacks,
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
    checkpoint_every: CountFrom0 = 150000
    """steps between two checkpoints of the whole training state (0: only at the end and on SIGTERM)"""
    num_threads: CountFrom0 = 0
    """CPU threads for the network (0: all cores; a convolution is worth them)"""
    learning_rate: Amount = 2.5e-4
    """step size of Adam"""
    num_envs: Count = 1
    """environments stepped side by side"""
    n_atoms: CountFrom2 = 51
    """returns that a distribution tells apart"""
    v_min: Lowest = -10.0
    """the smallest of them"""
    v_max: Highest = 10.0
    """the largest of them"""
    buffer_size: Stacks = 1000000
    """transitions that the replay memory holds (a million takes 7.6 GB)"""
    gamma: Share = 0.99
    """discount factor"""
    target_network_frequency: Count = 10000
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


def logits_of(network: NatureNetwork, n_atoms: int, params: Any, obs: Any) -> jax.Array:
    """The distribution of each action's return over the atoms, of shape (batch, actions, atoms)."""
    return outputs_of(network, params, obs).reshape(len(obs), -1, n_atoms)


@partial(jax.jit, static_argnums=0)
def greedy(network: NatureNetwork, atoms: Any, params: Any, obs: np.ndarray) -> jax.Array:
    """The actions of the highest mean return."""
    pmfs = jax.nn.softmax(logits_of(network, len(atoms), params, obs))
    return (pmfs @ atoms).argmax(axis=1)


def load_policy(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """The greedy actions of a saved network; sampled, a share `end_e` of them is random as in the end of training."""
    known = {name: args.get(name, getattr(Args, name)) for name in ("v_min", "v_max", "n_atoms", "end_e")}
    atoms = np.linspace(known["v_min"], known["v_max"], known["n_atoms"], dtype=np.float32)
    actions = int(spaces.single_action_space.n)
    network = NatureNetwork(actions * len(atoms))
    params = params_of(network, state, np.zeros((1, *spaces.single_observation_space.shape), np.uint8))

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        best = np.asarray(greedy(network, atoms, params, obs))
        if rng is None:
            return best
        return np.where(rng.random(len(obs)) < known["end_e"], rng.integers(0, actions, len(obs)), best)

    return act


class Recipe(NamedTuple):
    """The numbers that an update is compiled with."""

    learning_rate: float
    n_atoms: int
    v_min: float
    v_max: float
    gamma: float
    batch_size: int

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate, eps=0.01 / self.batch_size)


class Learner(NamedTuple):
    """What learning changes."""

    params: Any
    target: Any
    optimizer: Any


def project(pmfs: jax.Array, rewards: jax.Array, alive: jax.Array, atoms: jax.Array, gamma: float) -> jax.Array:
    """The distribution of `rewards + gamma * alive * returns`, back on the atoms that `pmfs` of returns is on (eq. 7).

    Each shifted atom gives its probability to the two atoms around it, the nearer one getting the more.
    """
    low, high, last = atoms[0], atoms[-1], len(atoms) - 1
    shifted = jnp.clip(rewards[:, None] + gamma * alive[:, None] * atoms, low, high)
    places = jnp.minimum((shifted - low) * (last / (high - low)), last)  # rounding may lead beyond the last
    below = jnp.floor(places)
    share = (places - below) * pmfs
    rows, low_place = jnp.arange(len(pmfs))[:, None], below.astype(jnp.int32)
    projected = jnp.zeros_like(pmfs).at[rows, low_place].add(pmfs - share)
    return projected.at[rows, jnp.minimum(low_place + 1, last)].add(share)


@partial(jax.jit, static_argnums=(0, 1))
def update(
    network: NatureNetwork, recipe: Recipe, learner: Learner, sample: Transitions
) -> tuple[Learner, jax.Array, jax.Array]:
    """The learner after a batch, the loss, and the mean of what the actions taken are worth."""
    atoms = jnp.linspace(recipe.v_min, recipe.v_max, recipe.n_atoms)
    rows = jnp.arange(recipe.batch_size)
    next_pmfs = jax.nn.softmax(logits_of(network, recipe.n_atoms, learner.target, sample.next_obs))
    best = (next_pmfs @ atoms).argmax(axis=1)
    rewards, alive = jnp.asarray(sample.rewards), 1.0 - jnp.asarray(sample.terminations)
    target_pmfs = project(next_pmfs[rows, best], rewards, alive, atoms, recipe.gamma)

    def cross_entropy(params: Any) -> tuple[jax.Array, jax.Array]:
        logits = logits_of(network, recipe.n_atoms, params, sample.obs)
        logpmfs = jax.nn.log_softmax(logits[rows, sample.actions])
        return -(target_pmfs * logpmfs).sum(axis=1).mean(), (jnp.exp(logpmfs) @ atoms).mean()

    (loss, value), gradients = jax.value_and_grad(cross_entropy, has_aux=True)(learner.params)
    changes, optimizer = recipe.optimizer.update(gradients, learner.optimizer)
    return Learner(optax.apply_updates(learner.params, changes), learner.target, optimizer), loss, value


@partial(jax.jit, static_argnums=0)  # compiled as one: operation by operation it takes longer
def first_learner(recipe: Recipe, params: Any) -> Learner:
    return Learner(params, params, recipe.optimizer.init(params))


def main(args: Args | None = None) -> None:
    args = args or parse(Args)
    require(args)
    prepare(args)
    run = training.start(args)
    envs = vectors.atari(args, run.video_folder)
    network = NatureNetwork(int(envs.single_action_space.n) * args.n_atoms)
    recipe = Recipe(*(getattr(args, name) for name in Recipe._fields))
    atoms = np.linspace(args.v_min, args.v_max, args.n_atoms, dtype=np.float32)
    buffer = FrameReplay(args.buffer_size, envs.single_observation_space.shape)
    blank = buffer.take(np.zeros(args.batch_size, np.int64))
    learner = first_learner(recipe, first_params(network, args.seed, blank.obs))
    state = Trees(**learner._asdict())
    step = run.restore({"policy": state}, buffer, fixed=("n_atoms", "v_min", "v_max"))
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
            actions = np.array(greedy(network, atoms, learner.params, obs))
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
                learner = learner._replace(target=learner.params)

        # 3 log
        if learned and is_due(100, previous, step):
            run.log(step, {"losses/loss": float(loss), "losses/q_values": float(value)})
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
