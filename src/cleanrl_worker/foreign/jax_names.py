"""Names and parameters that JAX and Flax have removed and that files of the Gymnasium 0.29 era use."""

from __future__ import annotations

from typing import Any

from .after_import import when_imported


def install() -> None:
    """Bring them back once the script has imported JAX and Flax."""
    when_imported("jax.numpy", _patch_numpy)
    when_imported("jax", _patch)
    when_imported("flax.struct", _patch_struct)


def _patch_numpy(jnp: Any) -> None:
    clip = jnp.clip

    def clip_by_either(a: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
        return clip(a, a_min if min is None else min, a_max if max is None else max)

    jnp.clip = clip_by_either


def _patch(jax: Any) -> None:
    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree_util.tree_map


def _patch_struct(struct: Any) -> None:
    """Let `TrainState.create` look for a key in parameters that are a dataclass."""
    original = struct.dataclass

    def dataclass(cls: Any = None, **options: Any) -> Any:
        if cls is None:
            return lambda later: dataclass(later, **options)
        made = original(cls, **options)
        if not hasattr(made, "__contains__"):
            made.__contains__ = lambda self, name: name in self.__dataclass_fields__
        return made

    struct.dataclass = dataclass
