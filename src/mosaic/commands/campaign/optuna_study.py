"""The Optuna study behind a sweep: its specification, its trials, the next parameters. Optuna is imported here."""

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
# Another command may be writing its own study to the same file.
BUSY_SECONDS = 60


class Spec(BaseModel):
    """The specification of a sweep, stored in the study by its first command."""

    model_config = ConfigDict(frozen=True)

    algo: str
    env_id: str
    config: dict[str, Any]
    """the flat worker config, without a seed and without the varied parameters"""
    total_timesteps: int
    seeds: tuple[int, ...]
    metric: str
    last: int
    direction: str
    reports: int
    space: tuple[Dimension, ...]
    trials: int
    resources: dict[str, Any] = {}
    """the resources and executor of each run, as in a payload"""
    max_seconds: float | None = None

    def config_of(self, params: Mapping[str, Value], seed: int) -> dict[str, Any]:
        """Return the flat worker config of a trial's run."""
        extras = dict(self.config.get("extras") or {})
        own = {name.removeprefix("extras."): value for name, value in params.items() if name.startswith("extras.")}
        varied = {name: value for name, value in params.items() if not name.startswith("extras.")}
        extras = {**extras, **own, "algo_params": {**(extras.get("algo_params") or {}), **varied}}
        return {**self.config, "seed": seed, "extras": extras}


class Study:
    """The study of one name. Not for concurrent commands: the sweep's ledger locks it."""

    def __init__(self, name: str, storage: str, home: Path) -> None:
        self._optuna = load_optuna()
        self._name = name
        self._storage = self._open(storage or default_storage(home))
        self._study: Any = None
        self._trials: dict[int, Any] = {}

    def _open(self, url: str) -> Any:
        """Open the storage at a URL; raise a one-line StorageError instead of Optuna's traceback."""
        optuna = self._optuna
        options = {"connect_args": {"timeout": BUSY_SECONDS}} if url.startswith("sqlite") else None
        import sqlalchemy.exc

        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=options)
        except (sqlalchemy.exc.SQLAlchemyError, ImportError, ValueError, RuntimeError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise StorageError(f"--storage {_without_password(url)} cannot be opened: {reason}") from None

    def spec(self) -> Spec | None:
        """Return the specification that the sweep was started with; None if no such study exists."""
        try:
            study = self._optuna.load_study(study_name=self._name, storage=self._storage)
        except KeyError:
            return None
        if ATTRIBUTE not in study.user_attrs:
            raise ConfigError(f"study {self._name!r} in this storage was not made by mosaic sweep; take another --name")
        return Spec.model_validate(study.user_attrs[ATTRIBUTE])

    def delete(self) -> bool:
        """Delete the study; return False if none existed."""
        try:
            self._optuna.delete_study(study_name=self._name, storage=self._storage)
        except KeyError:
            return False
        return True

    def start(self, spec: Spec, defaults: Mapping[str, Value]) -> None:
        """Create the study; its first trial uses the algorithm's defaults where the space includes them."""
        study = self._optuna.create_study(study_name=self._name, storage=self._storage, direction=spec.direction)
        self.save(spec, study)
        fitting = {one.name: defaults[one.name] for one in spec.space if _holds(one, defaults.get(one.name))}
        if fitting:
            study.enqueue_trial(fitting, user_attrs={DEFAULTS: len(fitting) == len(spec.space)})

    def save(self, spec: Spec, study: Any = None) -> None:
        study = study or self._optuna.load_study(study_name=self._name, storage=self._storage)
        study.set_user_attr(ATTRIBUTE, spec.model_dump(mode="json"))

    def load(self, spec: Spec, *, sampler: str, pruner: str, startup: int, parallel: int) -> None:
        """Load the study to continue it with this command's sampler and pruner."""
        optuna = self._optuna
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            tpe = optuna.samplers.TPESampler(constant_liar=parallel > 1)
        samplers = {"tpe": tpe, "random": optuna.samplers.RandomSampler()}
        pruners = {
            # The first episodes depend more on the initial weights than on the parameters.
            "median": optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=spec.reports // 5),
            "hyperband": optuna.pruners.HyperbandPruner(min_resource=1, max_resource=spec.reports),
            "none": optuna.pruners.NopPruner(),
        }
        self._study = optuna.load_study(
            study_name=self._name, storage=self._storage, sampler=samplers[sampler], pruner=pruners[pruner]
        )
        self._spec = spec

    def frozen(self) -> list[Any]:
        """Return all trials that have begun, by number."""
        waiting = self._optuna.trial.TrialState.WAITING
        return [trial for trial in self._study.get_trials(deepcopy=False) if trial.state != waiting]

    def running(self) -> list[int]:
        """Return the trials that have begun and not ended, of this command or an earlier one."""
        state = self._optuna.trial.TrialState.RUNNING
        return [trial.number for trial in self.frozen() if trial.state == state]

    def ask(self) -> tuple[int, dict[str, Value]]:
        """Begin the next trial; return its number and parameters."""
        trial = self._study.ask()
        self._trials[trial.number] = trial
        return trial.number, self._suggested(trial)

    def adopt(self, number: int) -> dict[str, Value]:
        """Adopt a trial; parameters that a killed command had not yet sampled are sampled now."""
        frozen = next(trial for trial in self.frozen() if trial.number == number)
        # Optuna's own way to continue a trial; a trial's id has no public name.
        trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
        self._trials[number] = trial
        return self._suggested(trial)

    def reported(self, number: int) -> set[int]:
        """Return the numbers of the reports that the storage has for a trial."""
        frozen = next(trial for trial in self.frozen() if trial.number == number)
        return set(frozen.intermediate_values)

    def report(self, number: int, value: float, report: int) -> bool:
        """Report a trial's intermediate value; return True if the trial should be pruned."""
        trial = self._trials[number]
        trial.report(value, report)
        return bool(trial.should_prune())

    def end(self, number: int, state: TrialState, value: float | None = None, reason: str = "") -> None:
        """Report a trial's final state."""
        states = self._optuna.trial.TrialState
        kind = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[state]
        if reason:
            self._trials[number].set_user_attr(REASON, reason[:500])
        self._study.tell(number, value if state == "complete" else None, state=kind)

    def best(self) -> int | None:
        """Return the number of the best completed trial."""
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
    """Import Optuna with warnings only; raise ConfigError naming the package to install."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("mosaic sweep needs Optuna; run: pip install 'mosaic-rl[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def default_storage(home: Path) -> str:
    """Return the URL of one SQLite file for all sweeps of a home; Optuna's own tools can read it."""
    folder = sweeps_folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'optuna.db'}"


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean over seeds; None if a seed has no finite value."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _holds(dimension: Dimension, value: Value) -> bool:
    if dimension.kind == "choice":
        return value in dimension.choices
    return isinstance(value, int | float) and not isinstance(value, bool) and dimension.low <= value <= dimension.high


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if "@" in rest else url
