"""The infos of vector environments in the shapes of other eras."""

import numpy as np

from cleanrl_worker.foreign.vectors_023 import as_023
from cleanrl_worker.foreign.vectors_029 import as_029, by_environment


def test_arrays_with_masks_are_split_into_dictionaries() -> None:
    infos = {
        "lives": np.array([3, 0]),
        "_lives": np.array([True, False]),
        "episode": {"r": np.array([0.0, 2.0]), "_r": np.array([False, True])},
        "_episode": np.array([False, True]),
        "_own": np.array([7, 8]),
    }
    assert by_environment(infos, 2) == [{"lives": 3, "_own": 7}, {"episode": {"r": 2.0}, "_own": 8}]


def ended() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, object]]:
    """The second of two environments was truncated, and has begun anew."""
    infos: dict[str, object] = {
        "final_obs": np.array([None, np.ones(1)], dtype=object),
        "final_info": {"x": np.array([0, 5]), "_x": np.array([False, True])},
        "_final_obs": np.array([False, True]),
        "_final_info": np.array([False, True]),
    }
    return np.zeros((2, 1)), np.ones(2), np.array([False, False]), np.array([False, True]), infos


def test_the_end_of_an_episode_is_a_dictionary_in_an_array() -> None:
    infos = as_029(ended())[4]
    assert infos["final_info"].tolist() == [None, {"x": 5}]
    assert infos["final_observation"][0] is None and infos["final_observation"][1] == 1
    assert infos["_final_info"].tolist() == infos["_final_observation"].tolist() == [False, True]
    assert "final_obs" not in infos and "_final_obs" not in infos


def test_gym_023_lists_infos_and_marks_timeouts() -> None:
    _, _, dones, infos = as_023(as_029(ended()))
    assert dones.tolist() == [False, True] and infos[0] == {}
    assert infos[1].pop("terminal_observation") == 1
    assert infos[1] == {"x": 5, "TimeLimit.truncated": True}
