"""Image networks in flax, with the layer names of CleanRL's files: from four grey uint8 frames to some outputs."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class NatureNetwork(nn.Module):
    """The network of DQN's authors (Mnih et al. 2015)."""

    outputs: int

    @nn.compact
    def __call__(self, frames: jax.Array) -> jax.Array:
        x = channels_last(frames)
        for channels, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.relu(nn.Conv(channels, (size, size), (stride, stride), padding="VALID")(x))
        x = nn.relu(nn.Dense(512)(x.reshape(len(x), -1)))
        return nn.Dense(self.outputs)(x)


class ImpalaNetwork(nn.Module):
    """The network of IMPALA (arXiv:1802.01561)."""

    outputs: int
    pool_padding: str | tuple[tuple[int, int], ...] = "SAME"
    """padding of the max pooling: flax's own, as in CleanRL's files, or torch's, for weights trained in torch"""

    @nn.compact
    def __call__(self, frames: jax.Array) -> jax.Array:
        x = channels_last(frames)
        for channels in (16, 32, 32):
            x = ConvSequence(channels, self.pool_padding)(x)
        x = nn.relu(nn.Dense(256)(nn.relu(x).reshape(len(x), -1)))
        return nn.Dense(self.outputs)(x)


class ConvSequence(nn.Module):
    """A convolution, max pooling to half the size, and two residual blocks."""

    channels: int
    pool_padding: str | tuple[tuple[int, int], ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(self.channels, (3, 3))(x)
        x = nn.max_pool(x, (3, 3), (2, 2), self.pool_padding)
        for _ in range(2):
            x = ResidualBlock(self.channels)(x)
        return x


class ResidualBlock(nn.Module):
    """Two convolutions whose result is added to their input."""

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        inner = nn.Conv(self.channels, (3, 3))(nn.relu(x))
        return x + nn.Conv(self.channels, (3, 3))(nn.relu(inner))


TORCH_PADDING = ((1, 1), (1, 1))


def channels_last(frames: jax.Array) -> jax.Array:
    """Return frames scaled to 0 … 1, with channels last as flax's convolutions require."""
    return jnp.transpose(frames, (0, 2, 3, 1)) / 255.0
