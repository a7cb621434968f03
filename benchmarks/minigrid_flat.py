"""MiniGrid's DoorKey with a flat picture to learn from: `ppo` takes flat observations, and a mission is none."""

from typing import Any

import gymnasium as gym
import minigrid

gym.register_envs(minigrid)


def make(**options: Any) -> gym.Env[Any, Any]:
    """The environment; the agent sees its 7×7×3 surroundings as 147 numbers."""
    from minigrid.wrappers import ImgObsWrapper

    return gym.wrappers.FlattenObservation(ImgObsWrapper(gym.make("MiniGrid-DoorKey-8x8-v0", **options)))


gym.register("FlatDoorKey-8x8-v0", entry_point=make)
