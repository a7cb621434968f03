"""The search space of a sweep: parameters and ranges from the schema, from `--vary`, or from a TOML file."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic.contract.errors import ConfigError, nearest, shown
from mosaic.contract.limits import Limits, number_of
from mosaic.contract.settings import parse_setting
from mosaic.contract.sweeps import Dimension

KEYS = ("low", "high", "log", "step", "choices")
# Default ranges: factors around the default ("×"), or fixed ends. A field that an algorithm lacks, or whose default
# disables it, is skipped.
FACTORS = {
    "learning_rate": 10.0, "policy_lr": 10.0, "q_lr": 10.0,
    "max_grad_norm": 5.0, "target_network_frequency": 4.0, "num_steps": 4.0, "batch_size": 4.0, "num_minibatches": 2.0,
}  # fmt: skip
ENDS: dict[str, tuple[float, float, bool]] = {
    "gae_lambda": (0.8, 0.99, False), "q_lambda": (0.3, 0.95, False), "clip_coef": (0.1, 0.4, False),
    "ent_coef": (1e-4, 0.1, True), "vf_coef": (0.25, 1.0, False), "update_epochs": (1, 10, False),
    "tau": (1e-3, 5e-2, True), "exploration_fraction": (0.05, 0.5, False), "end_e": (0.01, 0.1, False),
    "exploration_noise": (0.05, 0.3, False), "policy_noise": (0.1, 0.4, False), "n_step": (1, 5, False),
}  # fmt: skip
CHOICES: dict[str, tuple[float, ...]] = {
    "gamma": (0.9, 0.95, 0.98, 0.99, 0.995, 0.999),
    "train_frequency": (1, 2, 4, 8, 16),
}
# With a default of 1 target networks are copied whole, with one of 0 no bonus exists: nothing to tune.
OFF = {"tau": 1.0, "target_network_frequency": 1, "ent_coef": 0.0}
# Fields that describe a run, not how it learns.
FIXED = frozenset({"seed", "env_id", "total_timesteps", "total_frames", "exp_name", "run_dir", "resume"})


def default_space(schema: Mapping[str, Any]) -> list[Dimension]:
    """Return the usual parameters of an algorithm, each around its default."""
    fields = _fields(schema)
    names = [name for name in (*FACTORS, *CHOICES, *ENDS) if name in fields and _is_on(fields[name])]
    found = [around_default(fields[name]) for name in fields if name in names]
    if not found:
        raise ConfigError("the algorithm's schema names nothing that is usually tuned; say what: --vary NAME=1..10")
    return found


def around_default(field: Mapping[str, Any]) -> Dimension:
    """Return a sensible range for one parameter: by its name if known, else by its type and default."""
    name, default = str(field["name"]), field.get("default")
    whole = field.get("type") == "int"
    if field.get("choices") or field.get("type") == "bool":
        return Dimension(name=name, kind="choice", choices=tuple(field.get("choices") or (True, False)))
    if name in CHOICES:
        known = {*CHOICES[name], *([default] if isinstance(default, int | float) else [])}
        return Dimension(name=name, kind="choice", choices=tuple(sorted(known)))
    if name in ENDS:
        low, high, log = ENDS[name]
        return _between(field, low, high, log)
    if not isinstance(default, int | float) or default <= 0:
        raise ConfigError(f"{name} has no default to vary around; say how far: --vary {name}=0.1..10")
    factor = FACTORS.get(name, 4.0 if whole else 10.0)
    power = math.log2(default)
    if whole and power.is_integer():  # a power of two stays one
        steps = round(math.log2(factor))
        powers = tuple(2**one for one in range(max(0, int(power) - steps), int(power) + steps + 1))
        return Dimension(name=name, kind="choice", choices=powers)
    return _between(field, default / factor, default * factor, log=True)


def parse_vary(texts: Sequence[str], schema: Mapping[str, Any]) -> list[Dimension]:
    """Parse `NAME` (around its default), `NAME=1e-5..1e-2`, or `NAME=32,64,128`."""
    found = []
    for text in texts:
        name, equals, given = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        field = _field(name, schema)
        if not equals:
            found.append(around_default(field))
        elif ".." in given:
            low, _, high = given.partition("..")
            found.append(_between(field, _number(low, text), _number(high, text), None))
        else:
            values = tuple(parse_setting(f"{name}={part.strip()}")[1] for part in given.split(",") if part.strip())
            found.append(_choice(field, values))
    return _once(found)


def read_space(path: Path, schema: Mapping[str, Any]) -> list[Dimension]:
    """Read a TOML file with a table for each parameter: `low` and `high` (`log`, `step`), or `choices`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--space {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--space {path} is no TOML: {error}") from None
    if not tables:
        raise ConfigError(f"--space {path} names no parameter; it has a table for each: [learning_rate]")
    return [_from_table(name, table, schema, path) for name, table in tables.items()]


def _from_table(name: str, table: Any, schema: Mapping[str, Any], path: Path) -> Dimension:
    place = f"{path.name}: [{name}]"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place} is a table with low and high, or choices; not {shown(table)}")
    field = _field(name, schema)
    for key in table:
        if key not in KEYS:
            raise ConfigError(f"{place} has an unknown key {key!r}{nearest(key, KEYS)}; there are {', '.join(KEYS)}")
    if "choices" in table:
        if len(table) > 1 or not isinstance(table["choices"], list):
            raise ConfigError(f"{place} takes a list of choices and nothing beside it, or low and high")
        return _choice(field, tuple(table["choices"]))
    ends = [table.get(end) for end in ("low", "high")]
    if not table:
        return around_default(field)
    low, high = ends
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
        raise ConfigError(f"{place} needs the numbers low and high, or a list of choices")
    if not isinstance(table.get("log", False), bool):
        raise ConfigError(f"{place} log is true or false, not {shown(table['log'])}")
    step = table.get("step")
    if step is not None and (not isinstance(step, int | float) or isinstance(step, bool) or not 0 < step < math.inf):
        raise ConfigError(f"{place} step is a number above 0, not {shown(step)}")
    return _between(field, low, high, table.get("log"), step)  # type: ignore[arg-type]


def _between(
    field: Mapping[str, Any], low: float, high: float, log: bool | None, step: float | None = None
) -> Dimension:
    """Return a range within the parameter's limits; by default, wide ranges above 0 are logarithmic."""
    name, whole = str(field["name"]), field.get("type") == "int"
    if not field.get("type"):  # an own script's field: the type of the given ends
        whole = all(isinstance(end, int) for end in (low, high))
    limits = _sure_limits(field)
    if isinstance(limits.least, int | float):
        low = max(low, limits.least)
    if isinstance(limits.most, int | float):
        high = min(high, limits.most)
    if whole and math.isfinite(low) and math.isfinite(high):
        low, high = math.ceil(low), math.floor(high)
    if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
        raise ConfigError(f"{name} cannot vary between {low:g} and {high:g}: the first must be below the second")
    for end in (low, high):
        if why := limits.refusal(end, lambda other: None):
            raise ConfigError(f"{name} cannot vary between {low:g} and {high:g}: {why}")
    if whole and step is not None and step != int(step):
        raise ConfigError(f"{name} is a whole number and goes in whole steps, not in steps of {step:g}")
    if log is None:
        log = step is None and low > 0 and high / low >= 20
    if log and (low <= 0 or step is not None):
        raise ConfigError(f"{name} can go by factors (log) only above 0 and without a step; it has {low:g} to {high:g}")
    return Dimension(name=name, kind="int" if whole else "float", low=low, high=high, log=log, step=step)


def _choice(field: Mapping[str, Any], values: tuple[Any, ...]) -> Dimension:
    name = str(field["name"])
    if len(values) < 2 or len(set(map(str, values))) < len(values):
        raise ConfigError(f"{name} needs two choices or more, each once; not {shown(list(values))}")
    if not all(isinstance(value, bool | int | float | str) for value in values):
        raise ConfigError(f"{name} has a choice that is no number, text or switch: {shown(list(values))}")
    for value in values:
        if not _fits(field, value):
            raise ConfigError(f"{name} does not take {shown(value)}; see what it takes: mosaic algos ALGO")
    return Dimension(name=name, kind="choice", choices=values)


def _fits(field: Mapping[str, Any], value: bool | float | str) -> bool:
    """Return True if a value fits the parameter's type, limits and choices, as far as the schema declares them."""
    if field.get("choices"):
        return value in field["choices"]
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,)}
    wanted = kinds.get(str(field.get("type")))
    if wanted and (not isinstance(value, wanted) or isinstance(value, bool) is not (bool in wanted)):
        return False
    return isinstance(value, str) or _sure_limits(field).refusal(value, lambda other: None) is None


def _sure_limits(field: Mapping[str, Any]) -> Limits:
    """Return the limits that hold for any values of the other parameters; the worker's dry run checks the rest."""
    given = Limits(**(field.get("limits") or {}))
    above, most, below = (None if isinstance(bound, str) else bound for bound in (given.above, given.most, given.below))
    least = number_of(given.least, lambda count: 1)  # a named bound is a count: 1 or more
    return Limits(least, most, above, below)


def _once(found: list[Dimension]) -> list[Dimension]:
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--vary names {name} twice")
    return found


def _fields(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the parameters that may vary; those that are set at run time allow only 0."""
    found = {str(field["name"]): field for field in schema.get("fields", ())}
    return {name: field for name, field in found.items() if name not in FIXED and not _at_run_time(field)}


def _at_run_time(field: Mapping[str, Any]) -> bool:
    return (field.get("limits") or {}).get("most") == 0


def _is_on(field: Mapping[str, Any]) -> bool:
    name = str(field["name"])
    return not (name in OFF and field.get("default") == OFF[name])


def _field(name: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = _fields(schema)
    if name in fields:
        return fields[name]
    if schema.get("fields") and not name.startswith("extras."):
        near = nearest(name, fields)
        raise ConfigError(f"{name} is no parameter that can vary{near or '.'} List them with: mosaic algos ALGO")
    return {"name": name}


def _number(text: str, whole: str) -> float:
    try:
        return int(text) if text.strip().lstrip("-").isdecimal() else float(text)
    except ValueError:
        raise ConfigError(f"--vary takes NAME, NAME=1e-5..1e-2 or NAME=32,64,128; not {shown(whole)}") from None
