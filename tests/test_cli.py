"""The `mosaic` command as a whole: its help, its exit codes, what it does not load."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mosaic import cli
from mosaic.commands.inspect import lists
from mosaic.contract import errors

COMMANDS = (
    "up down daemon train runs show watch snapshot logs events pause continue cancel delete resume eval script "
    "algos envs doctor gc rebuild completion"
).split()


def test_help_names_every_command_and_what_the_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and "0 done, 1 the run failed, 2 refused, 3 no daemon" in out
    assert [name for name in COMMANDS if f"\n    {name} " not in out and f"\n    {name}\n" not in out] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_and_json_where_it_answers(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    out = capsys.readouterr().out
    assert out.startswith(f"usage: mosaic {command}")
    assert ("--json" in out) == (command not in ("daemon", "completion", "watch"))


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("mosaic 0.")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NoDaemonError("x"), 3),
        (errors.RefusedError("x"), 2),
        (errors.ConfigError("x"), 2),
        (errors.UnknownRunError("x"), 2),
        (errors.MoveError("x"), 2),
        (errors.AccessError("x"), 2),
        (errors.UnavailableError("x"), 1),
        (errors.WorkerError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_have_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr(lists, "list_algos", fail)
    assert cli.main(["algos"]) == code
    assert capsys.readouterr().err == ("" if code == 130 else "mosaic: x\n")


def test_lists_need_neither_torch_nor_gymnasium_nor_grpc(tmp_path: Path) -> None:
    code = (
        "import sys; from mosaic import cli; cli.main(['algos']); cli.main(['envs']); "
        "print(sorted({'torch', 'jax', 'gymnasium', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_loads_neither_rich_nor_grpc() -> None:
    code = (
        "import sys; from mosaic import cli; cli.parser().format_help(); "
        "print(sorted({'rich', 'grpc', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_list_cut_by_head_ends_quietly(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m mosaic.cli envs atari | head -1", shell=True, capture_output=True, text=True, check=True
    )
    assert done.stderr == "" and done.stdout.startswith("environment")


COMMAND_LINES = (
    "mosaic.cli --help",
    "mosaic.cli runs",
    "mosaic.cli doctor",
    "mosaic.cli up --port 0 --listen 127.0.0.1:0",
    "mosaic.cli daemon --listen 127.0.0.1:0",
    "mosaic.trainer.daemon --listen 127.0.0.1:0",
    "cleanrl_worker.cli --list",
    "cleanrl_worker.algorithms.ppo --help",
)


@pytest.mark.parametrize("after", [0, 40, 150, *(pytest.param(n, marks=pytest.mark.full) for n in range(5, 900, 45))])
@pytest.mark.parametrize("line", COMMAND_LINES)
def test_ctrl_c_amid_the_imports_of_a_command_ends_it_without_a_traceback(
    line: str, after: int, tmp_path: Path
) -> None:
    """`after` counts the modules that were imported since the program's first lines."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", *line.split()],
        env={**os.environ, "MOSAIC_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    answers = False  # from the import on that follows those of its first lines
    late = threading.Timer(10, process.send_signal, [signal.SIGINT])  # a server imports no more, and ends all the same
    late.start()
    for text in process.stderr:
        after -= answers
        answers = answers or text.endswith("mosaic.contract.stopping\n")
        if after < 0:
            break
    process.send_signal(signal.SIGINT)
    late.cancel()
    errors = process.communicate(timeout=120)[1]
    assert "Traceback" not in errors and "Exception ignored" not in errors
    # shells show 130 for a program that died of SIGINT, too; a command may have ended before
    assert process.returncode in (130, -signal.SIGINT, 0, 3)
