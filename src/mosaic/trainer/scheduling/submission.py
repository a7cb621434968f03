"""Submission: a payload is parsed, its secrets are separated, a worker checks it, then the run is queued."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, MosaicError, RefusedError, WorkerError, nearest, shown
from mosaic.contract.fields import SUBMISSION_BYTES, parse_object
from mosaic.contract.happenings import Happenings
from mosaic.contract.job import JobConfig
from mosaic.contract.kinds import FieldError
from mosaic.contract.paths import check_run_id, new_run_id, write_atomic
from mosaic.contract.scripts import find_script
from mosaic.contract.secrets import is_secret, mask_secrets, proxy_variables, without_secrets
from mosaic.contract.versions import installed
from mosaic.contract.workers import WorkerCapabilities, discover_workers, schema_of
from mosaic.store.storage import default_url
from mosaic.trainer.executors.choice import Executors
from mosaic.trainer.registry.columns import claim_of, columns_of
from mosaic.trainer.registry.registry import NewRun, Registry
from mosaic.trainer.registry.run_warnings import added
from mosaic.trainer.run import Run
from mosaic.trainer.scheduling.gpu import Machine, check_claim
from mosaic.trainer.scheduling.resumption import with_curriculum
from mosaic.trainer.scheduling.scripts import all_params

DRY_RUN_SECONDS = 120.0
# Each dry run is a process of a third of a second; more in parallel only wait for each other.
DRY_RUNS = 4
REFUSED = 2
# Shorter values are ordinary words, and finding them elsewhere proves nothing.
LEAST_SECRET = 8


class Vault:
    """Secrets of submissions, in memory only; lost when the daemon ends."""

    def __init__(self) -> None:
        self._secrets: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    def keep(self, run_id: str, secrets: Mapping[str, str]) -> None:
        with self._lock:
            if secrets:
                self._secrets[run_id] = dict(secrets)

    def of(self, run_id: str) -> dict[str, str]:
        with self._lock:
            return dict(self._secrets.get(run_id, {}))

    def forget(self, run_id: str) -> None:
        with self._lock:
            self._secrets.pop(run_id, None)


class Submissions:
    """The submission of runs to the queue."""

    def __init__(
        self,
        registry: Registry,
        vault: Vault,
        happenings: Happenings,
        machine: Machine,
        find: Callable[[], tuple[dict[str, WorkerCapabilities], list[str]]] = discover_workers,
        executors: Executors | None = None,
    ) -> None:
        self._executors = executors or Executors()
        self._registry, self._vault, self._happenings, self._machine = registry, vault, happenings, machine
        self.workers, self.problems = find()
        self._schemas: dict[str, dict[str, Any]] = {}
        self._asking = threading.Semaphore(DRY_RUNS)

    def read(self, data: bytes) -> dict[str, Any]:
        """Return the payload of a submission's text; raise RefusedError if it is too large or not a JSON object."""
        try:
            return parse_object(data, "submission", SUBMISSION_BYTES, wide=True)  # the fields' own ranges come next
        except FieldError as error:
            self._happenings.note("run.refused", "-", reason=error)
            raise RefusedError(str(error)) from None

    def submit_run(
        self, payload: Mapping[str, Any], *, priority: int = 0, external: bool = False, run_id: str = ""
    ) -> Run:
        """Check and queue a run; raise RefusedError with the reason, which is also logged.

        A caller with a fresh `run_id` can safely repeat a submission whose answer was lost: the second is refused as
        known.
        """
        given = check_run_id(run_id) if run_id else new_run_id()
        if self._registry.knows(given):  # before any of its files is overwritten
            raise ConfigError(f"run {given} exists already; take another run id")
        paths = self._registry.paths(given)
        secrets = _secrets_of(payload)
        self._happenings.hide(*secrets.values())
        try:
            job = JobConfig.parse(payload)
            _refuse_leaks(job, secrets)
            proxies = proxy_variables(job.worker_config)
            secrets |= {name: value for name, value in proxies.items() if mask_secrets(value) != value}
            self._happenings.hide(*secrets.values())
            new = self._checked(given, job, secrets, external)
        except MosaicError as error:
            reason = _scrubbed(str(error), secrets)
            self._happenings.note("run.refused", given, reason=reason)
            raise RefusedError(reason) from None
        paths.create()
        write_atomic(paths.config_file, json.dumps(new.payload, indent=2) + "\n")
        self._vault.keep(given, secrets)
        columns = {**new.columns, "priority": priority, "external": int(external)}
        run = self._registry.add_run(NewRun(given, new.payload, new.config, new.command, columns))
        self._happenings.note(
            "run.submitted", given, algo=run.algo, env_id=run.env_id, seed=run.seed, mode=run.mode, priority=priority
        )
        return run

    def _checked(self, run_id: str, job: JobConfig, secrets: Mapping[str, str], external: bool) -> NewRun:
        worker = self.worker_for(job)
        config = self._completed(run_id, job, worker)
        if job.metadata.worker.script is not None:
            fields = self._schema(worker).get(str(config.get("algo")), {}).get("fields", ())
            given = _object(config.get("extras"))
            config["extras"] = {**given, "algo_params": all_params(_object(given.get("algo_params")), fields)}
        claim, executor = claim_of(job), self._executor_for(job)
        warnings = []
        if executor == "local":
            warnings = check_claim(claim, self._machine)
        elif self._executors.of(executor).only_here:  # it has all cores, whatever the daemon gives to its own runs
            warnings = check_claim(claim, dataclasses.replace(self._machine, cpu_slots=float(os.cpu_count() or 1)))
            claim = dataclasses.replace(claim, gpus=claim.gpus if claim.gpus <= len(self._machine.gpus) else 0)
        if job.artifacts.output_prefix:
            warnings.append("artifacts.output_prefix has no effect: a run's files lie in its own folder")
        if not external:
            summary = self._dry_run(run_id, worker, config, {**job.environment, **secrets})
            for name in ("algo", "env_id", "seed", "total_timesteps"):
                config[name] = config.get(name) if config.get(name) is not None else summary["config"].get(name)
            if "extras" in config:
                config["extras"] = with_curriculum(config["extras"], _object(summary["config"].get("extras")))
            warnings += [str(text) for text in summary.get("warnings", ())]
        columns = {
            **columns_of(job, config, claim),
            "worker_type": worker.worker_type,
            "secret_names": json.dumps(sorted(secrets)),
            "warnings": json.dumps(added([], warnings)),
            "executor": executor,
        }
        payload = without_secrets(job.to_dict())
        payload["metadata"]["worker"]["config"] = without_secrets(config)
        payload["metadata"]["ui"]["version"] = installed().get("mosaic-rl")
        return NewRun(run_id, payload, without_secrets(config), worker.command, columns)

    def _executor_for(self, job: JobConfig) -> str:
        """Return the run's executor; refuse one that this daemon cannot use."""
        name = job.resources.executor or self._executors.default
        if problem := self._executors.problem(name):
            raise ConfigError(f"resources.executor: {problem}")
        self._executors.of(name).check(dataclasses.asdict(job.resources))
        return name

    def _completed(self, run_id: str, job: JobConfig, worker: WorkerCapabilities) -> dict[str, Any]:
        """Return the worker's flat config with the run's id; omitted steps are the algorithm's default."""
        config = {**job.worker_config, "run_id": run_id}
        told = job.metadata.worker
        for name, value in (("worker_id", told.worker_id), ("agent_id", told.agent_id or job.metadata.ui.agent_id)):
            if value and not config.get(name):
                config[name] = value
        if told.script is not None:
            self._add_script_defaults(config, told.script, worker)
        stored = job.environment.get(variables.MOSAIC_STORAGE_URL) or default_url(self._registry.home)
        if stored and not _object(config.get("extras")).get("storage_url"):
            config["extras"] = {**_object(config.get("extras")), "storage_url": stored}
        extras = _object(config.get("extras"))
        trains = extras.get("mode") in (None, "", "train") and "total_frames" not in {
            *extras,
            *_object(extras.get("algo_params")),
        }
        if config.get("total_timesteps") is None and trains:
            fields = self._schema(worker).get(str(config.get("algo")), {}).get("fields", ())
            default = next((field["default"] for field in fields if field["name"] == "total_timesteps"), None)
            if default is not None:
                config["total_timesteps"] = default
        return config

    def _add_script_defaults(self, config: dict[str, Any], name: str, worker: WorkerCapabilities) -> None:
        """Fill the gaps of a script's base config from its header, else from the worker's first algorithm."""
        script = find_script(name, self._registry.home, worker.command)
        schema = self._schema(worker)
        config["algo"] = config.get("algo") or script.algo or next(iter(schema), None)
        fields = schema.get(str(config["algo"]), {}).get("fields", ())
        default = next((field.get("default") for field in fields if field["name"] == "env_id"), None)
        config["env_id"] = config.get("env_id") or script.env_id or default
        if config.get("total_timesteps") is None:
            config["total_timesteps"] = script.total_timesteps

    def worker_for(self, job: JobConfig) -> WorkerCapabilities:
        """Return the worker that a payload or its algorithm names; raise ConfigError if none matches."""
        if not self.workers:
            raise WorkerError("; ".join(["no worker is installed", *self.problems]))
        module, algo = job.metadata.worker.module, job.worker_config.get("algo")
        if module is not None:
            for worker in self.workers.values():
                if module in worker.command or module.split(".")[0] in {part.split(".")[0] for part in worker.command}:
                    return worker
            raise ConfigError(f"metadata.worker.module: no worker is started as {shown(module)}; leave it out")
        if job.entry_point is not None:
            if job.entry_point in self.workers:
                return self.workers[job.entry_point]
            near = nearest(job.entry_point, self.workers)
            raise ConfigError(f"entry_point: {shown(job.entry_point)} is no worker ({', '.join(self.workers)}){near}")
        for worker in self.workers.values():
            if isinstance(algo, str) and algo in self._schema(worker):
                return worker
        if isinstance(algo, str) and "." not in algo:
            names = [name for worker in self.workers.values() for name in self._schema(worker)]
            raise ConfigError(f"unknown algo {shown(algo)}{nearest(algo, names) or '.'} List them with: mosaic algos")
        return next(iter(self.workers.values()))  # a custom module or script, or a policy's: the worker checks it

    def _schema(self, worker: WorkerCapabilities) -> dict[str, Any]:
        if worker.worker_type not in self._schemas:
            try:
                self._schemas[worker.worker_type] = schema_of(worker)
            except WorkerError as error:  # the other workers stay available; this one only by its module's name
                self._schemas[worker.worker_type] = {}
                self.problems.append(str(error))
                self._happenings.warn("worker.broken", problem=error)
        return self._schemas[worker.worker_type]

    def _dry_run(
        self, run_id: str, worker: WorkerCapabilities, config: dict[str, Any], environment: Mapping[str, str]
    ) -> dict[str, Any]:
        """Check the config with a dry run of the worker; return its summary."""
        paths = self._registry.paths(run_id)
        # A submission that is repeated while its first try is still being checked must not lose the file.
        asked = paths.configs_folder / f".dry-run-{run_id}-{os.urandom(4).hex()}.json"
        write_atomic(asked, json.dumps(without_secrets(config)))
        command = [*worker.command, "--config", str(asked), "--dry-run", "--emit-summary"]
        try:
            with self._asking:
                done = subprocess.run(
                    command,
                    env={**worker_environment(self._registry.home), **environment},
                    cwd=self._registry.home,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=DRY_RUN_SECONDS,
                )
        except subprocess.TimeoutExpired:
            raise WorkerError(f"the worker did not answer a dry run within {DRY_RUN_SECONDS:.0f} s") from None
        except OSError as error:
            raise WorkerError(f"cannot start the worker {command[0]!r}: {error.strerror}") from None
        finally:
            asked.unlink(missing_ok=True)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["the worker gave no reason"]
            said = lines[-1].removeprefix(f"{worker.worker_type}-worker: ")
            if done.returncode == REFUSED:
                raise ConfigError(said)
            raise WorkerError(f"the worker's dry run failed ({done.returncode}): {said}")
        try:
            summary = json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1])
            return {**summary, "config": dict(summary["config"])}
        except (ValueError, IndexError, KeyError, TypeError):
            raise WorkerError("the worker's dry run printed no summary") from None


def worker_environment(home: Path) -> dict[str, str]:
    """Return the variables that a worker inherits from the daemon: all but the daemon's own."""
    own = {variables.MOSAIC_TOKEN, variables.MOSAIC_TARGET, variables.MOSAIC_RUN_ID, variables.MOSAIC_ATTEMPT}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return {**kept, variables.MOSAIC_HOME: str(home), variables.PYTHONUNBUFFERED: "1"}


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _secrets_of(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the secret variables of a payload, also of a malformed one."""
    environment = payload.get("environment")
    if not isinstance(environment, Mapping):
        return {}
    texts = {str(name): value for name, value in environment.items() if isinstance(value, str)}
    return {name: value for name, value in texts.items() if is_secret(name) or mask_secrets(value) != value}


def _refuse_leaks(job: JobConfig, secrets: Mapping[str, str]) -> None:
    """Refuse secrets anywhere but in environment values: everything else is stored in files and command lines."""
    rest = job.to_dict()
    rest["environment"] = {name: value for name, value in job.environment.items() if name not in secrets}
    text = json.dumps(rest, default=str, ensure_ascii=False)
    for name, value in secrets.items():
        if len(value) >= LEAST_SECRET and value in text:
            raise ConfigError(
                f"the value of environment.{name} also stands elsewhere in the payload: leave it out there"
            )
    if mask_secrets(job.resources.ray.runtime_env) != job.resources.ray.runtime_env:
        raise ConfigError(
            "resources.ray.runtime_env holds a login or another secret, which Ray shows in its dashboard: "
            "give it as an environment value"
        )
    if (place := _secret_key(job.worker_config)) is not None:
        raise ConfigError(f"{place} looks like a secret, which must not lie in a file: give it as an environment value")
    for flag in (*job.arguments, *job.metadata.worker.arguments):
        if is_secret(flag.partition("=")[0]):
            raise ConfigError("an argument looks like a secret, which everybody could see in ps: use the environment")


def _secret_key(value: Any, place: str = "config") -> str | None:
    """Return the path of the first key that holds a secret."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            inner = f"{place}.{key}"
            if is_secret(str(key)) and isinstance(item, str) and item:
                return inner
            if (found := _secret_key(item, inner)) is not None:
                return found
    elif isinstance(value, list):
        for item in value:
            if (found := _secret_key(item, place)) is not None:
                return found
    return None


def _scrubbed(text: str, secrets: Mapping[str, str]) -> str:
    for value in sorted(secrets.values(), key=len, reverse=True):
        if len(value) >= 4:
            text = text.replace(value, "***").replace(json.dumps(value)[1:-1], "***")
    return text
