"""Every algorithm file runs alone, without the worker, and says in one line what it cannot do."""

import importlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
import gymnasium as gym
import pytest
import tiny_envs
from needs import needed

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from mosaic.contract import metrics
from mosaic.contract.tensorboard import ScalarReader

tiny_envs.register()
PPO = "--total-timesteps=64 --num-envs=2 --num-steps=16 --num-minibatches=2 --update-epochs=1"
PONG = "--total-timesteps=32 --num-envs=2 --num-steps=8 --num-minibatches=2 --update-epochs=1 --env-id=Pong-v5"
DQN = "--total-timesteps=150 --learning-starts=60 --buffer-size=100 --batch-size=32"
IMAGES = "--total-timesteps=100 --learning-starts=88 --buffer-size=100 --env-id=mosaic/Catch-v0"
LESSON = [f"--{name.replace('_', '-')}={value}" for name, value in tiny_envs.small_lesson().items()]
QDAGGER = " ".join([IMAGES, "--batch-size=4", *LESSON])
# JAX compiles for each shape: all tests of its image files have these
XLA = "--total-timesteps=32 --num-envs=2 --num-steps=8 --num-minibatches=2 --update-epochs=1 --env-id=mosaic/Catch-v0"
TINY = {
    "ppo": f"{PPO} --env-id=CartPole-v1",
    "ppo_continuous_action": f"{PPO} --env-id=Pendulum-v1",
    "ppo_atari_envpool": f"{PPO} --env-id=Pong-v5 --capture-video",
    "ppo_atari_envpool_xla_jax": XLA,
    "ppo_atari_envpool_xla_jax_scan": XLA,
    "ppo_atari": f"{PPO} --env-id=mosaic/Catch-v0 --num-threads=1",
    "ppo_atari_lstm": f"{PPO} --env-id=mosaic/Catch-v0 --num-threads=1",
    "ppo_atari_multigpu": f"{PPO} --env-id=mosaic/Catch-v0 --num-threads=1".replace("--num", "--local-num", 1),
    "dqn": f"{DQN} --env-id=CartPole-v1",
    "dqn_jax": f"{DQN} --env-id=CartPole-v1",
    "c51": f"{DQN} --env-id=CartPole-v1",
    "pqn": f"{PPO} --env-id=CartPole-v1",
    "ppo_rnd_envpool": f"{PONG} --num-iterations-obs-norm-init=1",
    "ppo_procgen": f"{PPO} --env-id=starpilot --capture-video",
    "ppg_procgen": f"{PPO.rpartition(' ')[0]} --env-id=starpilot --n-iteration=2 --e-auxiliary=1",
    "ppo_pettingzoo_ma_atari": PONG.replace("Pong-v5", "pong_v3"),
    "pqn_atari_envpool": PONG,
    "pqn_atari_envpool_lstm": PONG,
    "rpo_continuous_action": f"{PPO} --env-id=Pendulum-v1",
    "sac_continuous_action": f"{DQN} --env-id=Pendulum-v1",
    "td3_continuous_action": f"{DQN} --env-id=Pendulum-v1",
    "ddpg_continuous_action": f"{DQN} --env-id=Pendulum-v1",
    "dqn_atari": f"{IMAGES} --batch-size=4",
    "c51_atari": f"{IMAGES} --batch-size=4",
    "rainbow_atari": f"{IMAGES} --batch-size=4",
    "sac_atari": f"{IMAGES} --batch-size=4",
    "qdagger_dqn_atari_impalacnn": QDAGGER,
    "ppo_jax": f"{PPO} --env-id=MountainCar-v0",
    "dqn_atari_jax": f"{IMAGES} --batch-size=4",
    "c51_atari_jax": f"{IMAGES} --batch-size=4",
    "qdagger_dqn_atari_jax_impalacnn": QDAGGER,
    "c51_jax": f"{DQN} --env-id=CartPole-v1",
    "sac_continuous_action_jax": f"{DQN} --env-id=Pendulum-v1",
    "td3_continuous_action_jax": f"{DQN} --env-id=Pendulum-v1",
    "ddpg_continuous_action_jax": f"{DQN} --env-id=Pendulum-v1",
}

CATCH = "--env-id=mosaic/Catch-v0"
BOUNDED = ("sac_continuous_action", "td3_continuous_action", "ddpg_continuous_action")
JAX = tuple(name for name in TINY if "_jax" in name)
OWN_PROCESS = ("ppo", "dqn_jax")
"""run as real processes, one per framework; the others share this one, which has torch loaded"""
WITHOUT_TORCH = f"""
import importlib, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
beside = ("fastlane.vector_wrapper", "fastlane.gym_wrapper", "evaluation", "play.session", "envs.jax.pools")
for module in ({", ".join(repr(DEFAULT_ALGO_REGISTRY[name]) for name in JAX)}, *map("cleanrl_worker.".__add__, beside)):
    importlib.import_module(module)
    assert "torch" not in sys.modules, module
"""


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Runs an algorithm's main() with flags, in an empty current folder; returns where its runs lie."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOSAIC_SHELL_PID", raising=False)
    monkeypatch.setattr("cleanrl_worker.run.training.EVAL_MAX_STEPS", 5)  # ten games of Pong take half a minute
    monkeypatch.setattr("cleanrl_worker.run.training.EVAL_EPISODES", 2)

    def run(name: str, *flags: str) -> Path:
        needed(name)
        module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
        monkeypatch.setattr(sys, "argv", [str(module.__file__), "--no-cuda", "--num-threads=1", *flags])
        module.main()
        return tmp_path / "runs"

    return run


def check_run(folder: Path, name: str, seed: int) -> None:
    """A run's folder holds its rows, the same in TensorBoard, and a policy with its sidecar."""
    rows = metrics.read_rows(folder / "metrics.jsonl")
    tags = {tag for row in rows for tag in row}
    assert "charts/SPS" in tags and any(tag.startswith("losses/") for tag in tags)
    (events,) = (folder / "tensorboard").iterdir()
    told = [(step, tag) for _, step, tag, _ in ScalarReader(events).read()]
    assert told == [(row["step"], tag) for row in rows for tag in row if tag not in ("step", "time")]
    sidecar = json.loads((folder / f"{name}.cleanrl_model.json").read_text())
    assert (sidecar["algo"], sidecar["seed"]) == (name, seed)
    assert (folder / f"{name}.cleanrl_model").stat().st_size > 1000


@pytest.mark.parametrize("name", [name for name in DEFAULT_ALGO_REGISTRY if name not in OWN_PROCESS])
def test_a_file_runs_alone_and_leaves_rows_tensorboard_and_policy(name: str, alone: Callable[..., Path]) -> None:
    (folder,) = alone(name, *TINY[name].split(), "--seed=3", "--save-model").iterdir()
    env_id = TINY[name].partition("--env-id=")[2].partition(" ")[0].replace("/", "-")
    assert folder.name.startswith(f"{env_id}__{name}__3__")
    check_run(folder, name, seed=3)
    if "--capture-video" in TINY[name]:
        with av.open(str(folder / "videos" / folder.name / "episode-0.mp4")) as video:
            assert sum(1 for _ in video.decode(video=0)) == 64 / 2 + 1


@pytest.mark.parametrize("name", OWN_PROCESS)
def test_a_file_runs_as_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    seed = 2**40 + 1  # more than JAX's 32 bits
    how = ["-c", WITHOUT_TORCH] if name in JAX else ["-m"]
    command = [sys.executable, *how, DEFAULT_ALGO_REGISTRY[name], *TINY[name].split(), f"--seed={seed}", "--save_model"]
    environment = {key: value for key, value in os.environ.items() if key != "MOSAIC_SHELL_PID"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stderr) == (0, "")
    compiled = r"compiling the update …\ncompiled the update in .* s\n" if name in JAX else ""
    # a machine that takes more than half a minute for it is told how far it is meanwhile
    assert re.fullmatch(compiled + r"(step .* steps/s\n)*step .*\(100 %\) .* steps/s\n", done.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    (folder,) = (tmp_path / "runs").iterdir()
    check_run(folder, name, seed)


def test_a_refused_command_line_ends_with_one_line_and_an_error_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", DEFAULT_ALGO_REGISTRY["ppo"], "--env-id=Pendulum-v1", "--total-timesteps=64"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "ppo drives discrete actions, but Pendulum-v1 takes continuous ones; find one that does with: mosaic algos\n"
    )


def test_a_gymnasium_environment_is_filmed(alone: Callable[..., Path]) -> None:
    (folder,) = alone("ppo", *TINY["ppo"].split(), "--capture-video").iterdir()
    first = metrics.read_rows(folder / "metrics.jsonl")[0]
    videos = folder / "videos" / folder.name
    assert (videos / "episode-0.mp4").is_file() and (videos / "episode-1.mp4").is_file()
    assert metrics.is_episode(first)


def test_run_dir_holds_the_run_and_its_policies_folder(alone: Callable[..., Path], tmp_path: Path) -> None:
    flags = [*TINY["dqn"].split(), "--run-dir=mine", "--save-model", "--exp-name=try"]
    alone("dqn", *flags)
    alone("dqn", *flags)
    assert not (tmp_path / "runs").exists()
    rows = metrics.read_rows(tmp_path / "mine" / "metrics.jsonl")
    steps = [row["step"] for row in rows]
    assert steps != sorted(steps), "the second run appends"
    assert len(list((tmp_path / "mine").glob("runs/CartPole-v1__try__1__*/try.cleanrl_model"))) >= 1


@pytest.mark.parametrize("name", ["dqn", "c51", *BOUNDED, "td3_continuous_action_jax"])
def test_learning_may_start_before_a_batch_is_there(name: str, alone: Callable[..., Path]) -> None:
    flags = [*TINY[name].split(), "--learning-starts=0", "--batch-size=64", "--buffer-size=50"]
    (folder,) = alone(name, *flags).iterdir()
    losses = [
        value
        for row in metrics.read_rows(folder / "metrics.jsonl")
        for tag, value in row.items()
        if tag.startswith("losses/")
    ]
    assert losses and all(math.isfinite(loss) for loss in losses), "rows are drawn more than once"


class Unbounded(tiny_envs.Corridor):
    """Actions without bounds."""

    def __init__(self) -> None:
        super().__init__(continuous=True)
        self.action_space = gym.spaces.Box(-math.inf, math.inf, (1,))


class Shaped(tiny_envs.Corridor):
    """Actions in two rows."""

    def __init__(self) -> None:
        super().__init__(continuous=True)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2, 3))


class FromOne(tiny_envs.Corridor):
    """Actions that are counted from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Discrete(2, start=1)


class Many(tiny_envs.Corridor):
    """Two choices at once."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.MultiDiscrete([2, 3])


class Told(tiny_envs.Corridor):
    """Observations without a fixed size."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Sequence(gym.spaces.Discrete(2))  # type: ignore[assignment]


for odd in (Unbounded, Shaped, FromOne, Many, Told):
    if f"Tiny/{odd.__name__}-v0" not in gym.registry:
        gym.register(f"Tiny/{odd.__name__}-v0", entry_point=odd)

REFUSED = [
    ("ppo", "--num-envs=0", "--num-envs: 1 or more is needed, not 0"),
    ("ppo", "--num-steps=0", "--num-steps: 1 or more is needed, not 0"),
    ("ppo", "--total-timesteps=0", "--total-timesteps: 1 or more is needed, not 0"),
    ("ppo", "--seed=-3", "--seed: a number between 0 and 9223372036854775807 is needed, not -3"),
    (
        "ppo",
        "--num-minibatches=0",
        "--num-minibatches: a number between 1 and 512 (num_envs * num_steps) is needed, not 0",
    ),
    (
        "ppo",
        "--num-minibatches=513",
        "--num-minibatches: a number between 1 and 512 (num_envs * num_steps) is needed, not 513",
    ),
    ("ppo", "--num-minibatches=512", "a minibatch has one row, whose advantage cannot be normalised"),
    ("ppo", "--update-epochs=0", "--update-epochs: 1 or more is needed, not 0"),
    ("ppo", "--learning-rate=-1", "--learning-rate: 0 or more is needed, not -1.0"),
    ("ppo", "--gae-lambda=2", "--gae-lambda: a number between 0 and 1 is needed, not 2.0"),
    ("ppo", "--learning-rat=1", "unknown flag --learning-rat; did you mean '--learning-rate'?"),
    (
        "ppo_continuous_action",
        "--num-steps=31",
        "--num-minibatches: a number between 1 and 31 (num_envs * num_steps) is needed, not 32",
    ),
    (
        "ppo_atari_envpool",
        "--num-envs=1 --num-steps=3",
        "--num-minibatches: a number between 1 and 3 (num_envs * num_steps) is needed, not 4",
    ),
    ("ppo_atari_envpool", "--total-frames=3", "--total-frames must be at least 4, which is one step, not 3"),
    ("ppo_atari_envpool", "--total-frames=64 --total-timesteps=64", "are both given; give one"),
    ("dqn", "--buffer-size=0", "--buffer-size: 1 (num_envs) or more is needed, not 0"),
    ("dqn", "--train-frequency=0", "--train-frequency: 1 or more is needed, not 0"),
    ("dqn", "--start-e=1.5", "--start-e: a number between 0 and 1 is needed, not 1.5"),
    ("c51", "--n-atoms=1", "--n-atoms: 2 or more is needed, not 1"),
    ("c51", "--v-min=100", "--v-max: more than 100 (v_min) is needed, not 100.0"),
    ("dqn_atari", "--env-id=Pong-v5 --buffer-size=15 --num-envs=2", "16 (8 * num_envs) or more is needed, not 15"),
    ("dqn_atari", "--env-id=CartPole-v1", "'CartPole-v1' is no id of an Atari game here"),
    ("c51_atari", "--v-min=10", "--v-max: more than 10 (v_min) is needed, not 10.0"),
    ("rainbow_atari", "--n-step=0", "--n-step: 1 or more is needed, not 0"),
    ("sac_atari", "--target-entropy-scale=2", "--target-entropy-scale: a number between 0 and 1 is needed, not 2.0"),
    ("ppg_procgen", "--num-envs=1 --num-steps=1 --num-minibatches=1", "a batch of one row (num_envs * num_steps)"),
    ("qdagger_dqn_atari_impalacnn", "--temperature=0", "--temperature: more than 0 is needed, not 0.0"),
    ("qdagger_dqn_atari_impalacnn", f"{CATCH} --teacher-policy-path=/no/teacher", "file: cannot be read: No such file"),
    ("qdagger_dqn_atari_impalacnn", f"{CATCH} --teacher-policy-path={__file__}", "is no DQN's policy for mosaic/Catc"),
    ("pqn", "--q-lambda=1.5", "--q-lambda: a number between 0 and 1 is needed, not 1.5"),
    ("pqn", "--num-minibatches=513", "a number between 1 and 512 (num_envs * num_steps) is needed, not 513"),
    ("td3_continuous_action", "--policy-noise=-1", "--policy-noise: 0 or more is needed, not -1.0"),
    ("ddpg_continuous_action", "--exploration-noise=-1", "--exploration-noise: 0 or more is needed, not -1.0"),
    ("rpo_continuous_action", "--rpo-alpha=-0.5", "--rpo-alpha: 0 or more is needed, not -0.5"),
    ("dqn_jax", "--batch-size=0", "--batch-size: 1 or more is needed, not 0"),
    ("dqn_jax", "--target-network-frequency=0", "--target-network-frequency: 1 or more is needed, not 0"),
    ("sac_continuous_action", "--policy-frequency=0", "--policy-frequency: 1 or more is needed, not 0"),
    ("sac_continuous_action", "--tau=-0.1", "--tau: a number between 0 and 1 is needed, not -0.1"),
    ("dqn", "--env-id=Pendulum-v1", "dqn drives discrete actions, but Pendulum-v1 takes continuous ones; find one"),
    ("ppo", "--env-id=HalfCheetah-v5 --num-envs=8", "but HalfCheetah-v5 takes continuous ones"),
    ("sac_continuous_action", "--env-id=CartPole-v1", "takes discrete ones; find one"),
    ("ppo", "--env-id=Tiny/Many-v0", "takes multi_discrete ones; find one"),
    ("ppo", "--env-id=Tiny/FromOne-v0", "the actions of Tiny/FromOne-v0 count from 1"),
    *((name, "--env-id=Tiny/Unbounded-v0", "has actions without bounds: Box(-inf, inf, (1,), fl") for name in BOUNDED),
    ("sac_continuous_action_jax", "--env-id=Tiny/Unbounded-v0", "has actions without bounds: Box(-inf, inf, (1,), fl"),
    ("td3_continuous_action_jax", "--env-id=Tiny/Shaped-v0", "has actions of shape (2, 3), not a row of numbers; use"),
    (
        "rpo_continuous_action",
        "--env-id=Tiny/Shaped-v0",
        "has actions of shape (2, 3), not a row of numbers; use ppo_j",
    ),
    ("c51_jax", "--v-max=inf", "--v-max: 1e+38 or less is needed, not inf"),
    ("ppo_jax", "--num-minibatches=512", "a minibatch has one row, whose advantage cannot be normalised"),
    ("ppo_jax", "--env-id=Tiny/Many-v0", "takes multi_discrete ones; find one"),
    ("ppo_jax", "--network=image", "the image network needs bytes of 36×36 or more, not Box("),
    ("ppo_jax", "--network=image --env-backend=envpool", "the image network needs bytes of 36×36 or more, not Box("),
    ("ppo_jax", "--network=grid", "the grid network needs MiniGrid's observations, not Box("),
    ("qdagger_dqn_atari_jax_impalacnn", "--temperature=0", "--temperature: more than 0 is needed, not 0.0"),
    ("qdagger_dqn_atari_jax_impalacnn", f"{CATCH} --teacher-policy-path={__file__}", "is no DQN's policy for mosaic/"),
    ("c51_atari_jax", "--v-min=10", "--v-max: more than 10 (v_min) is needed, not 10.0"),
    ("c51_jax", "--v-min=100", "--v-max: more than 100 (v_min) is needed, not 100.0"),
    ("ppo", "--env-id=Tiny/Told-v0", "the observations of Tiny/Told-v0 cannot be made flat"),
    ("dqn", "--env-id=MiniGrid-Empty-5x5-v0", "the observations of MiniGrid-Empty-5x5-v0 cannot be made flat"),
    (
        "ppo",
        "--env-id=ALE/Breakout-v5",
        "the observations of ALE/Breakout-v5 cannot be made flat: Box(0, 255, (210, 160, 3), uint8); for images take",
    ),
    ("dqn", "--env-id=MiniGrid-Empty-5x5-v0 --env-backend=envpool", "MiniGrid-Empty-5x5-v0 cannot be made flat: Dict("),
    ("pqn", "--env-id=Pong-v5", "cannot be made flat: Box(0, 255, (4, 84, 84), uint8); for images take ppo_jax, ppo_a"),
    ("ppo", "--network=grid", "the grid network needs MiniGrid's observations, not Box("),
    ("ppo", "--network=grid --env-backend=envpool", "the grid network needs MiniGrid's observations, not Box("),
    ("ppo", "--memory", "--memory is for grids, and this environment gives other observations: leave it out"),
    (
        "ppo",
        "--mission --network=shared",
        "--mission is for grids, and this environment gives other observations: leave it out",
    ),
    ("ppo", "--memory --network=grid --num-envs=3", "--num-envs (3) must be a multiple of --num-minibatches (4)"),
    ("ppo", "--env-id=CartPoll-v1", "cannot make the environment 'CartPoll-v1': Environment `CartPoll` doesn't exist"),
    ("ppo", "--env-id=CartPole-v9", "It provides versioned environments: [ `v0`, `v1` ]"),
    ("ppo", "--env-id=no_such_module:X-v0", "No module named 'no_such_module'"),
    ("ppo", "--env-id=no_such --vectorization=async", "Environment `no_such` doesn't exist"),
    ("ppo", "--env-id=no_such --vectorization=native", "Environment `no_such` doesn't exist"),
    ("ppo_atari_envpool", "--env-id=Pogn-v5", "'Pogn-v5' is no id of an Atari game here; did you mean 'Pong-v5'?"),
    ("ppo_atari_envpool", "--env-id=Acrobot-v1", "'Acrobot-v1' is no id of an Atari game here"),
    ("ppo_atari_envpool", "--env-id=Acrobot-v1 --env-backend=gymnasium", "'Acrobot-v1' is no id of an Atari game here"),
]


def refusal(alone: Callable[..., Path], name: str, *flags: str) -> str:
    with pytest.raises(SystemExit) as refused:
        alone(name, *flags)
    line = refused.value.code
    assert isinstance(line, str) and line and "\n" not in line
    return line


@pytest.mark.parametrize(("name", "flags", "line"), REFUSED, ids=[f"{name} {flags}" for name, flags, _ in REFUSED])
def test_what_cannot_work_is_refused_in_one_line(name: str, flags: str, line: str, alone: Callable[..., Path]) -> None:
    assert line in refusal(alone, name, *flags.split())


def test_a_folder_that_cannot_be_written_is_named(alone: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot write into the run folder" in refusal(alone, "ppo", "--run-dir=file/run")


@pytest.mark.parametrize(
    ("package", "name", "flags", "line"),
    [
        (
            "envpool",
            "ppo_atari_envpool",
            "--env-backend=envpool",
            "EnvPool is not installed: pip install 'mosaic-rl[envpool]'",
        ),
        ("envpool", "dqn", "--env-backend=envpool", "EnvPool is not installed: pip install 'mosaic-rl[envpool]'"),
        ("ale_py", "ppo_atari_envpool", "--env-backend=gymnasium", "needs ale-py: pip install 'mosaic-rl[atari]'"),
    ],
)
def test_a_missing_package_is_named(
    package: str, name: str, flags: str, line: str, alone: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # what Python looks at first: importing it fails
    assert line in refusal(alone, name, *flags.split())


WITHOUT = f"""
import importlib, sys
sys.modules[sys.argv[1]] = None
for module in ({", ".join(repr(DEFAULT_ALGO_REGISTRY[name]) for name in JAX)}):
    try:
        importlib.import_module(module)
    except SystemExit as error:
        print(error)
"""


@pytest.mark.parametrize("package", ["jax", "flax", "optax"])
def test_without_jax_each_of_its_files_names_the_extra(package: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, package], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == [f"this algorithm needs {package}: pip install 'mosaic-rl[jax]'"] * len(JAX)


def test_auto_does_without_envpool(alone: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    alone("ppo", "--env-id=Acrobot-v1", "--num-envs=8", "--num-steps=4", "--total-timesteps=32")
