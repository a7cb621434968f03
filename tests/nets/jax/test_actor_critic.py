"""Networks in flax: what they compute and how they start."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from cleanrl_worker.nets.jax.actor_critic import Agent, Conv, first_params, forward, network_of


@pytest.mark.parametrize(("size", "stride", "side"), [(8, 4, 20), (4, 2, 9), (3, 1, 5)])
def test_a_convolution_by_patches_is_the_one_of_flax(size: int, stride: int, side: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, side, side, 3)).astype(np.float32)
    other = nn.Conv(5, (size, size), (stride, stride), "VALID")
    params = other.init(jax.random.key(0), x)
    expected, ours = other.apply(params, x), Conv(5, size, stride).apply(params, x)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("network", "shape"), [("separate", (4,)), ("grid", (7, 7, 3)), ("image", (4, 84, 84)), ("image", (64, 64, 3))]
)
def test_first_weights_are_orthogonal_and_their_names_tell_the_network(network: str, shape: tuple[int, ...]) -> None:
    agent = Agent(network, 3, False)
    obs = np.zeros((2, 1, *shape), np.uint8 if network == "image" else np.float32)
    params = first_params(agent, obs, np.random.default_rng(1))
    assert network_of(params) == network
    logits, values = jax.eval_shape(lambda: forward(agent, params, obs))
    assert (logits.shape, values.shape) == ((2, 1, 3), (2, 1))
    last = params["actor"][max(params["actor"])]
    np.testing.assert_allclose(last["kernel"].T @ last["kernel"], 0.01**2 * np.eye(3), atol=1e-7)
    first = params["actor" if network == "separate" else "features"]
    kernel = first["Conv_0" if network == "image" else "Dense_0"]["kernel"]
    rows = kernel.reshape(-1, kernel.shape[-1])
    rows = rows if rows.shape[0] >= rows.shape[1] else rows.T
    np.testing.assert_allclose(rows.T @ rows, 2 * np.eye(rows.shape[1]), atol=1e-5)
