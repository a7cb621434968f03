"""The shell's queries about a policy file, answered by a short algorithm-side process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cleanrl_worker.foreign.where import LAUNCHER, SOURCES
from mosaic.contract import variables
from mosaic.contract.drawing import choose_gl
from mosaic.contract.errors import ConfigError
from mosaic.contract.paths import resolve_home

SECONDS = 100.0  # the daemon's timeout for a dry run is 120


def find_algo(policy: Path, env_id: str | None, prefer: Iterable[str]) -> tuple[str, str]:
    """Return the algorithm whose network has the policy's keys, and its environment; raise ConfigError if none."""
    home = resolve_home()
    environment = {**variables.read_dotenv(home), **os.environ, variables.MOSAIC_HOME: str(home)}
    environment[variables.OMP_NUM_THREADS] = "1"  # it only builds networks: more threads only add overhead
    choose_gl(environment)
    flags = [f"--policy-path={policy}", *([f"--env-id={env_id}"] if env_id else [])]
    flags += [f"--prefer={name}" for name in dict.fromkeys(prefer)]
    answer = ask("cleanrl_worker.evaluation.policy_algo", policy, flags, environment)
    found = json.loads(answer.splitlines()[-1])
    return str(found["algo"]), str(found["env_id"])


def ask(module: str, policy: Path, flags: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the output of the module's `main`; raise ConfigError with its last line of stderr if it fails."""
    also = ("--also-path", str(SOURCES), "--also-path", os.getcwd())
    try:
        child = subprocess.run(
            [sys.executable, str(LAUNCHER), "--module", module, *also, "--", *flags],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"policy {policy}: reading it took longer than {SECONDS:.0f} s; try another file") from None
    if child.returncode:
        lines = [line for line in child.stderr.decode(errors="replace").splitlines() if line.strip()]
        ended = signal.Signals(-child.returncode).name if child.returncode < 0 else f"exit code {child.returncode}"
        raise ConfigError(lines[-1][:500] if lines else f"policy {policy}: reading it ended its process with {ended}")
    return child.stdout.decode(errors="replace")
