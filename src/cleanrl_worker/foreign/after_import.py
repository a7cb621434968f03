"""A hook that calls a function after the first import of a module, whenever that happens."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any, Callable

Patch = Callable[[Any], None]


def when_imported(name: str, patch: Patch) -> None:
    """Patch a module now if it is imported, else right after its code has run."""
    if name in sys.modules:
        patch(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Waiting(name, patch))


class _Waiting:
    """A finder that delegates to the others for one module, and patches it after it has run."""

    def __init__(self, name: str, patch: Patch) -> None:
        self._name, self._patch = name, patch

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module: ModuleType) -> None:
                execute(module)
                self._patch(module)

            spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec
