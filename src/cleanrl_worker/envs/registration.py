"""Registration of environments with Gymnasium: ours, and those of some packages."""

import importlib
from typing import Any

import gymnasium as gym

PLUGINS = (  # parts of ids, with the modules that register them
    *(("ALE/", "ale_py"), ("NoFrameskip", "ale_py"), ("MiniGrid-", "minigrid"), ("BabyAI-", "minigrid")),
    *(("dm_control/", "dm_control"), ("dm_control/", "shimmy")),
)
OWN: dict[str, dict[str, Any]] = {
    "mosaic/Catch-v0": {"entry_point": "cleanrl_worker.envs.catch:Catch", "reward_threshold": 0.9},
    "mosaic/Atari-v0": {"entry_point": "cleanrl_worker.envs.atari:Atari"},  # used by `frames` for Atari's ids
}


def register(env_id: str) -> None:
    """Register our environment of this id, or import the packages that register theirs."""
    if env_id in OWN and env_id not in gym.registry:
        gym.register(env_id, **OWN[env_id])
    for part, module in PLUGINS:
        if part in env_id:
            importlib.import_module(module)
    spec = gym.registry.get(env_id)
    if spec is not None and str(spec.entry_point).startswith("minigrid.envs.wfc"):
        del gym.registry[env_id]  # minigrid's package lacks the images for these levels
