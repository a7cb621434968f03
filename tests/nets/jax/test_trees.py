"""Trees of JAX arrays, and JAX before anything is computed."""

import os
import subprocess
import sys
from pathlib import Path

from cleanrl_worker.nets.jax.trees import Trees, arrays_of, dense, prepare

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cleanrl_worker.run.args import RunArgs

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


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the threads of a process are told by Linux")
def test_xla_has_as_many_threads_as_are_asked_for_or_one_for_each_core() -> None:
    told = (
        "from pathlib import Path\n"
        "from cleanrl_worker.nets.jax.trees import prepare\n"
        "from cleanrl_worker.run.args import RunArgs\n"
        "prepare(RunArgs(cuda=False, num_threads=3))\n"
        "names = [path.read_text().strip() for path in Path('/proc/self/task').glob('*/comm')]\n"
        "print(sum(name.startswith('tf_XLAEigen') for name in names))\n"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "3\n"
    args = RunArgs(cuda=False, num_threads=0)
    prepare(args)
    assert args.num_threads == len(os.sched_getaffinity(0))


def test_a_tree_is_taken_whole_or_refused() -> None:
    trees = Trees(params={"a": jnp.zeros(2), "b": jnp.zeros(3)}, target={"a": jnp.zeros(2)})
    trees.load_state_dict({"params/a": np.ones(2), "params/b": np.ones(3), "other/c": np.ones(1)})
    assert {name: array.sum() for name, array in arrays_of(trees.trees).items()} == {
        "params/a": 2.0,
        "params/b": 3.0,
        "target/a": 0.0,
    }
    with pytest.raises(ValueError, match="it has no params/b"):
        trees.load_state_dict({"params/a": np.ones(2)})
    with pytest.raises(ValueError, match=r"size mismatch for params/b: \(2,\), not \(3,\)"):
        trees.load_state_dict({"params/a": np.ones(2), "params/b": np.ones(2)})
    with pytest.raises(ValueError, match="it has none of params/a, params/b, target/a"):
        trees.load_state_dict({"a": np.ones(2)})
