"""Runs as batch jobs of Slurm, through sbatch, squeue and scancel, which are the same on every cluster."""

from __future__ import annotations

import datetime
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.paths import RunPaths
from mosaic.contract.secrets import is_secret
from mosaic.trainer.executors.cluster import ClusterExecutor, ClusterSite, Job, JobPhase
from mosaic.trainer.executors.contract import ClusterError, Exit, Launch
from mosaic.trainer.executors.node_orders import Order
from mosaic.trainer.live.worker_requests import WorkerRequests
from mosaic.trainer.scheduling.outcome import REQUEUE

COMMANDS = ("sbatch", "squeue", "scancel")
COMMAND_SECONDS = 30.0
# A job is signalled at least this long before its end: enough to reach a scheduled checkpoint.
LEAST_NOTICE = 10
# Options set by us; another value would disconnect the run from the daemon.
OURS = frozenset(
    {
        *("job-name", "output", "error", "open-mode", "requeue", "no-requeue", "signal", "export", "export-file"),
        *("parsable", "wrap", "array", "wait", "input", "chdir", "test-only", "hold", "quiet", "help", "version"),
    }
)
# The daemon's variables that a job's shell gets. Slurm keeps them in a file: never a secret.
EXPORTED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_.*|TZ|PYTHONPATH|VIRTUAL_ENV|LD_LIBRARY_PATH|TMPDIR|SBATCH_.*|SLURM_.*|MOSAIC_SCRATCH"
)
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
BLAMELESS = frozenset({"NODE_FAIL", "BOOT_FAIL"})
FIELDS = "JobID:|,Name:|,State:|,NodeList:|,StartTime:|,EndTime:|,ExitCode:|,RestartCnt:|,Reason:|"


class SlurmExecutor(ClusterExecutor):
    """Jobs of the Slurm whose commands are on PATH."""

    name = "slurm"

    def __init__(self, site: ClusterSite, controls: WorkerRequests) -> None:
        super().__init__(site, controls)
        self._begun: set[str] = set()

    @staticmethod
    def problem() -> str:
        """Return why Slurm is unavailable here, "" if it is available."""
        missing = [name for name in COMMANDS if shutil.which(name) is None]
        return f"Slurm's commands are not on the daemon's PATH ({', '.join(missing)} missing)" if missing else ""

    def check(self, resources: Mapping[str, Any]) -> None:
        if (resources.get("ray") or {}).get("custom") or (resources.get("ray") or {}).get("runtime_env"):
            raise ConfigError('resources.ray goes with executor "ray", not with "slurm"')
        for key in resources.get("slurm") or {}:
            name = str(key).replace("_", "-")
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                raise ConfigError(
                    f"resources.slurm: {shown(key)} is no long option of sbatch, such as partition or time"
                )
            if name in OURS:
                raise ConfigError(f"resources.slurm: {name} is set by the daemon itself; leave it out")
            if is_secret(name):
                raise ConfigError(f"resources.slurm: {name} looks like a secret, which Slurm would keep in a file")

    def submit(self, name: str, order: Order, launch: Launch) -> str:
        notice = max(LEAST_NOTICE, math.ceil(launch.grace))
        if _limit(asked := (launch.resources.get("slurm") or {}).get("time", "UNLIMITED")) <= notice:
            raise ConfigError(
                f"resources.slurm.time {asked} is over before the run is told to save itself, {notice} s before its "
                "end, so that it would never get on; ask for more time, or lower grace_seconds"
            )
        logs = RunPaths(launch.run_id, self._site.home).logs
        output = "/dev/null" if self._site.scratch else f"{logs}/slurm-%j.log"
        options = {
            "job-name": name,
            "cpus-per-task": str(math.ceil(launch.claim.cpus)),
            **({"mem": f"{launch.claim.memory_mb}M"} if launch.claim.memory_mb else {}),
            **({"gres": f"gpu:{launch.claim.gpus}"} if launch.claim.gpus else {}),
            **{str(key).replace("_", "-"): value for key, value in (launch.resources.get("slurm") or {}).items()},
            "requeue": True,
            "signal": f"B:TERM@{notice}",
            "open-mode": "append",
            "output": output,
            "export": "ALL",
            "chdir": "/" if self._site.scratch else str(self._site.home),
        }
        words = [
            f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items() if value is not False
        ]
        script = (
            "#!/bin/bash\n"
            f"export {variables.MOSAIC_ORDER}={shlex.quote(order.encode())}\n"
            f"exec {shlex.join(self._site.entry)}\n"
        )
        try:
            said = self._run(["sbatch", "--parsable", *words], script)
        except ConfigError as error:
            if launch.claim.gpus and "generic resource" in str(error):
                raise ConfigError(f"{error}; leave the GPU away (in a form: GPU off) where Slurm has none") from None
            raise
        job = said.strip().splitlines()[-1].partition(";")[0] if said.strip() else ""
        if not job.isdecimal():
            raise ClusterError(f"sbatch gave no job id: {shown(said)}")
        return job

    def list_jobs(self) -> dict[str, Job]:
        # By number: a name in the environment may be another user's, and an unlisted job counts as lost.
        ours = f"--user={os.getuid()}"
        said = self._run(["squeue", "--noheader", "--all", "--states=all", ours, f"--Format={FIELDS}"])
        found = {}
        for line in said.splitlines():
            parts = [part.strip() for part in line.split("|")]
            if len(parts) >= 9 and parts[1].startswith("mosaic-"):
                found[parts[0]] = self._listed(parts)
        return found

    def stop(self, job: str, *, force: bool) -> None:
        known = self._jobs.get(job)
        if force:
            self._quietly(["scancel", "--full", "--signal=KILL", job])
            self._quietly(["scancel", job])
        elif known is not None and known.phase == JobPhase.RUNNING:
            self._quietly(["scancel", "--batch", "--signal=TERM", job])
        else:
            self._quietly(["scancel", "--state=PENDING", job])

    def remove(self, job: str) -> bool:
        """Remove a job, also one that Slurm itself has requeued: the next attempt is another job."""
        self._begun.discard(job)
        self._quietly(["scancel", job])
        return True

    def _listed(self, parts: Sequence[str]) -> Job:
        job, name, state, node, started, ended, code, restarts, reason = parts[:9]
        phase = JobPhase.WAITING if state in WAITING else JobPhase.RUNNING if state in RUNNING else JobPhase.ENDED
        end = Exit(None)
        if phase == JobPhase.RUNNING:
            self._begun.add(job)
        elif phase == JobPhase.WAITING and (job in self._begun or (restarts.isdecimal() and int(restarts) > 0)):
            # Preempted, or its node failed, and Slurm requeued it: that attempt is over, and the next is a job of its
            # own.
            phase, end = JobPhase.ENDED, Exit(REQUEUE, reason=f"Slurm put its job back into the queue ({reason})")
        elif phase == JobPhase.ENDED:
            end = _exit(state, code, reason)
        why = "" if reason == "None" else reason
        return Job(name, phase, node, why, _seconds(started), _seconds(ended), end)

    def _quietly(self, command: Sequence[str]) -> None:
        try:
            self._run(command)
        except (ClusterError, ConfigError):
            pass  # a job that has ended meanwhile; a living one is asked again

    def _run(self, command: Sequence[str], text: str = "") -> str:
        kept = {name: value for name, value in os.environ.items() if EXPORTED.fullmatch(name) and not is_secret(name)}
        try:
            done = subprocess.run(
                command, input=text, env=kept, capture_output=True, text=True, timeout=COMMAND_SECONDS, errors="replace"
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"{command[0]} did not answer within {COMMAND_SECONDS:.0f} s; Slurm's runs wait"
            ) from None
        except OSError as error:
            raise ClusterError(f"cannot start {command[0]}: {error.strerror}") from None
        if done.returncode == 0:
            return done.stdout
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()] or ["it gave no reason"]
        said = " ".join(lines[-1].removeprefix(f"{command[0]}: ").removeprefix("error: ").split())
        if command[0] == "sbatch" and any(word in said for word in _NEVER):
            raise ConfigError(f"sbatch refuses the job: {said}")
        raise ClusterError(f"{command[0]}: {said}")


# sbatch's permanent errors; all others may pass.
_NEVER = (
    *("Invalid partition", "invalid partition", "Invalid account", "Invalid qos", "Invalid generic resource"),
    *("unrecognized option", "Unable to parse", "Invalid --", "Invalid time", "not available", "Invalid feature"),
    *("exceeds", "Memory specification can not be satisfied", "invalid option"),
)


def _exit(state: str, code: str, reason: str) -> Exit:
    """Return Slurm's exit; the relay's exit code is the worker's."""
    number, _, signalled = code.partition(":")
    exit_code = int(number) if number.isdecimal() else None
    if state == "COMPLETED":
        return Exit(0)
    if state in BLAMELESS:
        return Exit(None, lost=f"Slurm lost its node ({state})")
    if state == "PREEMPTED":
        return Exit(REQUEUE, reason="Slurm preempted it")
    if state == "TIMEOUT":
        return Exit(None, reason="Slurm's time limit ended it before it could save itself; raise time or grace_seconds")
    if state == "OUT_OF_MEMORY":
        return Exit(None, reason="Slurm ended it for its memory; ask for more with resources.memory_mb")
    if state == "CANCELLED":
        said = "" if reason in ("", "None") else f" ({reason})"
        return Exit(
            None, cancelled=f"somebody cancelled its job in Slurm{said}; mosaic resume goes on from its checkpoint"
        )
    if signalled == str(int(signal.SIGTERM)):
        return Exit(REQUEUE, reason="Slurm told its job to stop before it had begun")
    return Exit(exit_code or None, reason=f"Slurm says {state}, exit code {code}" if not exit_code else "")


def _seconds(text: str) -> float:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _limit(time: object) -> float:
    """Return the seconds of sbatch's `time`: minutes, or [days-]hours:minutes:seconds cut at either end; 0 is none."""
    days, dash, rest = str(time).strip().rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in [*parts, *([days] if dash else [])]) or len(parts) > 3:
        return math.inf  # UNLIMITED, or text that sbatch itself will refuse
    sizes = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    seconds = 86400.0 * int(days or 0) + sum(int(part) * size for part, size in zip(parts, sizes, strict=False))
    return seconds or math.inf
