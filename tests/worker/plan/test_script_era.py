"""The era and the modules that are read from the source of a script."""

import sys
from pathlib import Path

import pytest

from cleanrl_worker.foreign.eras import GYM_023, GYMNASIUM_029, MODULES
from cleanrl_worker.foreign.old_ids import REPLACED, played
from cleanrl_worker.plan.script_era import ScriptEra, read_era, require_modules
from mosaic.contract.errors import ConfigError

FILES = Path(__file__).parents[2] / "foreign" / "files"
GYMNASIUM = "import gymnasium as gym\n"
LOGS = 'writer.add_scalar("charts/episodic_return", 1, 1)\n'


def written(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(FILES.glob("*.py")), ids=lambda path: path.stem)
def test_small_files_are_of_the_era_that_their_names_say(path: Path) -> None:
    eras = {"029": GYMNASIUM_029, "023": GYM_023, "modern": ""}
    assert read_era(path).era == eras[path.stem.rpartition("_")[2]]


@pytest.mark.parametrize(
    "line",
    [
        'for info in infos["final_info"]: pass',
        'returns = [info["episode"] for info in infos["final_info"] if info]',
        'for index, info in enumerate(infos["final_info"]): pass',
        'first = infos["final_info"][0]',
        'last = infos["final_observation"]',
        'returns = [info for info in infos.get("final_info", []) if info]',
        'for done, info in zip(dones, infos["final_info"]): pass',
        "env = gym.wrappers.FrameStack(env, 4)",
        "from gymnasium import wrappers as around\nenv = around.FrameStack(env, 4)",
        "env = gym.wrappers.TransformObservation(env, abs)",
        "env = gym.wrappers.RecordEpisodeStatistics(env, deque_size=5)",
        "from gymnasium.wrappers import GrayScaleObservation",
        "from gymnasium.wrappers.normalize import RunningMeanStd",
        'envs = gym.vector.make("CartPole-v1", 2)',
    ],
)
def test_what_only_gymnasium_029_had_shows_the_era(tmp_path: Path, line: str) -> None:
    assert read_era(written(tmp_path, GYMNASIUM + LOGS + line)) == ScriptEra(GYMNASIUM_029)


@pytest.mark.parametrize(
    "line",
    [
        'env = gym.make("CartPole-v1")',
        'value = infos["final_info"]["episode"]["r"]',
        'for value in infos["final_info"]["episode"]["r"]: pass',
        'for name, value in infos["final_info"].items(): pass',
        "class FrameStack(gym.Wrapper): pass\nenv = FrameStack(env)",
        "from my_wrappers import FrameStack",
        "import my_wrappers\nenv = my_wrappers.FrameStack(env, 4)",
        "buffer = Buffer(deque_size=5)",
        'envs = gym.make_vec(env_id, vector_kwargs={"autoreset_mode": "SameStep"})\nlast = infos["final_info"][0]',
        "envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)\nlast = infos['final_info'][0]",
        "env = gym.wrappers.TransformObservation(env, abs, env.observation_space)",
        "env = gym.wrappers.TransformObservation(env, abs, observation_space=None)",
        'for info in infos["final_info"]: print(infos["final_obs"])',
        'envs = gym.make_vec("CartPole-v1", vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP})',
        "try:\n    import gym as old\nexcept ImportError:\n    pass",
    ],
)
def test_what_gymnasium_1_has_too_shows_nothing(tmp_path: Path, line: str) -> None:
    assert read_era(written(tmp_path, GYMNASIUM + line)) == ScriptEra()


def test_modules_that_are_gone_are_brought_to_a_script_of_no_era(tmp_path: Path) -> None:
    assert read_era(written(tmp_path, "from cleanrl_utils.buffers import ReplayBuffer\n")).era == MODULES


def test_files_beside_a_script_tell_of_its_era_and_its_returns(tmp_path: Path) -> None:
    written(tmp_path, GYMNASIUM + "env = gym.wrappers.FrameStack(env, 4)\n", "envs.py")
    assert read_era(written(tmp_path, "import envs\n")) == ScriptEra(GYMNASIUM_029, count_episodes=True)
    assert not read_era(written(tmp_path, "import envs\n" + LOGS)).count_episodes


def test_script_that_logs_means_alone_is_not_counted(tmp_path: Path) -> None:
    era = read_era(written(tmp_path, 'import gym\nwriter.add_scalar("charts/avg_episodic_return", 1, 1)\n'))
    assert era == ScriptEra(GYM_023, count_episodes=False, logs_means=True)


def test_script_in_a_checkout_finds_the_packages_of_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl_utils").mkdir()
    written(tmp_path / "cleanrl_utils", "", "huggingface.py")
    script = written(tmp_path / "cleanrl", "from cleanrl_utils.huggingface import push_to_hub\n")
    era = read_era(script)
    assert era.also_path == str(tmp_path)
    require_modules(script, sys.executable, era, ())


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_folder_that_others_may_write_to_is_no_checkout(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    (shared / "planted").mkdir(parents=True)
    written(shared / "planted", "", "__init__.py")
    (shared / "mine").mkdir()
    script = written(shared / "mine", "if args.track:\n    import planted\n")
    assert read_era(script).also_path == str(shared)
    shared.chmod(mode)
    assert read_era(script).also_path == ("" if mode & 0o002 else str(shared))


def refusal(script: Path, *argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        require_modules(script, sys.executable, read_era(script), argv)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_modules_are_refused_with_what_to_do(tmp_path: Path) -> None:
    told = refusal(written(tmp_path, "if __name__ == '__main__':\n    import nowhere_to_be_found\n"))
    assert "it imports nowhere_to_be_found, which is not installed: pip install" in told and "--set python=PATH" in told
    assert "procgen has no wheel" in refusal(written(tmp_path, "import gym\nfrom procgen import ProcgenEnv\n"))
    assert "NVIDIA" in refusal(written(tmp_path, "import isaacgym\n"))
    assert "stable_baselines3.PPO" in refusal(written(tmp_path, "import gym\nfrom stable_baselines3 import PPO\n"))


def test_import_below_a_flag_counts_when_the_flag_is_on(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        "import gym\nif __name__ == '__main__':\n    if args.upload_model:\n"
        "        from cleanrl_utils.huggingface import push_to_hub\n",
    )
    for argv in ((), ("--no-upload-model",), ("--upload-model=False",)):
        require_modules(script, sys.executable, read_era(script), argv)
    assert "checkout of CleanRL" in refusal(script, "--upload-model")


def test_script_that_edits_its_path_or_tries_an_import_is_left_alone(tmp_path: Path) -> None:
    for text in (
        "import sys\nsys.path.append('lib')\nimport nowhere",
        "try:\n    import nowhere\nexcept ImportError: 0",
    ):
        script = written(tmp_path, text)
        require_modules(script, sys.executable, read_era(script), ())


def test_older_ids_are_played_as_the_newest_that_is_registered() -> None:
    registered = {"HalfCheetah-v5", "CartPole-v1", "ALE/Pong-v5", "BreakoutNoFrameskip-v4"}
    assert played("HalfCheetah-v2", registered) == "HalfCheetah-v5"
    assert played("PongDeterministic-v4", registered) == "ALE/Pong-v5"
    for same in ("CartPole-v1", "BreakoutNoFrameskip-v4", "Hopper-v2", "Mine-v0"):
        assert played(same, registered) == same
    assert not set(REPLACED) & set(REPLACED.values())


@pytest.mark.parametrize("env_id", sorted(set(REPLACED.values())))
def test_ids_that_are_played_exist(env_id: str) -> None:
    import gymnasium

    assert env_id in gymnasium.registry
