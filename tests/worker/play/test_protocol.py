"""Real sessions through the command line: the protocol, its errors, its end, its cost."""

import itertools
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from needs import needed

from cleanrl_worker.envs.minigrid import WORDS

# An environment as people write them: chatty, on every channel; without pictures; and it can be made to fail.
CORRIDOR = """
import gymnasium as gym, numpy as np, os, sys

class Corridor(gym.Env):
    observation_space = gym.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        print("reset, says Python")
        os.system("echo reset, says a child")
        self.at = float(self.np_random.integers(3, 6))
        return np.array([self.at], np.float32), {}

    def step(self, action):
        os.write(1, b"step, says C\\n")
        print(sys.stdin.read(), end="")
        self.at += action
        if self.at > 8:
            raise OSError("fell off the end")
        return np.array([self.at], np.float32), float("nan") if action == 0 else -1.0, self.at <= 2, False, {}

gym.register("Corridor-v0", Corridor)
"""


class Player:
    """A session in a process of its own, and the person who types."""

    def __init__(self, arguments: tuple[str, ...], folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cleanrl_worker.cli", "--interactive", *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("wb"),
        )

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        self.type(json.dumps({"cmd": cmd, **fields}))
        return self.hear()

    def leave(self) -> tuple[list[dict[str, Any]], int]:
        """Close stdin; what is still said, and the exit code."""
        out, _ = self.process.communicate(timeout=120)
        return [json.loads(line) for line in out.splitlines()], self.process.returncode


@pytest.fixture
def play(home: Path, tmp_path: Path) -> Iterator[Callable[..., Player]]:
    started: list[Player] = []

    def start(*arguments: str) -> Player:
        started.append(Player(arguments, tmp_path))
        return started[-1]

    yield start
    for player in started:
        if player.process.poll() is None:
            player.process.kill()
        player.process.communicate()


def test_person_plays_episode_after_episode(play: Callable[..., Player]) -> None:
    player = play("--env-id", "CartPole-v1", "--run-id", "mine", "--seed", "7")
    init = player.hear()
    assert (init["type"], init["run_id"], init["seed"], init["policy_path"]) == ("init", "mine", 7, None)
    assert player.ask("ping") == {"type": "pong"}
    firsts = []
    for seed in (7, 8):
        ready = player.ask("reset")
        assert (ready["type"], ready["run_id"], ready["env_id"], ready["seed"]) == (
            "ready",
            "mine",
            "CartPole-v1",
            seed,
        )
        assert ready["observation_shape"] == [4]
        assert ready["action_space"] == {"type": "discrete", "n": 2, "start": 0}
        steps = [player.ask("step", action=1)]
        while not steps[-1]["terminated"]:
            steps.append(player.ask("step", action=1))
        assert [step["step_index"] for step in steps] == list(range(len(steps)))
        assert [step["episode_reward"] for step in steps] == [index + 1.0 for index in range(len(steps))]
        assert steps[-1]["action"] == 1 and len(steps[-1]["observation"]) == 4 and not steps[-1]["truncated"]
        done = {"type": "episode_done", "total_reward": float(len(steps)), "episode_length": len(steps)}
        assert player.hear() == done
        assert "the episode is over" in player.ask("step", action=1)["message"]
        firsts.append(steps[0]["observation"])
    assert firsts[0] != firsts[1]
    assert player.ask("reset", seed=7)["seed"] == 7
    assert player.ask("step", action=1)["observation"] == firsts[0]
    assert player.ask("stop") == {"type": "stopped"}
    assert player.leave() == ([], 0)


def test_errors_are_answered_and_the_session_goes_on(play: Callable[..., Player]) -> None:
    player = play("--env-id", "Pendulum-v1")
    player.hear()
    wrong = {
        "nonsense": "not JSON",
        "": "not JSON",
        "\xff": "not JSON",
        "[" * 5000: "not JSON",
        "[1]": "a JSON object is expected",
        "{}": "unknown command None",
        '{"cmd": "stp"}': "did you mean 'stop'? The commands are reset, step, ping, stop",
        '{"cmd": ["step"]}': "unknown command ['step']",
        '{"cmd": "step"}': 'there is no episode yet; send {"cmd": "reset"}',
        '{"cmd": "reset", "seed": -1}': "a whole number from 0 to 4294967295",
        '{"cmd": "reset", "seed": 1.5}': "seed 1.5 is not allowed",
        '{"cmd": "step", "acton": 1}': "did you mean 'action'?",
    }
    for line, message in wrong.items():
        player.type(line)
        answer = player.hear()
        assert answer["type"] == "error" and message in answer["message"], answer
    player.ask("reset")
    for action in (3, [0.5, 0.5], [], "left", True, [[0.1]], {"a": 1}, [None]):
        answer = player.ask("step", action=action)
        assert "is not allowed; give a list of shape [1], numbers from -2.0 to 2.0" in answer["message"]
    assert 'a step needs an "action": a list of shape [1]' in player.ask("step")["message"]
    assert player.ask("step", action=-2)["action"] == [-2.0]
    assert player.ask("step", action=[0.5])["step_index"] == 1


def test_what_an_environment_prints_stays_out_of_the_answers(play: Callable[..., Player], tmp_path: Path) -> None:
    (tmp_path / "corridor.py").write_text(CORRIDOR)
    player = play("--env-id", "corridor:Corridor-v0")
    init = player.hear()
    assert "has no rgb_array mode" in init["render_reason"]
    ready = player.ask("reset", seed=1)
    assert ready["render_payload"] is None and ready["render_reason"] == init["render_reason"]
    assert ready["action_space"] == {"type": "discrete", "n": 3, "start": -1}
    assert "a whole number from -1 to 1" in player.ask("step", action=2)["message"]
    assert player.ask("step", action=0)["reward"] == "NaN"
    answer = player.ask("step", action=1)
    while answer["type"] == "step":
        answer = player.ask("step", action=1)
    assert answer == {"type": "error", "message": "the environment's step failed: OSError: fell off the end"}
    assert "the environment failed; send" in player.ask("step", action=1)["message"]
    assert player.ask("reset")["type"] == "ready"
    assert player.leave() == ([{"type": "stopped"}], 0)
    told = (tmp_path / "stderr").read_text()
    assert "says Python" in told and "says a child" in told and "says C" in told and "Traceback" in told


def test_signal_ends_a_session_that_waits(play: Callable[..., Player], lives: Callable[[int], bool]) -> None:
    player = play("--env-id", "CartPole-v1")
    player.hear()
    player.ask("reset")
    player.process.send_signal(signal.SIGTERM)  # the shell's pid is the session's
    assert player.leave() == ([{"type": "stopped"}], 128 + signal.SIGTERM)
    assert not lives(player.process.pid)


def save_policy(folder: Path, algo: str, env_id: str, spaces: Any, **sidecar: Any) -> Path:
    """An untrained policy as an algorithm saves it."""
    path = folder / f"{algo}.cleanrl_model"
    (folder / f"{path.name}.json").write_text(
        json.dumps({"algo": algo, "env_id": env_id, "seed": 3, "args": {}, **sidecar})
    )
    if algo.endswith("_jax"):
        path.write_bytes(jax_actor(*spaces.single_observation_space.shape, *spaces.single_action_space.shape))
        return path
    import torch

    from cleanrl_worker.envs.minigrid import WORDS
    from cleanrl_worker.nets.grid import MinigridAgent
    from cleanrl_worker.nets.mlp import MLPAgent

    torch.manual_seed(1)
    agent: Any
    if algo == "ppo" and "BabyAI" in env_id:
        agent = MinigridAgent(spaces, WORDS, memory=True)
    elif algo == "ppo":
        agent = MLPAgent(spaces)
    else:
        import importlib

        module: Any = importlib.import_module(f"cleanrl_worker.algorithms.{algo}")
        agent = module.Agent(spaces)
    torch.save(agent.state_dict(), path)
    return path


def jax_actor(inputs: int, outputs: int) -> bytes:
    """Two hidden layers and one of actions."""
    from safetensors.numpy import save

    rng, sizes, state = np.random.default_rng(1), (inputs, 256, 256, outputs), {}
    for layer, shape in enumerate(itertools.pairwise(sizes)):
        state[f"params/Dense_{layer}/kernel"] = 0.1 * rng.standard_normal(shape, np.float32)
        state[f"params/Dense_{layer}/bias"] = np.zeros(shape[1], np.float32)
    return save(state)


def spaces_of(observation: tuple[int, ...], action: gym.Space[Any]) -> SimpleNamespace:
    space = gym.spaces.Box(-np.inf, np.inf, observation, np.float32)
    return SimpleNamespace(single_observation_space=space, single_action_space=action)


PENDULUM = {"observation_statistics": {"mean": [0.0, 0.0, 0.0], "var": [0.5, 0.5, 10.0], "count": 1000.0}}
PAIR = spaces_of((2, 6, 84, 84), gym.spaces.MultiDiscrete([6, 6]))
POLICIES = [
    ("ppo", "CartPole-v1", spaces_of((4,), gym.spaces.Discrete(2)), {}),
    ("ppo", "BabyAI-GoToLocal-v0", spaces_of((147 + WORDS,), gym.spaces.Discrete(7)), {"args": {"mission": True}}),
    ("ppo_continuous_action", "Pendulum-v1", spaces_of((3,), gym.spaces.Box(-2.0, 2.0, (1,))), PENDULUM),
    ("td3_continuous_action_jax", "MountainCarContinuous-v0", spaces_of((2,), gym.spaces.Box(-1.0, 1.0, (1,))), {}),
    ("ppo_atari_envpool", "BreakoutNoFrameskip-v4", spaces_of((4, 84, 84), gym.spaces.Discrete(4)), {}),
    ("ppo_procgen", "starpilot", spaces_of((3, 64, 64), gym.spaces.Discrete(15)), {"args": {"num_levels": 1}}),
    ("ppo_pettingzoo_ma_atari", "pong_v3", PAIR, {}),
]


@pytest.mark.parametrize(("algo", "env_id", "spaces", "sidecar"), POLICIES, ids=[policy[1] for policy in POLICIES])
def test_policy_acts_and_the_person_may_take_over(
    play: Callable[..., Player], tmp_path: Path, algo: str, env_id: str, spaces: Any, sidecar: dict[str, Any]
) -> None:
    needed(algo)
    policy = save_policy(tmp_path, algo, env_id, spaces, **sidecar)
    player = play("--policy-path", policy.name)
    init = player.hear()
    assert (init["algo"], init["env_id"], init["seed"], init["policy_path"]) == (algo, env_id, 3, str(policy))
    ready = player.ask("reset")
    actions = [player.ask("step")["action"] for _ in range(5)]
    assert player.ask("reset", seed=3)["render_payload"] == ready["render_payload"]
    assert [player.ask("step")["action"] for _ in range(5)] == actions  # the same episode, sampled actions included
    given = 0 if isinstance(actions[0], int) else [0.25] if len(actions[0]) == 1 else [2, 3]
    step = player.ask("step", action=given)
    assert step["action"] == given and player.ask("step")["step_index"] == 6
    if "atari" in algo:
        assert ready["observation_shape"][-2:] == [84, 84] and step["observation"] is None
        picture = step["render_payload"]
        assert (picture["width"], picture["height"], picture["encoding"]) == (160, 210, "png")


def test_greedy_config_plays_its_policy(play: Callable[..., Player], tmp_path: Path) -> None:
    policy = save_policy(tmp_path, "ppo", "CartPole-v1", POLICIES[0][2])
    extras = {"mode": "interactive", "policy_path": str(policy), "eval_greedy": True}
    (tmp_path / "config.json").write_text(json.dumps({"run_id": "r1", "env_id": "CartPole-v1", "extras": extras}))
    player = play("--config", "config.json", "--seed", "5")
    assert player.hear()["seed"] == 5
    assert player.ask("reset")["run_id"] == "r1"
    assert player.ask("step")["type"] == "step"
    assert player.leave() == ([{"type": "stopped"}], 0)


@pytest.mark.parametrize(
    ("algo", "env_id", "spaces"),
    [("ppo", "Acrobot-v1", POLICIES[0][2]), ("ppo_pettingzoo_ma_atari", "boxing_v2", PAIR)],  # which has 18 buttons
)
def test_policy_that_cannot_act_is_refused(
    play: Callable[..., Player], tmp_path: Path, algo: str, env_id: str, spaces: Any
) -> None:
    needed(algo)
    policy = save_policy(tmp_path, algo, env_id, spaces)
    player = play("--policy-path", str(policy))
    answers, code = player.leave()
    assert code == 2 and [answer["type"] for answer in answers] == ["error"]
    assert f"is not a {algo!r} policy for observations" in answers[0]["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to play: give --env-id, or --policy-path"),
        (("--env-id", "CartPole-v9"), "did you mean 'CartPole-v1'?"),
        (("--env-id", "CartPole-v1", "--seed", "-1"), "seed: a whole number"),
        (("--env-id", "CartPole-v1", "--run-id", "a/b"), "run id"),
        (("--policy-path", "gone"), "'gone' is not there"),
    ],
)
def test_refused_session_starts_nothing(
    play: Callable[..., Player], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert play(*arguments).leave() == ([], 2)
    (line,) = (tmp_path / "stderr").read_text().splitlines()
    assert message in line


def test_dry_run_says_what_would_be_played(play: Callable[..., Player], tmp_path: Path) -> None:
    assert play("--env-id", "CartPole-v1", "--dry-run").leave() == ([], 0)
    assert "this would run cleanrl_worker.play.protocol" in (tmp_path / "stderr").read_text()


def test_thousand_steps_cost_little_and_leave_nothing_behind(play: Callable[..., Player]) -> None:
    player = play("--env-id", "CartPole-v1")
    player.hear()
    process = psutil.Process(player.process.pid)
    sizes: list[int] = []

    def steps(count: int) -> None:
        over = True
        for index in range(count):
            if over:
                player.ask("reset")
            player.type(json.dumps({"cmd": "step", "action": index % 2}))
            line = player.process.stdout.readline()  # type: ignore[union-attr]
            sizes.append(len(line))
            over = b'"terminated":true' in line
            if over:
                player.hear()

    steps(200)
    resident, cpu = process.memory_info().rss, sum(process.cpu_times()[:2])
    steps(1000)
    spent = sum(process.cpu_times()[:2]) - cpu
    assert process.memory_info().rss - resident < 2 * 2**20
    # seconds of the processor, and of a slow one: the clock would measure who else works here
    assert spent / 1000 < 0.040
    assert max(sizes) < 20_000 and statistics.mean(sizes) > 2_000
