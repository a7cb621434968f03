"""Actor-critic networks in flax for flat, grid and image observations, initialised in numpy."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cleanrl_worker.nets.jax.trees import dense_layers, path_of, shapes_of

import flax.linen as nn
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np


class Layers(nn.Module):
    """Two hidden layers of 64."""

    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.tanh(nn.Dense(64)(x))
        return nn.Dense(self.outputs)(x)


class Linear(nn.Module):
    """One layer on a trunk's features of an image."""

    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.outputs)(x)


class GridFeatures(nn.Module):
    """A network from cells (object, colour, state; one byte each) to 128 features, as in `nets/grid.py`."""

    @nn.compact
    def __call__(self, cells: jax.Array) -> jax.Array:
        x = cells / 10.0  # the largest number of a cell
        for channels in (32, 64, 64):
            x = nn.relu(nn.Dense(channels)(neighbours(x)))
        x = x.reshape(*x.shape[:-3], -1)
        return nn.relu(nn.Dense(128)(x))


def neighbours(x: jax.Array) -> jax.Array:
    """Return each cell's 3×3 patch: a dense layer on it is a convolution, on a CPU four times as fast as XLA's own."""
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(1, 1), (1, 1), (0, 0)])
    rows, columns = x.shape[-3:-1]
    shifted = [padded[..., i : i + rows, j : j + columns, :] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1)


class Conv(nn.Module):
    """A square convolution without padding on (rows, height, width, channels); the stride divides the size.

    On a CPU it is a product with patches: XLA's convolution is 30 times slower inside a scan than outside.
    """

    channels: int
    size: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size, stride = self.size, self.stride
        shape = (size, size, x.shape[-1], self.channels)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.channels,))
        if jax.default_backend() != "cpu":
            sides = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=sides) + bias
        # blocks of stride × stride pixels become channels; a patch is then a few adjacent blocks
        count, height, width, inputs = x.shape
        rows, columns, side = height // stride, width // stride, size // stride
        x = x[:, : rows * stride, : columns * stride].reshape(count, rows, stride, columns, stride, inputs)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(count, rows, columns, -1)
        down, right = rows - side + 1, columns - side + 1
        near = [x[:, i : i + down, j : j + right] for i in range(side) for j in range(side)]
        weights = kernel.reshape(side, stride, side, stride, inputs, -1).transpose(0, 2, 1, 3, 4, 5)
        return jnp.concatenate(near, axis=-1) @ weights.reshape(-1, self.channels) + bias


class ImageFeatures(nn.Module):
    """The convolutions of Mnih et al. 2015 on bytes, whose channels or stacked frames come first or last."""

    @nn.compact
    def __call__(self, pixels: jax.Array) -> jax.Array:
        x = pixels.reshape(-1, *pixels.shape[-3:]).astype(jnp.float32) / 255.0
        x = x if x.shape[-1] <= x.shape[-3] else jnp.moveaxis(x, -3, -1)
        for channels, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.relu(Conv(channels, size, stride)(x))
        return nn.relu(nn.Dense(512)(x.reshape(*pixels.shape[:-3], -1)))


class Agent(nn.Module):
    """Policy and value: two networks for flat observations, a trunk with two heads for grids and images."""

    network: str
    """separate, grid or image"""
    outputs: int
    continuous: bool

    def setup(self) -> None:
        if self.network != "separate":
            self.features = GridFeatures() if self.network == "grid" else ImageFeatures()
        head: Callable[[int], nn.Module] = Linear if self.network == "image" else Layers
        self.actor = head(self.outputs)
        self.critic = head(1)
        if self.continuous:
            self.actor_logstd = self.param("actor_logstd", nn.initializers.zeros, (self.outputs,))

    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return logits or means, and values."""
        seen = obs if self.network == "separate" else self.features(obs)
        return self.actor(seen), self.critic(seen).squeeze(-1)


def make_agent(network: str, spaces: Any) -> Agent:
    space = spaces.single_action_space
    continuous = isinstance(space, gym.spaces.Box)
    return Agent(network, int(np.prod(space.shape)) if continuous else int(space.n), continuous)


def network_of(params: Mapping[str, Any]) -> str:
    """Return the kind of network that these weights belong to."""
    if "features" not in params:
        return "separate"
    return "image" if "Conv_0" in params["features"] else "grid"


def forward(agent: nn.Module, params: Any, obs: Any) -> tuple[jax.Array, jax.Array]:
    """Return logits or means, and values."""
    outputs: Any = agent.apply({"params": params}, obs)
    return outputs


def fitting(agent: nn.Module, params: Any, spaces: Any) -> Any:
    """Return the weights if they fit this network and these observations; else raise ValueError."""
    space = spaces.single_observation_space
    expected, given = (shapes_of(tree) for tree in (_shapes(agent, np.zeros((1, *space.shape))), params))
    for name in sorted(expected.keys() | given.keys(), reverse=True):
        if name not in given:
            raise ValueError(f"it has no {name}")
        if name not in expected:
            raise ValueError(f"the network has no {name}")
        if expected[name] != given[name]:
            raise ValueError(f"size mismatch for {name}: {given[name]}, not {expected[name]}")
    return params


def _shapes(agent: nn.Module, obs: np.ndarray) -> Any:
    return jax.eval_shape(agent.init, jax.random.key(0), obs)["params"]


def acting(agent: Agent, params: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from observations to logits or means, in numpy if faster than a jitted call."""
    if agent.network == "separate":
        return dense_layers(params["actor"], np.tanh)
    params = jax.device_put(params)  # once: each jitted call would transfer a file's arrays again
    return lambda obs: np.asarray(logits_of(agent, params, obs))


@partial(jax.jit, static_argnums=0)
def logits_of(agent: nn.Module, params: Any, obs: jax.Array) -> jax.Array:
    """Return only the logits or means."""
    return forward(agent, params, obs)[0]


def first_params(agent: nn.Module, obs: np.ndarray, rng: np.random.Generator) -> Any:
    """Return orthogonal initial weights, as in CleanRL; in numpy, which needs no compilation.

    The gain is √2, except for the heads' last layers: 0.01 for the actor's, 1 for the critic's.
    """
    shapes = _shapes(agent, obs)
    last = {head: max(shapes[head]) for head in ("actor", "critic")}
    gains = {f"actor/{last['actor']}/kernel": 0.01, f"critic/{last['critic']}/kernel": 1.0}

    def fill(path: Any, leaf: Any) -> np.ndarray:
        name = path_of(path)
        if not name.endswith("kernel"):
            return np.zeros(leaf.shape, np.float32)
        rows = rng.standard_normal((int(np.prod(leaf.shape[:-1])), leaf.shape[-1]), np.float32)
        tall = rows.shape[0] >= rows.shape[1]
        q, r = np.linalg.qr(rows if tall else rows.T)
        q = q * np.sign(np.diag(r))  # without it, the signs are not uniform
        return (gains.get(name, 2**0.5) * (q if tall else q.T)).reshape(leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(fill, shapes)
