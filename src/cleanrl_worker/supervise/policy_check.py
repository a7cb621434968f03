"""Check of a run's policy file before the start: loaded and tried once, in a short algorithm-side process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cleanrl_worker.config.config import CleanRLWorkerConfig, worker_variables
from cleanrl_worker.config.inputs import find_checkpoint, find_path
from cleanrl_worker.config.policy_ask import ask
from cleanrl_worker.plan import evaluation
from cleanrl_worker.supervise.process import child_environment
from mosaic.contract.paths import RunPaths

if TYPE_CHECKING:
    from pathlib import Path

    from cleanrl_worker.plan.plan import Plan


def check_policy(config: CleanRLWorkerConfig, plan: Plan) -> None:
    """Refuse a policy file that cannot act in the run's environment; nothing is written."""
    if (policy := policy_of(config)) is None or not plan.ours:
        return
    paths = RunPaths(config.run_id)
    flags = [f"--policy-path={policy}", f"--run-dir={paths.folder}", f"--env-id={config.env_id}", "--check"]
    flags += ["--num-envs=1", *([f"--algo={config.algo}"] if config.algo else [])]
    flags += [flag for flag in plan.argv if flag.startswith("--env-backend=")][-1:]
    inherited = {**worker_variables(), **config.environment}
    ask(evaluation.MODULE, policy, flags, child_environment(config.extras, plan, paths, inherited))


def policy_of(config: CleanRLWorkerConfig) -> Path | None:
    """Return the policy file that a run plays or starts from, None if it needs none."""
    extras = config.extras
    if config.mode == "resume_training":
        source = find_checkpoint(extras.get("checkpoint_path") or extras["policy_path"])
        return source if source.is_file() else None
    given = extras.get("policy_path") if config.mode in ("policy_eval", "interactive") else None
    return find_path(given) if given else None
