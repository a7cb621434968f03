"""Flags: every dialect of a switch, help that reads well, and one clear line for what is refused."""

import importlib
import io
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import pytest

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run.args import Count, RunArgs, Share, as_json, check_minibatches, parse, require
from cleanrl_worker.schema.parameters import describe


@dataclass(kw_only=True)
class Args(RunArgs):
    """A few flags of an algorithm's own."""

    learning_rate: float = 0.1
    """step size"""
    num_steps: Count = 8
    """steps of a rollout"""
    gamma: Share = 0.9
    """discount factor"""
    network: Literal["shared", "separate"] = "shared"
    """which network"""
    device_ids: list[int] = field(default_factory=lambda: [])
    """GPUs to use"""


def refusal(*flags: str) -> str:
    """The one line with which a command line is refused, by the parser or by the checks behind it."""
    with pytest.raises(SystemExit) as refused:
        require(parse(Args, list(flags)))
    line = refused.value.code
    assert isinstance(line, str) and line and "\n" not in line
    return line


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["--track"], True),
        (["--no-track"], False),
        (["--track=true"], True),
        (["--track=True"], True),
        (["--track=false"], False),
        (["--track=FALSE"], False),
        (["--track", "--no-track"], False),
        ([], False),
    ],
)
def test_a_switch_is_understood_in_every_dialect(flags: list[str], value: bool) -> None:
    assert parse(Args, flags).track is value


@pytest.mark.parametrize("spelling", ["capture-video", "capture_video"])
def test_underscores_and_dashes_are_the_same(spelling: str) -> None:
    assert parse(Args, [f"--{spelling}"]).capture_video
    assert parse(Args, [f"--{spelling}=true"]).capture_video
    assert not parse(Args, [f"--{spelling}=false"]).capture_video
    assert not parse(Args, [f"--no-{spelling}"]).capture_video
    assert not parse(Args, ["--no_capture_video"]).capture_video
    assert parse(Args, ["--total_timesteps", "7", "--num-steps=9"]).total_timesteps == 7


@pytest.mark.parametrize(
    "flags",
    [["--device-ids", "2", "3"], ["--device_ids=2", "--seed=1", "--device-ids=3"], ["--device-ids=2", "3", "--cuda"]],
)
def test_a_list_is_read_in_one_piece_and_flag_by_flag(flags: list[str]) -> None:
    assert parse(Args, flags).device_ids == [2, 3]


def test_values_are_read_as_their_types() -> None:
    args = parse(Args, ["--env-id=ALE/Pong-v5", "--learning-rate=1e-3", "--network", "separate", "--run-dir", "a b"])
    assert (args.env_id, args.learning_rate, args.network, args.run_dir) == (
        "ALE/Pong-v5",
        1e-3,
        "separate",
        Path("a b"),
    )
    assert parse(Args, ["--wandb-entity=true"]).wandb_entity == "true", "only a switch has dialects"
    assert as_json(args)["run_dir"] == "a b"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--track=maybe"], "--track takes true or false, not 'maybe'"),
        (["--track="], "--track takes true or false, not ''"),
        (["--sede=3"], "unknown flag --sede; did you mean '--seed'? List all with --help"),
        (["--total_timestep", "9"], "unknown flag --total-timestep; did you mean '--total-timesteps'?"),
        (["--no-learning-rate"], "unknown flag --no-learning-rate"),
        (["--xyzzy"], "unknown flag --xyzzy; list all with --help"),
        (["--seed=abc"], "--seed: invalid literal for int() with base 10: 'abc'"),
        (["--seed"], "Missing value for argument '--seed'"),
        (["--network=wide"], "invalid choice 'wide' for argument '--network'. Expected one of ('shared', 'separate')"),
        (["stray"], "Unrecognized options: stray"),
        (["--num-envs=0"], "--num-envs: 1 or more is needed, not 0"),
        (["--total-timesteps", "-5"], "--total-timesteps: 1 or more is needed, not -5"),
        (["--num-steps=0"], "--num-steps: 1 or more is needed, not 0"),
        (["--seed", "-1"], f"--seed: a number between 0 and {2**63 - 1} is needed, not -1"),
        (["--checkpoint-every", "-1"], "--checkpoint-every: 0 or more is needed, not -1"),
        (["--seed", str(2**63)], f"--seed: a number between 0 and {2**63 - 1} is needed, not {2**63}"),
        (["--num-threads=-1"], "--num-threads: 0 or more is needed, not -1"),
        (["--gamma=1.01"], "--gamma: a number between 0 and 1 is needed, not 1.01"),
        (["--gamma=nan"], "--gamma: a number between 0 and 1 is needed, not nan"),
        (["--learning-rate=nan"], "--learning-rate: a number is needed, not nan"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_line(flags: list[str], line: str) -> None:
    assert line in refusal(*flags)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_line_is_the_same_on_a_terminal_without_boxes(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    assert refusal("--seed=abc") == "Error parsing --seed: invalid literal for int() with base 10: 'abc'"


def test_large_but_lawful_values_pass() -> None:
    require(Args(seed=2**63 - 1, learning_rate=float("inf"), gamma=1.0, num_threads=0))


@pytest.mark.parametrize(
    ("rows", "pieces", "fits"),
    [(8, 8, False), (129, 4, False), (130, 4, True), (8, 4, True), (8, 1, True)],
)
def test_every_minibatch_has_the_rows_it_needs(rows: int, pieces: int, fits: bool) -> None:
    if fits:
        check_minibatches(rows, pieces)
        return
    with pytest.raises(SystemExit, match="a minibatch has one row"):
        check_minibatches(rows, pieces)


@pytest.mark.parametrize("name", DEFAULT_ALGO_REGISTRY)
def test_help_names_the_command_and_explains_every_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    with pytest.raises(SystemExit) as end:
        parse(module.Args, ["--help"])
    assert end.value.code == 0
    told, errors = capsys.readouterr()
    assert errors == ""
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", told).split())
    assert text.startswith(f"usage: python -m {module.__name__} ")
    assert " ".join(module.__doc__.split()) in text
    described = {field["name"]: field["help"] for field in describe()[name]["fields"]}
    assert set(described) == {field.name for field in fields(module.Args)}
    for flag, explained in described.items():
        assert f"--{flag.replace('_', '-')}" in text
        assert explained and explained in text, flag
        assert "(default" not in explained, "the parser adds it"


@pytest.mark.parametrize("name", DEFAULT_ALGO_REGISTRY)
def test_an_algorithm_is_named_after_its_file(name: str) -> None:
    assert importlib.import_module(DEFAULT_ALGO_REGISTRY[name]).Args().algo_name == name
