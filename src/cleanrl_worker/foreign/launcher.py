"""The first code of an algorithm process: ties its life to the shell's, then runs the module or script.

Executed by file path in the algorithm's interpreter, which may be any Python >= 3.8 without our packages:
    python launcher.py --shell-pid N --lifeline FD (--module M [--as-main] | --script PATH) [--also-path DIR] [--ours]
        [--fastlane own|foreign] [--era ERA [--count-episodes]] [--onlooker M]... -- ARGV...
A process that was the shell itself (an interactive session) has no ties: it omits the first two flags.
"""

import os
import sys


def _leave_own_folder() -> None:
    """Remove this file's folder from sys.path: its `config` or `cli` would shadow the user's own modules."""
    here = os.path.realpath(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.realpath(entry) != here]


# Before any other import, so that not even the standard library can resolve to a file beside this one.
_leave_own_folder()

import argparse  # noqa: E402
import fcntl  # noqa: E402
import importlib  # noqa: E402
import importlib.util  # noqa: E402
import runpy  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import types  # noqa: E402
from typing import List, Optional, Sequence  # noqa: E402

PR_SET_PDEATHSIG = 1
F_SETSIG = 10  # Linux; Python's fcntl names it only from 3.8 on some builds


def main(given: Optional[List[str]] = None) -> None:
    """Parse the shell's flags, arm the ties, run the algorithm."""
    given = sys.argv[1:] if given is None else given
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(prog="launcher.py", allow_abbrev=False)
    parser.add_argument("--shell-pid", type=int)
    parser.add_argument("--lifeline", type=int)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--module")
    what.add_argument("--script")
    parser.add_argument("--as-main", action="store_true", help="run the module as __main__ instead of calling main()")
    parser.add_argument("--also-path", action="append", default=[], help="appended to sys.path: shadows nothing")
    parser.add_argument("--ours", action="store_true", help="SIGINT ends it as SIGTERM does, until it answers both")
    parser.add_argument("--fastlane", choices=("own", "foreign"), help="let the run be watched, by whose packages")
    parser.add_argument("--era", help="an era of Gymnasium that the script is of, see foreign/compat.py")
    parser.add_argument("--count-episodes", action="store_true", help="the script reports none itself")
    parser.add_argument("--onlooker", action="append", default=[], help="a module whose install() precedes main()")
    flags = parser.parse_args(given[:cut])
    if flags.ours:  # an exception during an import would print a traceback, or be swallowed
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
    if flags.lifeline is not None:
        tie_to_shell(flags.shell_pid, flags.lifeline)
    sys.path.extend(entry for entry in flags.also_path if entry not in sys.path)
    if flags.fastlane:
        open_fastlane(foreign=flags.fastlane == "foreign")
    if flags.era:
        open_compat(flags.era, flags.script or flags.module, flags.count_episodes)
    if flags.script:
        run_script(flags.script, given[cut + 1 :])
    else:
        run_module(flags.module, given[cut + 1 :], flags.as_main, flags.onlooker)


def tie_to_shell(shell_pid: int, lifeline: int) -> None:
    """Ensure that this process group ends with the shell, however the shell ends.

    `lifeline` is the read end of a pipe whose other end only the shell holds and never writes to.
    """
    os.set_inheritable(lifeline, False)
    if sys.platform.startswith("linux"):
        _die_with_parent()
        _kill_group_at_end_of_file(lifeline)
    else:
        _watch_in_thread(lifeline)
    # The shell may have died before the ties were armed. Under an interpreter that is a wrapper script, the parent is
    # not the shell, so the pipe decides.
    if os.getppid() != shell_pid and select.select([lifeline], [], [], 0)[0]:
        os.killpg(os.getpgrp(), signal.SIGKILL)


def open_fastlane(foreign: bool) -> None:
    """Load the patch of `gymnasium.make` by its path: the user's own sitecustomize has already run."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sitecustomize.py")
    spec = importlib.util.spec_from_file_location("_mosaic_sitecustomize", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["_mosaic_sitecustomize"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install(foreign)


def open_compat(era: str, script: str, count_episodes: bool) -> None:
    """Load `foreign/compat.py` by its path, as its own package: this interpreter may have none of ours."""
    package = types.ModuleType("_mosaic_foreign")
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules[package.__name__] = package
    importlib.import_module(package.__name__ + ".compat").install(era, script, count_episodes)


def run_module(name: str, argv: List[str], as_main: bool, onlookers: Sequence[str] = ()) -> None:
    """Call the module's `main()`, or run it as `python -m` would; onlookers are installed before `main()`."""
    sys.argv = [name, *argv]
    if as_main:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    module = importlib.import_module(name)
    sys.argv[0] = getattr(module, "__file__", None) or name
    for onlooker in onlookers:
        importlib.import_module(onlooker).install()
    module.main()


def run_script(path: str, argv: List[str]) -> None:
    """Run a file as `__main__`, with its own folder first on the path, as `python FILE` would."""
    sys.argv = [path, *argv]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    runpy.run_path(path, run_name="__main__")


def _die_with_parent() -> None:
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # an interpreter built without ctypes: the lifeline alone suffices


def _kill_group_at_end_of_file(lifeline: int) -> None:
    """Make the kernel send SIGKILL to the group when the pipe's other end closes, even if the group is stopped."""
    fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _watch_in_thread(lifeline: int) -> None:
    import threading

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    main()
