"""The check before a submission: the payload's own rules, then the worker's dry run; no id is assigned."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError
from mosaic.contract.job import JobConfig
from mosaic.contract.secrets import without_secrets
from mosaic.contract.workers import DRY_RUN, WorkerCapabilities

SECONDS = 120.0
REFUSED = 2
# Variables of the daemon or of another run, which the dry run must not inherit.
_NOT_INHERITED = frozenset(
    {variables.MOSAIC_TOKEN, variables.MOSAIC_TARGET, variables.MOSAIC_RUN_ID, variables.MOSAIC_ATTEMPT}
)


@dataclass(frozen=True)
class Checked:
    """The result of a dry run: its output, and for a refusal the reason."""

    ok: bool
    output: str
    error: str = ""
    summary: Mapping[str, Any] | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(str(text) for text in (self.summary or {}).get("warnings", ()))


def dry_run(payload: Mapping[str, Any], worker: WorkerCapabilities | None, home: Path) -> Checked:
    """Run the worker's dry run of this payload's config in a separate process."""
    if worker is None:
        return _refused("no worker is installed; install one with: pip install mosaic-rl")
    try:
        job = JobConfig.parse(payload)
    except ConfigError as error:
        return _refused(str(error))
    with tempfile.TemporaryDirectory(prefix="mosaic-check-") as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(without_secrets(job.worker_config)))
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        environment |= {**job.environment, variables.MOSAIC_HOME: str(home)}
        try:
            done = subprocess.run(
                [*worker.command, "--config", str(config), *DRY_RUN],
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return _refused(f"the worker did not answer a dry run within {SECONDS:.0f} s; try again")
        except OSError as error:
            return _refused(f"cannot start the worker {worker.command[0]!r}: {error.strerror}")
    return _read(done, worker, str(config))


def _read(done: subprocess.CompletedProcess[bytes], worker: WorkerCapabilities, config: str) -> Checked:
    printed = done.stdout.decode(errors="replace").strip()
    said = done.stderr.decode(errors="replace").strip().replace(config, "the config")
    if done.returncode:
        line = (said.splitlines() or ["the worker gave no reason"])[-1].removeprefix(f"{worker.worker_type}-worker: ")
        reason = line if done.returncode == REFUSED else f"the worker's dry run failed ({done.returncode}): {line}"
        return Checked(False, "\n".join(part for part in (printed, said) if part), reason)
    try:
        summary = json.loads(printed.splitlines()[-1])
        text = _pretty(summary)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return Checked(False, printed, "the worker's dry run printed no summary")
    return Checked(True, "\n".join(part for part in (said, text) if part), summary=summary)


def _pretty(summary: Mapping[str, Any]) -> str:
    """Return the summary in readable form: the module or algorithm, its flags, its warnings."""
    # A third-party worker need not return more than the config; the daemon requires no more either.
    config = summary["config"]
    lines = [f"This would run {summary.get('module') or config['algo']}"]
    lines += [f"    {flag}" for flag in summary.get("argv", ())]
    lines += [f"warning: {text}" for text in summary.get("warnings", ())]
    # The worker invented an id to name its folder; the run would get another.
    return "\n".join(lines).replace(str(config.get("run_id") or "<RUN>"), "<RUN>")


def _refused(reason: str) -> Checked:
    return Checked(False, reason, reason)


# Messages that name no field, and the field that they concern.
_ABOUT = (
    (r"unknown algo|\balgo '[^']*' needs|module '[^']*' cannot be found|script '[^']*' is not there", "algo"),
    (r"\benvironment '|unknown environment|actions, but|observations, but|environments only|EnvPool's '", "env_id"),
    (r"total_timesteps is", "total_timesteps"),
    (r"no checkpoint in|checkpoints in|extras\.checkpoint_path", "checkpoint_path"),
    (r"extras\.policy_path|policy sidecar|is no policy file", "policy_path"),
    (r"^seed\b|names a seed twice|are more than .* runs", "seeds"),
    (r"^script\b", "script"),
)
# Names that differ between a payload and a form.
_OTHER_NAMES = {
    "fastlane_video_mode": "fastlane_mode",
    "GYM_GUI_FASTLANE_SLOT": "fastlane_slot",
    "GYM_GUI_FASTLANE_GRID_LIMIT": "fastlane_grid_limit",
    "max_duration_seconds": "max_duration_minutes",
    "eval_episodes": "episodes",
    "eval_batch_size": "episodes",
    "eval_max_episode_steps": "max_episode_steps",
    "seed_override": "eval_seed",
    **dict.fromkeys(("cpus", "memory_mb", "slurm", "ray", "custom", "runtime_env"), "resources"),
    "gpus": "gpu",
    "requested": "gpu",
    "tensorboard_dir": "tensorboard",
    "track": "track_wandb",
    "seed": "seeds",
}


def faulty_field(error: str, known: Collection[str]) -> str | None:
    """Return the form's field that a refusal concerns; None if it names none of `known`."""
    error = error.removeprefix("refused: ")
    place = re.match(r"[`'\"]?([A-Za-z_][\w.]*)['`\"]?(?=[:= ]|$)", error)
    words = [place[1].rpartition(".")[2]] if place and (":" in error or "=" in error or " is " in error) else []
    words += re.findall(r"config field '(\w+)'", error)
    for word in words:
        name = _OTHER_NAMES.get(word, word)
        for candidate in (word, name):
            if candidate in known:
                return candidate
    for pattern, name in _ABOUT:
        if name in known and re.search(pattern, error):
            return name
    mentioned = [name for name in known if len(name) > 4 and re.search(rf"\b{re.escape(name)}\b", error)]
    return max(mentioned, key=len) if mentioned else None
