"""What several test modules need."""

import atexit
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

FROZEN = Path(__file__).parent / "frozen"
sys.path.insert(0, str(Path(__file__).parent))  # tests import tiny_envs by name

# As runs have it, and before torch loads: on a busy machine, threads that spin while they wait make it far slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# What JAX compiled for one test serves all others with the same shapes, those of the other processes, too: this one
# makes the folder, and whom it starts inherits its name. What is read back is what was compiled, bit for bit.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="mosaic-tests-jax-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

# A CI that starts the tests in the background or under nohup leaves these ignored, and every child would inherit that.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# The same examples each time, and as much time as a busy machine needs: what fails must have a cause in the code.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[dict[str, str]]:
    from s3_server import serving

    with serving() as told:
        yield told


@pytest.fixture
def s3(_s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URL of an empty place on a real S3 server; whoever needs credentials finds them in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in _s3_server.items():
        monkeypatch.setenv(name, value)
    return f"s3://lab/{tmp_path.parent.name}-{tmp_path.name}/runs"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked full, too")
    parser.addoption(
        "--freeze", action="store_true", help="write what the frozen tests see to tests/frozen; without -n"
    )


@pytest.fixture
def frozen(request: pytest.FixtureRequest) -> Callable[[str, Any], Any]:
    """`frozen(name, value)` returns what tests/frozen has under this name; with --freeze it writes `value` there."""

    def recorded(name: str, value: Any) -> Any:
        path = FROZEN / f"{name}.json"
        if request.config.getoption("--freeze"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value, indent=1) + "\n")
        assert path.is_file(), f"nothing is recorded under {name}: pytest --freeze writes it"
        return json.loads(path.read_text())

    return recorded


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: one more of a kind that is tested anyway; only with --full")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    items[:] = [item for item in items if not item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)
