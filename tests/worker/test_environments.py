import sys
from pathlib import Path
from textwrap import dedent

import pytest

from cleanrl_worker import environments
from cleanrl_worker.environments import ask_registry, check_environment
from mosaic import catalog
from mosaic.wire.errors import ConfigError

OWN = """
    import sys
    import gymnasium

    print("noise on stdout")
    print("noise on stderr", file=sys.stderr)

    class Env(gymnasium.Env):
        pass

    gymnasium.register("Own-v0", entry_point="own_envs:Env")
    gymnasium.register("Gone-v0", entry_point="no_such_package.envs:Env")
    gymnasium.register("Renamed-v0", entry_point="own_envs:OldName")
    gymnasium.register("Callable-v0", entry_point=lambda: 1 / 0)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_envs.py").write_text(dedent(OWN))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(env_id: str, action_spaces: tuple[str, ...] = ("discrete",)) -> str:
    with pytest.raises(ConfigError) as caught:
        check_environment(env_id, "ppo", action_spaces)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_catalog_answers_without_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "ask_registry", lambda *_: pytest.fail("asked"))
    assert check_environment("CartPole-v1", "ppo", ("discrete",)) == []
    assert check_environment("Pendulum-v1", "mine", ()) == []
    assert "takes continuous ones" in refusal("Pendulum-v1")


def test_missing_package_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def missing(environment: catalog.Environment, backend: str | None = None) -> str:
        asked.append(backend)
        return "Box2D is not installed; run: pip install 'mosaic-rl[box2d]'"

    monkeypatch.setattr(catalog, "missing_package", missing)
    assert "pip install 'mosaic-rl[box2d]'" in refusal("LunarLander-v3")
    with pytest.raises(ConfigError):
        check_environment("CartPole-v1", "ppo", ("discrete",), backend="envpool")
    assert asked == [None, "envpool"]
    assert check_environment("LunarLander-v3", "mine", (), "/another/python", ours=False) == []


def test_environment_of_the_users_own_is_imported_in_a_child(capfd: pytest.CaptureFixture[str]) -> None:
    assert check_environment("own_envs:Own-v0", "ppo", ("discrete",)) == []
    assert "own_envs" not in sys.modules
    assert capfd.readouterr() == ("", "")


def test_environment_whose_module_or_class_is_gone_is_refused() -> None:
    assert "its module 'nowhere' cannot be imported (ModuleNotFoundError" in refusal("nowhere:Own-v0")
    assert "No module named 'no_such_package'" in refusal("own_envs:Gone-v0")
    assert "has no attribute 'OldName'" in refusal("own_envs:Renamed-v0")
    assert check_environment("own_envs:Callable-v0", "ppo", ()) == []


def test_unknown_environment_is_refused_with_the_nearest() -> None:
    assert refusal("CartPol-v1").endswith("; did you mean 'CartPole-v1'?")
    assert refusal("own_envs:Ownn-v0").startswith("unknown environment 'own_envs:Ownn-v0'")
    assert "did you mean 'HalfCheetah-v5'?" in refusal("HalfCheetah-v3", ("continuous",))


def test_environment_that_only_the_script_may_know_is_a_warning() -> None:
    (warning,) = check_environment("starpilot-x", "my.py", (), ours=False)
    assert warning.startswith("unknown environment 'starpilot-x'") and warning.endswith("(left to the script)")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("import os; os._exit(7)", "exit code 7"), ("raise SystemExit('enough')", "SystemExit: enough")],
)
def test_module_that_ends_the_child_is_a_problem_in_words(folder: Path, text: str, problem: str) -> None:
    (folder / "deadly.py").write_text(text)
    assert problem in ask_registry("deadly:X-v0")["problem"]


def test_module_that_never_ends_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sleepy.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(environments, "LOOKUP_SECONDS", 1.0)
    assert "took longer than 1 s" in ask_registry("sleepy:X-v0")["problem"]


def test_interpreter_without_gymnasium_or_that_is_none_is_a_problem_in_words(folder: Path) -> None:
    bare = folder / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    assert "gymnasium cannot be imported" in ask_registry("X-v0", str(bare))["problem"]
    assert "cannot start" in ask_registry("X-v0", str(folder / "none"))["problem"]
