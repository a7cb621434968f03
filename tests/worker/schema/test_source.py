import sys
from pathlib import Path

import pytest

from cleanrl_worker.schema.source import Source, locate_module, package_exists
from mosaic.contract.errors import ConfigError


def test_module_is_located_without_running_any_package_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "loud" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "algo.py").write_text("x = 1")
    assert locate_module("loud.inner.algo") is None
    assert locate_module("loud.inner.algo", also=(str(tmp_path),)) == package / "algo.py"
    monkeypatch.syspath_prepend(tmp_path)
    assert locate_module("loud.inner.algo") == package / "algo.py"
    assert locate_module("loud.inner") == package / "__init__.py"
    assert locate_module("loud.inner.none") is None
    assert locate_module("loud.inner.algo.deeper") is None
    assert "loud" not in sys.modules


def test_packages_of_every_kind_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "space").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert package_exists("sys") and package_exists("json") and package_exists("space")
    assert not package_exists("no_such_package_here")
    assert locate_module("space") is None


def test_file_that_is_no_python_is_refused_with_its_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("x = 1\ndef f(:\n")
    with pytest.raises(ConfigError, match=r"bad.py line 2: no valid Python"):
        Source.read(bad)
    bad.write_text("x = 1" + " + 1" * 20_000)
    with pytest.raises(ConfigError, match=r"bad\.py: too deeply nested to be read"):
        Source.read(bad)
    bad.write_bytes(b"x = '\xff'\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        Source.read(bad)
    with pytest.raises(ConfigError, match="cannot be read"):
        Source.read(tmp_path / "none.py")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1_000", 1000),
        ("int(1e6)", 1_000_000),
        ("-3", -3),
        ("2 ** 10 * 4 - 1", 4095),
        ("BASE / 4", 0.5),
        ("[64, BASE]", [64, 2]),
        ("os.path.basename(__file__)[: -len('.py')]", "my_algo"),
        ("os.path.basename(__file__).rstrip('.py')", "my_algo".rstrip(".py")),
        ("Path(__file__).stem", "my_algo"),
        ("os.cpu_count()", None),
        ("2 ** 10 ** 10", None),
        ("1 / 0", None),
        ("LOOP", None),
    ],
)
def test_expressions_are_worth_what_running_them_would_give(tmp_path: Path, expression: str, value: object) -> None:
    path = tmp_path / "my_algo.py"
    path.write_text(f"BASE = 2\nLOOP = LOOP\nx = {expression}\n")
    source = Source.read(path)
    assert source.value(source.constants["x"]) == value


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1")
    assert "y" not in Source.read(path).constants
    path.write_text("y = 1234")
    assert "y" in Source.read(path).constants
