"""Episode limits: the steps after which an environment truncates an episode, if its registration names them."""

from mosaic.catalog.index import find

ATARI = 27_000  # half an hour of play at 60 frames a second, one action in four frames
_GYMNASIUM = {
    "Acrobot-v1": 500,
    "BipedalWalker-v3": 1600,
    "BipedalWalkerHardcore-v3": 2000,
    "CarRacing-v3": 1000,
    "CartPole-v0": 200,
    "CartPole-v1": 500,
    "FrozenLake-v1": 100,
    "FrozenLake8x8-v1": 200,
    "LunarLander-v3": 1000,
    "LunarLanderContinuous-v3": 1000,
    "MountainCar-v0": 200,
    "MountainCarContinuous-v0": 999,
    "Pendulum-v1": 200,
    "Taxi-v4": 200,
}
_MUJOCO = {"Reacher": 50, "Pusher": 100}
_FAMILIES = {"atari": ATARI, "mujoco": 1000, "dm_control": 1000}


def episode_limit(env_id: str) -> int | None:
    """Return the maximum steps of an episode; None if the limit is unknown or absent."""
    known = find(env_id)
    if known is None:
        return None
    return _GYMNASIUM.get(env_id) or _MUJOCO.get(env_id.partition("-")[0]) or _FAMILIES.get(known.family)
