"""The launcher: what it runs, what it leaves visible, and that it never outlives its shell."""

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import cleanrl_worker

LAUNCHER = Path(cleanrl_worker.__file__).parent / "foreign" / "launcher.py"


def launch(tmp_path: Path, *flags: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run the launcher as a shell would, with a lifeline that holds until it ends."""
    reading, writing = os.pipe()
    try:
        ties = ["--shell-pid", str(os.getpid()), "--lifeline", str(reading)]
        return subprocess.run(
            [python, str(LAUNCHER), *ties, *flags],
            pass_fds=(reading,),
            process_group=0,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
        )
    finally:
        os.close(reading)
        os.close(writing)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_module_with_main_is_imported_and_called(tmp_path: Path) -> None:
    write(tmp_path / "lib/mine.py", "import sys\ndef main():\n    print(__name__, sys.argv[0], sys.argv[1:])\n")
    flags = ["--module", "mine", "--also-path", str(tmp_path / "lib"), "--", "--seed=1", "--", "--x"]
    done = launch(tmp_path, *flags)
    assert done.stdout == f"mine {tmp_path}/lib/mine.py ['--seed=1', '--', '--x']\n", done.stderr


def test_module_without_main_runs_as_main(tmp_path: Path) -> None:
    write(tmp_path / "lib/mine.py", "import sys\nif __name__ == '__main__':\n    print('ran', sys.argv[1:])\n")
    done = launch(tmp_path, "--module", "mine", "--as-main", "--also-path", str(tmp_path / "lib"), "--", "a")
    assert done.stdout == "ran ['a']\n", done.stderr


def test_script_finds_its_own_config_and_never_ours(tmp_path: Path) -> None:
    write(tmp_path / "mine/config.py", "WHOSE = 'mine'\n")
    script = write(
        tmp_path / "mine/train.py",
        "import config, sys\nprint(config.WHOSE, __name__, sys.argv)\n"
        "try:\n    import telemetry\nexcept ImportError as error:\n    print(error)\n",
    )
    done = launch(tmp_path, "--script", str(script), "--", "--seed=3")
    assert done.stdout == f"mine __main__ ['{script}', '--seed=3']\nNo module named 'telemetry'\n", done.stderr


def test_our_folder_stays_invisible_to_children_and_other_processes_of_the_script(tmp_path: Path) -> None:
    script = write(
        tmp_path / "train.py",
        "import os, subprocess, sys\n"
        "print([entry for entry in sys.path if entry.rstrip('/').endswith('cleanrl_worker')])\n"
        "print('cleanrl_worker' in os.environ.get('PYTHONPATH', ''))\n"
        "sys.exit(subprocess.run([sys.executable, '-c', 'import schema']).returncode)\n",
    )
    done = launch(tmp_path, "--script", str(script), "--")
    assert done.stdout == "[]\nFalse\n"
    assert done.returncode == 1 and "No module named 'schema'" in done.stderr


def test_functions_of_a_script_reach_its_spawned_processes(tmp_path: Path) -> None:
    script = write(
        tmp_path / "train.py",
        "import multiprocessing\n"
        "def double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        print(pool.map(double, [1, 2]))\n",
    )
    done = launch(tmp_path, "--script", str(script), "--")
    assert done.stdout == "[2, 4]\n", done.stderr


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(7)", 7), ("sys.exit('no')", 1), ("raise ValueError('bad')", 1), ("pass", 0)]
)
def test_exit_codes_pass_through(tmp_path: Path, ending: str, code: int) -> None:
    script = write(tmp_path / "train.py", f"import sys\n{ending}\n")
    done = launch(tmp_path, "--script", str(script), "--")
    assert done.returncode == code
    assert ("ValueError: bad" in done.stderr) == ("bad" in ending)


def test_lifeline_that_has_ended_already_kills_at_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    script = write(tmp_path / "train.py", "print('should not run')\n")
    command = [sys.executable, str(LAUNCHER), "--shell-pid", "1", "--lifeline", str(reading), "--script", str(script)]
    done = subprocess.run([*command, "--"], pass_fds=(reading,), process_group=0, capture_output=True, timeout=120)
    os.close(reading)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_end_of_the_lifeline_kills_the_stopped_group_with_its_children(
    tmp_path: Path, lives: Callable[[int], bool], until: Callable[..., None]
) -> None:
    reading, writing = os.pipe()
    script = write(
        tmp_path / "train.py",
        "import os, pathlib, subprocess, sys, time\n"
        "forked = os.fork()\n"
        "if forked:\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    pathlib.Path('pids.tmp').write_text(f'{os.getpid()} {forked} {child.pid}')\n"
        "    os.rename('pids.tmp', 'pids')\n"
        "time.sleep(600)\n",
    )
    ties = ["--shell-pid", str(os.getpid()), "--lifeline", str(reading), "--script", str(script), "--"]
    process = subprocess.Popen(
        [sys.executable, str(LAUNCHER), *ties], pass_fds=(reading,), process_group=0, cwd=tmp_path
    )
    os.close(reading)
    try:
        until((tmp_path / "pids").exists, 90, "the children")
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(lives(pid) for pid in pids)
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.close(writing)
        assert process.wait(90) == -signal.SIGKILL
        until(lambda: not any(lives(pid) for pid in pids), 90, "the end of the group")
    finally:
        process.kill()
        process.wait()


SHELL = """
import os, subprocess, sys
launcher, lifeline, script = sys.argv[1:]
ties = ["--shell-pid", str(os.getpid()), "--lifeline", lifeline]
command = [sys.executable, launcher, *ties, "--script", script, "--"]
subprocess.Popen(command, pass_fds=(int(lifeline),), process_group=0).wait()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_death_of_the_shell_kills_also_where_somebody_else_keeps_the_lifeline_open(
    tmp_path: Path, lives: Callable[[int], bool], until: Callable[..., None], stopped: bool
) -> None:
    reading, writing = os.pipe()  # the writing end stays with the test, as it would with a process the shell forked
    script = write(
        tmp_path / "train.py",
        "import os, pathlib, time\n"
        "pathlib.Path('pid.tmp').write_text(str(os.getpid()))\n"
        "os.rename('pid.tmp', 'pid')\n"
        "time.sleep(600)\n",
    )
    command = [sys.executable, "-c", SHELL, str(LAUNCHER), str(reading), str(script)]
    shell = subprocess.Popen(command, pass_fds=(reading,), cwd=tmp_path)
    try:
        until((tmp_path / "pid").exists, 60, "the script")
        pid = int((tmp_path / "pid").read_text())
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        shell.kill()
        shell.wait()
        until(lambda: not lives(pid), 60, "the script's end")
    finally:
        shell.kill()
        shell.wait()
        os.close(reading)
        os.close(writing)


def test_launcher_keeps_to_the_syntax_of_python_3_8() -> None:
    ast.parse(LAUNCHER.read_text(), feature_version=(3, 8))


def test_every_interpreter_on_this_machine_can_run_it(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", "import sys\nprint(sys.argv[1:])\n")
    for python in interpreters():
        done = launch(tmp_path, "--script", str(script), "--", "--x", python=python)
        assert (done.stdout, done.returncode) == ("['--x']\n", 0), f"{python}: {done.stderr}"


def interpreters() -> list[str]:
    """This one, and whatever other Python from 3.8 on answers under its usual name."""
    found = [sys.executable]
    for minor in range(8, 15):
        python = shutil.which(f"python3.{minor}") or ""
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            found.append(python)
    return found
