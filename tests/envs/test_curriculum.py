"""Ready curricula, and one environment that plays any of their stages."""

import importlib.util
import json
import subprocess
import sys

import pytest

from cleanrl_worker.envs import curriculum
from mosaic import catalog
from mosaic.contract.curriculum import read_schedule


def test_ready_curricula_are_schedules_of_known_environments():
    goto, doors = (
        read_schedule(name) for name in (curriculum.BABYAI_GOTO_CURRICULUM, curriculum.BABYAI_DOORKEY_CURRICULUM)
    )
    assert [stage.env_id for stage in goto] == [
        f"BabyAI-{name}-v0" for name in ("GoToRedBallNoDists", "GoToRedBall", "GoToObj", "GoToLocal")
    ]
    assert [str(stage.condition[0][0]) for stage in goto[:3]] == ["steps>=200000"] * 3
    assert [stage.env_id for stage in doors] == [f"MiniGrid-DoorKey-{n}x{n}-v0" for n in (5, 6, 8, 16)]
    for stage in (*goto, *doors):
        assert catalog.find(stage.env_id) is not None


def test_an_environment_changes_its_task_at_the_next_reset_and_closes_the_one_before():
    env = curriculum.make_curriculum_env(curriculum.BABYAI_DOORKEY_CURRICULUM)
    first = env._env
    closed = []
    first.close = lambda: closed.append(True)
    env.reset(seed=1)
    env.change_task(2)
    env.step(0)
    assert env._env is first, "an episode is played to its end"
    obs, _ = env.reset(seed=1)
    assert closed == [True] and env.observation_space.contains(obs)
    assert env._env.unwrapped.width == 8
    with pytest.raises(ValueError, match="task 4: there are 4, 0 to 3"):
        env.change_task(4)
    env.close()


def test_other_spaces_are_refused():
    env = curriculum.TaskEnv(["CartPole-v1", "Acrobot-v1"])
    env.change_task(1)
    with pytest.raises(ValueError, match="Acrobot-v1 has other spaces than CartPole-v1"):
        env.reset()


def test_nothing_imports_syllabus_before_it_is_asked_for():
    code = "import sys, cleanrl_worker.envs.curriculum; print([name for name in sys.modules if 'syllabus' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.skipif(importlib.util.find_spec("syllabus") is not None, reason="Syllabus is installed")
def test_without_syllabus_its_wrapper_says_what_to_install():
    with pytest.raises(ImportError, match=r"pip install 'mosaic-rl\[curriculum\]'"):
        _ = curriculum.BabyAITaskWrapper


@pytest.mark.skipif(importlib.util.find_spec("syllabus") is None, reason="needs mosaic-rl[curriculum]")
def test_syllabus_wrapper_goes_back_and_forth_and_keeps_seeds_apart_from_tasks():
    code = """
import json
from cleanrl_worker.wrappers import curriculum
env = curriculum.BabyAITaskWrapper([stage["env_id"] for stage in curriculum.BABYAI_DOORKEY_CURRICULUM])
from syllabus.core import ReinitTaskWrapper
widths = []
for task in (0, 2, 0, "MiniGrid-DoorKey-6x6-v0"):
    obs, info = env.reset(new_task=task, seed=3)
    widths.append((env.unwrapped._env.unwrapped.width, info["task"]))
env.reset(seed=1)
print(json.dumps([isinstance(env, ReinitTaskWrapper), widths, env.task]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    last = "MiniGrid-DoorKey-6x6-v0"
    assert json.loads(done.stdout) == [True, [[5, 0], [8, 2], [5, 0], [6, last]], last]
