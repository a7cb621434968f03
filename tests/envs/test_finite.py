"""Non-finite numbers end a run with one line; what an environment gives must be of its own spaces."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from needs import needed

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.finite import NotFinite
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run.args import RunArgs
from cleanrl_worker.schema.parameters import describe
from mosaic.contract import metrics

AT = 40  # the step of each environment whose number is bad
OTHER = {"shape": np.zeros(3, np.float32), "scalar": 1.0, "text": "up", "none": None}


class Odd(gym.Env[np.ndarray, Any]):
    """Gives something odd in one step, as `kind` says."""

    def __init__(self, kind: str = "", continuous: bool = False, images: bool = False) -> None:
        self.kind, self.images = kind, images
        shape = (4, 84, 84) if images else (2,)
        pixels = gym.spaces.Box(0, 255, shape, np.uint8)
        whole = gym.spaces.Box(0, 9, shape, np.int64)
        self.observation_space = pixels if images else whole if kind == "float" else gym.spaces.Box(-9.0, 9.0, shape)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,)) if continuous else gym.spaces.Discrete(2)
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        odd = self.taken == AT
        reward: Any = 1.0
        if odd and self.kind.startswith("reward"):
            bad = {"reward nan": np.nan, "reward inf": -np.inf, "reward array": [1.0, 2.0], "reward none": None}
            bad |= {"reward huge": 1e300}
            reward = bad.get(self.kind, 2e6)
        return self._obs(odd), reward, self.taken % 8 == 0, False, {}

    def _obs(self, odd: bool = False) -> Any:
        if self.images:
            return np.zeros((4, 84, 84), np.uint8)
        if odd and self.kind in OTHER:
            return OTHER[self.kind]
        if odd and self.kind == "float":
            return np.array([0.5, 1.0])
        bad = (
            {"obs nan": np.nan, "obs huge": 1e300, "obs inf": np.inf, "obs large": 3e38}.get(self.kind, 0.0)
            if odd
            else 0.0
        )
        kind = np.float64 if self.kind == "obs huge" else self.observation_space.dtype
        return np.array([1.0, bad], kind)


def make(kind: str, **more: Any) -> Any:
    def maker(args: RunArgs, *_given: Any, **_options: Any) -> Any:
        made = vectors.SyncEnvs([lambda: Odd(kind, **more)] * args.num_envs)
        made.episodes.guard = vectors.Guard(args.nonfinite, "Odd-v0")
        return made

    return maker


def walk(kind: str, nonfinite: Any = "stop") -> Any:
    envs = make(kind)(RunArgs(num_envs=2, nonfinite=nonfinite))
    envs.reset(1)
    for _ in range(AT + 5):
        envs.step(np.zeros(2, np.int64))
    return envs


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("obs nan", f"Odd-v0 gave observation nan at step {2 * AT} in environment 0, value 1"),
        ("obs inf", f"Odd-v0 gave observation inf at step {2 * AT} in environment 0"),
        ("obs large", f"Odd-v0 gave observation 3.0.*e\\+38 at step {2 * AT} in environment 0"),
        ("obs huge", "Odd-v0 gave the observation|Odd-v0 gave observation|Odd-v0 gave an observation"),
        ("reward nan", f"Odd-v0 gave reward nan at step {2 * AT} in environment 0"),
        ("reward inf", f"Odd-v0 gave reward -inf at step {2 * AT} in environment 0"),
        ("reward huge", rf"Odd-v0 gave reward 1e\+300 at step {2 * AT} in environment 0"),
        ("reward none", "Odd-v0 gave the reward None in environment 0; one number is needed"),
        ("reward array", r"Odd-v0 gave the reward \[1.0, 2.0\] in environment 0; one number is needed"),
        (
            "shape",
            r"Odd-v0 gave an observation of shape \(3,\) and type float32 in environment 0; its observation space",
        ),
        ("scalar", "Odd-v0 gave the observation 1.0 in environment 0; its observation space is Box"),
        ("text", "Odd-v0 gave the observation 'up' in environment 0; its observation space is Box"),
        ("none", "Odd-v0 gave the observation None in environment 0; its observation space is Box"),
        ("float", r"Odd-v0 gave an observation of shape \(2,\) and type float64 in environment 0; .*int64"),
    ],
)
def test_what_no_network_can_learn_from_is_refused_in_one_line(kind: str, words: str) -> None:
    with pytest.raises(SystemExit, match=words) as refused:
        walk(kind)
    assert "\n" not in str(refused.value)


def test_with_warn_the_run_continues_and_counts() -> None:
    guard = walk("obs nan", "warn").episodes.guard
    assert guard.count == 2 and len(guard.notes) == 1 and "only counted (--nonfinite=warn)" in guard.notes[0]


def test_a_very_large_reward_gets_one_hint_about_scaling() -> None:
    guard = walk("reward large").episodes.guard
    assert guard.count == 0
    (note,) = guard.notes
    assert "gave a reward of 2e+06 at step" in note and "scale rewards" in note


FULL = pytest.mark.full
ALGORITHMS = describe()
ALWAYS = ("ppo", "dqn", "sac_continuous_action", "dqn_jax")
SMALL = {"num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "learning_starts": 16, "buffer_size": 200}
SMALL |= {"batch_size": 8}


def options_of(name: str) -> dict[str, Any]:
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    fields = {field["name"]: field for field in ALGORITHMS[name]["fields"]}
    known = {key: value for key, value in SMALL.items() if key in fields and getattr(module.Args, key, 0) != 0}
    return known | ({"v_min": -10.0, "v_max": 10.0} if "v_min" in fields else {})


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=FULL) for name in DEFAULT_ALGO_REGISTRY]
)
@pytest.mark.parametrize("kind", ["reward nan", "obs nan"])
def test_every_algorithm_stops_at_the_first_bad_number_and_saves_none(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(name)
    entry = ALGORITHMS[name]
    images = entry["observation_spaces"] == ["image"]
    if "pettingzoo" in name or "qdagger" in name or (images and kind == "obs nan"):
        pytest.skip("images are whole numbers; players and lessons share the loop of the others")
    maker = make(kind, continuous="discrete" not in entry["action_spaces"], images=images)
    for one in ("vector", "atari"):
        monkeypatch.setattr(vectors, one, maker)
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    if name == "ppo_jax":
        monkeypatch.setattr(module.classic_jax, "make", lambda args: None)
    more = {"num_iterations_obs_norm_init": 0} if "rnd" in name else {}
    more |= {"local_num_envs": 2} if "multigpu" in name else {"num_envs": 2}
    with pytest.raises(NotFinite, match="Odd-v0 gave"):
        module.main(
            module.Args(
                run_dir=tmp_path,
                cuda=False,
                num_threads=1,
                total_timesteps=4000,
                save_model=True,
                **more,
                **options_of(name),
            )
        )
    assert not list(tmp_path.glob("checkpoints/*/state.json")) and not list(tmp_path.rglob("*.cleanrl_model"))


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("ppo", "CartPole-v1"),
        ("dqn", "CartPole-v1"),
        ("c51", "CartPole-v1"),
        ("sac_continuous_action", "Pendulum-v1"),
        pytest.param("td3_continuous_action", "Pendulum-v1", marks=FULL),
        pytest.param("ppo_jax", "CartPole-v1", marks=FULL),
        pytest.param("c51_jax", "CartPole-v1", marks=FULL),
        pytest.param("pqn", "CartPole-v1", marks=FULL),
    ],
)
def test_a_learning_rate_beyond_all_bounds_ends_in_exit_code_1_and_one_line(
    name: str, env_id: str, tmp_path: Path
) -> None:
    needed(name)
    fields = {field["name"] for field in ALGORITHMS[name]["fields"]}
    rates = [f"--{rate}=1e30" for rate in ("learning-rate", "policy-lr", "q-lr") if rate.replace("-", "_") in fields]
    small = [f"--{key.replace('_', '-')}={value}" for key, value in options_of(name).items() if "v_m" not in key]
    command = [sys.executable, "-m", DEFAULT_ALGO_REGISTRY[name], f"--run-dir={tmp_path}", f"--env-id={env_id}"]
    done = subprocess.run(
        [*command, "--total-timesteps=6000", "--save-model", "--cuda=false", *rates, *small],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert "at step" in done.stderr.strip().splitlines()[-1]
    for row in metrics.read_rows(tmp_path / "metrics.jsonl"):
        assert all(
            np.isfinite(value) for tag, value in row.items() if tag.startswith("losses/") and "explained" not in tag
        )
    assert not list(tmp_path.rglob("*.cleanrl_model"))


class Spaces(Odd):
    """Has the spaces that it is given."""

    def __init__(self, observations: Any = None, actions: Any = None) -> None:
        super().__init__(continuous=True)
        self.observation_space = observations or self.observation_space
        self.action_space = actions or self.action_space

    def _obs(self, odd: bool = False) -> Any:
        return np.zeros(self.observation_space.shape, np.float32)


EMPTY, WIDE = gym.spaces.Box(-1.0, 1.0, (0,)), gym.spaces.Box(-3e38, 3e38, (1,), np.float32)


@pytest.mark.parametrize(
    ("algo", "spaces", "words"),
    [
        ("ppo_continuous_action", {"observations": EMPTY}, "Spaces-v0 has an empty observation space: Box"),
        ("ppo_continuous_action", {"actions": EMPTY}, "Spaces-v0 has an empty action space: Box"),
        ("sac_continuous_action", {"actions": WIDE}, "Spaces-v0 has actions as wide as Box.*: bounds whose distance"),
        ("td3_continuous_action", {"actions": WIDE}, "Spaces-v0 has actions as wide as Box.*: bounds whose distance"),
    ],
)
def test_spaces_that_hold_nothing_or_too_much_are_refused_in_one_line(
    algo: str, spaces: dict[str, Any], words: str, tmp_path: Path
) -> None:
    gym.registry.pop("Spaces-v0", None)
    gym.register("Spaces-v0", entry_point=lambda **_: Spaces(**spaces))
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[algo])
    with pytest.raises(SystemExit, match=words) as refused:
        module.main(module.Args(run_dir=tmp_path, cuda=False, env_id="Spaces-v0", total_timesteps=10))
    assert "\n" not in str(refused.value)
