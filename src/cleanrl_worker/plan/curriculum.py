"""The curriculum of a config: its stages, and the checks that training would make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cleanrl_worker.plan.environments import LOOKUP_SECONDS
from cleanrl_worker.schema.source import package_exists
from mosaic.contract.automatic import read_automatic
from mosaic.contract.curriculum import read_schedule
from mosaic.contract.errors import ConfigError, shown

LOOK = "cleanrl_worker.envs.curriculum"
PLACE = "extras.curriculum_schedule"


def stage_ids(extras: Mapping[str, Any]) -> list[str]:
    """Return the curriculum's environments, each once, in the order of the stages; [] without a curriculum."""
    schedule, automatic = (extras.get(name) for name in ("curriculum_schedule", "curriculum"))
    if automatic not in (None, ""):
        if schedule not in (None, ""):
            raise ConfigError("extras.curriculum_schedule and extras.curriculum are both given; give one")
        tasks = read_automatic(automatic).tasks
        if not package_exists("syllabus"):
            raise ConfigError(
                "extras.curriculum needs Syllabus, which is not installed: pip install 'mosaic-rl[curriculum]'"
            )
        return list(tasks)
    if schedule in (None, ""):
        return []
    return list(dict.fromkeys(stage.env_id for stage in read_schedule(schedule, PLACE)))


def as_flag(given: Any) -> str | None:
    """Return a curriculum as the value of the algorithm's flag."""
    return given if given is None or isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def check_member(env_id: str, stages: Sequence[str]) -> None:
    """Refuse an `env_id` that is not a stage of the curriculum."""
    if env_id not in stages:
        names = ", ".join(stages)
        raise ConfigError(
            f"env_id {shown(env_id, 120)} is no stage of {PLACE} ({names}); give one of them, the last is the goal"
        )


def check_spaces(stages: Sequence[str], backend: str, families: Sequence[str]) -> None:
    """Make each stage's environment in a child process, as training would, and refuse differing spaces."""
    if len(stages) < 2:
        return
    asked = {"env_ids": list(stages), "backend": backend, "atari": "atari" in families}
    answer = _look(json.dumps(asked))
    if "problem" in answer:
        raise ConfigError(f"{PLACE}: {answer['problem']}")
    first, *others = stages
    for env_id in others:
        if answer[env_id] != answer[first]:
            differ = f"{first} has {answer[first]}, {env_id} {answer[env_id]}"
            raise ConfigError(f"{PLACE}: all stages need the same spaces, but {differ}")


def _look(asked: str) -> dict[str, str]:
    command = [sys.executable, "-P", "-m", LOOK, asked, os.getcwd()]
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOOKUP_SECONDS, check=False
        )
        answer: dict[str, str] = json.loads(child.stdout)
    except subprocess.TimeoutExpired:
        return {"problem": f"making the environments took longer than {LOOKUP_SECONDS:.0f} s"}
    except ValueError:
        return {"problem": f"making the environments ended their process with exit code {child.returncode}"}
    return answer
