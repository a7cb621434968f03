"""space: what varies where nobody says, `--vary`, a TOML file, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from mosaic.commands.campaign.search_space import default_space, parse_vary, read_space
from mosaic.commands.run.settings import find_schema
from mosaic.contract.errors import ConfigError
from mosaic.contract.workers import discover_workers

SCHEMA: dict[str, Any] = {
    "fields": [
        {"name": "total_timesteps", "type": "int", "default": 1000},
        {"name": "learning_rate", "type": "float", "default": 0.001, "limits": {"least": 0, "most": None}},
        {"name": "num_steps", "type": "int", "default": 128, "limits": {"least": 1, "most": None}},
        {"name": "gamma", "type": "float", "default": 0.99, "limits": {"least": 0, "most": 1}},
        {"name": "tau", "type": "float", "default": 1.0},
        {"name": "norm_adv", "type": "bool", "default": True},
        {"name": "network", "type": "str", "default": "auto", "choices": ["auto", "shared"]},
        {"name": "alpha", "type": "float", "default": 0.2, "limits": {"least": 0, "most": 1}},
        {"name": "buffer_size", "type": "int", "default": 10000, "limits": {"least": "8 * num_envs"}},
        {"name": "trace", "type": "int", "default": 64, "limits": {"least": "2 * num_envs * 3"}},
        {"name": "v_max", "type": "float", "default": 100.0, "limits": {"most": 1e38, "above": "v_min"}},
        {"name": "temperature", "type": "float", "default": 1.0, "limits": {"above": 0}},
        {"name": "offline_steps", "type": "int", "default": 500, "limits": {"least": 0, "below": "total_timesteps"}},
        {"name": "batch_size", "type": "int", "default": 0, "limits": {"least": 0, "most": 0}},
    ]
}


def test_usual_parameters_vary_around_their_defaults() -> None:
    rate, steps, gamma = default_space(SCHEMA)
    assert (rate.name, rate.kind, rate.log) == ("learning_rate", "float", True)
    assert (rate.low, rate.high) == pytest.approx((0.0001, 0.01))
    assert steps.choices == (32, 64, 128, 256, 512) and gamma.kind == "choice" and 0.99 in gamma.choices


def test_every_algorithm_has_a_space() -> None:
    for worker in discover_workers()[0].values():
        if worker.worker_type == "cleanrl":
            for name in worker.schema():
                schema = find_schema(name)
                space = default_space(schema)
                assert len(space) >= 3 and any(one.log for one in space), name
                defaults = {field["name"]: field["default"] for field in schema["fields"]}
                for one in space:  # or the first trial could not be the algorithm as it is
                    value = defaults[one.name]
                    assert value in one.choices if one.kind == "choice" else one.low <= value <= one.high, (name, one)


def test_vary_takes_a_name_two_ends_or_choices() -> None:
    texts = ["norm_adv", "network", "alpha", "learning-rate=1e-5..1e-2", "num_steps=32,64", "gamma=0.9..0.99"]
    found = {one.name: one for one in parse_vary(texts, SCHEMA)}
    assert found["norm_adv"].choices == (True, False) and found["network"].choices == ("auto", "shared")
    assert found["alpha"].high == 1.0 and found["num_steps"].choices == (32, 64)  # within its limits
    assert found["learning_rate"].log and not found["gamma"].log


def test_ends_and_choices_keep_the_limits_that_hold_whatever_the_others_are() -> None:
    texts = ["buffer_size=-5..100", "v_max=-20..-10", "temperature=0.5..2", "offline_steps=-9..100", "trace=1..99"]
    found = {one.name: one for one in parse_vary(texts, SCHEMA)}
    assert found["trace"].low == 6  # a count is 1 or more
    assert (found["buffer_size"].low, found["offline_steps"].low, found["v_max"].low) == (8, 0, -20)
    for text in ("temperature=-3..2", "temperature=0,1", "buffer_size=-5,100", "buffer_size=1..7", "v_max=1,1e39"):
        with pytest.raises(ConfigError):
            parse_vary([text], SCHEMA)
    with pytest.raises(ConfigError, match="cannot vary between 0 and 2: more than 0 is needed, not 0"):
        parse_vary(["temperature=0..2"], SCHEMA)


def test_space_is_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(
        "[learning_rate]\nlow = 1e-5\nhigh = 1e-3\nlog = true\n[num_steps]\nchoices = [16, 32]\n"
        "[gamma]\nlow = 0.9\nhigh = 1\nstep = 0.05\n[alpha]\n"
    )
    rate, steps, gamma, alpha = read_space(file, SCHEMA)
    assert rate.log and steps.choices == (16, 32) and gamma.step == 0.05 and alpha.name == "alpha"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[learning_rat]\nlow = 1\nhigh = 2", "did you mean 'learning_rate'"),
        ("[gamma]\nlow = 0.9", "needs the numbers low and high"),
        ("[gamma]\nlow = 0.9\nhigh = 0.5", "the first must be below the second"),
        ("[gamma]\nlow = 0.9\nhihg = 1", "unknown key 'hihg'; did you mean 'high'"),
        ("[gamma]\nlow = 0\nhigh = 1\nlog = true", "only above 0"),
        ("[gamma]\nlow = 0\nhigh = 1\nstep = nan", "step is a number above 0"),
        ("[num_steps]\nlow = 1\nhigh = inf", "num_steps cannot vary between 1 and inf"),
        ("[num_steps]\nlow = 1\nhigh = 9\nstep = 0.5", "goes in whole steps, not in steps of 0.5"),
        ("[num_steps]\nchoices = [1]", "two choices or more"),
        ("gamma = 1", "is a table"),
        ("[gamma", "is no TOML"),
        ("", "names no parameter"),
    ],
)
def test_bad_space_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "space.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_space(file, SCHEMA)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        *("gamma=a..b", "tau2", "batch_size", "gamma=0.9", "total_timesteps"),
        *("num_steps=32,many", "num_steps=0,32", "gamma=0.9,1.1", "network=auto,none", "norm_adv=true,1"),
    ],
)
def test_bad_vary_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_vary([text], SCHEMA)
