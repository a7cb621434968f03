"""Translation of a config into the algorithm's command: its file, interpreter and flags, or an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanrl_worker.config.config import CleanRLWorkerConfig, worker_variables
from cleanrl_worker.config.inputs import find_checkpoint, find_file, find_path, run_before
from cleanrl_worker.fastlane.settings import fastlane_variables
from cleanrl_worker.foreign import old_ids
from cleanrl_worker.plan import curriculum, evaluation
from cleanrl_worker.plan.environments import check_environment, only_envpool_has
from cleanrl_worker.plan.interpreter import find_interpreter, locate
from cleanrl_worker.plan.plan import Plan
from cleanrl_worker.plan.script_era import NO_ERA, ScriptEra, read_era, require_modules
from cleanrl_worker.schema import parameters
from cleanrl_worker.schema.source import locate_module
from mosaic import catalog
from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, nearest, shown
from mosaic.contract.fields import EXTRAS
from mosaic.contract.flags import written
from mosaic.contract.limits import COMPUTED, batch_trouble, frequent_checkpoints
from mosaic.contract.paths import RunPaths

_PATHS_OF_ANY_RUN = ("run_dir", "tensorboard_dir", "resume")  # other paths are files that the algorithm reads
_WANDB_SETTINGS = ("track", "wandb_project_name", "wandb_entity", "wandb_run_name")


@dataclass(frozen=True)
class _Target:
    """The resolved `algo`; `source` is None for compiled modules."""

    name: str
    module: str | None
    script: Path | None
    source: Path | None
    callable: str
    ours: bool
    interpreter: str


@dataclass(frozen=True)
class _Setting:
    """A parameter's value, and its place for error messages."""

    name: str
    value: Any
    place: str
    as_param: bool = False
    """written like `algo_params` (--x, --no-x), not like extras (--x=true)"""


def make_plan(config: CleanRLWorkerConfig, paths: RunPaths, registry: Mapping[str, str]) -> Plan:
    """Return the plan of a run with its warnings; raise ConfigError for what would fail."""
    if config.mode == "interactive":
        raise ConfigError("mode 'interactive' goes with --interactive: cleanrl-worker --interactive --config …")
    fastlane_variables(config.extras, {**worker_variables(), **config.environment})
    if config.mode == "policy_eval":
        return evaluation.make_plan(config, paths, registry)
    warnings = list(config.warnings)
    target = _resolve(config, registry, warnings)
    if config.extras.get("telemetry") == "steps" and not target.ours:
        warnings.append("extras.telemetry 'steps': only our own algorithms tell their steps; episodes and metrics come")
    stages = curriculum.stage_ids(config.extras)
    if stages and not target.ours:
        raise ConfigError(f"{curriculum.PLACE}: {target.name} makes its own environments; take an algorithm of ours")
    era = NO_ERA
    if target.ours:
        parameters.require_packages(target.name, target.source)
    elif target.source is not None:
        era = read_era(target.source)
    argv, num_threads, told = _command_line(config, paths, target, warnings)
    if not target.ours and target.source is not None:
        require_modules(target.source, target.interpreter, era, argv)
    if told("env_id") is not None:
        warnings += _check_environment(config, target, argv, stages, told, era)
        _check_together(config, target, stages, told)
    return Plan(
        module=target.module,
        script=target.script,
        callable=target.callable,
        ours=target.ours,
        interpreter=target.interpreter,
        argv=tuple(argv),
        num_threads=num_threads,
        warnings=tuple(warnings),
        era=era,
    )


def build_args(config: CleanRLWorkerConfig, paths: RunPaths, registry: Mapping[str, str]) -> list[str]:
    """Return only the algorithm's arguments, without checking the environment."""
    if config.mode == "policy_eval":
        return evaluation.build_args(config, paths)
    return _command_line(config, paths, _resolve(config, registry, []), [])[0]


def _resolve(config: CleanRLWorkerConfig, registry: Mapping[str, str], warnings: list[str]) -> _Target:
    algo = config.algo
    if algo.endswith(".py"):
        script = _find_script(algo)
        interpreter = find_interpreter(config.extras.get("python"))
        return _Target(algo, None, script, script, "__main__", False, interpreter)
    module = registry.get(algo, algo)
    if module != algo or algo in registry.values():
        return _registered(config, algo, module, warnings)
    if "." not in algo or not all(part.isidentifier() for part in algo.split(".")):
        near = nearest(algo, registry) or "."
        raise ConfigError(f"unknown algo {shown(algo)}{near} List them with: cleanrl-worker --list")
    interpreter = find_interpreter(config.extras.get("python"))
    source = locate(algo, interpreter)
    if source is None:
        return _instead_of_cleanrl(config, registry, warnings)
    return _foreign(algo, algo, source, interpreter)


def _registered(config: CleanRLWorkerConfig, algo: str, module: str, warnings: list[str]) -> _Target:
    source = locate_module(module, (os.getcwd(),))
    if source is None:
        raise ConfigError(f"algo {algo!r}: its module {module!r} cannot be found")
    if not module.startswith("cleanrl_worker."):
        return _foreign(algo, module, source, find_interpreter(config.extras.get("python")))
    if config.extras.get("python"):
        warnings.append(f"extras.python is for scripts of your own; {algo!r} runs in the worker's interpreter")
    return _Target(module.rpartition(".")[2], module, None, source, "main", True, sys.executable)


def _foreign(name: str, module: str, source: Path, interpreter: str) -> _Target:
    if source.suffix != ".py":
        return _Target(name, module, None, None, "main", False, interpreter)
    called = "main" if parameters.has_main(source) else "__main__"
    return _Target(name, module, None, source, called, False, interpreter)


def _instead_of_cleanrl(config: CleanRLWorkerConfig, registry: Mapping[str, str], warnings: list[str]) -> _Target:
    package, _, name = config.algo.rpartition(".")
    if package != "cleanrl" or name not in registry:
        near = nearest(name, registry) if package == "cleanrl" else ""
        raise ConfigError(f"module {config.algo!r} cannot be found{near or '; is it installed, or in this folder?'}")
    warnings.append(f"module {config.algo!r} is not installed; running our {name!r} instead")
    return _registered(config, name, registry[name], warnings)


def _find_script(algo: str) -> Path:
    path = find_path(algo)
    if path.is_file():
        return Path(os.path.abspath(path))
    beside = [item.name for item in path.parent.glob("*.py")] if path.parent.is_dir() else []
    raise ConfigError(f"script {algo!r} is not there (looked for {path}){nearest(path.name, beside)}")


def _check_environment(
    config: CleanRLWorkerConfig,
    target: _Target,
    argv: list[str],
    stages: list[str],
    told: Callable[[str], Any],
    era: ScriptEra,
) -> list[str]:
    scope = parameters.read_scope(target.source) if target.source else parameters.Scope()
    folder = str(target.script.parent) if target.script else None
    if not target.ours:  # in a foreign file, only ACTION_SPACES can be assumed to mean the same as in ours
        scope, told = parameters.Scope(scope.action_spaces), lambda name: None
    asked = told("env_backend") or "auto"
    backend = scope.default_backend if asked == "auto" else asked
    if asked == "auto" and target.ours and not scope.families and only_envpool_has(stages or [config.env_id]):
        argv.append("--env-backend=envpool")  # `auto` would search Gymnasium
        backend = asked = "envpool"
    warnings = []
    replaced: Mapping[str, str] = old_ids.REPLACED if era.old and target.interpreter == sys.executable else {}
    for env_id in stages or [config.env_id]:
        warnings += check_environment(
            replaced.get(env_id, env_id),
            target.name,
            scope.action_spaces,
            target.interpreter,
            ours=target.ours,
            backend=backend if target.ours else None,
            auto=asked == "auto",
            observation_spaces=scope.observation_spaces,
            families=scope.families,
            vectorization=told("vectorization") or "sync",
            film=bool(told("capture_video")),
            script_folder=folder,
            num_envs=told("num_envs") or 0,
            levels=told("distribution_mode") or "auto",
        )
    every, count, env_ids = told("checkpoint_every"), told("num_envs"), stages or [config.env_id]
    if target.ours and every and count and not set(env_ids) <= set(scope.saved_environments):
        limit = max(catalog.episode_limit(env_id) or 0 for env_id in env_ids)
        warnings += filter(None, [frequent_checkpoints(every, limit, count, told("checkpoint_episodes") or 0)])
    if stages:
        curriculum.check_member(config.env_id, stages)
        curriculum.check_spaces(stages, asked, scope.families)
    return warnings


def _check_together(
    config: CleanRLWorkerConfig, target: _Target, stages: list[str], told: Callable[[str], Any]
) -> None:
    """Refuse what the run would refuse after its start: parameters that conflict with each other or the environment."""
    if not target.ours or target.source is None:
        return
    env_id = next(iter(stages), config.env_id)  # all stages have the same spaces
    known, network = catalog.find(env_id), told("network")
    if stages and known and known.players > 1:
        raise ConfigError(f"{curriculum.PLACE}: a curriculum is for one player, and {env_id} is for {known.players}")
    seen = known.observation_space if known else None
    if seen and network != seen and network in parameters.read_scope(target.source).observation_spaces:
        raise ConfigError(
            f"extras.algo_params.network: {network!r} is for {network} observations, but {env_id!r} gives {seen} ones; "
            "set it to auto"
        )
    if told("upload_model") and told("save_model") is False:
        raise ConfigError("upload_model needs save_model: there would be no policy to push")
    if why := parameters.trouble(target.source, told, seen):
        raise ConfigError(f"extras.algo_params: {why}")


def _command_line(
    config: CleanRLWorkerConfig, paths: RunPaths, target: _Target, warnings: list[str]
) -> tuple[list[str], int, Callable[[str], Any]]:
    """Return the arguments, the thread count, and a function from parameter to value, None if unset or unknown."""
    settings = _settings(config, paths, target.ours)
    declared = _declared(target, warnings)
    _add_num_envs(settings, declared, {**worker_variables(), **config.environment})

    saved = run_before(config.mode, config.extras) if target.ours else {}
    for name in declared.keys() & {name for name, value in saved.items() if value is not None} - settings.keys():
        _fitting(_Setting(name, saved[name], "the saved run"), declared[name])

    def value_of(name: str) -> Any:
        field, value = declared.get(name), saved.get(name)
        if field is None or (name not in settings and config.mode == "train"):
            return field and field.default
        if name not in settings and (value is None or field.limits == COMPUTED):
            return None
        return _fitting(settings.get(name) or _Setting(name, value, "the saved run"), field)

    argv: list[str] = []
    for setting in settings.values():
        field = declared.get(setting.name)
        if field is None:
            _drop(setting, target, declared, warnings)
            continue
        value = _fitting(setting, field)
        if target.ours and field.type == "path" and setting.name not in _PATHS_OF_ANY_RUN:
            value = find_file(f"{setting.place}.{setting.name}", str(value))
        if isinstance(field, parameters.Flag):
            argv += field.written(value)
        else:
            argv += written(setting.name, value, setting.as_param)
    if target.ours:
        _check_limits(settings, declared, saved, value_of)
    field = declared.get("num_threads") or parameters.Field("num_threads", "int", 0)
    asked = settings.get("num_threads")
    threads = int(_fitting(asked, field) if asked else field.default or 0)
    if threads < 0:
        raise ConfigError(f"num_threads is {threads}; 1 or more is needed, or 0 for the library's default")
    return argv, threads, value_of


def _settings(config: CleanRLWorkerConfig, paths: RunPaths, ours: bool) -> dict[str, _Setting]:
    found: dict[str, _Setting] = {}
    for setting in _all_settings(config, paths, ours):
        if setting.value is None or setting.value == "":
            continue
        other = found.setdefault(setting.name, setting)
        if other.value != setting.value:
            raise ConfigError(
                f"{setting.place}.{setting.name} is {shown(setting.value)}, but {other.place} says "
                f"{shown(other.value)}; give it once"
            )
    return found


def _all_settings(config: CleanRLWorkerConfig, paths: RunPaths, ours: bool) -> Iterator[_Setting]:
    extras = config.extras
    for name in ("env_id", "total_timesteps", "seed"):
        yield _Setting(name, getattr(config, name), "the config")
    if ours:
        yield _Setting("run_dir", str(paths.folder), "the worker")
        if config.mode == "resume_training":
            source = find_checkpoint(extras.get("checkpoint_path") or extras["policy_path"])
            yield _Setting("resume", str(source.absolute()), "extras.checkpoint_path")
            yield _Setting("additional_timesteps", extras.get("additional_timesteps"), "extras")
        for name in ("curriculum_schedule", "curriculum"):
            yield _Setting(name, curriculum.as_flag(extras.get(name)), "extras")
        yield _Setting("grace_seconds", extras.get("grace_seconds"), "extras")
        if extras.get("tensorboard_dir"):
            yield _Setting("tensorboard_dir", str(paths.inside(extras["tensorboard_dir"])), "extras")
    yield _Setting("track", extras.get("track_wandb") or None, "extras", as_param=True)
    yield _Setting("wandb_project_name", extras.get("wandb_project_name") or extras.get("wandb_project"), "extras")
    yield _Setting("wandb_entity", extras.get("wandb_entity"), "extras")
    yield _Setting("wandb_run_name", extras.get("wandb_run_name"), "extras")
    for name, value in config.algo_params.items():
        yield _Setting(name.replace("-", "_"), value, "extras.algo_params", as_param=True)
    for name, value in extras.items():
        if name not in EXTRAS:
            yield _Setting("cuda" if name == "use_cuda" else name.replace("-", "_"), value, "extras")


def _declared(target: _Target, warnings: list[str]) -> dict[str, parameters.Field]:
    if target.source is None:
        return {}
    if target.ours:
        return {field.name: field for field in parameters.read_fields(target.source)}
    found = parameters.read_flags(target.source)
    if found.dialect == "unread":
        options = ", ".join(flag.option for flag in found.flags.values())
        warnings.append(f"{target.name}: its source does not show its flags; only {options} are passed")
    return dict(found.flags)


def _add_num_envs(
    settings: dict[str, _Setting], declared: Mapping[str, parameters.Field], environment: Mapping[str, str]
) -> None:
    given = environment.get(variables.CLEANRL_NUM_ENVS)
    field = declared.get("num_envs")
    if not given or "num_envs" in settings or field is None or field.limits == COMPUTED:
        return
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"{variables.CLEANRL_NUM_ENVS}={given!r}: a whole number, 1 or more, is needed")
    settings["num_envs"] = _Setting("num_envs", int(given), variables.CLEANRL_NUM_ENVS)


def _drop(setting: _Setting, target: _Target, declared: Mapping[str, object], warnings: list[str]) -> None:
    """Refuse an undeclared parameter of our own algorithms; drop it, with a warning, for a user's script."""
    if target.ours:
        known = [*declared, *(EXTRAS if setting.place == "extras" else ())]
        raise ConfigError(
            f"{setting.place}.{setting.name}: algo {target.name!r} has no such parameter{nearest(setting.name, known)}"
        )
    if setting.name == "num_threads":
        return  # the worker sets the variables of OpenMP and similar libraries
    if setting.name in _WANDB_SETTINGS and "track" not in declared:
        return  # the worker tracks a script that cannot do so itself
    flag = "--" + setting.name.replace("_", "-")
    warnings.append(f"{target.name} declares no {flag}; {setting.name} is not passed to it")


def _fitting(setting: _Setting, field: parameters.Field) -> Any:
    """Return the value as its field's type, or refuse it."""
    try:
        value = parameters.convert(setting.value, field.type)
    except (TypeError, ValueError, KeyError, OverflowError):
        raise ConfigError(
            f"{setting.place}.{setting.name}: {parameters.TYPE_WORDS.get(field.type, field.type)} is needed, "
            f"not {shown(setting.value)} (default {field.default})"
        ) from None
    items = value if isinstance(value, list) else [value]
    if field.choices and not all(item in field.choices for item in items):
        choices = [str(choice) for choice in field.choices]
        raise ConfigError(
            f"{setting.place}.{setting.name}: {shown(setting.value)} is none of {', '.join(choices)}"
            f"{nearest(str(value), choices)}"
        )
    return value


def _check_limits(
    settings: Mapping[str, _Setting],
    declared: Mapping[str, parameters.Field],
    saved: Mapping[str, Any],
    value_of: Callable[[str], Any],
) -> None:
    """Refuse values outside the limits of the algorithm's `Args`; given values may also rule out a default."""
    for name, field in declared.items():
        if field.limits is None or (value := value_of(name)) is None:
            continue
        if why := field.limits.refusal(value, value_of):
            if name not in settings and name in saved:
                raise ConfigError(f"extras.algo_params.{name} is left as the saved run had it: {why}; give it, too")
            place = settings[name].place if name in settings else "extras.algo_params"
            raise ConfigError(f"{place}.{name}: {why} (default {field.default})")
    if why := batch_trouble(value_of):
        raise ConfigError(f"extras.algo_params: {why}")
