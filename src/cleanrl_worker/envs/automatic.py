"""Syllabus as the task chooser of automatic curricula; imported only by runs that have one."""

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cleanrl_worker.envs import episodes

MISSING = "Syllabus is not installed: pip install 'mosaic-rl[curriculum]'"


def install() -> None:
    """Install Syllabus as the task chooser of this process's runs."""
    episodes.choosers = lambda plan: SyllabusChooser(plan.method, len(plan.tasks), plan.success_return)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress Syllabus's own prints and warnings, which do not belong in a run's output."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def import_syllabus() -> Any:
    """Return the package; remove the unused shared memory that its import leaves in /dev/shm."""
    try:
        with quiet():
            import syllabus.core
            import syllabus.curricula
            import syllabus.task_space
            from syllabus.core.evaluator import GymnasiumEvaluationWrapper
    except ImportError:
        raise ImportError(MISSING) from None
    count = GymnasiumEvaluationWrapper.__dict__.get("env_count")
    if count is not None:
        with contextlib.suppress(FileNotFoundError):  # removed by an earlier call
            count.shm.unlink()
    return syllabus


class SyllabusChooser:
    """A task chooser: prioritised level replay, learning progress or domain randomisation.

    Syllabus cannot save its state: the arrays that its decisions depend on are read and restored here.
    """

    def __init__(self, method: str, count: int, success_return: float | None) -> None:
        syllabus = import_syllabus()
        self.method, self._count, self._success = method, count, success_return
        space, curricula = syllabus.task_space.DiscreteTaskSpace(count), syllabus.curricula
        with quiet():
            if method == "plr":
                # once all tasks were seen, `fixed` always replays; `proportionate` needs an evaluator
                options = {"strategy": "value_l1", "replay_schedule": "fixed"}
                self._curriculum = curricula.DirectPrioritizedLevelReplay(
                    space, task_sampler_kwargs_dict=options, num_steps=1, num_processes=1
                )
            elif method == "lp":
                # `save_last`: a task not played since the last update keeps its success rate instead of 0
                self._curriculum = curricula.OnlineLearningProgress(space, update_interval=2**62, save_last=True)
            else:
                self._curriculum = curricula.DomainRandomization(space)
        self._best = np.full(count, -np.inf)
        """the highest return of each task"""

    def sample(self) -> int:
        if self.method != "plr":  # Syllabus's own draw compares an array with a list, which numpy 2 refuses
            return int(np.random.choice(self._count, p=self.probabilities()))
        with quiet():
            return int(self._curriculum.sample(1)[0])

    def tell(self, task: int, returns: Sequence[float]) -> None:
        if not returns:
            return
        with quiet():
            if self.method == "plr":
                # regret, estimated without values: the distance to the policy's best (MaxMC, arXiv:2110.02439)
                self._best[task] = max(self._best[task], *returns)
                score = float(self._best[task] - np.mean(returns))
                self._curriculum._task_sampler.update_task_score(0, task, score, score, 1)
            elif self.method == "lp":
                for value in returns:
                    solved = value > 0 if self._success is None else value >= self._success
                    self._curriculum.update_task_progress(task, float(solved))
                self._curriculum.eval_and_update()

    def probabilities(self) -> list[float]:
        """Return the tasks' probabilities for the next choice."""
        if self.method == "plr":
            unseen = self._curriculum._task_sampler.unseen_task_weights
            if unseen.any():  # unseen tasks come first
                return [float(chance) for chance in unseen / unseen.sum()]
        with quiet():
            return [float(chance) for chance in self._curriculum._sample_distribution()]

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best} | {name: getattr(self._holder(), name) for name in self._names()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best = np.array(state["best"])
        for name in self._names():
            value = state[name]
            setattr(self._holder(), name, np.array(value) if isinstance(value, np.ndarray) else value)
        if self.method == "lp":
            self._curriculum._stale_dist = True

    def _holder(self) -> Any:
        return self._curriculum._task_sampler if self.method == "plr" else self._curriculum

    def _names(self) -> tuple[str, ...]:
        if self.method == "plr":
            return ("unseen_task_weights", "task_scores", "task_staleness", "running_sample_count")
        rates = ("current_task_success_rates", "current_task_counts", "random_baseline", "task_rates")
        return (*rates, "_p_fast", "_p_slow", "_p_true") if self.method == "lp" else ()
