"""The CleanRL worker: one process per run, from a config to a trained policy."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes 6 ms, in which Ctrl-C would still print a traceback

if TYPE_CHECKING:
    from mosaic.contract.workers import WorkerCapabilities


def get_worker_metadata() -> WorkerCapabilities:
    """Return this worker's capabilities, for the entry point `mosaic.workers`."""
    import sys

    from cleanrl_worker.schema.parameters import describe
    from mosaic.contract.workers import WorkerCapabilities

    return WorkerCapabilities(
        worker_type="cleanrl",
        label="CleanRL Worker",
        supported_paradigms=("sequential",),
        env_families=("gymnasium", "atari", "procgen", "mujoco", "dm_control", "minigrid", "babyai"),
        action_spaces=("discrete", "continuous"),
        observation_spaces=("vector", "image"),
        max_agents=1,
        supports_checkpointing=True,
        supports_policy_load=True,
        requires_gpu=False,
        estimated_memory_mb=512,
        command=(sys.executable, "-P", "-m", "cleanrl_worker.cli"),
        schema=describe,
    )
