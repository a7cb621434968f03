"""Whether image algorithms learn at all, in a minute each: two screens, two buttons, each screen asks for one of them.

    python benchmarks/two_screens.py pqn_atari_envpool ppo_procgen

An episode is eight screens, a right button pays 1: playing at random gives 4, a perfect player 8. Prints the mean
return of each eighth of the episodes.
"""

import importlib
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.envs import vectors

SMALL = {"total_timesteps": 3072, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "learning_rate": 1e-3}
TWICE = {"update_epochs": 2}
EXPLORING = TWICE | {"exploration_fraction": 0.5}
SETTINGS: dict[str, dict[str, Any]] = {
    "pqn_atari_envpool": EXPLORING,
    "pqn_atari_envpool_lstm": EXPLORING,
    "ppo_rnd_envpool": TWICE | {"num_iterations_obs_norm_init": 2, "int_coef": 0.1},
    "ppo_procgen": TWICE,
    "ppg_procgen": {"n_iteration": 4, "e_auxiliary": 2},
}


class Screens(gym.Env[np.ndarray, Any]):
    """The left or the right half is white; the button on that side is the right one."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.steps = self.right = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._screen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.right)
        self.steps += 1
        return self._screen(), reward, self.steps == 8, False, {}

    def _screen(self) -> np.ndarray:
        self.right = int(self.np_random.integers(2))
        screen = np.zeros(self.observation_space.shape or (), np.uint8)
        half = screen.shape[2] // 2
        screen[:, :, half * self.right : half * (self.right + 1)] = 255
        return screen


def main() -> None:
    """Train each algorithm that the command line names, or all."""
    for name in sys.argv[1:] or SETTINGS:
        started = time.monotonic()
        returns = learn(name)
        means = [f"{part.mean():.1f}" for part in np.array_split(returns, 8)]
        print(f"| `{name}` | {', '.join(means)} | {time.monotonic() - started:.0f} s |", flush=True)


def learn(name: str) -> np.ndarray:
    """The returns of all episodes of a short training."""
    shape = (3, 64, 64) if "procgen" in name else (4, 84, 84)

    def screens(args: Any, *_given: Any) -> vectors.VectorEnvs:
        return vectors.SyncEnvs([partial(Screens, shape)] * args.num_envs)

    vectors.atari = vectors.vector = screens
    module = importlib.import_module(f"cleanrl_worker.algorithms.{name}")
    with tempfile.TemporaryDirectory() as folder:
        module.main(module.Args(run_dir=Path(folder), num_threads=1, checkpoint_every=0, **SMALL, **SETTINGS[name]))
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return np.array([row["charts/episodic_return"] for row in rows if "charts/episodic_return" in row])


if __name__ == "__main__":
    main()
