import sys
from pathlib import Path

import pytest

from cleanrl_worker.plan.interpreter import find_interpreter, locate
from mosaic.contract.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def refusal(given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        find_interpreter(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_interpreter_is_the_workers_own_unless_one_is_given(folder: Path) -> None:
    assert find_interpreter(None) == find_interpreter("") == sys.executable
    assert find_interpreter(sys.executable) == sys.executable
    link = folder / "env" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    assert find_interpreter(str(link)) == find_interpreter("env/bin/python") == str(link)


def test_what_is_not_there_or_no_python_is_refused(folder: Path) -> None:
    (folder / "plain").write_text("x")
    assert "extras.python: 'nowhere' is not there" in refusal("nowhere")
    assert "no program that can be run" in refusal("plain")
    for other in ("/bin/ls", "sh", program(folder / "silent", "exit 0"), program(folder / "broken", "exit 3")):
        assert "does not answer as a Python interpreter" in refusal(other)
    (folder / "binary").write_bytes(b"\x00\x01")
    (folder / "binary").chmod(0o755)
    assert "does not answer as a Python interpreter" in refusal("binary")


def test_interpreter_that_is_too_old_for_the_launcher_is_refused(folder: Path) -> None:
    assert "is Python 3.7; 3.8 or later is needed" in refusal(program(folder / "old", "printf 'noise\\npython 3 7'"))
    assert find_interpreter(program(folder / "new", "printf 'noise\\npython 3 8'")) == str(folder / "new")


def test_module_is_found_as_the_interpreter_finds_it(folder: Path) -> None:
    packages = folder / "packages"
    packages.mkdir()
    (packages / "theirs.py").write_text("x = 1")
    (folder / "here.py").write_text("x = 1")
    (folder / "importlib.py").write_text("raise RuntimeError('shadowed')")
    other = program(folder / "python", f'PYTHONPATH={packages} exec {sys.executable} "$@"')
    assert locate("theirs", other) == packages / "theirs.py"
    assert locate("here", other) == locate("here", sys.executable) == folder / "here.py"
    assert locate("theirs", sys.executable) is None
    assert locate("none.such", other) is None
