"""Trees of JAX arrays, and JAX before anything is computed."""

import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cleanrl_worker.agents.jax_trees import dense, prepare
from cleanrl_worker.kit.args import RunArgs

WHOLE = "XLA_PYTHON_CLIENT_PREALLOCATE"


class Two(nn.Module):
    """Two layers, of 16 and of 4 inputs."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return dense(300, dense(4, x))


def test_a_dense_layer_has_flax_names_and_begins_as_torch_s_do():
    params = Two().init(jax.random.key(1), jnp.zeros((1, 16)))["params"]
    assert set(params) == {"Dense_0", "Dense_1"}
    for name, bound in (("Dense_0", 0.25), ("Dense_1", 0.5)):
        for part in params[name].values():
            assert np.abs(part).max() <= bound
    assert np.abs(params["Dense_1"]["kernel"]).max() > 0.49  # of 1,200 uniform numbers
    assert np.abs(params["Dense_1"]["bias"]).max() > 0.45


def test_no_cuda_is_the_cpu_and_memory_is_taken_whole_only_where_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = jax.config.jax_platforms
    monkeypatch.setenv(WHOLE, "true")
    try:
        jax.config.update("jax_platforms", None)
        prepare(RunArgs(cuda=True))
        assert (jax.config.jax_platforms, os.environ[WHOLE]) == (None, "true")
        monkeypatch.delenv(WHOLE)
        prepare(RunArgs(cuda=False))
        assert (jax.config.jax_platforms, os.environ[WHOLE]) == ("cpu", "false")
    finally:
        jax.config.update("jax_platforms", before)
