"""The limits of episodes against the registrations of the installed packages."""

import gymnasium
import pytest

from mosaic.catalog import episode_limit, find, ids


@pytest.mark.parametrize("family", ["gymnasium", "mujoco"])
def test_a_limit_is_that_of_the_registration(family: str) -> None:
    registered = {env_id: gymnasium.registry[env_id] for env_id in ids(family) if env_id in gymnasium.registry}
    assert len(registered) > 10
    assert {env_id: episode_limit(env_id) for env_id in registered} == {
        env_id: spec.max_episode_steps for env_id, spec in registered.items()
    }


def test_an_unknown_limit_is_none() -> None:
    assert episode_limit("my:Env-v0") is None and episode_limit("MiniGrid-DoorKey-5x5-v0") is None
    assert find("ALE/Pong-v5") and episode_limit("ALE/Pong-v5") == 27_000
