"""The process of an interactive session: commands from stdin, answers to stdout, one JSON object per line.

The protocol is in docs/interactive.md. All other prints of this process and its environment go to stderr.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, NoReturn

from mosaic.contract.errors import ConfigError, MosaicError
from mosaic.contract.events import to_line

EXIT_UNEXPECTED = 1
EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve one session, and exit with 0 after `stop` or the end of stdin, 128 + n after signal n, 2 if refused."""
    args = _parser().parse_args(argv)
    answers = Answers()
    commands = Commands()
    answers.guard()
    try:
        _serve(args, commands, answers)
    except MosaicError as error:
        answers.send({"type": "error", "message": str(error)})
        print(error, file=sys.stderr)
        raise SystemExit(EXIT_REFUSED if isinstance(error, ConfigError) else EXIT_UNEXPECTED) from None
    except BrokenPipeError:
        raise SystemExit(128 + signal.SIGPIPE) from None  # the reader of the answers is gone
    raise SystemExit(0 if commands.ended_by is None else 128 + commands.ended_by)


def _serve(args: argparse.Namespace, commands: "Commands", answers: "Answers") -> None:
    # Imported only now: prints of a Gymnasium plug-in's import must not mix with the answers.
    from cleanrl_worker.play.session import Request, open_session

    session = open_session(Request(**vars(args)))
    try:
        answers.send(session.introduction())
        for line in commands:
            for answer in session.answer(line):
                answers.send(answer)
            if session.stopped:
                break
        answers.send({"type": "stopped"})
    except (MosaicError, BrokenPipeError):
        raise
    except Exception as error:
        answers.send({"type": "error", "message": f"the session failed: {type(error).__name__}: {error}"})
        raise
    finally:
        session.close()


class Answers:
    """The only writer to stdout: file descriptor 1 itself is redirected to stderr."""

    def __init__(self) -> None:
        self._file = os.dup(1)

    def guard(self) -> None:
        """Redirect all other prints to stderr."""
        sys.stdout.flush()
        os.dup2(2, 1)

    def send(self, message: dict[str, Any]) -> None:
        line = memoryview(to_line(message))
        while line:
            line = line[os.write(self._file, line) :]


class Commands:
    """The lines of stdin until EOF or a signal; a signal during a command takes effect after its answer.

    File descriptor 0 becomes empty, so that no environment reads the session's input. A second signal ends the process
    at once.
    """

    def __init__(self) -> None:
        self.ended_by: int | None = None
        self._waiting = False
        self._stream: BinaryIO = os.fdopen(os.dup(0), "rb")
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._receive)

    def __iter__(self) -> Iterator[bytes]:
        try:
            while True:
                self._waiting = True
                if self.ended_by is not None:
                    return
                line = self._stream.readline()
                self._waiting = False
                if not line:
                    return
                yield line
        except InterruptedError:
            return

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.ended_by is not None:
            os._exit(128 + number)
        self.ended_by = number
        if self._waiting:
            raise InterruptedError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cleanrl_worker.play.protocol", allow_abbrev=False)
    add = parser.add_argument
    add("--run-id", required=True, help="name of the session")
    add("--env-id", help="environment (default: the policy's)")
    add("--policy-path", type=Path, help="policy that acts; without one the person does")
    add("--algo", help="algorithm of the policy (default: as its sidecar says)")
    add(
        "--env-backend",
        choices=("auto", "gymnasium", "envpool"),
        help="who makes what the policy plays (default: as in its training)",
    )
    add("--seed", type=int, help="seed of the first episode; each further one takes the next number")
    add("--greedy", action=argparse.BooleanOptionalAction, default=False, help="the policy's best action, not a sample")
    return parser


if __name__ == "__main__":
    main()
