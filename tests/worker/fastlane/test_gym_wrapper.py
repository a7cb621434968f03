"""FastLane from end to end: real workers, real rings, environments whose pictures tell the step they show."""

import ast
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import tiny_envs
from needs import needed

import cleanrl_worker
from cleanrl_worker.envs import episodes
from cleanrl_worker.fastlane import gym_wrapper as fastlane
from cleanrl_worker.fastlane import pacer
from cleanrl_worker.fastlane import vector_wrapper as onlooker
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from mosaic.contract import metrics, ring, variables
from mosaic.contract.frames import FastLaneReader, Frame, RingError
from mosaic.contract.paths import RunPaths

SRC = Path(cleanrl_worker.__file__).parents[1]
WORKER = SRC / "cleanrl_worker"
FOREIGN = [
    *(WORKER / "foreign" / f"{name}.py" for name in ("launcher", "sitecustomize")),
    *(WORKER / "fastlane" / f"{name}.py" for name in ("gym_wrapper", "pacer", "forked_envs")),
    *(WORKER / "fastlane" / f"{name}.py" for name in ("mujoco_process", "mujoco_picture")),
    SRC / "mosaic" / "contract" / "ring.py",
]
PATIENCE = 90.0
PATIENCE_OF_THE_LANE = pacer.PATIENCE + 1

# An environment whose picture is one grey, (10 · its number + steps) % 250 + 1; it counts how often it is drawn.
COUNTING = """
import time
import gymnasium as gym
import numpy as np

class Counting(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    made = 0

    def __init__(self, render_mode=None, size=6, pace=0.002):
        self.render_mode, self.size, self.pace = render_mode, size, pace
        self.observation_space = gym.spaces.Box(0, 1e9, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.steps = self.drawn = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        time.sleep(self.pace)
        return np.full(1, self.steps, np.float32), 1.0, False, self.steps % 100 == 0, {}

    def render(self):
        self.drawn += 1
        return np.full((self.size, self.size, 3), self.steps % 250 + 1, np.uint8)

gym.register("Counting-v0", entry_point=Counting)
"""
FOREVER = """
while True:
    env.step(0)
    if env.unwrapped.steps % 100 == 0:
        env.reset()
"""
VECTOR = """
envs = gym.vector.{kind}VectorEnv([lambda: gym.make("Counting-v0")] * 4)
envs.reset(seed=1)
while True:
    envs.step(np.zeros(4, np.int64))
"""


class Watcher:
    """A worker process and the reader of its ring."""

    def __init__(self, home: Path, config: dict[str, Any], environment: dict[str, str]) -> None:
        self.paths = RunPaths(config["run_id"], home)
        file = home / f"{config['run_id']}.json"
        file.write_text(json.dumps(config))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(file)],
            env={**os.environ, "PYTHONPATH": str(SRC), "MOSAIC_HOME": str(home), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=home,
        )
        self.reader: FastLaneReader | None = None

    def until(self, holds: Callable[[FastLaneReader], Any]) -> Any:
        """What `holds` returns once it is true, looking all the while."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.reader is None:
                try:
                    self.reader = FastLaneReader.open(self.paths.fastlane)
                except RingError:
                    assert self.process.poll() is None, self.errors()
            elif found := holds(self.reader):
                return found
            time.sleep(0.01)
        raise AssertionError(f"waited {PATIENCE} s; {self.reader and self.reader.status()}; {self.errors()}")

    def frame(self, after: int = 0) -> Frame:
        return self.until(lambda reader: reader.latest_frame(after))

    def reason(self, word: str) -> str:
        def told(reader: FastLaneReader) -> str | None:
            reader.watch()
            reason = reader.status().reason
            return reason if word in reason else None

        return self.until(told)

    def warnings(self) -> list[str]:
        events = [json.loads(line) for line in self.paths.events.read_bytes().splitlines()]
        return [event["payload"]["message"] for event in events if event["event"] == "warning"]

    def errors(self) -> str:
        return self.paths.stderr_log.read_text()[-2000:] if self.paths.stderr_log.exists() else ""

    def end(self) -> None:
        if self.reader is not None:
            self.reader.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


@pytest.fixture
def watch(home: Path, tmp_path: Path) -> Iterator[Callable[..., Watcher]]:
    """Starts an algorithm, or a script of the given text, to be watched."""
    started: list[Watcher] = []
    # Tests that run at the same time see each other's rings, and what one that failed has left is not the next one's.
    mark = f"{os.getpid()}-{os.urandom(3).hex()}"

    def start(algo: str, extras: dict[str, Any] | None = None, env_id: str = "CartPole-v1", **options: Any) -> Watcher:
        if "\n" in algo:
            script = tmp_path / f"script{len(started)}.py"
            script.write_text(COUNTING + algo)
            algo = str(script)
        run_id = f"lane-{mark}-{len(started)}"
        config = {"run_id": run_id, "algo": algo, "env_id": env_id, "total_timesteps": 10_000_000}
        environment = options.pop("environment", {})
        extras = {"grace_seconds": 1, **(extras or {})}
        started.append(Watcher(home, {**config, "seed": 1, **options, "extras": extras}, environment))
        return started[-1]

    yield start
    for watcher in started:
        watcher.end()
    names = [name for watcher in started for name in rings_of(watcher.paths.run_id)]
    assert names == [], "a run leaves no ring behind"


def rings_of(run_id: str) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"fl-{ring.run_digest(run_id)}-*")]


@pytest.mark.parametrize("path", FOREIGN, ids=[path.stem for path in FOREIGN])
def test_what_runs_in_foreign_interpreters_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_the_lane_reads_the_variables_that_the_shell_sets() -> None:
    text = "".join((WORKER / name).read_text() for name in ("fastlane/pacer.py", "foreign/sitecustomize.py"))
    names = [name for name in variables.DOCS if "FASTLANE" in name]
    assert len(names) == 7 and [name for name in [*names, "MOSAIC_RUN_ID"] if f'"{name}"' not in text] == []


def test_a_script_streams_unchanged_with_the_numbers_of_its_step(watch: Callable[..., Watcher]) -> None:
    run = watch("env = gym.make('Counting-v0')\nenv.reset(seed=1)\nassert env.spec.id == 'Counting-v0'\n" + FOREVER)
    first = run.frame()
    later = run.frame(after=first.index)
    for frame in (first, later):
        assert frame.array.shape == (6, 6, 3) and (frame.array == frame.step % 250 + 1).all()
        assert frame.last_reward == 1.0
    assert later.step > first.step
    run.until(lambda reader: (frame := reader.latest_frame()) and frame.rolling_return == 100.0)
    assert not any("live view" in warning for warning in run.warnings())
    run.end()
    with pytest.raises(RingError):
        FastLaneReader.open(run.paths.fastlane)


@pytest.mark.parametrize("make", ["gym.make(id='Function-v0')", "gym.make('own_envs:Late-v0')"])
def test_an_environment_that_only_making_it_tells_of_streams_too(
    watch: Callable[..., Watcher], tmp_path: Path, make: str
) -> None:
    """A function makes it, or a module that is imported for it."""
    (tmp_path / "own_envs.py").write_text(COUNTING + "gym.register('Late-v0', entry_point=lambda **o: Counting(**o))\n")
    register = "gym.register('Function-v0', entry_point=lambda **options: Counting(**options))\n"
    run = watch(f"{register}env = {make}\nenv.reset()\n" + FOREVER)
    assert run.frame().array.shape == (6, 6, 3)


@pytest.mark.parametrize("kind", ["Sync", "Async"])
def test_a_vector_of_a_script_shows_the_chosen_environment_and_counts_all(
    watch: Callable[..., Watcher], kind: str
) -> None:
    run = watch(VECTOR.format(kind=kind), {"fastlane_slot": 2})
    frame = run.frame()
    for _ in range(3):
        frame = run.frame(after=frame.index)
    # Four environments step side by side: the run is about four times as far as the one that is shown.
    shown = int(frame.array[0, 0, 0]) - 1
    assert abs(frame.step / 4 - shown) % 250 < 12 or 238 < abs(frame.step / 4 - shown) % 250


@pytest.mark.parametrize("kind", ["Sync", "Async"])
def test_a_grid_tiles_frames_of_one_step(watch: Callable[..., Watcher], kind: str) -> None:
    run = watch(VECTOR.format(kind=kind), {"fastlane_video_mode": "grid"})
    seen = 0
    for _ in range(5):
        frame = run.frame(after=seen)
        seen = frame.index
        assert frame.array.shape == (12, 12, 3)
        assert (frame.array == frame.array[0, 0, 0]).all(), "all four drawn at the same step"


def test_a_grid_travels_with_the_reward_of_its_step(watch: Callable[..., Watcher]) -> None:
    text = """
    class Paid(Counting):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return (observation, float(self.steps), *rest)
    gym.register("Paid-v0", entry_point=Paid)
    """
    run = watch(textwrap.dedent(text) + VECTOR.format(kind="Sync").replace("Counting", "Paid"), {"video_mode": "grid"})
    seen = 0
    for _ in range(4):
        frame = run.frame(after=seen)
        seen = frame.index
        # A tick that went into a reset has no reward.
        assert frame.last_reward in (0, frame.step // 4 + 1)
        assert frame.last_reward == 0 or frame.array[0, 0, 0] == frame.last_reward % 250 + 1


PICTURES = """
class Other(Counting):
    def render(self):
        if self.size == 6:
            {first}
        return super().render()
gym.register("Other-v0", entry_point=Other)
envs = gym.vector.SyncVectorEnv([lambda size=size: gym.make("Other-v0", size=size) for size in {sizes}])
envs.reset(seed=1)
while True:
    envs.step(np.zeros({count}, np.int64))
"""


@pytest.mark.parametrize("shape", ["(6, 6)", "(6, 6, 1)", "(6, 6, 4)"])
def test_grey_and_transparent_pictures_are_tiles_like_others(watch: Callable[..., Watcher], shape: str) -> None:
    first = f"return np.full({shape}, 77, np.uint8)"
    run = watch(PICTURES.format(first=first, sizes=[6, 6], count=2), {"fastlane_video_mode": "grid"})
    frame = run.frame()
    assert frame.array.shape == (6, 12, 3) and (frame.array == 77).all()


def test_a_grid_is_black_where_an_environment_fails_and_goes_on(watch: Callable[..., Watcher]) -> None:
    first = "raise RuntimeError('no paint')"
    run = watch(PICTURES.format(first=first, sizes=[6, 5, 5, 5], count=4), {"fastlane_video_mode": "grid"})
    frame = run.frame()
    for _ in range(PATIENCE_OF_THE_LANE):
        frame = run.frame(after=frame.index)
    assert not frame.array[:5, :5].any() and frame.array[:5, 5:].all(), "also where it is the first that fails"
    run.until(lambda reader: any("no paint" in warning for warning in run.warnings()))
    run.until(lambda reader: reader.latest_frame(frame.index) and not reader.status().reason)


def test_an_environment_that_cannot_be_made_with_pictures_is_trained_on(watch: Callable[..., Watcher]) -> None:
    text = """
    class Blind(Counting):
        def __init__(self, render_mode=None):
            if render_mode is not None:
                raise RuntimeError("no GL")
            super().__init__()
    gym.register("Blind-v0", entry_point=Blind)
    env = gym.make("Blind-v0")
    env.reset()
    """
    run = watch(textwrap.dedent(text) + FOREVER)
    assert run.reason("no GL") == "Blind-v0 cannot be made with rgb_array: RuntimeError: no GL"
    assert run.process.poll() is None


def test_nobody_looking_means_nothing_is_drawn(watch: Callable[..., Watcher], tmp_path: Path) -> None:
    text = f"""
    env = gym.make('Counting-v0')
    env.reset()
    assert env.render_mode == 'rgb_array'
    for _ in range(300):
        env.step(0)
    open({str(tmp_path / "drawn")!r}, 'w').write(str(env.unwrapped.drawn))
    """
    run = watch(textwrap.dedent(text))
    assert run.process.wait(PATIENCE) == 0, run.errors()
    assert (tmp_path / "drawn").read_text() == "0"
    assert unseen(run) == [], "it could have been watched"


NATIVE = "envs = gym.make_vec('CartPole-v1', 2, vectorization_mode='vector_entry_point')\n"
SPAWNED = """
if __name__ == "__main__":
    envs = gym.vector.AsyncVectorEnv([functools.partial(gym.make, "CartPole-v1")] * 2, context="spawn")
    envs.reset(seed=1)
    envs.step(np.zeros(2, np.int64))
    envs.close()
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (NATIVE + "envs.reset(seed=1)\nenvs.step(np.zeros(2, np.int64))\n", "made with gymnasium.make"),
        ("import functools\n" + SPAWNED, "in spawned processes"),
    ],
    ids=["native", "spawned"],
)
def test_a_script_that_could_not_be_watched_leaves_one_warning_however_soon_it_ends(
    watch: Callable[..., Watcher], text: str, why: str
) -> None:
    run = watch(text)
    assert run.process.wait(PATIENCE) == 0, run.errors()
    assert [why in warning for warning in unseen(run)] == [True], run.warnings()


def unseen(run: Watcher) -> list[str]:
    return [warning for warning in run.warnings() if "no live view" in warning]


def test_environments_that_are_made_anew_stay_in_view_whatever_their_size(watch: Callable[..., Watcher]) -> None:
    text = """
    size = 6
    while True:
        env = gym.make('Counting-v0', size=size)
        env.reset()
        for _ in range(50):
            env.step(0)
        env.close()
        size = 30 - size
    """
    run = watch(textwrap.dedent(text))
    sizes, frame = set(), run.frame()
    deadline = time.monotonic() + PATIENCE
    while sizes != {6, 24} or frame.step < 300:
        assert time.monotonic() < deadline, (sizes, frame.step)
        frame = run.frame(frame.index)
        sizes.add(frame.width)


def test_frames_of_changing_size_and_below_the_longest_side(watch: Callable[..., Watcher]) -> None:
    text = """
    env = gym.make('Counting-v0')
    env.reset()
    while True:
        env.step(0)
        env.unwrapped.size = 6 + env.unwrapped.steps % 60
    """
    run = watch(textwrap.dedent(text), environment={"CLEANRL_FASTLANE_MAX_DIM": "40"})
    shapes, seen = set(), 0
    while len(shapes) < 4:
        frame = run.frame(after=seen)
        seen = frame.index
        shapes.add(frame.array.shape)
        assert max(frame.array.shape) <= 40 and len(set(frame.pixels)) == 1


def test_a_foreign_interpreter_without_our_packages_streams(watch: Callable[..., Watcher], tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("gymnasium", "numpy", "numpy.libs", "cloudpickle", "farama_notifications", "typing_extensions.py"):
        source = Path(gym.__file__).parents[1] / name
        if source.exists():
            (packages / name).symlink_to(source)
    python = tmp_path / "python"
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {base} "$@"\n')
    python.chmod(0o755)
    check = "import importlib.util as u\nassert not u.find_spec('mosaic') and not u.find_spec('cleanrl_worker')\n"
    run = watch(f"{check}env = gym.make('Counting-v0')\nenv.reset()\n" + FOREVER, {"python": str(python)})
    assert run.frame().array.shape == (6, 6, 3)


def test_child_pythons_are_left_alone_and_an_own_sitecustomize_works(
    watch: Callable[..., Watcher], tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import os\nos.environ['OWN_SITE'] = 'ran'\n")
    code = (
        "import os, sys, gymnasium; print(gymnasium.make.__code__.co_filename, '_mosaic_sitecustomize' in sys.modules)"
    )
    text = f"""
    import os, subprocess, sys
    assert gym.make.__code__.co_filename.endswith("sitecustomize.py")
    child = subprocess.run([sys.executable, "-c", {code!r}], capture_output=True, text=True).stdout.split()
    open({str(tmp_path / "told")!r}, "w").write(" ".join([os.environ["OWN_SITE"], *child]))
    """
    run = watch(textwrap.dedent(text), environment={"PYTHONPATH": f"{folder}:{SRC}"})
    assert run.process.wait(PATIENCE) == 0, run.errors()
    own, file, patched = (tmp_path / "told").read_text().split()
    assert own == "ran" and file.endswith("registration.py") and patched == "False"


def test_the_patch_imports_nothing_heavy(tmp_path: Path) -> None:
    code = """
    import importlib.util, os, sys
    os.environ["MOSAIC_RUN_ID"] = "light"
    spec = importlib.util.spec_from_file_location("_mosaic_sitecustomize", sys.argv[1])
    module = sys.modules["_mosaic_sitecustomize"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install(True)
    assert module.writer is not None and not module.trouble
    heavy = {"numpy", "gymnasium", "torch", "multiprocessing", "hashlib", "json", "pathlib", "threading"}
    print(sorted(heavy & set(sys.modules)))
    """
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(code),
        str(WORKER / "foreign" / "sitecustomize.py"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stderr
    assert rings_of("light") == []


def test_an_environment_without_pictures_says_so(watch: Callable[..., Watcher]) -> None:
    text = "Counting.metadata = {'render_modes': []}\nenv = gym.make('Counting-v0')\nenv.reset()\n" + FOREVER
    run = watch(text)
    reason = run.reason("rgb_array")
    assert reason == "Counting-v0 has no rgb_array render mode"
    run.until(lambda reader: any(reason in warning for warning in run.warnings()))
    time.sleep(0.6)
    assert sum(reason in warning for warning in run.warnings()) == 1


def test_an_environment_that_fails_to_draw_says_so_and_is_trained_on(watch: Callable[..., Watcher]) -> None:
    text = "def fail(self):\n    raise RuntimeError('no paint')\nCounting.render = fail\n"
    run = watch(text + "env = gym.make('Counting-v0')\nenv.reset()\n" + FOREVER)
    assert run.reason("no paint") == "drawing failed: RuntimeError: no paint"
    assert run.process.poll() is None


def test_a_run_that_is_not_to_be_watched_says_so(watch: Callable[..., Watcher]) -> None:
    run = watch(
        "env = gym.make('Counting-v0')\nassert env.render_mode is None\nenv.reset()\n" + FOREVER, {"video_mode": "off"}
    )
    assert "off" in run.reason("off")
    assert any("the live view is off" in warning for warning in run.warnings())


def test_shared_memory_that_is_too_small_is_a_reason(watch: Callable[..., Watcher]) -> None:
    text = """
    import os, sys
    ring = sys.modules["_mosaic.ring"]
    allocate = os.posix_fallocate
    def full(descriptor, start, size):
        if size > ring.HEADER:
            raise OSError(28, "No space left on device")
        allocate(descriptor, start, size)
    os.posix_fallocate = full
    env = gym.make('Counting-v0')
    env.reset()
    """
    run = watch(textwrap.dedent(text) + FOREVER)
    assert "/dev/shm" in run.reason("no room")
    assert run.process.poll() is None


def has_egl() -> bool:
    import ctypes

    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True


TINY = {
    "ppo": {"num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 1},
    "ppo_continuous_action": {"num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 1},
    "ppo_atari_envpool": {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1},
}
TINY |= dict.fromkeys(("ppo_atari", "ppo_atari_lstm"), TINY["ppo_atari_envpool"])
TINY["ppo_atari_multigpu"] = {"local_num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1}
TINY |= dict.fromkeys(("pqn_atari_envpool", "pqn_atari_envpool_lstm", "ppo_procgen"), TINY["ppo_atari_envpool"])
TINY["ppo_pettingzoo_ma_atari"] = TINY["ppo_atari_envpool"]
XLA = ("ppo_atari_envpool_xla_jax", "ppo_atari_envpool_xla_jax_scan")
TINY |= dict.fromkeys(XLA, TINY["ppo_atari_envpool"] | {"num_steps": 8})
TINY["ppo_rnd_envpool"] = {**TINY["ppo_atari_envpool"], "num_iterations_obs_norm_init": 1}
TINY["ppg_procgen"] = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "n_iteration": 2, "e_auxiliary": 1}
TINY |= {"pqn": TINY["ppo"], "ppo_jax": TINY["ppo"], "rpo_continuous_action": TINY["ppo_continuous_action"]}
BOUNDED = ("sac_continuous_action", "td3_continuous_action", "ddpg_continuous_action")
BOUNDED += tuple(f"{name}_jax" for name in BOUNDED)
TINY |= {name: {"learning_starts": 100_000, "buffer_size": 1000} for name in BOUNDED}
IMAGES = ("dqn_atari", "c51_atari", "rainbow_atari", "sac_atari", "qdagger_dqn_atari_impalacnn")
IMAGES += ("dqn_atari_jax",)
TINY |= {name: {"learning_starts": 100_000, "buffer_size": 1000} for name in IMAGES}
TINY["qdagger_dqn_atari_impalacnn"] |= tiny_envs.small_lesson(6) | {"batch_size": 4}
COMPILED = ("c51_atari_jax", "qdagger_dqn_atari_jax_impalacnn")  # what other tests have compiled, for another game
TINY |= {name: {"buffer_size": 1000, "batch_size": 4} for name in COMPILED}
TINY["qdagger_dqn_atari_jax_impalacnn"] |= tiny_envs.small_lesson(offline_steps=4)
TINY["ppo on grids"] = {**TINY["ppo"], "env_backend": "gymnasium", "mission": True, "memory": True}
TINY["ppo on grids of envpool"] = {**TINY["ppo"], "env_backend": "envpool"}
ENVIRONMENTS = {"ppo on grids": "BabyAI-GoToLocal-v0", "ppo on grids of envpool": "MiniGrid-DoorKey-5x5-v0"}
ENVIRONMENTS |= {"ppo_rnd_envpool": "Pong-v5", "ppo_pettingzoo_ma_atari": "pong_v3"}
ENVIRONMENTS |= {"ppo_procgen": "starpilot", "ppg_procgen": "starpilot"}
ENVIRONMENTS |= dict.fromkeys(COMPILED, "mosaic/Catch-v0")
ENVIRONMENTS |= {name: "Pendulum-v1" for name in DEFAULT_ALGO_REGISTRY if "continuous_action" in name}


# One of each kind as a real worker; how the view comes to an algorithm is the same for all others, which run in this
# process: their files must make environments that it reaches.
OWN_PROCESS = ("ppo", "ppo_atari_envpool", "dqn_jax", "sac_continuous_action", "ppo on grids of envpool")


@pytest.mark.parametrize("name", [*DEFAULT_ALGO_REGISTRY, "ppo on grids", "ppo on grids of envpool"])
def test_every_registry_algorithm_streams(
    watch: Callable[..., Watcher], looked_at: Callable[..., Frame | None], name: str
) -> None:
    needed(name)
    env_id = ENVIRONMENTS.get(name, "Pong-v5" if "atari" in name else "CartPole-v1")
    if name in OWN_PROCESS:
        frame = watch(name.split()[0], {"algo_params": TINY.get(name, {})}, env_id).frame()
    else:
        frame = looked_at(name.split()[0], env_id=env_id, total_timesteps=64, **TINY.get(name, {}))
    assert frame is not None and frame.array.std() > 0 and frame.step > 0
    if "atari" in name and name not in COMPILED:
        assert frame.array.shape == (210, 160, 3), "the screen, not what the learner sees"
        assert (frame.array.max(axis=2) != frame.array.min(axis=2)).any(), "in colour"


@pytest.fixture
def looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Frame | None]]:
    """Trains in this process while somebody looks on, and gives the last picture."""
    make = gym.make
    monkeypatch.setattr(gym, "make", lambda env_id, **given: make(env_id, **{"render_mode": "rgb_array", **given}))
    monkeypatch.setattr("cleanrl_worker.run.training.EVAL_MAX_STEPS", 5)  # of the game that shows a teacher's worth
    writer = ring.FastLaneWriter.create("looked-at")
    reader = FastLaneReader.attach(writer.name)
    (tmp_path / "logs").mkdir()
    settings = pacer.Settings("single", 0, 8, 0.0, 1024, 1.0)
    view = fastlane.EnvPicture(pacer.Lane(settings, writer, tmp_path), wraps=False)
    monkeypatch.setattr(episodes, "onlooker", onlooker.Onlooker(view))
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            reader.watch()

    def train(name: str, **options: Any) -> Frame | None:
        module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
        reader.watch()
        threading.Thread(target=look, daemon=True).start()
        module.main(module.Args(run_dir=tmp_path / "run", cuda=False, **options))
        over.set()
        return reader.latest_frame()

    yield train
    over.set()
    reader.close()
    writer.close()


OFF, UNWATCHED, WATCHED, GRID = ("off", False), ("single", False), ("single", True), ("grid", True)


def test_off_unwatched_and_watched_runs_write_the_same_metrics(watch: Callable[..., Watcher]) -> None:
    params = {**TINY["ppo"], "num_steps": 128, "save_model": True}
    written = []
    for mode, looked_at in (OFF, UNWATCHED, WATCHED, GRID):
        run = watch("ppo", {"algo_params": params, "fastlane_video_mode": mode}, total_timesteps=8000)
        frames, labels = look_to_the_end(run, looked_at)
        assert run.process.returncode == 0, run.errors()
        written.append(metrics.comparable(run.paths.metrics))
        if looked_at:
            assert frames > 0
            assert labels >= {"", "(Eval)"}
    assert len(set(written)) == 1 and b"losses/" in written[0]


@pytest.mark.skipif(not has_egl(), reason="needs libegl1: make system")
def test_a_probe_beside_training_is_not_noticed_by_it(watch: Callable[..., Watcher]) -> None:
    """Where EnvPool cannot draw, a probe plays the newest policy; it takes a while to start, so that run is longer."""
    params = {**TINY["ppo_continuous_action"], "num_steps": 128, "env_backend": "envpool", "anneal_lr": False}
    compared = 6144

    def told(run: Watcher) -> bytes:
        lines = metrics.comparable(run.paths.metrics).splitlines()
        return b"\n".join(line for line in lines if json.loads(line)["step"] <= compared)

    def started(mode: str, steps: int) -> Watcher:
        extras = {"algo_params": params, "fastlane_video_mode": mode}
        return watch("ppo_continuous_action", extras, "HalfCheetah-v5", total_timesteps=steps)

    alone = started("off", compared)
    watched = started("single", 10**7)
    assert watched.frame().array.std() > 0
    assert watched.reader is not None and watched.reader.status().label == "(Probe)"
    watched.until(lambda _: any(row["step"] > compared for row in metrics.read_rows(watched.paths.metrics)[-1:]))
    assert alone.process.wait(PATIENCE) == 0, alone.errors()
    assert told(watched) == told(alone) and b"losses/" in told(alone)


def look_to_the_end(run: Watcher, looked_at: bool) -> tuple[int, set[str]]:
    """How many frames came while a run ran to its end, and under which labels."""
    deadline, last, labels = time.monotonic() + PATIENCE, 0, set()
    while run.process.poll() is None:
        assert time.monotonic() < deadline
        if run.reader is not None:
            frame = run.reader.latest_frame(last)
            last = last if frame is None else frame.index
            labels.add(run.reader.status().label)
        elif looked_at:
            with contextlib.suppress(RingError):
                run.reader = FastLaneReader.open(run.paths.fastlane)
        time.sleep(0.005)
    return last, labels


def test_an_evaluation_streams_with_its_label_and_its_latest_summary(watch: Callable[..., Watcher]) -> None:
    trained = watch("ppo", {"algo_params": {**TINY["ppo"], "save_model": True}}, total_timesteps=64)
    assert trained.process.wait(PATIENCE) == 0, trained.errors()
    (policy,) = trained.paths.folder.glob("runs/*/ppo.cleanrl_model")
    extras = {"mode": "policy_eval", "policy_path": str(policy), "eval_batch_size": 2, "eval_repeat": True}
    run = watch("ppo", extras)
    assert run.frame().array.shape == (400, 600, 3)
    status = run.until(lambda reader: (reader.watch(), reader.status())[1].note and reader.status())
    assert status.label == "(Eval)" and status.note.startswith("batch ")


MUJOCO = "env = gym.make('HalfCheetah-v5')\nenv.reset(seed=1)\nwhile True:\n    env.step(env.action_space.sample())\n"


@pytest.mark.skipif(not has_egl(), reason="needs libegl1: make system")
def test_mujoco_is_drawn_by_a_process_of_its_own_that_is_ended_when_it_hangs(
    watch: Callable[..., Watcher], lives: Callable[[int], bool]
) -> None:
    run = watch(MUJOCO, environment={"MUJOCO_GL": "egl"})
    frame = run.frame()
    assert frame.array.shape == (480, 480, 3) and frame.array.std() > 0
    helper = renderer_of(run)
    os.kill(helper, signal.SIGSTOP)
    assert "the renderer hung" in run.reason("hung")
    assert not lives(helper)
    step = run.reader.latest_frame().step
    run.until(lambda reader: any("the renderer hung" in warning for warning in run.warnings()))
    assert run.process.poll() is None and step > 0, "training goes on"


def test_mujoco_without_gl_says_so(watch: Callable[..., Watcher]) -> None:
    run = watch(MUJOCO, environment={"MUJOCO_GL": "disabled"})
    assert "MUJOCO_GL disabled" in run.reason("MuJoCo cannot draw here")
    assert run.process.poll() is None


def renderer_of(run: Watcher) -> int:
    children = psutil.Process(run.process.pid).children(recursive=True)
    return next(child.pid for child in children if any("mujoco_process.py" in word for word in child.cmdline()))


class Drawn(gym.Env[np.ndarray, Any]):
    """Draws a grey picture."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), 9, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return self.np_random.random(1, np.float32), float(action), False, False, {"a": 1}


def settings(**changes: Any) -> pacer.Settings:
    return pacer.Settings("single", 0, 8, 0.0, 1024, 1.0)._replace(**changes)


def test_the_wrapper_changes_no_value_and_frees_its_place(tmp_path: Path) -> None:
    writer = ring.FastLaneWriter.create("wrapper-test")
    try:
        view = fastlane.EnvPicture(pacer.Lane(settings(), writer, tmp_path), wraps=True)
        plain, wrapped = Drawn("rgb_array"), fastlane.FastLaneTelemetryWrapper(Drawn("rgb_array"), view)
        with FastLaneReader.attach(writer.name) as reader:
            reader.watch()
            assert repr(plain.reset(seed=3)) == repr(wrapped.reset(seed=3))
            for action in (0, 1, 1):
                assert repr(plain.step(action)) == repr(wrapped.step(action))
            frame = reader.latest_frame()
        assert frame is not None and (frame.array == 9).all() and (frame.step, frame.last_reward) == (3, 1.0)
        wrapped.close()
        assert fastlane.FastLaneTelemetryWrapper(Drawn("rgb_array"), view)._index == 0
    finally:
        writer.close()


def test_without_a_live_view_nothing_is_wrapped() -> None:
    env = Drawn()
    assert fastlane.maybe_wrap_env(env) is env
    alone = fastlane.FastLaneTelemetryWrapper(env)
    alone.reset(seed=1)
    assert alone.step(1)[1] == 1.0
    alone.close()
