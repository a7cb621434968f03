"""A worker's interactive process, driven by a page: start, commands as JSON lines, end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, WorkerError, shown
from mosaic.web.forms.found import POLICY, policy_inside

# torch takes seconds to load, many on a busy machine.
START_SECONDS = 120.0
ANSWER_SECONDS = 60.0
CLOSE_SECONDS = 5.0
# Each is a process with an environment and perhaps torch: half a gigabyte.
MOST_SESSIONS = 8
# A picture of 1,000 × 1,000 as base64 exceeds asyncio's default line limit.
LONGEST_LINE = 32 * 2**20
STDERR_LINES = 20

Message = dict[str, Any]


class PlaySession:
    """One process, which serializes its commands; without `close` it would wait forever."""

    _open: int = 0

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._asking = asyncio.Lock()
        self._closed = False
        self._said: deque[str] = deque(maxlen=STDERR_LINES)
        self._listening = asyncio.create_task(self._read_stderr())
        self.introduction: Message = {}
        self.greedy = False
        self.used_at = time.monotonic()
        PlaySession._open += 1

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        home: Path,
        *,
        policy: Path | None = None,
        env_id: str = "",
        greedy: bool = False,
        start_seconds: float = START_SECONDS,
    ) -> PlaySession:
        """Start a process and read its introduction; raise WorkerError or ConfigError if it fails."""
        if cls._open >= MOST_SESSIONS:
            raise WorkerError(f"{cls._open} games are open already; close one of those pages, then try again")
        argv = play_command(command, policy=policy, env_id=env_id, greedy=greedy)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=home,
                env=_environment(home),
                limit=LONGEST_LINE,
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerError(f"cannot start the worker {argv[0]!r}: {error.strerror}") from None
        session = cls(process)
        session.greedy = greedy
        try:
            session.introduction = await session._answer(start_seconds)
            if session.introduction.get("type") != "init":
                raise ConfigError(str(session.introduction.get("message") or "the worker refused the game"))
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def closed(self) -> bool:
        """Return True if its owner closed it, whatever the process does."""
        return self._closed

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.returncode is None

    @property
    def idle_seconds(self) -> float:
        """Return the seconds since the last command."""
        return time.monotonic() - self.used_at

    async def reset(self, seed: int | None = None) -> Message:
        """Begin a new episode and return the worker's `ready`; WorkerError carries any other message."""
        command: Message = {"cmd": "reset"} if seed is None else {"cmd": "reset", "seed": seed}
        return (await self._ask(command))[0]

    async def step(self, action: int | list[float] | None = None) -> list[Message]:
        """Make one step, by the policy without an action; return `step`, and at the end `episode_done`."""
        command: Message = {"cmd": "step"} if action is None else {"cmd": "step", "action": action}
        return await self._ask(command)

    async def close(self) -> None:
        """End the process: close its stdin, then SIGTERM, then SIGKILL, as needed."""
        if self._closed:
            return
        self._closed = True
        PlaySession._open -= 1
        if self._process.stdin is not None:
            self._process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), CLOSE_SECONDS)
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
        await self._process.wait()
        self._listening.cancel()

    async def _ask(self, command: Message) -> list[Message]:
        async with self._asking:
            if not self.alive:
                raise WorkerError(f"the game has ended{self._last_words()}; start it again")
            self.used_at = time.monotonic()
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                await self._process.stdin.drain()
            except (BrokenPipeError, ConnectionResetError):
                raise WorkerError(f"the game has ended{self._last_words()}; start it again") from None
            answers = [await self._answer(ANSWER_SECONDS)]
            if answers[0].get("type") == "error":
                raise WorkerError(str(answers[0].get("message")))
            if answers[0].get("terminated") or answers[0].get("truncated"):
                answers.append(await self._answer(ANSWER_SECONDS))
            return answers

    async def _answer(self, seconds: float) -> Message:
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), seconds)
        except TimeoutError:
            raise WorkerError(f"the game did not answer within {seconds:.0f} s; start it again") from None
        except ValueError:
            raise WorkerError("the game's answer is larger than a page can take; start it again") from None
        if not line:
            with contextlib.suppress(TimeoutError):  # wait for the last lines of stderr
                await asyncio.wait_for(asyncio.shield(self._listening), CLOSE_SECONDS)
            raise WorkerError(f"the game has ended{self._last_words()}")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise WorkerError(f"the worker said what is no answer: {shown(line[:60])}; start the game again")
        return message

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(ValueError):  # an overlong line
            async for line in self._process.stderr:
                self._said.append(line.decode(errors="replace").rstrip())

    def _last_words(self) -> str:
        said = next((line for line in reversed(self._said) if line.strip()), "")
        return f": {said[:500]}" if said else ""


def play_command(command: Sequence[str], *, policy: Path | None, env_id: str, greedy: bool) -> list[str]:
    """Return the worker's command line of a session."""
    argv = [*command, "--interactive"]
    if policy is not None:
        argv += [f"--policy-path={policy}"]
    if env_id:
        argv += [f"--env-id={env_id}"]
    if policy is None and not env_id:
        raise ConfigError("nothing to play: choose a policy or an environment")
    if greedy:
        argv += ["--extras", json.dumps({"eval_greedy": True})]
    return argv


def find_policy(home: Path, relative: str) -> Path:
    """Return the policy file at this path below the home; ConfigError for a path outside or another file."""
    path = policy_inside(relative, home)
    if path.suffix != POLICY:
        raise ConfigError(f"{shown(relative, 200)} is no policy; choose a file that ends in {POLICY}")
    return path


def _environment(home: Path) -> dict[str, str]:
    """Return the web process's environment without variables of a daemon or a run; MuJoCo draws without a screen."""
    own = {variables.MOSAIC_TOKEN, variables.MOSAIC_TARGET, variables.MOSAIC_RUN_ID, variables.WANDB_API_KEY}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return {**kept, variables.MOSAIC_HOME: str(home), variables.PYTHONUNBUFFERED: "1"}
