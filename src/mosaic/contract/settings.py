"""A run's settings as typed in a terminal or a form: `key=value`, and several seeds in a word."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.secrets import is_secret

Executor = Literal["local", "ray", "slurm"]
EXECUTORS: tuple[str, ...] = get_args(Executor)

# Each becomes a run of its own: more is probably a typo.
MOST_SEEDS = 1000


def parse_setting(text: str, what: str = "--set") -> tuple[str, Any]:
    """Return `key=value` as a pair; the value is JSON if it parses as JSON, else the text itself."""
    key, equals, value = text.partition("=")
    key = key.strip().lstrip("-").replace("-", "_")
    if not equals or not key:
        raise ConfigError(f"{what} takes KEY=VALUE, not {shown(text)}; for example: learning_rate=0.001")
    if is_secret(key):
        raise ConfigError(f"{key} looks like a secret; secrets travel in the environment: export WANDB_API_KEY=…")
    lowered = value.strip().lower()
    try:
        found = json.loads(lowered if lowered in ("true", "false", "null") else value)
        json.dumps(found, allow_nan=False)  # Python reads NaN and 1e999, which JSON lacks
        return key, found
    except (ValueError, RecursionError):
        return key, value


def parse_seeds(text: str, what: str = "--seeds") -> list[int]:
    """Return the seeds of `1-5`, `3` or `1,2,8-10`, in the order given; `what` names the flag or field in an error."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)) or (dash and int(last) < int(first)):
            raise ConfigError(f"{what} takes numbers and ranges such as 1-5 or 1,2,7; not {shown(text)}")
        count = int(last or first) - int(first) + 1
        if len(seeds) + count > MOST_SEEDS:
            raise ConfigError(f"{what} {shown(text)} are more than {MOST_SEEDS:,} runs; submit them in several parts")
        seeds += range(int(first), int(first) + count)
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"{what} {shown(text)} names a seed twice")
    return seeds


def group_name(algo: str, env_id: str, seeds: str) -> str:
    """Return the default name of the runs of several seeds."""
    return f"{algo} {env_id} seeds {seeds.replace(' ', '')}"


def _is_number(text: str) -> bool:
    # Python reads at most 4,300 digits, and no seed has more than ten.
    return text.isascii() and text.isdecimal() and len(text) <= 10
