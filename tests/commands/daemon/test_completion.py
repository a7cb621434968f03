"""Completion: what can stand at the cursor, and bash itself asking for it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic import cli
from mosaic.commands.daemon.completion import SHELLS, candidates


def words(*given: str) -> list[str]:
    return candidates(cli.parser(), given)


def test_commands_flags_and_choices_come_from_the_parser() -> None:
    assert {"train", "runs", "completion"} <= set(words(""))
    assert words("tr") == ["train"]
    assert "--additional-timesteps" in words("resume", "latest", "--")
    assert words("runs", "--mode", "pol") == ["policy_eval"]
    assert "live" in words("runs", "--state", "l")
    assert words("completion", "z") == ["zsh"]


def test_algorithms_environments_and_parameters_come_from_the_worker_and_the_catalog() -> None:
    assert sorted(words("train", "dq")) == ["dqn", "dqn_atari", "dqn_atari_jax", "dqn_jax"]
    assert "CartPole-v1" in words("train", "ppo", "Cart")
    assert words("train", "ppo", "CartPole-v1", "--set", "learning_r") == ["learning_rate="]
    assert words("train", "--set", "gamma=1", "ppo", "CartPole-v1", "--fo") == ["--follow"]
    assert "atari" in words("envs", "")
    assert words("algos", "ppo", "x") == []


def test_runs_are_asked_of_the_daemon(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    run = start()
    assert words("show", run.run_id[:20]) == [run.run_id] and "latest" in words("cancel", run.run_id, "")
    assert mosaic("completion", "words", "--", "delete", "lat").out == "latest\n"


def test_without_a_daemon_runs_complete_to_nothing(
    mosaic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    told = mosaic("completion", "words", "--", "show", "")
    assert (told.code, told.out, told.err) == (0, "", "")


@pytest.mark.parametrize("shell", list(SHELLS))
def test_each_shell_accepts_its_script(mosaic: Callable[..., Any], shell: str) -> None:
    script = mosaic("completion", shell).out
    assert "mosaic completion words --" in script
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_bash_completes_with_the_installed_program(mosaic: Callable[..., Any], tmp_path: Path) -> None:
    program = tmp_path / "mosaic"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mosaic.cli "$@"\n')
    program.chmod(0o755)
    code = mosaic("completion", "bash").out + (
        "compopt() { :; }; COMP_WORDS=(mosaic train ppo CartPole-v); COMP_CWORD=3; _mosaic; echo ${COMPREPLY[@]}; "
        'COMP_WORDS=(mosaic runs --mode ""); COMP_CWORD=3; _mosaic; echo ${COMPREPLY[@]}'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["CartPole-v1 CartPole-v0", "train resume_training policy_eval script"]
