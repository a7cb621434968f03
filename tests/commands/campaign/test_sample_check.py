"""survey: which trials a sweep's dry run asks for, and what it makes of the answers."""

import pytest

from mosaic.commands.campaign.sample_check import MOST_ASKED, judge, trials_across
from mosaic.contract.errors import ConfigError
from mosaic.contract.sweeps import Dimension

ENVS = Dimension(name="num_envs", kind="choice", choices=(2, 4, 8))
PIECES = Dimension(name="num_minibatches", kind="choice", choices=(4, 8, 16))
RATE = Dimension(name="learning_rate", kind="float", low=1e-5, high=1e-2, log=True)
STEPS = Dimension(name="num_steps", kind="int", low=16, high=512)
SMOOTH = Dimension(name="norm_adv", kind="choice", choices=(True, False))


def test_small_space_is_asked_whole_whatever_the_order() -> None:
    trials, whole = trials_across([ENVS, PIECES])
    assert whole and len(trials) == 9
    turned = PIECES.model_copy(update={"choices": PIECES.choices[::-1]})
    again, whole = trials_across([turned, ENVS])
    assert whole and all(params in trials for params in again) and len(again) == 9


def test_large_space_is_asked_at_its_corners_and_between_them_alike_each_time() -> None:
    space = [RATE, STEPS]
    trials, whole = trials_across(space)
    assert not whole and len(trials) == MOST_ASKED and trials_across(space) == (trials, False)
    pairs = [(params["learning_rate"], params["num_steps"]) for params in trials]
    assert {(1e-5, 16), (1e-5, 512), (1e-2, 16), (1e-2, 512)} <= set(pairs)
    rates, steps = map(set, zip(*pairs, strict=True))
    assert len(rates) == len(steps) == MOST_ASKED - 2  # the corners share their two ends, others share nothing
    rising = list(zip(sorted(rates), sorted(steps), strict=True))
    assert sorted(pairs)[2:-2] != rising[1:-1]  # nor do they rise together


def test_no_trial_is_asked_twice_and_every_choice_is_asked() -> None:
    trials, whole = trials_across([SMOOTH, ENVS, PIECES])
    assert not whole and len({str(params) for params in trials}) == len(trials) <= MOST_ASKED
    for one in (SMOOTH, ENVS, PIECES):
        assert {params[one.name] for params in trials} == set(one.choices)


@pytest.mark.parametrize("count", [0, 1, 30])
def test_number_of_parameters_does_not_change_how_many_are_asked(count: int) -> None:
    trials, whole = trials_across([RATE.model_copy(update={"name": f"rate{number}"}) for number in range(count)])
    assert (trials, whole) == ([{}], True) if not count else not whole and 2 <= len(trials) <= MOST_ASKED


def test_a_single_parameter_is_asked_at_as_many_places_as_several() -> None:
    assert len(trials_across([RATE])[0]) == MOST_ASKED


def test_some_refusals_are_counted_and_the_first_is_shown() -> None:
    trials, whole = trials_across([ENVS, PIECES])
    fit = {(4, 4), (8, 4), (8, 8)}
    reasons = ["" if tuple(params.values()) in fit else "too many" for params in trials]
    told = judge(trials, reasons, whole)
    assert told == "6 of 9 trials across the space would be refused, as with num_envs=2, num_minibatches=4: too many"
    assert judge(trials, [""] * 9, whole) == ""


def test_space_is_refused_when_it_was_asked_whole_and_none_would_run() -> None:
    trials = [{"num_envs": 1}, {"num_envs": 2}]
    with pytest.raises(ConfigError, match="all 2 trials of the space would be refused, as with num_envs=1: not 1"):
        judge(trials, ["not 1", "not 2"], True)
    with pytest.raises(ConfigError, match=r"^num_envs is computed$"):
        judge(trials, ["num_envs is computed"] * 2, True)


def test_space_of_which_some_were_asked_is_refused_only_for_what_does_not_vary() -> None:
    trials = [{"num_envs": 1, "extras.scale": 2}, {"num_envs": 2, "extras.scale": 1}]
    with pytest.raises(ConfigError, match=r"^unknown environment 'NoSuch-v0'$"):
        judge(trials, ["unknown environment 'NoSuch-v0'"] * 2, False)
    named = [(why, why) for why in ("change --num-envs", "add --no-num-envs", "extras.scale: odd")]
    for reasons in (("not 1", "not 2"), *named):
        told = judge(trials, reasons, False)
        assert told.startswith("all 2 trials that were asked for across the space would be refused, as with num_envs=1")
        assert told.endswith("; others may run")
