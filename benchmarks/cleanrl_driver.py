"""Runs a file of CleanRL's release, unchanged, on today's Python and torch, and tells its steps per second.

    python benchmarks/cleanrl_driver.py cleanrl/ppo_atari.py --warm-up 4096 --env-id PongNoFrameskip-v4 …

It needs Gymnasium 0.29.1, stable-baselines3 and ale-py on its path, of which ale-py no longer registers its games with
that Gymnasium; this does it. What is gone or too large to bring along has a stand-in that does the same work:

distutils   left Python with 3.12; one function
cv2         OpenCV, where it is not installed: Pillow, which also averages areas in C, makes pictures small and grey
gym         0.23, which no longer runs; Gymnasium 0.29.1 in its shape (four values from a step, a list of infos)

Flags that are not its own go to the file. The clock is that of benchmarks/gpu.py: from the first update after the
warm-up to the last, by the times at which the file logs charts/SPS.
"""

import argparse
import importlib.util
import json
import os
import runpy
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np

LOGGED: list[tuple[int, float]] = []


def main() -> None:
    """Set the stage, run the file as if it had been called, print the speed as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", type=Path)
    parser.add_argument("--warm-up", type=int, default=0, help="steps before the clock runs")
    args, flags = parser.parse_known_args()
    for name, make in (("cv2", pillow_as_cv2), ("gym", gymnasium_as_gym), ("distutils", string_to_bool)):
        if importlib.util.find_spec(name) is None:
            make()
    np.bool8 = np.bool_  # type: ignore[attr-defined]  # Gymnasium 0.29 asks for it, numpy 2 has dropped it
    register_games()
    note_times()
    sys.argv = [str(args.script), *flags]
    runpy.run_path(str(args.script), run_name="__main__")
    if int(os.environ.get("RANK", 0)):  # only the first of several processes logs
        return
    counted = [update for update in LOGGED if update[0] >= args.warm_up]
    if len(counted) < 2:
        raise SystemExit("fewer than two updates after the warm-up")
    (first, start), (last, end) = counted[0], counted[-1]
    print(json.dumps({"steps_per_second": (last - first) / (end - start)}))


def register_games() -> None:
    """As ale-py does where its vector environment finds a newer Gymnasium."""
    import gymnasium

    if hasattr(gymnasium.vector, "AutoresetMode"):
        raise SystemExit(f"CleanRL's files need Gymnasium 0.29.1, not {gymnasium.__version__}")
    import ale_py.registration

    ale_py.registration.register_v0_v4_envs()


def note_times() -> None:
    """Remember when charts/SPS is logged; TensorBoard is written as ever."""
    from torch.utils import tensorboard

    class TimedWriter(tensorboard.SummaryWriter):
        def add_scalar(self, tag: str, value: Any, step: int, *rest: Any, **named: Any) -> None:
            super().add_scalar(tag, value, step, *rest, **named)
            if tag == "charts/SPS":
                LOGGED.append((step, time.perf_counter()))

    tensorboard.SummaryWriter = TimedWriter


def string_to_bool() -> None:
    """`distutils.util.strtobool`."""
    util = types.ModuleType("distutils.util")
    util.strtobool = lambda given: given.lower() in ("y", "yes", "t", "true", "on", "1")  # type: ignore[attr-defined]
    sys.modules |= {"distutils": types.ModuleType("distutils"), "distutils.util": util}


def pillow_as_cv2() -> None:
    """The two functions that the wrappers of Atari use."""
    from PIL import Image

    def resize(picture: np.ndarray, size: tuple[int, int], interpolation: int) -> np.ndarray:
        return np.array(Image.fromarray(picture).resize(size, Image.Resampling.BOX))

    def grey(picture: np.ndarray, _conversion: int) -> np.ndarray:
        return np.array(Image.fromarray(picture).convert("L"))

    cv2: Any = types.ModuleType("cv2")
    cv2.resize, cv2.cvtColor, cv2.INTER_AREA, cv2.COLOR_RGB2GRAY = resize, grey, 3, 7
    cv2.ocl = types.SimpleNamespace(setUseOpenCL=lambda _use: None)
    sys.modules["cv2"] = cv2


def gymnasium_as_gym() -> None:
    """What ppo_atari.py of the release takes from Gym 0.23."""
    import gymnasium
    from gymnasium import spaces, wrappers

    class SeededStack(wrappers.FrameStack):
        def seed(self, seed: int) -> None:
            self.seed_of_reset = seed

    class SyncVectorEnv(gymnasium.vector.SyncVectorEnv):
        def reset(self) -> Any:
            return super().reset(seed=[env.seed_of_reset for env in self.envs])[0]

        def step(self, actions: Any) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
            obs, rewards, terminations, truncations, infos = super().step(actions)
            return obs, rewards, terminations | truncations, [info or {} for info in infos.get("final_info", [])]

    gym: Any = types.ModuleType("gym")
    gym.make, gym.spaces = gymnasium.make, spaces
    gym.vector = types.SimpleNamespace(SyncVectorEnv=SyncVectorEnv)
    gym.wrappers = types.SimpleNamespace(
        RecordEpisodeStatistics=wrappers.RecordEpisodeStatistics,
        ResizeObservation=wrappers.ResizeObservation,
        GrayScaleObservation=wrappers.GrayScaleObservation,
        FrameStack=SeededStack,
    )
    sys.modules["gym"] = gym


if __name__ == "__main__":
    main()
