"""A shell's outputs of an evaluation: episodes and batches as events, and the final outcome."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cleanrl_worker.telemetry.emitter import LENGTH, RETURN, SPS, Emit, MetricsRelay, RunProgress
from mosaic.contract.returns import EPISODE_RETURNS

if TYPE_CHECKING:
    from cleanrl_worker.config.config import CleanRLWorkerConfig
    from mosaic.contract.paths import RunPaths

EPISODE = EPISODE_RETURNS[1]
BATCH = "eval/avg_return"
# A heartbeat costs about 15 ms, and batches of a fast environment may end every millisecond.
BEATS_PER_POLL = 4


def make_relay(
    config: CleanRLWorkerConfig,
    paths: RunPaths,
    emit: Emit,
    beat: Callable[[], None],
    tensorboard: Path | None,
    first_step: int = 0,
    *,
    whole: bool = True,
) -> MetricsRelay:
    """Return the relay for the config's mode; `beat` is called after each batch of an evaluation."""
    events = config.extras.get("telemetry") != "off" and not config.extras.get("fastlane_only")
    if config.mode == "policy_eval":
        return EvaluationRelay(paths, emit, beat, events=events)
    return MetricsRelay(paths, emit, events=events, tensorboard=tensorboard, first_step=first_step, whole=whole)


class EvaluationProgress(RunProgress):
    """The headline numbers of an evaluation: its `step` counts episodes, its return is the latest batch's."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0
        self._sum = 0.0
        self._worst: dict[str, Any] | None = None
        self._best: dict[str, Any] | None = None

    def take_episode(self, row: dict[str, Any]) -> None:
        """Update the numbers from one episode's row."""
        value = row[EPISODE]
        self.take({"step": row["step"], RETURN: value, LENGTH: row["eval/episode_length"]})
        self._steps += row["eval/episode_length"]
        self._sum += value
        episode = {"episode": row["step"], "seed": row["eval/episode_seed"], "return": value}
        if self._worst is None or value < self._worst["return"]:
            self._worst = episode
        if self._best is None or value > self._best["return"]:
            self._best = episode

    def take_batch(self, row: dict[str, Any]) -> dict[str, Any]:
        """Update the numbers from one batch's row; return its values by their plain names."""
        self.reported_sps = row.get(SPS, self.reported_sps)
        batch = {tag.removeprefix("eval/"): value for tag, value in row.items() if tag.startswith("eval/")}
        self.returns.add_mean(batch["avg_return"], batch["episodes"])
        return batch

    def outcome(self) -> dict[str, Any]:
        """Return the outcome over all episodes; the worst and the best can be replayed from their seeds."""
        episodes = self.returns.episodes
        mean = self._sum / episodes if episodes else None
        return {"mean_return": mean, "episodes": episodes, "worst": self._worst, "best": self._best}

    def summary(self, seconds: float) -> dict[str, Any]:
        return {**super().summary(seconds), "steps": self._steps, "evaluation": self.outcome()}


class EvaluationRelay(MetricsRelay):
    """A follower of an evaluation's rows; its process writes TensorBoard itself, per episode and per batch."""

    progress: EvaluationProgress

    def __init__(self, paths: RunPaths, emit: Emit, beat: Callable[[], None], *, events: bool) -> None:
        super().__init__(paths, emit, events=events, tensorboard=None)
        self.progress = EvaluationProgress()
        self._beat = beat
        self._batches = 0

    def poll(self) -> None:
        self._batches = 0
        super().poll()
        if self._batches > BEATS_PER_POLL:
            self._beat()

    def closing(self) -> dict[str, Any]:
        return self.progress.outcome()

    def _pass_on(self, row: dict[str, Any]) -> None:
        if EPISODE in row:
            self.progress.take_episode(row)
            if self._events:
                payload = {
                    "step": row["step"],
                    "return": row[EPISODE],
                    "length": row["eval/episode_length"],
                    "discounted_return": row["eval/discounted_return"],
                    "seed": row["eval/episode_seed"],
                }
                self._emit("episode", payload)
        elif BATCH in row:
            self._emit("eval_batch", {"step": row["step"], **self.progress.take_batch(row)})
            self._batches += 1
            if self._batches <= BEATS_PER_POLL:
                self._beat()
