"""Gymnasium's classic control in jnp: the same equations, vectorized, for compiled rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from cleanrl_worker.envs import episodes
from cleanrl_worker.envs.episodes import Episode, Episodes, Step
from cleanrl_worker.envs.finite import Guard
from cleanrl_worker.envs.rollouts import add_rollout

if TYPE_CHECKING:
    from cleanrl_worker.run.args import RunArgs


class Classic(NamedTuple):
    """An environment as pure functions of arrays whose last axis is an environment's state."""

    size: int
    """size of a state"""
    start: Callable[[jax.Array], jax.Array]
    """`size` uniform numbers between 0 and 1 to a first state"""
    observe: Callable[[jax.Array], jax.Array]
    step: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
    """states and actions to states, rewards and terminations"""
    limit: int
    """steps after which an episode is truncated"""


class EpisodeProgress(NamedTuple):
    """The states of the environments and the steps of their episodes so far."""

    states: jax.Array
    elapsed: jax.Array


class ClassicStep(NamedTuple):
    """The result of one action in every environment, before ended episodes are reset."""

    obs: jax.Array
    rewards: jax.Array
    terminations: jax.Array
    truncations: jax.Array


def advance(
    classic: Classic, now: EpisodeProgress, actions: jax.Array, drawn: jax.Array
) -> tuple[EpisodeProgress, ClassicStep]:
    """Step every environment once; after an ended episode, the next one starts from its row of `drawn`."""
    states, rewards, terminations = classic.step(now.states, actions)
    elapsed = now.elapsed + 1
    truncations = elapsed >= classic.limit
    ends = terminations | truncations
    then = EpisodeProgress(jnp.where(ends[:, None], classic.start(drawn), states), jnp.where(ends, 0, elapsed))
    return then, ClassicStep(classic.observe(states), rewards, terminations, truncations)


class ClassicEnvs:
    """A vector of classic environments; a compiled rollout reads `progress` and writes it back.

    Such a caller passes the rewards and ends to `count`.
    """

    backend = "jax"

    def __init__(self, classic: Classic, args: RunArgs) -> None:
        env = gym.make(args.env_id)
        self.single_observation_space: Any = env.observation_space
        self.single_action_space: Any = env.action_space
        env.close()
        self.num_envs, self.classic = args.num_envs, classic
        self.episodes = Episodes(args.num_envs)
        self.episodes.guard = Guard(args.nonfinite, args.env_id)
        self.standing = True
        """False if a saved state did not fit: the environments are reset"""
        self.reset(args.seed)

    def reset(self, seed: int, first: int = 0) -> np.ndarray:
        self.standing = True
        self.episodes.clear()
        self._rng = np.random.default_rng(seed)
        self.progress = _begin(self.classic, self.draw(self._rng))
        return self.obs()

    def obs(self) -> np.ndarray:
        """Return the current observation of every environment."""
        return np.asarray(self.classic.observe(self.progress.states))

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state: resuming from it needs no barrier."""
        under_way = {"returns": self.episodes.returns, "lengths": self.episodes.lengths}
        return {**self.progress._asdict(), **under_way, "generator": json.dumps(self._rng.bit_generator.state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; refuse one of a different number of environments."""
        self.standing = np.shape(state.get("states", ())) == self.progress.states.shape
        if not self.standing:
            return
        self.progress = EpisodeProgress(jnp.asarray(state["states"]), jnp.asarray(state["elapsed"]))
        self.episodes.returns[:], self.episodes.lengths[:] = state["returns"], state["lengths"]
        self._rng.bit_generator.state = json.loads(state["generator"])

    def draw(self, rng: np.random.Generator, *steps: int) -> np.ndarray:
        """Return random numbers for new episodes, enough for all environments in each step."""
        return rng.random((*steps, self.num_envs, self.classic.size), np.float32)

    def step(self, actions: np.ndarray) -> Step:
        self.progress, reached = _advance(self.classic, self.progress, actions, self.draw(self._rng))
        final_obs, rewards, terminations, truncations = (np.asarray(part) for part in reached)
        ended = self.episodes.add(rewards, terminations | truncations)
        return Step(self.obs(), rewards, terminations, truncations, final_obs, ended)

    def count(self, rewards: np.ndarray, ends: np.ndarray) -> list[tuple[int, list[Episode]]]:
        """Return the episodes that ended in a rollout, by step; both arrays have shape (steps, environments)."""
        return add_rollout(self.episodes, rewards, ends)

    def close(self) -> None:
        """Do nothing: no resources are held."""


@partial(jax.jit, static_argnums=0)
def _begin(classic: Classic, drawn: jax.Array) -> EpisodeProgress:
    return EpisodeProgress(classic.start(drawn), jnp.zeros(len(drawn), jnp.int32))


_advance = partial(jax.jit, static_argnums=0)(advance)


def make(args: RunArgs) -> ClassicEnvs | None:
    """Return a run's environments, None if not available in jnp, or if its backend, video or curriculum need others."""
    elsewhere = args.env_backend != "auto" or args.vectorization != "sync" or args.capture_video
    classic = None if elsewhere or args.curriculum_schedule or args.curriculum else CLASSICS.get(args.env_id)
    return None if classic is None else ClassicEnvs(classic, args)


def watched(envs: ClassicEnvs, args: RunArgs) -> Any:
    """Return the environments, wrapped for watching if the run's live view is on."""
    return episodes.onlooker.training(envs, args) if episodes.onlooker else envs


def _between(low: Any, high: Any) -> Callable[[jax.Array], jax.Array]:
    return lambda drawn: jnp.asarray(low) + drawn * (jnp.asarray(high) - jnp.asarray(low))


def _as_it_is(states: jax.Array) -> jax.Array:
    return states


def _cartpole(states: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Step CartPole: Barto, Sutton and Anderson 1983, corrected (https://coneural.org/florian/papers/05_cart_pole.pdf)."""
    gravity, cart, pole, length, push, dt = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    total = cart + pole
    x, x_dot, theta, theta_dot = jnp.moveaxis(states, -1, 0)
    force = jnp.where(actions == 1, push, -push)
    cos, sin = jnp.cos(theta), jnp.sin(theta)
    pushed = (force + pole * length * theta_dot**2 * sin) / total
    theta_acc = (gravity * sin - cos * pushed) / (length * (4.0 / 3.0 - pole * cos**2 / total))
    x_acc = pushed - pole * length * theta_acc * cos / total
    x, x_dot = x + dt * x_dot, x_dot + dt * x_acc
    theta, theta_dot = theta + dt * theta_dot, theta_dot + dt * theta_acc
    fell = (jnp.abs(x) > 2.4) | (jnp.abs(theta) > 12 * 2 * np.pi / 360)
    return jnp.stack([x, x_dot, theta, theta_dot], axis=-1), jnp.ones_like(x), fell


def _mountain_car(states: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Step MountainCar: Moore 1990."""
    position, velocity = states[..., 0], states[..., 1]
    velocity = velocity + (actions - 1) * 0.001 - 0.0025 * jnp.cos(3 * position)
    velocity = jnp.clip(velocity, -0.07, 0.07)
    position = jnp.clip(position + velocity, -1.2, 0.6)
    velocity = jnp.where((position <= -1.2) & (velocity < 0), 0.0, velocity)
    return jnp.stack([position, velocity], axis=-1), jnp.full_like(position, -1.0), (position >= 0.5) & (velocity >= 0)


def _acrobot(states: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Step Acrobot: Sutton and Barto 1998; links of 1 kg and 1 m, torque between them; a Runge-Kutta step of 0.2 s."""
    torque, dt = (actions - 1).astype(states.dtype), 0.2
    k1 = _links(states, torque)
    k2 = _links(states + dt / 2 * k1, torque)
    k3 = _links(states + dt / 2 * k2, torque)
    k4 = _links(states + dt * k3, torque)
    reached = states + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    angles = (reached[..., :2] + np.pi) % (2 * np.pi) - np.pi
    speeds = jnp.clip(reached[..., 2:], jnp.array([-4, -9]) * np.pi, jnp.array([4, 9]) * np.pi)
    first, second = angles[..., 0], angles[..., 1]
    swung_up = -jnp.cos(first) - jnp.cos(first + second) > 1.0
    return jnp.concatenate([angles, speeds], axis=-1), jnp.where(swung_up, 0.0, -1.0), swung_up


def _links(states: jax.Array, torque: jax.Array) -> jax.Array:
    """Return the derivative of Acrobot's state."""
    theta1, theta2, dtheta1, dtheta2 = jnp.moveaxis(states, -1, 0)
    mass = length = inertia = 1.0
    centre, gravity = 0.5, 9.8
    cos2, sin2 = jnp.cos(theta2), jnp.sin(theta2)
    d1 = mass * centre**2 + mass * (length**2 + centre**2 + 2 * length * centre * cos2) + 2 * inertia
    d2 = mass * (centre**2 + length * centre * cos2) + inertia
    phi2 = mass * centre * gravity * jnp.cos(theta1 + theta2 - np.pi / 2)
    phi1 = (
        -mass * length * centre * dtheta2 * (dtheta2 + 2 * dtheta1) * sin2
        + (mass * centre + mass * length) * gravity * jnp.cos(theta1 - np.pi / 2)
        + phi2
    )
    pull = torque + d2 / d1 * phi1 - mass * length * centre * dtheta1**2 * sin2 - phi2
    ddtheta2 = pull / (mass * centre**2 + inertia - d2**2 / d1)
    return jnp.stack([dtheta1, dtheta2, -(d2 * ddtheta2 + phi1) / d1, ddtheta2], axis=-1)


def _acrobot_seen(states: jax.Array) -> jax.Array:
    first, second, *speeds = jnp.moveaxis(states, -1, 0)
    return jnp.stack([jnp.cos(first), jnp.sin(first), jnp.cos(second), jnp.sin(second), *speeds], axis=-1)


def _pendulum(states: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Step Pendulum: a rod of 1 kg and 1 m; the angle is 0 upright, and costs reward."""
    theta, speed = states[..., 0], states[..., 1]
    torque, dt = jnp.clip(actions[..., 0], -2.0, 2.0), 0.05
    angle = (theta + np.pi) % (2 * np.pi) - np.pi
    cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
    speed = jnp.clip(speed + (15.0 * jnp.sin(theta) + 3.0 * torque) * dt, -8.0, 8.0)
    return jnp.stack([theta + speed * dt, speed], axis=-1), -cost, jnp.zeros_like(theta, bool)


def _pendulum_seen(states: jax.Array) -> jax.Array:
    theta, speed = states[..., 0], states[..., 1]
    return jnp.stack([jnp.cos(theta), jnp.sin(theta), speed], axis=-1)


_NEAR_UPRIGHT = _between(-0.05, 0.05)
CLASSICS = {
    "CartPole-v0": Classic(4, _NEAR_UPRIGHT, _as_it_is, _cartpole, 200),
    "CartPole-v1": Classic(4, _NEAR_UPRIGHT, _as_it_is, _cartpole, 500),
    "MountainCar-v0": Classic(2, _between([-0.6, 0.0], [-0.4, 0.0]), _as_it_is, _mountain_car, 200),
    "Acrobot-v1": Classic(4, _between(-0.1, 0.1), _acrobot_seen, _acrobot, 500),
    "Pendulum-v1": Classic(2, _between([-np.pi, -1.0], [np.pi, 1.0]), _pendulum_seen, _pendulum, 200),
}
