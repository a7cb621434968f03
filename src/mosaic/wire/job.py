"""JobConfig: the payload that the trainer takes, nested or as a flat worker config."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mosaic.wire.errors import ConfigError, nearest, shown
from mosaic.wire.secrets import SECRET_NAMES, is_secret, mask_secrets, without_secrets
from mosaic.wire.settings import Executor

__all__ = ["SECRET_NAMES", "JobConfig", "is_secret", "mask_secrets", "without_secrets"]


class _Section(BaseModel):
    # Strict: "8" is no number and 1 is no switch. Inputs are hidden because `environment` holds keys.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, allow_inf_nan=False)


class Gpus(_Section):
    """GPUs asked for; a run that finds none waits if they are mandatory, else trains on the CPU."""

    requested: int = Field(default=0, ge=0)
    mandatory: bool = False


class Ray(_Section):
    """What only a Ray cluster is told."""

    custom: dict[str, float] = {}
    """custom resources by name, such as {"a100": 1}"""
    runtime_env: dict[str, Any] = {}
    """Ray's own description of an environment to ship; nothing is shipped without it"""


class Resources(_Section):
    """What a run claims, and where it runs; None claims nothing, and runs where the daemon's settings say."""

    executor: Executor | None = None
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    gpus: Gpus = Gpus()
    ray: Ray = Ray()
    slurm: dict[str, str | int | bool] = {}
    """options of sbatch by their long names: {"partition": "gpu", "time": "4:00:00", "exclusive": true}"""


class Artifacts(_Section):
    """What a run keeps."""

    output_prefix: str | None = None
    persist_logs: bool = True
    keep_checkpoints: bool = True


class Schedule(_Section):
    """When a run is ended whatever it says; None is no limit."""

    max_duration_seconds: float | None = Field(default=None, gt=0)
    max_steps: int | None = Field(default=None, gt=0)


class Retry(_Section):
    """How often a run that failed is started again."""

    max_restarts: int = Field(default=0, ge=0)


class Ui(_Section):
    """What the form that submitted the run knows of it."""

    agent_id: str | None = None
    worker_id: str | None = None
    run_mode: str | None = None
    group: str | None = None
    """what the runs of several seeds of one form have in common"""
    eval_batch_size: int | None = Field(default=None, gt=0)
    eval_repeat: bool | None = None


class Worker(_Section):
    """The worker to start; its `config` is checked by the worker itself."""

    worker_id: str | None = None
    module: str | None = None
    script: str | None = None
    arguments: list[str] = []
    use_grpc: bool = False
    grpc_target: str = "127.0.0.1:50055"
    agent_id: str | None = None
    config: dict[str, Any]

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.module is not None and self.script is not None:
            raise ValueError("give module or script, not both")
        return self


class Metadata(_Section):
    """What concerns the form, and what concerns the worker."""

    ui: Ui = Ui()
    worker: Worker


class JobConfig(_Section):
    """A run as it is submitted; only `metadata.worker.config` is required."""

    run_name: str | None = None
    entry_point: str | None = None
    arguments: list[str] = []
    environment: dict[str, str] = {}
    resources: Resources = Resources()
    artifacts: Artifacts = Artifacts()
    schedule: Schedule = Schedule()
    retry: Retry = Retry()
    metadata: Metadata

    @classmethod
    def parse(cls, payload: Mapping[str, Any]) -> JobConfig:
        """Read a nested payload or a flat worker config; ConfigError names the field that is wrong."""
        if not isinstance(payload, Mapping):
            raise ConfigError(f"a config is a JSON object, not {shown(payload)}")
        nested = copy.deepcopy(dict(payload))
        if not _is_nested(nested):
            nested = {"metadata": {"worker": {"config": nested}}}
        try:
            return cls.model_validate(nested)
        except ValidationError as error:
            raise ConfigError(_one_line(error)) from None

    @property
    def worker_config(self) -> dict[str, Any]:
        """A copy of the config that the worker gets."""
        return copy.deepcopy(self.metadata.worker.config)

    @property
    def left_to_trainer(self) -> tuple[str, ...]:
        """The parts that the trainer enforces and a worker does not, where they ask for something."""
        worker, sections = self.metadata.worker, ("resources", "artifacts", "schedule", "retry")
        parts: list[tuple[str, BaseModel, str]] = [(name, self, name) for name in sections]
        parts += [(f"metadata.worker.{name}", worker, name) for name in ("arguments", "use_grpc", "grpc_target")]
        return tuple(
            place for place, part, name in parts if getattr(part, name) != type(part).model_fields[name].default
        )


# What a refusal of a resource shows.
RESOURCES = "cpus=4, memory_mb=8000, slurm.partition=gpu, slurm.time=4:00:00 or ray.custom.a100=1"


def parse_resources(text: str, what: str = "resources") -> dict[str, Any]:
    """What people type for `resources`, checked: KEY=VALUE a line with dots in the key, or one JSON object."""
    if text.strip().startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "too deep")
            raise ConfigError(f"{what}: this is no JSON object ({reason}); or write {RESOURCES}, one a line") from None
    else:
        found = {}
        for line in filter(None, map(str.strip, text.splitlines())):
            _place(found, line, what)
    if "executor" in found:
        raise ConfigError(f"{what}: where it runs has a place of its own (--executor; in a form: Where it runs)")
    _checked(found)
    return dict(found)


def show_resources(resources: Mapping[str, Any]) -> list[str]:
    """The lines that `parse_resources` reads back, of everything but the executor that is no default."""
    given = _checked(resources).model_dump(exclude_defaults=True, exclude={"executor"})
    gpus, ray, slurm = given.pop("gpus", {}), given.pop("ray", {}), given.pop("slurm", {})
    given |= {f"gpus.{name}": value for name, value in gpus.items()}
    for part in ("custom", "runtime_env"):
        given |= {f"ray.{part}.{name}": value for name, value in ray.get(part, {}).items()}
    short = {
        name: json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
        for name, value in given.items()
    }
    lines = [f"{name}={text}" for name, text in short.items()]
    plain = {name: value if isinstance(value, str) else json.dumps(value) for name, value in slurm.items()}
    return lines + [f"slurm.{name}={value}" for name, value in plain.items()]


def _checked(resources: Mapping[str, Any]) -> Resources:
    return JobConfig.parse({"resources": dict(resources), "metadata": {"worker": {"config": {}}}}).resources


def _place(found: dict[str, Any], line: str, what: str) -> None:
    """Put one KEY=VALUE where its key says; options of sbatch stay as they are written, one without a value is on."""
    key, equals, text = (part.strip() for part in line.partition("="))
    # A custom resource of Ray may have dots in its name.
    *sections, name = key.lstrip("-").split(".", 2 if key.startswith("ray.") else 1)
    slurm = sections == ["slurm"]
    if not name or not (equals or slurm):
        raise ConfigError(f"{what} takes KEY=VALUE, not {shown(line)}; for example: {RESOURCES}")
    if is_secret(name):
        raise ConfigError(f"{what}: {name} looks like a secret, which a cluster would keep in a file: leave it out")
    value: Any = text if equals else True
    try:
        read = json.loads(text)
        value = read if not slurm or type(read) in (int, bool) else text
    except (ValueError, RecursionError):
        pass
    if key == "gpus" and not isinstance(value, dict):
        if type(value) is not int:
            raise ConfigError(f"{what}: gpus takes a number, such as gpus=2, not {shown(text)}")
        sections, name = ["gpus"], "requested"
    inner = found
    for section in sections:
        inner = inner.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{what}: {'.'.join(sections)} is given as a whole and in parts; give one of them")
    inner[name] = value


def _is_nested(payload: Mapping[str, Any]) -> bool:
    """Tell a trainer payload, also one that lacks its metadata, from a flat worker config."""
    return "metadata" in payload or (bool(payload) and set(payload) <= set(JobConfig.model_fields))


def _one_line(error: ValidationError) -> str:
    """Return the first problem as `field.path: what is wrong`, never with the value (it may be a key)."""
    problems = error.errors(include_url=False, include_input=False)
    problem, more = problems[0], len(problems) - 1
    place = ".".join(str(part) for part in problem["loc"]) or "payload"
    if problem["type"] == "extra_forbidden":
        text = f"unknown field{nearest(str(problem['loc'][-1]), _siblings(problem['loc']))}"
    elif problem["type"] == "missing":  # nothing but the config, or a section on the way to it, is required
        place, text = "metadata.worker.config", "missing; it holds algo, env_id, total_timesteps, ..."
    else:
        text = problem["msg"].removeprefix("Value error, ")
        text = text[:1].lower() + text[1:]
    return f"{place}: {text}" + (f" (and {more} more)" if more else "")


def _siblings(place: tuple[int | str, ...]) -> list[str]:
    """Return the fields of the section that an unknown field was given in."""
    section: type[BaseModel] = JobConfig
    for name in place[:-1]:
        inner = section.model_fields[str(name)].annotation
        assert isinstance(inner, type) and issubclass(inner, BaseModel)
        section = inner
    return list(section.model_fields)
