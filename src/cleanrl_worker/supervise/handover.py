"""Handover from the shell to an interactive session: the config is checked, then this process becomes the session."""

from __future__ import annotations

import os
import sys

from cleanrl_worker.config.config import CleanRLWorkerConfig, worker_variables
from cleanrl_worker.config.inputs import find_path
from cleanrl_worker.foreign.where import LAUNCHER, SOURCES
from cleanrl_worker.plan import evaluation
from cleanrl_worker.plan.environments import check_environment
from cleanrl_worker.plan.plan import Plan
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.schema import parameters
from cleanrl_worker.schema.source import locate_module
from cleanrl_worker.supervise.policy_check import check_policy
from cleanrl_worker.supervise.process import child_environment
from mosaic.contract.paths import RunPaths

MODULE = "cleanrl_worker.play.protocol"


def hand_over(config: CleanRLWorkerConfig, *, dry_run: bool = False) -> int:
    """Replace this process by the session, which keeps its pid, streams and signals; return only after a dry run."""
    plan = make_plan(config)
    for warning in plan.warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    if dry_run:
        check_policy(config, plan)
        print(f"this would run {plan.module} {' '.join(plan.argv)}", file=sys.stderr)
        return 0
    # Modules that the shell found in the current folder must still be importable.
    paths = ("--also-path", str(SOURCES), "--also-path", os.getcwd())
    command = [plan.interpreter, str(LAUNCHER), "--module", MODULE, *paths, "--", *plan.argv]
    inherited = {**worker_variables(), **config.environment}
    os.execve(plan.interpreter, command, child_environment(config.extras, plan, RunPaths(config.run_id), inherited))


def make_plan(config: CleanRLWorkerConfig) -> Plan:
    """Return the session's plan; raise ConfigError if the environment cannot be made or does not fit the policy."""
    policy = config.extras.get("policy_path")
    warnings, argv = list(config.warnings), [f"--run-id={config.run_id}", f"--env-id={config.env_id}"]
    argv.append(f"--seed={config.seed}")
    if policy:
        source = None
        if config.algo in DEFAULT_ALGO_REGISTRY:
            source = locate_module(DEFAULT_ALGO_REGISTRY[config.algo], ())
            parameters.require_packages(config.algo, source)
        warnings += evaluation.check_game(config, config.algo, source)
        argv += [f"--policy-path={find_path(policy)}", f"--env-backend={evaluation.backend_of(config)}"]
        argv += [f"--algo={config.algo}"] if config.algo else []
        argv += ["--greedy"] if config.extras.get("eval_greedy") else []
    else:
        warnings += check_environment(config.env_id, config.algo, ())
    return Plan(
        module=MODULE,
        script=None,
        callable="main",
        ours=True,
        interpreter=sys.executable,
        argv=tuple(argv),
        num_threads=1,  # one observation at a time: more threads only add overhead
        warnings=tuple(warnings),
    )
