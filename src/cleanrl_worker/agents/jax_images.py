"""Networks for images in flax, under the names that CleanRL's files have: four grey frames of bytes to some outputs."""

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


def channels_last(frames: jax.Array) -> jax.Array:
    """Frames as environments show them, scaled to 0 … 1 and as flax's convolutions take them."""
    return jnp.transpose(frames, (0, 2, 3, 1)) / 255.0
