"""The patch of `gymnasium.make`, in an algorithm's process whose run can be watched.

The launcher loads this file by its path, so it is never on a PYTHONPATH: the user's own sitecustomize has already run,
and other Pythons that the algorithm starts are unaffected. Nothing heavy is imported here: the patch waits for the
import of Gymnasium, and loads the rest when the first environment is made.
"""

import atexit
import functools
import importlib.util
import os
import sys
import types
from _thread import _local  # threading's own, without importing the rest of it
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
WORKER = os.path.dirname(HERE)
SHARED = [os.path.join(WORKER, "fastlane"), os.path.join(os.path.dirname(WORKER), "mosaic", "contract")]
REGISTRATION = "gymnasium.envs.registration"
# The package of the files shared with us, in an interpreter that has none of our packages.
PRIVATE = "_mosaic"
WAITING = "no environment has been "  # the prefix of the reasons that a first step clears

writer: Any = None
trouble = ""
_names = {"ring": "mosaic.contract.ring", "fastlane": "cleanrl_worker.fastlane.gym_wrapper"}
_inside = _local()


def install(foreign: bool) -> None:
    """Open the run's ring, so that viewers find it from the start, and patch `make` once it is imported.

    `foreign` means that this interpreter has none of our packages: the few needed files are loaded by their paths.
    """
    global writer, trouble
    if foreign:
        package = types.ModuleType(PRIVATE)
        package.__path__ = SHARED
        sys.modules[PRIVATE] = package
        _names.update({name: PRIVATE + "." + module.rpartition(".")[2] for name, module in _names.items()})
    ring = importlib.import_module(_names["ring"])
    try:
        writer = ring.FastLaneWriter.create(os.environ["MOSAIC_RUN_ID"], os.path.join(os.getcwd(), "fastlane.json"))
        writer.tell(reason=WAITING + "made with gymnasium.make yet; one made otherwise cannot be watched")
        atexit.register(_leave, os.path.join(os.getcwd(), "logs", "notes.jsonl") if foreign else "")
    except (ring.RingError, OSError) as error:
        trouble = str(error)
    if REGISTRATION in sys.modules:
        _patch(sys.modules[REGISTRATION])
    else:
        sys.meta_path.insert(0, _OnceImported())


def _leave(notes: str) -> None:
    """Remove the ring; a script that ends without a frame leaves the reason in its notes.

    The shell may not read the ring before it is removed, and a viewer may connect only later.
    """
    reason = writer.reason
    if notes and writer.pid == os.getpid() and reason.startswith(WAITING):
        try:
            with open(notes, "a") as file:
                file.write('{"event": "warning", "payload": {"message": "no live view: %s"}}\n' % reason)
        except OSError:
            print("no live view: " + reason, file=sys.stderr)
    writer.close()


class _OnceImported:
    """A finder that delegates to the others for Gymnasium's registration, and patches it after it has run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != REGISTRATION:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module: types.ModuleType) -> None:
                execute(module)
                _patch(module)

            spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def _patch(registration: Any) -> None:
    original = registration.make

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "make", False):  # an environment that makes another one internally
            return original(*args, **kwargs)
        _inside.make = True
        try:
            return importlib.import_module(_names["fastlane"]).make(original, *args, **kwargs)
        finally:
            _inside.make = False

    registration.make = make
