"""Policies of CleanRL's own files whose algorithms have no file here yet: C51, DDPG and TD3, computed in numpy."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cleanrl_worker.kit.policy import Policy


def load_c51(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """Greedy in the mean of each action's distribution; sampled, a share `end_e` is random."""
    layers = [_dense(state, f"network.{index}") for index in (0, 2, 4)]
    actions = int(spaces.single_action_space.n)
    if "atoms" in state:
        atoms = state["atoms"].numpy()
    else:
        atoms = np.linspace(args.get("v_min", -100), args.get("v_max", 100), args.get("n_atoms", 101), dtype=np.float32)
    epsilon = float(args.get("end_e", 0.05))

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        scores = layers[2](_relu(layers[1](_relu(layers[0](obs.astype(np.float32))))))
        scores = scores.reshape(len(obs), actions, len(atoms))
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        best = ((weights / weights.sum(axis=2, keepdims=True)) @ atoms).argmax(axis=1)
        if rng is None:
            return best
        random_actions = rng.integers(0, actions, len(obs))
        return np.where(rng.random(len(obs)) < epsilon, random_actions, best)

    return act


def load_deterministic_actor(state: dict[str, Any], spaces: Any, args: Mapping[str, Any]) -> Policy:
    """DDPG's and TD3's actor; sampled, with the noise of their exploration."""
    layers = [_dense(state, name) for name in ("fc1", "fc2", "fc_mu")]
    scale, bias = (state[name].numpy().reshape(-1) for name in ("action_scale", "action_bias"))
    space, noise = spaces.single_action_space, float(args.get("exploration_noise", 0.1))

    def act(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        hidden = _relu(layers[1](_relu(layers[0](obs.astype(np.float32)))))
        actions = np.tanh(layers[2](hidden)) * scale + bias
        if rng is not None:
            actions = actions + noise * scale * rng.standard_normal(actions.shape, np.float32)
        return np.clip(actions, space.low, space.high)

    return act


LOADERS: dict[str, Callable[[dict[str, Any], Any, Mapping[str, Any]], Policy]] = {
    "c51": load_c51,
    "ddpg_continuous_action": load_deterministic_actor,
    "td3_continuous_action": load_deterministic_actor,
}


def _dense(state: Mapping[str, Any], name: str) -> Callable[[np.ndarray], np.ndarray]:
    weight, bias = state[f"{name}.weight"].numpy().T, state[f"{name}.bias"].numpy()
    return lambda x: x @ weight + bias


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)
