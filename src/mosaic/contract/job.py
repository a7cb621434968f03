"""JobConfig: the payload that the trainer accepts, nested or as a flat worker config."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.fields import SUBMISSION
from mosaic.contract.secrets import SECRET_NAMES, is_secret, mask_secrets, without_secrets
from mosaic.contract.settings import Executor

__all__ = ["SECRET_NAMES", "JobConfig", "is_secret", "mask_secrets", "without_secrets"]

_Section = TypeVar("_Section")


@dataclass(frozen=True)
class Gpus:
    """Requested GPUs; a run that finds none waits if they are mandatory, else trains on the CPU."""

    requested: int = 0
    mandatory: bool = False


@dataclass(frozen=True)
class Ray:
    """Options for Ray clusters only."""

    custom: dict[str, float] = field(default_factory=dict)
    """custom resources by name, such as {"a100": 1}"""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    """Ray's own runtime environment to ship; nothing is shipped without it"""


@dataclass(frozen=True)
class Resources:
    """The resources and executor of a run; None claims nothing, and uses the executor of the daemon's settings."""

    executor: Executor | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    gpus: Gpus = Gpus()
    ray: Ray = field(default_factory=Ray)
    slurm: dict[str, str | int | bool] = field(default_factory=dict)
    """options of sbatch by their long names: {"partition": "gpu", "time": "4:00:00", "exclusive": true}"""


@dataclass(frozen=True)
class Artifacts:
    """The artifacts that a run keeps."""

    output_prefix: str | None = None
    persist_logs: bool = True
    keep_checkpoints: bool = True


@dataclass(frozen=True)
class Schedule:
    """Time limits that end a run unconditionally; None means no limit."""

    max_duration_seconds: float | None = None
    max_steps: int | None = None


@dataclass(frozen=True)
class Retry:
    """Retries of a failed run."""

    max_restarts: int = 0


@dataclass(frozen=True)
class Ui:
    """The submitting form's data of the run."""

    agent_id: str | None = None
    worker_id: str | None = None
    run_mode: str | None = None
    group: str | None = None
    """shared by the runs of several seeds of one form"""
    eval_batch_size: int | None = None
    eval_repeat: bool | None = None
    version: str | None = None
    """MOSAIC's version, recorded by the daemon that accepted the run"""


@dataclass(frozen=True)
class JobWorker:
    """The worker to start; its `config` is checked by the worker itself."""

    config: dict[str, Any]
    worker_id: str | None = None
    module: str | None = None
    script: str | None = None
    arguments: list[str] = field(default_factory=list)
    use_grpc: bool = False
    grpc_target: str = "127.0.0.1:50055"
    agent_id: str | None = None


@dataclass(frozen=True)
class Metadata:
    """The data of the form, and of the worker."""

    worker: JobWorker
    ui: Ui = Ui()


@dataclass(frozen=True)
class JobConfig:
    """A submitted run; only `metadata.worker.config` is required. `fields.SUBMISSION` has types and ranges."""

    metadata: Metadata
    run_name: str | None = None
    entry_point: str | None = None
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    resources: Resources = field(default_factory=Resources)
    artifacts: Artifacts = Artifacts()
    schedule: Schedule = Schedule()
    retry: Retry = Retry()

    @classmethod
    def parse(cls, payload: Mapping[str, Any]) -> JobConfig:
        """Read a nested payload or a flat worker config; raise ConfigError with the wrong field."""
        if not isinstance(payload, Mapping):
            raise ConfigError(f"a config is a JSON object, not {shown(payload)}")
        nested = payload if _is_nested(payload) else {"metadata": {"worker": {"config": payload}}}
        SUBMISSION.check(nested)  # before the copy: a too deeply nested payload cannot be copied
        if _config_of(nested) is None:
            raise ConfigError("metadata.worker.config: missing; it holds algo, env_id, total_timesteps, ...")
        job = _section(cls, copy.deepcopy(dict(nested)))
        if job.metadata.worker.module is not None and job.metadata.worker.script is not None:
            raise ConfigError("metadata.worker: give module or script, not both")
        return job

    def to_dict(self) -> dict[str, Any]:
        """Return the payload with every default."""
        return dataclasses.asdict(self)

    @property
    def worker_config(self) -> dict[str, Any]:
        """Return a copy of the worker's config."""
        return copy.deepcopy(self.metadata.worker.config)

    @property
    def left_to_trainer(self) -> tuple[str, ...]:
        """Return the requested parts that the trainer enforces and a worker does not."""
        worker, plain = self.metadata.worker, JobWorker({})
        parts = [(name, getattr(self, name)) for name in ("resources", "artifacts", "schedule", "retry")]
        asked = [name for name, part in parts if part != type(part)()]
        own = ("arguments", "use_grpc", "grpc_target")
        asked += [f"metadata.worker.{name}" for name in own if getattr(worker, name) != getattr(plain, name)]
        return tuple(asked)


def _config_of(nested: Mapping[str, Any]) -> Any:
    """Return the worker's config of a checked payload, None if it has none."""
    return ((nested.get("metadata") or {}).get("worker") or {}).get("config")


def _section(kind: type[_Section], values: Mapping[str, Any]) -> _Section:
    """Build a dataclass from the checked fields that are given; null leaves a field at its default."""
    given: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        if (value := values.get(name)) is not None:
            given[name] = _section(hint, value) if isinstance(hint, type) and dataclasses.is_dataclass(hint) else value
    return kind(**given)


# The example in refusals of a resource.
RESOURCES = "cpus=4, memory_mb=8000, slurm.partition=gpu, slurm.time=4:00:00 or ray.custom.a100=1"


def parse_resources(text: str, what: str = "resources") -> dict[str, Any]:
    """Parse and check the text of `resources`: KEY=VALUE per line with dots in the key, or one JSON object."""
    if text.strip().startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "too deep")
            raise ConfigError(f"{what}: this is no JSON object ({reason}); or write {RESOURCES}, one a line") from None
    else:
        found = dict[str, Any]()
        for line in filter(None, map(str.strip, text.splitlines())):
            _place(found, line, what)
    if "executor" in found:
        raise ConfigError(f"{what}: where it runs has a place of its own (--executor; in a form: Where it runs)")
    _checked(found)
    return dict(found)


def show_resources(resources: Mapping[str, Any]) -> list[str]:
    """Return the lines that `parse_resources` reads back, of everything but the executor that is not a default."""
    checked = _checked(resources)
    given = {name: getattr(checked, name) for name in ("cpus", "memory_mb")}
    given |= {f"gpus.{name}": getattr(checked.gpus, name) for name in ("requested", "mandatory")}
    defaults = {"cpus": None, "memory_mb": None, "gpus.requested": 0, "gpus.mandatory": False}
    given = {name: value for name, value in given.items() if value != defaults[name]}
    for part in ("custom", "runtime_env"):
        given |= {f"ray.{part}.{name}": value for name, value in getattr(checked.ray, part).items()}
    short = {
        name: json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
        for name, value in given.items()
    }
    options = {name: value if isinstance(value, str) else json.dumps(value) for name, value in checked.slurm.items()}
    return [f"{name}={text}" for name, text in short.items()] + [
        f"slurm.{name}={text}" for name, text in options.items()
    ]


def _checked(resources: Mapping[str, Any]) -> Resources:
    return JobConfig.parse({"resources": dict(resources), "metadata": {"worker": {"config": {}}}}).resources


def _place(found: dict[str, Any], line: str, what: str) -> None:
    """Insert one KEY=VALUE at its key's place; sbatch options stay as written, one without a value is on."""
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
    inner: dict[str, Any] = found
    for section in sections:
        inner = inner.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{what}: {'.'.join(sections)} is given as a whole and in parts; give one of them")
    inner[name] = value


def _is_nested(payload: Mapping[str, Any]) -> bool:
    """Return True for a trainer payload, also one that lacks its metadata, and False for a flat worker config."""
    return "metadata" in payload or (bool(payload) and set(payload) <= set(SUBMISSION.fields))
