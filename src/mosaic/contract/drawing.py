"""Which OpenGL MuJoCo and DM Control draw with on a machine without a screen."""

import ctypes
import sys
from collections.abc import MutableMapping

from mosaic.contract import variables


def choose_gl(environment: MutableMapping[str, str]) -> None:
    """Set MUJOCO_GL where nobody has and there is no screen; it must be there before either package is imported.

    Left alone, MuJoCo aborts the process when it draws. Where EGL is missing nothing can be drawn, but DM Control
    would not even be imported with a backend that it cannot load: it is told to do without.
    """
    if sys.platform.startswith("linux") and not environment.get(variables.DISPLAY):
        environment.setdefault(variables.MUJOCO_GL, "egl" if _has_egl() else "disabled")


def _has_egl() -> bool:
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True
