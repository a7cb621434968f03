"""study: trials that a killed command left half begun, both pruners, storages that are shared."""

from pathlib import Path

import optuna
import pytest

from mosaic.commands.campaign.optuna_study import DEFAULTS, Spec, Study, default_storage
from mosaic.contract.errors import ConfigError
from mosaic.contract.sweeps import Dimension, Value

SPACE = (
    Dimension(name="rate", kind="float", low=1e-4, high=1e-1, log=True),
    Dimension(name="steps", kind="int", low=1, high=9),
    Dimension(name="size", kind="choice", choices=(32, 64)),
)


OUTSIDE: dict[str, Value] = {"rate": 0.01, "steps": 100, "size": 64}


def opened(home: Path, pruner: str = "none", defaults: dict[str, Value] = OUTSIDE) -> Study:
    study = Study("s", "", home)
    spec = study.spec()
    if spec is None:
        spec = Spec(
            algo="ppo", env_id="CartPole-v1", config={}, total_timesteps=10, seeds=(1,), metric="m", last=1,
            direction="maximize", reports=9, space=SPACE, trials=9,
        )  # fmt: skip
        study.start(spec, defaults)
    study.load(spec, sampler="tpe", pruner=pruner, startup=1, parallel=2)
    return study


def test_first_trial_has_the_defaults_that_lie_in_the_space(tmp_path: Path) -> None:
    number, params = opened(tmp_path).ask()
    assert (number, params["rate"], params["size"]) == (0, 0.01, 64)
    steps = params["steps"]
    assert isinstance(steps, int) and 1 <= steps <= 9


@pytest.mark.parametrize(("steps", "whole"), [(5, True), (100, False)])
def test_first_trial_is_only_called_the_defaults_where_the_space_has_them_all(
    tmp_path: Path, steps: int, whole: bool
) -> None:
    study = opened(tmp_path, defaults={"rate": 0.01, "steps": steps, "size": 64})
    study.ask()
    study.ask()
    assert [bool(trial.user_attrs.get(DEFAULTS)) for trial in study.frozen()] == [whole, False]


def test_trial_that_was_killed_while_it_chose_is_completed_and_keeps_what_it_had(tmp_path: Path) -> None:
    opened(tmp_path).ask()
    bare = optuna.load_study(study_name="s", storage=default_storage(tmp_path))
    bare.ask().suggest_float("rate", 1e-4, 1e-1, log=True)
    study = opened(tmp_path)
    assert study.running() == [0, 1]
    had = study.frozen()[1].params
    params = study.adopt(1)
    assert set(had) == {"rate"} and set(params) == {"rate", "steps", "size"} and params["rate"] == had["rate"]
    study.end(1, "complete", 5.0)
    assert opened(tmp_path).best() == 1


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_pruner_gives_up_trials_that_do_worse(tmp_path: Path, pruner: str) -> None:
    study = opened(tmp_path, pruner)
    pruned = 0
    for place in range(8):
        number, _ = study.ask()
        for report in range(1, 9):
            if study.report(number, float(-place * report), report):
                study.end(number, "pruned", reason="worse")
                pruned += 1
                break
        else:
            study.end(number, "complete", float(-place))
    assert 1 <= pruned < 8 and study.best() == 0


def test_study_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    optuna.create_study(study_name="theirs", storage=default_storage(tmp_path))
    with pytest.raises(ConfigError, match="not made by mosaic sweep"):
        Study("theirs", "", tmp_path).spec()
