"""The `mosaic` command: parses the command line, runs the command, reports errors.

Exit 0 done, 1 a run failed, 2 the request was refused, 3 no daemon.
"""

from __future__ import annotations

import signal
import sys

from mosaic.contract.stopping import ending_at_once

TYPE_CHECKING = False  # typing takes 6 ms to import, in which Ctrl-C would still print a traceback

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

EXIT_INTERRUPTED = 128 + signal.SIGINT
EXAMPLES = """examples:
  mosaic train ppo CartPole-v1 --follow
  mosaic train ppo Acrobot-v1 --set total_timesteps=200000 --set learning_rate=0.001 --seeds 1-5
  mosaic benchmark --algos ppo,dqn --envs CartPole-v1,Acrobot-v1 --seeds 1-10
  mosaic sweep ppo CartPole-v1 --trials 30 --seeds 1-3
  mosaic runs --state live
  mosaic show latest
  mosaic watch latest
  mosaic algos ppo

A run is named by its id, by the start or the end of one, or by `latest`.
Exit codes: 0 done, 1 the run failed, 2 refused, 3 no daemon, 130 Ctrl-C.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; its dependencies are imported only here, where Ctrl-C ends it."""
    try:
        with ending_at_once(EXIT_INTERRUPTED, signal.SIGINT):
            from mosaic.contract.errors import ConfigError, MosaicError
            from mosaic.contract.kinds import is_clean

            args = parser().parse_args(argv)
        try:
            if not all(is_clean(word) for word in sys.argv if argv is None):
                raise ConfigError("an argument is not UTF-8: type it again, or rename the file")
            return int(args.command(args))
        except MosaicError as error:
            print(f"mosaic: {error}", file=sys.stderr)
            return exit_code(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `mosaic envs atari | head` is not an error; stdout is redirected so that its closing flush prints nothing.
        sys.stdout = open("/dev/null", "w")
        return 0


def exit_code(error: Exception) -> int:
    """Return 3 if no daemon runs, 2 for a refused request, else 1."""
    from mosaic.contract.errors import AccessError, ConfigError, MoveError, NoDaemonError, UnknownRunError

    if isinstance(error, NoDaemonError):
        return 3
    return 2 if isinstance(error, ConfigError | UnknownRunError | MoveError | AccessError) else 1


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command line."""
    import argparse

    class Version(argparse.Action):
        """The --version action, which reads the version only on request: finding the package's metadata takes 40 ms."""

        def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
            from importlib.metadata import version

            print(f"mosaic {version('mosaic-rl')}")
            parser.exit()

    top = argparse.ArgumentParser(
        prog="mosaic",
        description="Train reinforcement-learning agents and watch them learn.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=Version, nargs=0, help="print the version and end")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in _modules():
        module.add_to(commands)
    top.set_defaults(parser=top)  # for `completion`, which reads the parser
    return top


def _modules() -> tuple[Any, ...]:
    """Return the commands' modules, one per noun, in the order of the help."""
    from mosaic.commands.campaign import benchmark, sweep
    from mosaic.commands.daemon import completion, daemon, fetch, gc, rebuild, up
    from mosaic.commands.inspect import frames, lists, logs, runs, verify
    from mosaic.commands.run import control, resume, train

    return (
        up,
        daemon,
        train,
        benchmark,
        sweep,
        runs,
        frames,
        logs,
        control,
        resume,
        verify,
        fetch,
        lists,
        gc,
        rebuild,
        completion,
    )


if __name__ == "__main__":
    sys.exit(main())
