"""The trials of a sweep, driven to their end: submitted, watched, pruned, scored; trials in flight are adopted."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mosaic import stats
from mosaic.commands.campaign.benchmark import list_group
from mosaic.commands.campaign.optuna_study import DEFAULTS, REASON, Spec, Study, mean_of
from mosaic.commands.campaign.planned_runs import Ledger
from mosaic.commands.connection import Steady
from mosaic.commands.run.settings import payload_of
from mosaic.console import short
from mosaic.contract.errors import ConfigError, MoveError, RefusedError, UnknownRunError
from mosaic.contract.groups import SWEEP, group_of, parse_group
from mosaic.contract.job import show_resources
from mosaic.contract.returns import EPISODE_RETURNS, MEAN_RETURN, RECENT_EPISODES
from mosaic.contract.sweeps import Summary, Trial, TrialState, Value, write_summary

if TYPE_CHECKING:
    from mosaic.trainer.rpc.client import Client
    from mosaic.trainer.run import Run, Series

POLL_SECONDS = 0.5
# A pruned run need not reach its next checkpoint.
PRUNE_GRACE = 5.0
# This many failures in a row before any success have a common cause.
MOST_FAILURES = 3


@dataclass
class Active:
    """A trial in flight."""

    number: int
    params: dict[str, Value]
    runs: list[str] = field(default_factory=list)
    reported: set[int] = field(default_factory=set)


class Trials:
    """The work of one command on a sweep; `tell` receives a line whenever a trial begins or ends."""

    def __init__(
        self,
        name: str,
        spec: Spec,
        args: argparse.Namespace,
        study: Study,
        ledger: Ledger,
        daemon: Steady,
        home: Path,
        tell: Callable[[str], None],
    ) -> None:
        self.name, self.spec, self.args = name, spec, args
        self.study, self.ledger, self.daemon, self.home, self.tell = study, ledger, daemon, home, tell
        self.group = group_of(SWEEP, name)
        self.active: dict[int, Active] = {}
        self.runs: dict[str, Run] = {}
        self._failures = 0
        self._worked = False

    def drive(self, parallel: int) -> Iterator[None]:
        """Continue until enough trials have ended; yield between two polls, so that the caller can show progress."""
        self.look()
        self._know_runs()
        self._worked = any(self.study.state_of(frozen) in ("complete", "pruned") for frozen in self.study.frozen())
        for number in self.study.running():
            self._begin(number, self.study.adopt(number), taken_over=True)
        self.write()
        while True:
            begun = len(self.study.frozen())
            while len(self.active) < parallel and begun < self.spec.trials and not self._hopeless():
                self._begin(*self.study.ask())
                begun += 1
            self.look()
            for trial in list(self.active.values()):
                self._step(trial)
            self._end_strays()
            if not self.active and (begun >= self.spec.trials or self._hopeless()):
                break
            yield
            time.sleep(POLL_SECONDS)
        while any(not run.ended for run in self.runs.values()):  # pruned runs need a moment
            self._end_strays()
            yield
            time.sleep(POLL_SECONDS)
            self.look()
        self.write()
        if self._hopeless():
            raise ConfigError(f"the first {self._failures} trials failed, so none more is begun; see why: {self.why()}")

    def look(self) -> None:
        """Fetch every run of the sweep from the registry."""
        self.runs = {run.run_id: run for run in list_group(self.daemon, self.group)}

    def why(self) -> str:
        """Return the command that lists the failed runs."""
        return f"mosaic runs --group {self.group} --state ended"

    # A trial

    def _begin(self, number: int, params: dict[str, Value], *, taken_over: bool = False) -> None:
        trial = Active(number, params, reported=self.study.reported(number))
        self.active[number] = trial
        self.tell(f"trial {number} {'is taken over' if taken_over else 'begins'}: {show_params(params)}")
        for seed in self.spec.seeds:
            key = _key(number, seed)
            made = self._payload(trial, seed)
            try:
                run = self.daemon.call(
                    lambda client, key=key, made=made: self.ledger.submit(client, key, made, self.args.priority)  # type: ignore[misc]
                )
            except RefusedError as error:
                self._end(trial, "failed", reason=str(error))
                return
            trial.runs.append(run.run_id)
        self.write()

    def _payload(self, trial: Active, seed: int) -> dict[str, Any]:
        told = {"name": f"{self.name} trial {trial.number}", "max_seconds": self.spec.max_seconds}
        args = argparse.Namespace(**{**vars(self.args), **told})
        payload = payload_of(self.spec.config_of(trial.params, seed), args)
        # As in the sweep's specification, or its later changes: a command that continues it does not repeat them.
        payload |= {"resources": self.spec.resources} if self.spec.resources else {}
        payload["metadata"]["ui"] = {"group": group_of(SWEEP, self.name, f"trial {trial.number}")}
        return payload

    def _step(self, trial: Active) -> None:
        """Check the runs of a trial, and report, prune, score or fail it."""
        runs = [self.runs[run_id] for run_id in trial.runs if run_id in self.runs]
        if len(runs) < len(trial.runs):
            self._end(trial, "failed", reason="a run of it was deleted")
            return
        broken = next((run for run in runs if str(run.state) in ("FAILED", "CANCELLED", "BROKEN")), None)
        if broken is not None:
            reason = f"run {broken.run_id} (seed {broken.seed}) is {broken.state}: {broken.reason}"
            self._end(trial, "failed", reason=reason)
            return
        ended = all(run.ended for run in runs)
        due = [
            number for number in range(1, self.spec.reports) if number not in trial.reported and self._has(runs, number)
        ]
        if due or ended:
            curves = [self._curve(run.run_id) for run in runs]
            for number in due:
                if self._report(trial, curves, number) and not ended:
                    self._end(trial, "pruned", reason=f"at {number / self.spec.reports:.0%} of its steps")
                    return
            if ended:
                self._score(trial, curves)

    def _has(self, runs: Sequence[Run], report: int) -> bool:
        steps = self.spec.total_timesteps * report / self.spec.reports
        return all(run.ended or run.step >= steps for run in runs)

    def _report(self, trial: Active, curves: Sequence[Series | None], report: int) -> bool:
        """Report the trial's value so far to the study; return True if the trial should be pruned."""
        trial.reported.add(report)
        upto = self.spec.total_timesteps * report / self.spec.reports
        value = mean_of([self._value(curve, upto) for curve in curves])
        return value is not None and self.study.report(trial.number, value, report)

    def _score(self, trial: Active, curves: Sequence[Series | None]) -> None:
        value = mean_of([self._value(curve) for curve in curves])
        if value is None:
            self._end(trial, "failed", reason=f"not every seed has a value of {self.spec.metric}; does a run log it?")
        else:
            self._end(trial, "complete", value)

    def _curve(self, run_id: str) -> Series | None:
        """Return the score of a run; one that logs no mean return is scored by its episodes."""
        metric = self.spec.metric
        keys = [metric, EPISODE_RETURNS[0]] if metric == MEAN_RETURN else [metric]
        found = self.daemon.call(lambda client: client.get_metrics(run_id, keys))
        return min(found, key=lambda one: one.key != metric, default=None)

    def _value(self, curve: Series | None, upto: float | None = None) -> float | None:
        """Return the mean of the last points; with `upto`, of those up to that step."""
        if curve is None:
            return None
        values = curve.values if upto is None else curve.values[curve.steps <= upto]
        last = self.spec.last if curve.key == self.spec.metric else RECENT_EPISODES
        values = values[np.isfinite(values)][-last:]
        return float(values.mean()) if len(values) else None

    def _end(self, trial: Active, state: TrialState, value: float | None = None, reason: str = "") -> None:
        """End the study's trial, then its runs: if the command is killed in between, the next one ends the runs."""
        self.study.end(trial.number, state, value, reason)
        del self.active[trial.number]
        self._worked = self._worked or state != "failed"
        self._failures = self._failures + 1 if state == "failed" else 0
        self.tell(f"trial {trial.number} is {state}" + (f": {short(value)}" if value is not None else f" ({reason})"))
        self._end_strays()
        self.write()

    def _end_strays(self) -> None:
        """End the live runs of trials that have ended."""
        wanted = {run_id for trial in self.active.values() for run_id in trial.runs}
        numbers = set(self.active)
        for run in list(self.runs.values()):
            named = parse_group(run.group)
            of_active = named is not None and any(named.part == f"trial {number}" for number in numbers)
            if not run.ended and run.run_id not in wanted and not of_active and run.asked != "cancel":
                self._cancel(run.run_id)

    def _cancel(self, run_id: str) -> None:
        def ask(client: Client) -> None:
            with contextlib.suppress(MoveError, UnknownRunError):  # it has ended, or is gone
                client.cancel_run(run_id, PRUNE_GRACE)

        self.daemon.call(ask)

    def _hopeless(self) -> bool:
        return not self._worked and self._failures >= MOST_FAILURES

    def _know_runs(self) -> None:
        """Restore the ledger from the registry, in case its file was deleted."""
        for run in self.runs.values():
            named = parse_group(run.group)
            found = re.fullmatch(r"trial (\d+)", named.part) if named else None
            if found and run.seed is not None:
                self.ledger.know(_key(int(found[1]), run.seed), run.run_id)

    # Summary

    def write(self) -> None:
        """Update the file that pages read."""
        write_summary(self.home, self.summary())

    def summary(self) -> Summary:
        """Return the current state of the sweep."""
        begun = self.study.frozen()
        trials = [self._trial(frozen) for frozen in begun]
        defaults = next((frozen.number for frozen in begun if frozen.user_attrs.get(DEFAULTS)), None)
        best, spec = self.study.best(), self.spec
        found = next((trial for trial in trials if trial.number == best), None)
        complete = [trial for trial in trials if trial.state == "complete"]
        columns = {one.name: [trial.params.get(one.name) for trial in complete] for one in spec.space}
        importance = stats.importance(columns, [trial.value or 0.0 for trial in complete]) if complete else {}
        return Summary(
            name=self.name, algo=spec.algo, env_id=spec.env_id, metric=spec.metric, last=spec.last,
            direction="minimize" if spec.direction == "minimize" else "maximize", seeds=spec.seeds,
            total_timesteps=spec.total_timesteps, wanted=spec.trials, space=spec.space, trials=tuple(trials),
            importance=importance, best=best, defaults=defaults,
            command=train_line(spec, found.params) if found else "",
        )  # fmt: skip

    def _trial(self, frozen: Any) -> Trial:
        state = self.study.state_of(frozen)
        value = frozen.value
        if state == "pruned" and frozen.intermediate_values:
            value = frozen.intermediate_values[max(frozen.intermediate_values)]
        runs = [run_id for seed in self.spec.seeds if (run_id := self.ledger.known(_key(frozen.number, seed)))]
        reason = str(frozen.user_attrs.get(REASON, ""))
        return Trial(
            number=frozen.number, state=state, params=dict(frozen.params), value=value, runs=tuple(runs), reason=reason
        )


def train_line(spec: Spec, params: Mapping[str, Value]) -> str:
    """Return the command that trains with these parameters, on the sweep's executor."""
    extras = dict(spec.config.get("extras") or {})
    settings = {"total_timesteps": spec.total_timesteps, **(extras.pop("algo_params", None) or {})}
    settings |= {f"extras.{name}": value for name, value in extras.items()} | dict(params)
    words = ["mosaic", "train", spec.algo, spec.env_id]
    for name, value in settings.items():
        words += ["--set", f"{name}={_json(value)}"]
    words += ["--seeds", ",".join(map(str, spec.seeds))]
    if executor := spec.resources.get("executor"):
        words += ["--executor", executor]
    for line in show_resources(spec.resources):
        words += ["--resource", line]
    return shlex.join(words)


def _key(number: int, seed: int) -> str:
    return f"trial {number} seed {seed}"


def show_params(params: Mapping[str, Value]) -> str:
    """Return a trial's parameters as one readable line."""
    values = {name: short(value) if isinstance(value, float) else str(value) for name, value in params.items()}
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
