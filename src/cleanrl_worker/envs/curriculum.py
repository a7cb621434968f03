"""Ready-made curricula for grid worlds, and environments that change their task."""

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from cleanrl_worker.envs import play, vectors
from cleanrl_worker.envs.episodes import spaces_of
from cleanrl_worker.envs.views import view_of

if TYPE_CHECKING:
    BabyAITaskWrapper: Any

Schedule = list[dict[str, Any]]
"""stages as accepted by `curriculum_schedule` (docs/curricula.md)"""

BABYAI_GOTO_CURRICULUM: Schedule = [
    {"env_id": "BabyAI-GoToRedBallNoDists-v0", "steps": 200_000},
    {"env_id": "BabyAI-GoToRedBall-v0", "steps": 200_000},
    {"env_id": "BabyAI-GoToObj-v0", "steps": 200_000},
    {"env_id": "BabyAI-GoToLocal-v0"},
]
# A solved room returns about 0.95, the maximum of 1 less the cost of its steps. A stage ends with a reliable policy,
# not after the first hundred good episodes: a half-random one finds no reward in the next room and forgets what it has
# learned, since only the entropy bonus is left to learn from.
BABYAI_DOORKEY_CURRICULUM: Schedule = [
    {"env_id": "MiniGrid-DoorKey-5x5-v0", "steps": 200_000, "condition": "steps>=60000 & episode_return>=0.95"},
    {"env_id": "MiniGrid-DoorKey-6x6-v0", "steps": 200_000, "condition": "steps>=40000 & episode_return>=0.95"},
    {"env_id": "MiniGrid-DoorKey-8x8-v0", "steps": 400_000, "condition": "steps>=100000 & episode_return>=0.95"},
    {"env_id": "MiniGrid-DoorKey-16x16-v0", "demotion": 0.3},
]


def make_curriculum_env(schedule: Schedule, render: bool = False) -> gym.Env[Any, Any]:
    """Return one environment for all stages of a schedule: `change_task(index)` takes effect at the next reset.

    It starts with the first stage. For Syllabus and for scripts; training with `curriculum_schedule` does not need it.
    """
    return TaskEnv([stage["env_id"] for stage in schedule], render)


class TaskEnv(gym.Env[Any, Any]):
    """Environments with the same spaces, one at a time; the previous one is closed when the next is made."""

    def __init__(self, env_ids: list[str], render: bool = False) -> None:
        self.env_ids, self._render, self.task = list(env_ids), render, 0
        self._env = self._make(0)
        self._made = 0
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self.metadata, self.render_mode = self._env.metadata, self._env.render_mode

    def change_task(self, task: int) -> None:
        """Switch to this task at the next reset."""
        if not 0 <= task < len(self.env_ids):
            raise ValueError(f"task {task}: there are {len(self.env_ids)}, 0 to {len(self.env_ids) - 1}")
        self.task = task

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._made != self.task:
            self._env.close()
            self._env, self._made = self._make(self.task), self.task
            if (self._env.observation_space, self._env.action_space) != (self.observation_space, self.action_space):
                raise ValueError(f"{self.env_ids[self.task]} has other spaces than {self.env_ids[0]}")
        return self._env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._env.step(action)

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _make(self, task: int) -> gym.Env[Any, Any]:
        env_id = self.env_ids[task]
        return vectors.EnvMaker(env_id, render=self._render, view=view_of(env_id, {}))()


def __getattr__(name: str) -> Any:
    """Create `BabyAITaskWrapper` lazily: only it imports Syllabus."""
    if name != "BabyAITaskWrapper":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _babyai_task_wrapper()
    return globals()[name]


def _babyai_task_wrapper() -> type[Any]:
    from cleanrl_worker.envs.automatic import import_syllabus

    syllabus = import_syllabus()
    base: Any = syllabus.core.ReinitTaskWrapper
    task_space = syllabus.task_space.DiscreteTaskSpace

    class BabyAITaskWrapper(base):
        """A Syllabus wrapper for levels of BabyAI and MiniGrid: a task is an index of `env_ids`, or one of them.

        Syllabus's own keeps the environments of all tasks open, and treats a seed as a task.
        """

        def __init__(self, env_ids: list[str], render: bool = False) -> None:
            self.tasks = TaskEnv(env_ids, render)
            super().__init__(self.tasks, lambda task: self.tasks, task_space(len(env_ids), list(env_ids)))

        def change_task(self, new_task: int | str) -> None:
            index = self.tasks.env_ids.index(new_task) if isinstance(new_task, str) else int(new_task)
            self.tasks.change_task(index)
            self.task = new_task

        def reset(self, new_task: int | str | None = None, **options: Any) -> tuple[Any, dict[str, Any]]:
            if new_task is not None:
                self.change_task(new_task)
            obs, info = self.env.reset(**options)
            return self.observation(obs), {**info, "task_completion": 0.0, "task": self.task}

    return BabyAITaskWrapper


def look(env_ids: list[str], backend: str, atari: bool) -> dict[str, str]:
    """Return the spaces of each environment as in training, or a `problem` as text."""
    found = {}
    for env_id in env_ids:
        try:
            game = play.make_game(env_id, atari=atari, backend=backend, view=view_of(env_id, {}))
        except (SystemExit, gym.error.Error, ImportError) as error:
            return {"problem": f"{env_id}: {' '.join(str(error).split())}"}
        found[env_id] = spaces_of(game)
        game.close()
    return found


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discard the environments' prints
    sys.path.append(sys.argv[2])
    out.write(json.dumps(look(**json.loads(sys.argv[1]))))
