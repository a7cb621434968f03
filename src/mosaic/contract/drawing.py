"""The OpenGL backend of MuJoCo and DM Control on a machine without a screen."""

import ctypes
import sys
from collections.abc import MutableMapping

from mosaic.contract import variables


def choose_gl(environment: MutableMapping[str, str]) -> None:
    """Set MUJOCO_GL if it is unset and no screen exists; call this before either package is imported.

    Otherwise MuJoCo aborts the process when it renders. Without EGL nothing can be rendered; rendering is then
    disabled, since DM Control cannot even be imported with a backend that it cannot load.
    """
    if sys.platform.startswith("linux") and not environment.get(variables.DISPLAY):
        environment.setdefault(variables.MUJOCO_GL, "egl" if _has_egl() else "disabled")


def _has_egl() -> bool:
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True
