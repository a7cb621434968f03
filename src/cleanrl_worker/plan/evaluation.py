"""The plan of an evaluation: its settings, checks and command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cleanrl_worker.config.evaluation import episodes_of
from cleanrl_worker.plan import backends
from mosaic import catalog
from mosaic.contract.errors import ConfigError, nearest, shown
from mosaic.contract.fields import EVALUATION_EXTRAS, EXTRAS
from mosaic.contract.sidecars import read_sidecar

if TYPE_CHECKING:
    from pathlib import Path

    from cleanrl_worker.config.config import CleanRLWorkerConfig
    from cleanrl_worker.plan.plan import Plan
    from mosaic.contract.paths import RunPaths

MODULE = "cleanrl_worker.evaluation.batched"
# Training parameters that also apply to an evaluation; the rest is in the policy's own args.
PARAMS: dict[str, type] = {"num_envs": int, "env_backend": str, "num_threads": int}


def make_plan(config: CleanRLWorkerConfig, paths: RunPaths, registry: Mapping[str, str]) -> Plan:
    """Return the evaluation's plan; raise ConfigError for errors found without reading the policy's weights."""
    import sys

    from cleanrl_worker.plan.plan import Plan
    from cleanrl_worker.schema import parameters
    from cleanrl_worker.schema.source import locate_module

    name = config.algo.rpartition(".")[2]
    source = locate_module(registry[name], ()) if name in registry else None
    parameters.require_packages(name, source)
    warnings = [*config.warnings, *_without_effect(config), *check_game(config, name, source), *_raw(config)]
    return Plan(
        module=MODULE,
        script=None,
        callable="main",
        ours=True,
        interpreter=sys.executable,
        argv=tuple(build_args(config, paths)),
        num_threads=_params(config).get("num_threads", 1),
        warnings=tuple(warnings),
    )


def check_game(config: CleanRLWorkerConfig, algo: str, source: Path | None) -> list[str]:
    """Refuse an environment that a policy of this algorithm, whose file is `source`, cannot play; return warnings."""
    import sys

    from cleanrl_worker.plan.environments import check_environment
    from cleanrl_worker.schema import parameters

    scope = parameters.read_scope(source) if source else parameters.Scope()
    backend = backend_of(config)
    warnings = check_environment(
        config.env_id,
        algo,
        scope.action_spaces,
        sys.executable,
        backend=scope.default_backend if backend == backends.AUTO else backend,
        auto=backend == backends.AUTO,
        observation_spaces=scope.observation_spaces,
        families=scope.families,
        film=config.mode == "policy_eval" and bool(config.extras.get("eval_capture_video")),
        advise=config.mode == "policy_eval",
    )
    _check_levels(config)
    return warnings


def _check_levels(config: CleanRLWorkerConfig) -> None:
    """Refuse a Procgen environment without the levels of the training, which an evaluation plays."""
    mode = str(_saved_args(config).get("distribution_mode", "auto"))
    if catalog.level_trouble(config.env_id, mode) is None:
        return
    able = [env_id for env_id in catalog.ids("procgen") if env_id.endswith(f"{mode.capitalize()}-v0")]
    same = [env_id for env_id in able if env_id.lower().removesuffix(f"{mode}-v0") in config.env_id.lower()]
    raise ConfigError(
        f"environment {config.env_id!r} has no {mode} levels, on which the policy was trained (distribution_mode)"
        + (f"; evaluate it on {' or '.join(same or able)}" if able else "")
    )


def backend_of(config: CleanRLWorkerConfig) -> str:
    """Return the backend for a policy's environment: the requested one, else that of its training, else any."""
    asked = _params(config).get("env_backend")
    if asked in (backends.GYMNASIUM, backends.ENVPOOL):
        return str(asked)
    known = {} if asked else _sidecar(config)
    saved = (known.get("args") or {}).get("env_backend")
    if saved not in backends.NAMES:
        saved = backends.AUTO
    return backends.that_has(config.env_id, saved, trained_on=known.get("env_id"))


def _saved_args(config: CleanRLWorkerConfig) -> dict[str, Any]:
    return _sidecar(config).get("args") or {}


def _sidecar(config: CleanRLWorkerConfig) -> dict[str, Any]:
    from cleanrl_worker.config.inputs import find_path

    return read_sidecar(find_path(config.extras["policy_path"]))


def build_args(config: CleanRLWorkerConfig, paths: RunPaths) -> list[str]:
    """Return the evaluation's flags."""
    return list(_flags(config, paths))


def _flags(config: CleanRLWorkerConfig, paths: RunPaths) -> Iterator[str]:
    from cleanrl_worker.config.inputs import find_path

    extras = config.extras
    yield f"--policy-path={find_path(extras['policy_path'])}"
    yield f"--run-dir={paths.folder}"
    yield f"--algo={config.algo}"
    yield f"--env-id={config.env_id}"
    yield f"--seed={config.seed}"
    yield f"--episodes={episodes_of(extras)}"
    yield f"--batch-size={extras['eval_batch_size']}"
    for name, switch in (("eval_repeat", "repeat"), ("eval_greedy", "greedy"), ("eval_capture_video", "capture-video")):
        if extras.get(name):
            yield f"--{switch}"
    if extras.get("gamma") not in (None, ""):
        yield f"--gamma={extras['gamma']}"
    if extras.get("eval_max_episode_steps"):
        yield f"--max-episode-steps={extras['eval_max_episode_steps']}"
    for name, value in {**_params(config), "env_backend": backend_of(config)}.items():
        yield f"--{name.replace('_', '-')}={value}"


def _params(config: CleanRLWorkerConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in PARAMS.items():
        value = config.algo_params.get(name, config.extras.get(name))
        if value in (None, ""):
            continue
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or (isinstance(value, int) and value < 0):
            words = "a whole number, 0 or more," if kind is int else "a text"
            raise ConfigError(f"extras.algo_params.{name}: {words} is needed, not {shown(value)}")
        found[name] = value
    if found.get("env_backend", backends.AUTO) not in backends.NAMES:
        near = nearest(found["env_backend"], backends.NAMES)
        raise ConfigError(f"env_backend: {shown(found['env_backend'])} is none of {', '.join(backends.NAMES)}{near}")
    return found


def _raw(config: CleanRLWorkerConfig) -> Iterator[str]:
    """Yield a warning for a policy without the observation statistics that its training may have used."""
    if not _sidecar(config):
        path = config.extras["policy_path"]
        yield (
            f"policy {shown(str(path))} has no sidecar: it plays on observations as they are, and its returns mean "
            "nothing if it was trained on normalised ones; put their mean and variance into "
            f"{shown(str(path) + '.json')} as observation_statistics"
        )


def _without_effect(config: CleanRLWorkerConfig) -> Iterator[str]:
    """Yield one warning listing the training settings of the config."""
    known = {*EXTRAS, *EVALUATION_EXTRAS, *PARAMS}
    idle = sorted({*config.extras, *config.algo_params} - known)
    if idle:
        yield f"without effect in an evaluation: {', '.join(idle)} (a policy's own settings lie in its sidecar)"
