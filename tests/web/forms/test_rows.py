"""What typed text is read as, by the schema; what differs from the defaults."""

from typing import Any

import pytest

from mosaic.contract.errors import ConfigError
from mosaic.contract.workers import discover_workers
from mosaic.web.forms.own_rows import TRAIN
from mosaic.web.forms.rows import OWN_PLACE, Row, by_section, changed, read_all, schema_rows


def schema() -> dict[str, Any]:
    return dict(discover_workers()[0]["cleanrl"].schema())


@pytest.mark.parametrize(
    ("row", "given", "value"),
    [
        (Row(name="a", type="int"), "1,000,000", 1_000_000),
        (Row(name="a", type="int"), " 1e6 ", 1_000_000),
        (Row(name="a", type="int"), 2048.0, 2048),
        (Row(name="a", type="float"), "2.5e-4", 0.00025),
        (Row(name="a", type="float", optional=True, default=None), "", None),
        (Row(name="a", type="float", optional=True, default=None), None, None),
        (Row(name="a", type="bool"), False, False),
        (Row(name="a", type="bool", default=True), "false", False),
        (Row(name="a", type="str"), "  text ", "text"),
        (Row(name="a", type="str", choices=("x", "y")), "y", "y"),
        (Row(name="a", type="list[int]"), "1, 2,3", [1, 2, 3]),
        (Row(name="a", type="int", least=0, most=9), "9", 9),
    ],
)
def test_text_is_read_by_the_rows_type(row: Row, given: Any, value: Any) -> None:
    found = row.read(given)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("row", "given", "said"),
    [
        (Row(name="a", type="int", default=4), "four", "a whole number is needed, not 'four' (default 4)"),
        (Row(name="a", type="int", default=4), "", "a whole number is needed (default 4)"),
        (Row(name="a", type="int"), "1.5", "a whole number is needed, not '1.5'"),
        (Row(name="a", type="float"), "nan", "a number is needed, not 'nan'"),
        (Row(name="a", type="int", least=1), "0", "a whole number, 1 or more, is needed, not '0'"),
        (TRAIN["env_id"], " ", "a text is needed (default CartPole-v1)"),
        (TRAIN["total_timesteps"], "9" * 20, "a whole number from 1 to 1,000,000,000,000,000 is needed"),
        (Row(name="a", type="int", least=0, most=9), "10", "a whole number from 0 to 9 is needed, not '10'"),
        (Row(name="a", choices=("sync", "async")), "snyc", "'snyc' is none of sync, async; did you mean 'sync'?"),
        (Row(name="a", type="bool"), "maybe", "true or false is needed, not 'maybe'"),
        (Row(name="a", type="int"), "9" * 5000, "a whole number is needed"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(row: Row, given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        row.read(given)
    assert str(error.value).startswith(said)


def test_every_parameter_of_every_algorithm_starts_with_a_value_that_its_row_takes() -> None:
    for name, entry in schema().items():
        rows = schema_rows(entry)
        values, problems = read_all(rows.values(), {})
        assert not problems, (name, problems)
        assert set(values) == set(rows) and not set(rows) & OWN_PLACE
        assert changed(rows.values(), values) == {"save_model": (False, True)}
        assert {"learning_rate", "policy_lr"} & set(rows) and values.get("target_kl") is None


def test_rows_stand_under_headings_and_computed_ones_are_left_out() -> None:
    sections = by_section(schema_rows(schema()["ppo"]).values())
    names = {title: [row.name for row in rows] for title, rows in sections.items()}
    assert next(iter(names)) == "Hyper-parameters" and "gamma" in names["Hyper-parameters"]
    assert names["Saving and checkpoints"][:2] == ["save_model", "checkpoint_every"]
    assert "num_iterations" not in str(names)


def test_an_empty_optional_field_stays_none_and_a_false_switch_is_false() -> None:
    rows = schema_rows(schema()["ppo"])
    values, _ = read_all(rows.values(), {"target_kl": "", "anneal_lr": False, "gamma": "0.9"})
    assert values["target_kl"] is None and values["anneal_lr"] is False
    assert changed(rows.values(), values) == {
        "save_model": (False, True),
        "anneal_lr": (True, False),
        "gamma": (0.99, 0.9),
    }


def test_numbers_beyond_an_algorithms_limits_are_refused_while_they_are_typed() -> None:
    rows = schema_rows(schema()["ppo"])
    _, problems = read_all(rows.values(), {"gamma": "1.5", "num_envs": "0", "learning_rate": "-1"})
    assert problems["gamma"] == "a number between 0 and 1 is needed, not 1.5 (default 0.99)"
    assert set(problems) == {"gamma", "num_envs", "learning_rate"}
    with pytest.raises(ConfigError, match="num_envs"):
        rows["num_minibatches"].check_limits(9, {"num_envs": 2, "num_steps": 4}.get)
    rows["num_minibatches"].check_limits(8, {"num_envs": 2, "num_steps": 4}.get)
