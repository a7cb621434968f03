"""The shell's part in an evaluation before it starts: what its settings come to, and its process's command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mosaic.wire.errors import ConfigError, nearest, shown

if TYPE_CHECKING:
    from cleanrl_worker.command import Plan
    from cleanrl_worker.config import CleanRLWorkerConfig
    from mosaic.wire.paths import RunPaths

MODULE = "cleanrl_worker.evaluation"
BATCH_SIZE = 50
TENSORBOARD = "tensorboard_eval"
# Parameters of training that mean something in an evaluation too; the policy's own args hold the rest.
PARAMS: dict[str, type] = {"num_envs": int, "env_backend": str, "num_threads": int}


def settle(extras: dict[str, Any], values: dict[str, Any]) -> None:
    """Write an evaluation's settings where the config left them open; a summary shows what will happen."""
    extras["eval_batch_size"] = extras.get("eval_batch_size") or extras.get("eval_episodes") or BATCH_SIZE
    extras["eval_repeat"] = bool(extras.get("eval_repeat"))
    extras["tensorboard_dir"] = TENSORBOARD
    total = values["total_timesteps"]
    if total is None or (isinstance(total, int | float) and total <= 0):
        values["total_timesteps"] = episodes_of(extras)
    if extras.get("seed_override") not in (None, ""):
        values["seed"] = extras["seed_override"]


def episodes_of(extras: Mapping[str, Any]) -> int:
    """How many episodes an evaluation plays in all, when it is not repeated."""
    return int(extras.get("eval_episodes") or extras["eval_batch_size"])


def make_plan(config: CleanRLWorkerConfig, paths: RunPaths, registry: Mapping[str, str]) -> Plan:
    """The evaluation's process; ConfigError for what can be told without reading the policy's weights."""
    import sys

    from cleanrl_worker import schema
    from cleanrl_worker.command import Plan
    from cleanrl_worker.environments import check_environment
    from cleanrl_worker.source import locate_module

    if config.algo.endswith(".py"):
        raise ConfigError(f"algo {shown(config.algo)}: the policy of a script of your own cannot be evaluated")
    name = config.algo.rpartition(".")[2]
    source = locate_module(registry[name], ()) if name in registry else None
    schema.require_packages(name, source)
    params = _params(config)
    backend = params.get("env_backend")
    warnings = [*config.warnings, *_without_effect(config)]
    warnings += check_environment(
        config.env_id,
        name,
        schema.action_spaces(source) if source else (),
        sys.executable,
        ours=True,
        backend=backend if backend != "auto" else None,
    )
    return Plan(
        module=MODULE,
        script=None,
        callable="main",
        ours=True,
        interpreter=sys.executable,
        argv=tuple(build_args(config, paths)),
        num_threads=params.get("num_threads", 1),
        warnings=tuple(warnings),
    )


def build_args(config: CleanRLWorkerConfig, paths: RunPaths) -> list[str]:
    """The evaluation's flags."""
    return list(_flags(config, paths))


def _flags(config: CleanRLWorkerConfig, paths: RunPaths) -> Iterator[str]:
    from cleanrl_worker.saved import find_path

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
    for name, value in _params(config).items():
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
    backends = ("auto", "gymnasium", "envpool")
    if found.get("env_backend", "auto") not in backends:
        near = nearest(found["env_backend"], backends)
        raise ConfigError(f"env_backend: {shown(found['env_backend'])} is none of {', '.join(backends)}{near}")
    return found


def _without_effect(config: CleanRLWorkerConfig) -> Iterator[str]:
    """One line for the settings of training that a config brings along."""
    from cleanrl_worker.config import RESERVED_EXTRAS, RESERVED_IN_EVALUATION

    known = {*RESERVED_EXTRAS, *RESERVED_IN_EVALUATION, *PARAMS}
    idle = sorted({*config.extras, *config.algo_params} - known)
    if idle:
        yield f"without effect in an evaluation: {', '.join(idle)} (a policy's own settings lie in its sidecar)"
