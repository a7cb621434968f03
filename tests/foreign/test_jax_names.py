"""Names of JAX and Flax that files of 2023 use."""

import subprocess
import sys

# In a process of its own: what is patched stays so.
USES = """
from cleanrl_worker.foreign import jax_names
jax_names.install()
import flax.struct, jax, jax.numpy as jnp
assert jnp.clip(jnp.arange(4.0), a_min=1.0, a_max=2.0).tolist() == [1.0, 1.0, 2.0, 2.0]
assert jnp.clip(jnp.arange(4.0), 1.0, max=2.0).tolist() == [1.0, 1.0, 2.0, 2.0]
assert jax.tree_map(lambda x: x + 1, {"a": 1}) == {"a": 2}

@flax.struct.dataclass
class Params:
    actor: int

assert "actor" in Params(1) and "critic" not in Params(1)
"""


def test_names_that_are_gone_come_back() -> None:
    done = subprocess.run([sys.executable, "-c", USES], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
