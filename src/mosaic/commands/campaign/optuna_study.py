"""The Optuna study behind a sweep: what was asked for, which trials there are, what to try next. Optuna loads here."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from mosaic.contract.errors import ConfigError, StorageError
from mosaic.contract.sweeps import Dimension, TrialState, Value, sweeps_folder

ATTRIBUTE, REASON, DEFAULTS = "mosaic", "reason", "defaults"
# Another command may be writing its own study into the same file.
BUSY_SECONDS = 60


class Spec(BaseModel):
    """What a sweep is, from its first command on; kept in the study."""

    model_config = ConfigDict(frozen=True)

    algo: str
    env_id: str
    config: dict[str, Any]
    """the flat worker config, without a seed and without what varies"""
    total_timesteps: int
    seeds: tuple[int, ...]
    metric: str
    last: int
    direction: str
    reports: int
    space: tuple[Dimension, ...]
    trials: int
    resources: dict[str, Any] = {}
    """what each run claims and where it runs, as a payload says it"""
    max_seconds: float | None = None

    def config_of(self, params: Mapping[str, Value], seed: int) -> dict[str, Any]:
        """The flat worker config of a trial's run."""
        extras = dict(self.config.get("extras") or {})
        own = {name.removeprefix("extras."): value for name, value in params.items() if name.startswith("extras.")}
        varied = {name: value for name, value in params.items() if not name.startswith("extras.")}
        extras = {**extras, **own, "algo_params": {**(extras.get("algo_params") or {}), **varied}}
        return {**self.config, "seed": seed, "extras": extras}


class Study:
    """A study of one name. One command at a time: the sweep's ledger sees to that."""

    def __init__(self, name: str, storage: str, home: Path) -> None:
        self._optuna = load_optuna()
        self._name = name
        self._storage = self._open(storage or default_storage(home))
        self._study: Any = None
        self._trials: dict[int, Any] = {}

    def _open(self, url: str) -> Any:
        """The storage at a URL; a line instead of Optuna's trace where it cannot be opened."""
        optuna = self._optuna
        options = {"connect_args": {"timeout": BUSY_SECONDS}} if url.startswith("sqlite") else None
        import sqlalchemy.exc

        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=options)
        except (sqlalchemy.exc.SQLAlchemyError, ImportError, ValueError, RuntimeError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise StorageError(f"--storage {_without_password(url)} cannot be opened: {reason}") from None

    def spec(self) -> Spec | None:
        """What the sweep of this name was started with; None where there is none yet."""
        try:
            study = self._optuna.load_study(study_name=self._name, storage=self._storage)
        except KeyError:
            return None
        if ATTRIBUTE not in study.user_attrs:
            raise ConfigError(f"study {self._name!r} in this storage was not made by mosaic sweep; take another --name")
        return Spec.model_validate(study.user_attrs[ATTRIBUTE])

    def delete(self) -> bool:
        """Forget the study; whether there was one."""
        try:
            self._optuna.delete_study(study_name=self._name, storage=self._storage)
        except KeyError:
            return False
        return True

    def start(self, spec: Spec, defaults: Mapping[str, Value]) -> None:
        """Make the study; its first trial is what the algorithm does by itself, as far as the space has it."""
        study = self._optuna.create_study(study_name=self._name, storage=self._storage, direction=spec.direction)
        self.save(spec, study)
        fitting = {one.name: defaults[one.name] for one in spec.space if _holds(one, defaults.get(one.name))}
        if fitting:
            study.enqueue_trial(fitting, user_attrs={DEFAULTS: len(fitting) == len(spec.space)})

    def save(self, spec: Spec, study: Any = None) -> None:
        study = study or self._optuna.load_study(study_name=self._name, storage=self._storage)
        study.set_user_attr(ATTRIBUTE, spec.model_dump(mode="json"))

    def load(self, spec: Spec, *, sampler: str, pruner: str, startup: int, parallel: int) -> None:
        """Make it ready to go on, with the sampler and pruner of this command."""
        optuna = self._optuna
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            tpe = optuna.samplers.TPESampler(constant_liar=parallel > 1)
        samplers = {"tpe": tpe, "random": optuna.samplers.RandomSampler()}
        pruners = {
            # The first episodes tell more of the start than of the parameters.
            "median": optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=spec.reports // 5),
            "hyperband": optuna.pruners.HyperbandPruner(min_resource=1, max_resource=spec.reports),
            "none": optuna.pruners.NopPruner(),
        }
        self._study = optuna.load_study(
            study_name=self._name, storage=self._storage, sampler=samplers[sampler], pruner=pruners[pruner]
        )
        self._spec = spec

    def frozen(self) -> list[Any]:
        """All trials that have begun, by number."""
        waiting = self._optuna.trial.TrialState.WAITING
        return [trial for trial in self._study.get_trials(deepcopy=False) if trial.state != waiting]

    def running(self) -> list[int]:
        """The trials that were begun and not ended, by this command or one before it."""
        state = self._optuna.trial.TrialState.RUNNING
        return [trial.number for trial in self.frozen() if trial.state == state]

    def ask(self) -> tuple[int, dict[str, Value]]:
        """Begin the next trial."""
        trial = self._study.ask()
        self._trials[trial.number] = trial
        return trial.number, self._suggested(trial)

    def adopt(self, number: int) -> dict[str, Value]:
        """Take over a trial; parameters that a killed command had not chosen yet are chosen now."""
        frozen = next(trial for trial in self.frozen() if trial.number == number)
        # Optuna's own way to a trial that goes on; it has no public name for a trial's id.
        trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
        self._trials[number] = trial
        return self._suggested(trial)

    def reported(self, number: int) -> set[int]:
        """The reports that the storage has of a trial."""
        frozen = next(trial for trial in self.frozen() if trial.number == number)
        return set(frozen.intermediate_values)

    def report(self, number: int, value: float, report: int) -> bool:
        """Tell how a trial does; whether it should be given up."""
        trial = self._trials[number]
        trial.report(value, report)
        return bool(trial.should_prune())

    def end(self, number: int, state: TrialState, value: float | None = None, reason: str = "") -> None:
        """Tell how a trial ended."""
        states = self._optuna.trial.TrialState
        kind = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[state]
        if reason:
            self._trials[number].set_user_attr(REASON, reason[:500])
        self._study.tell(number, value if state == "complete" else None, state=kind)

    def best(self) -> int | None:
        """The number of the best completed trial."""
        try:
            return int(self._study.best_trial.number)
        except ValueError:
            return None

    def state_of(self, frozen: Any) -> TrialState:
        names: dict[str, TrialState] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        return names.get(frozen.state.name, "running")

    def _suggested(self, trial: Any) -> dict[str, Value]:
        params: dict[str, Value] = {}
        for one in self._spec.space:
            if one.kind == "choice":
                params[one.name] = trial.suggest_categorical(one.name, list(one.choices))
            elif one.kind == "int":
                step = int(one.step or 1)
                params[one.name] = trial.suggest_int(one.name, int(one.low), int(one.high), step=step, log=one.log)
            else:
                params[one.name] = trial.suggest_float(one.name, one.low, one.high, step=one.step, log=one.log)
        return params


def load_optuna() -> Any:
    """Optuna, quiet; ConfigError names what to install."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("mosaic sweep needs Optuna; run: pip install 'mosaic-rl[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def default_storage(home: Path) -> str:
    """One SQLite file for all sweeps of a home, which Optuna's own tools read, too."""
    folder = sweeps_folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'optuna.db'}"


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean over seeds; None where one has nothing to say."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _holds(dimension: Dimension, value: Value) -> bool:
    if dimension.kind == "choice":
        return value in dimension.choices
    return isinstance(value, int | float) and not isinstance(value, bool) and dimension.low <= value <= dimension.high


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if "@" in rest else url
