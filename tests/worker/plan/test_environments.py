import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from cleanrl_worker.envs.vectors import make_native
from cleanrl_worker.plan import environments
from cleanrl_worker.plan.environments import ask_registry, check_environment
from mosaic import catalog
from mosaic.catalog import requirements
from mosaic.contract.errors import ConfigError

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


def refusal(env_id: str, action_spaces: tuple[str, ...] = ("discrete",), algo: str = "ppo", **limits: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_environment(env_id, algo, action_spaces, **limits)
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
    assert asked[0] is None and "envpool" in asked
    assert check_environment("LunarLander-v3", "mine", (), "/another/python", ours=False) == []


def test_another_backend_that_could_make_it_now_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "Box2D" else name)
    assert refusal("LunarLander-v3", backend="gymnasium").endswith(
        "Box2D is not installed; run: pip install 'mosaic-rl[box2d]'; or set env_backend to envpool"
    )
    assert check_environment("LunarLander-v3", "ppo", ("discrete",), backend="envpool") == []


def test_another_backend_is_not_named_where_it_would_refuse_the_film_or_the_vectorization(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: name if name in ("envpool", "ale_py") else None)
    install = "run: pip install 'mosaic-rl[mujoco]'"
    cheetah: dict[str, Any] = {"action_spaces": ("continuous",), "film": True}
    assert refusal("HalfCheetah-v5", backend="gymnasium", **cheetah).endswith(install)
    assert refusal("HalfCheetah-v5", backend="envpool", **cheetah).endswith(
        f"leave the video out, or set env_backend to gymnasium (mujoco and imageio are not installed; {install})"
    )
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "envpool" else name)
    assert refusal("CartPole-v1", backend="envpool").endswith("; or set env_backend to gymnasium")
    assert refusal("CartPole-v1", backend="envpool", vectorization="native").endswith("'mosaic-rl[envpool]'")


def test_film_that_needs_another_vectorization_elsewhere_is_refused_with_both_settings() -> None:
    said = refusal("FrozenLake-v1", backend="envpool", film=True, vectorization="native")
    assert said.endswith("or set env_backend to gymnasium and vectorization to sync")
    assert check_environment("FrozenLake-v1", "ppo", ("discrete",), backend="gymnasium", film=True) == []


def test_another_backend_is_not_named_where_none_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "Box2D" else name)
    for limits in ({"backend": "gymnasium", "advise": False}, {}):
        assert refusal("LunarLander-v3", **limits).endswith("run: pip install 'mosaic-rl[box2d]'")


def test_observations_that_the_algorithm_cannot_learn_from_are_refused() -> None:
    flat = ("vector", "discrete", "tuple", "dict")
    for env_id in ("CartPole-v1", "FrozenLake-v1", "Blackjack-v1"):
        assert check_environment(env_id, "ppo", ("discrete",), observation_spaces=flat) == []
    message = refusal("MiniGrid-Empty-5x5-v0", observation_spaces=flat)
    assert "learns from vector, discrete, tuple, dict observations" in message
    assert "'MiniGrid-Empty-5x5-v0' gives grid ones" in message
    assert "gives image ones" in refusal("ALE/Pong-v5", observation_spaces=flat)


def test_environment_of_another_family_is_refused() -> None:
    limits = {"algo": "ppo_atari_envpool", "families": ("atari",), "backend": "envpool"}
    message = refusal("CartPole-v1", **limits)
    assert "is for atari environments only, and 'CartPole-v1' is none; use ppo, dqn, " in message
    assert "'HalfCheetah-v3' is none; use ppo_continuous_action, " in refusal("HalfCheetah-v3", **limits)
    assert "'own_envs:Own-v0' is no known one" in refusal("own_envs:Own-v0", **limits)


def test_only_an_id_that_the_algorithm_takes_is_suggested() -> None:
    limits = {"algo": "ppo_atari", "families": ("atari",), "observation_spaces": ("image",)}
    assert refusal("ALE/Pnog-v5", **limits).endswith("'ALE/Pnog-v5' is no known one; did you mean 'ALE/Pong-v5'?")
    assert refusal("pong", **limits).endswith("did you mean 'ALE/Pong-v5'?")
    assert refusal("Pong-v4", **limits) == "environment 'Pong-v4' goes by 'ALE/Pong-v5' here; use that id"
    several = {"algo": "ppo_pettingzoo_ma_atari", "families": ("multiplayer",)}
    assert refusal("pong", ("multi_discrete",), **several).endswith("did you mean 'pong_v3'?")


@pytest.mark.parametrize("env_id", ["procgen-starpilot-v0", "procgen:procgen-maze-v0"])
def test_game_of_the_procgen_package_is_taken_under_its_own_name(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "missing_package", lambda *_: None)
    limits: dict[str, Any] = {"families": ("procgen",), "observation_spaces": ("image",), "backend": "envpool"}
    assert check_environment(env_id, "ppo_procgen", ("discrete",), **limits) == []
    assert environments.only_envpool_has([env_id])


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-v5"])
def test_atari_game_needs_the_package_of_the_backend_that_plays_it(
    env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only(*installed: str) -> None:
        monkeypatch.setattr(requirements, "find_spec", lambda name: name if name in installed else None)

    only("envpool")
    limits: dict[str, Any] = {"families": ("atari",), "observation_spaces": ("image",)}
    assert check_environment(env_id, "ppo_atari_envpool", ("discrete",), backend="envpool", **limits) == []
    assert "pip install 'mosaic-rl[atari]'" in refusal(env_id, backend="gymnasium", **limits)
    only("ale_py")
    assert check_environment(env_id, "ppo_atari_envpool", ("discrete",), backend="gymnasium", **limits) == []
    assert "pip install 'mosaic-rl[envpool]'" in refusal(env_id, backend="envpool", **limits)


def test_backend_that_does_not_have_the_environment_is_refused_with_the_one_that_does() -> None:
    message = "'CoinrunEasy-v0' is made by envpool only: set env_backend to envpool"
    assert message in refusal("CoinrunEasy-v0", backend="gymnasium")
    for env_id in ("Taxi-v4", "own_envs:Own-v0", "gymnasium:CartPole-v1"):
        assert "is made by gymnasium only" in refusal(env_id, ("discrete",), backend="envpool")
    for env_id, actions in (("FrozenLake-v1", "discrete"), ("CheetahRun-v1", "continuous")):
        assert check_environment(env_id, "any", (actions,), backend="envpool") == []


def test_environment_of_the_users_own_is_imported_in_a_child(capfd: pytest.CaptureFixture[str]) -> None:
    assert check_environment("own_envs:Own-v0", "ppo", ("discrete",)) == []
    assert "own_envs" not in sys.modules
    assert capfd.readouterr() == ("", "")


def test_environment_whose_module_or_class_is_gone_is_refused() -> None:
    assert "its module 'nowhere' cannot be imported (ModuleNotFoundError" in refusal("nowhere:Own-v0")
    assert "No module named 'no_such_package'" in refusal("own_envs:Gone-v0")
    assert "has no attribute 'OldName'" in refusal("own_envs:Renamed-v0")
    assert check_environment("own_envs:Callable-v0", "ppo", ()) == []


def test_package_that_a_module_lacks_is_named_with_the_extra_that_installs_it(folder: Path) -> None:
    # As Gymnasium does it: an error with a pip line of its own, from the import's.
    text = """
        try:
            raise ModuleNotFoundError("No module named 'Box2D'", name="Box2D")
        except ImportError as error:
            raise RuntimeError("pip install gymnasium[box2d]") from error
    """
    (folder / "boxes.py").write_text(dedent(text))
    assert refusal("boxes:X-v0") == "environment 'boxes:X-v0': it needs Box2D: pip install 'mosaic-rl[box2d]'"
    other = folder / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    assert "gymnasium[box2d]" in ask_registry("boxes:X-v0", str(other))["problem"], "not ours to say there"


def test_unknown_environment_is_refused_with_the_nearest() -> None:
    assert refusal("CartPol-v1").endswith("; did you mean 'CartPole-v1'?")
    assert refusal("own_envs:Ownn-v0").startswith("unknown environment 'own_envs:Ownn-v0'")
    assert refusal("own_envs:Ownn-v0").endswith("; did you mean 'own_envs:Own-v0'?")
    assert "did you mean" not in refusal("own_envs:Zzzzzzzz")
    assert "did you mean 'HalfCheetah-v5'?" in refusal("HalfCheetah-v3", ("continuous",))


FLAT = ("vector", "discrete", "tuple", "dict")


@pytest.mark.parametrize(
    ("written", "algo", "action_spaces"),
    [
        *(("pong", "ppo", "discrete"), ("halfcheetah", "ppo", "discrete"), ("pendulum", "dqn", "discrete")),
        *(("cartpole", "ppo_continuous_action", "continuous"), ("acrobot", "ppo_continuous_action", "continuous")),
        ("gymnasium:cartpole-v1", "ppo_continuous_action", "continuous"),
    ],
)
def test_no_id_is_suggested_that_the_algorithm_would_refuse_next(written: str, algo: str, action_spaces: str) -> None:
    said = refusal(written, (action_spaces,), algo, observation_spaces=FLAT, backend="gymnasium")
    meant = said.partition("did you mean '")[2].rstrip("'?")
    if meant:
        assert check_environment(meant, algo, (action_spaces,), observation_spaces=FLAT, backend="gymnasium") == []


@pytest.mark.parametrize(
    ("written", "action_spaces", "meant"),
    [("cartpole", "discrete", "CartPole-v1"), ("halfcheetah", "continuous", "HalfCheetah-v5")],
)
def test_an_id_that_the_algorithm_takes_is_still_suggested(written: str, action_spaces: str, meant: str) -> None:
    assert refusal(written, (action_spaces,), observation_spaces=FLAT).endswith(f"did you mean {meant!r}?")


def test_version_that_is_gone_is_judged_as_the_newer_one_that_would_be_refused_next() -> None:
    assert "'HalfCheetah-v3' takes continuous ones; use ppo_continuous_action" in refusal("HalfCheetah-v3")
    assert "'Pong-v0' gives image ones; use ppo_atari" in refusal("Pong-v0", observation_spaces=FLAT)


def test_version_that_gymnasium_lists_but_cannot_make_is_refused_unless_envpool_makes_it() -> None:
    pytest.importorskip("mujoco")
    assert refusal("Pusher-v4", ("continuous",), backend="gymnasium").endswith("no longer makes it; use 'Pusher-v5'")
    assert "takes continuous ones" in refusal("Pusher-v4", backend="gymnasium")
    assert check_environment("Pusher-v4", "any", ("continuous",), backend="envpool") == []


def test_environment_of_the_catalog_behind_its_module_is_checked_like_itself() -> None:
    assert "takes discrete ones" in refusal("gymnasium:CartPole-v1", ("continuous",))
    assert check_environment("gymnasium:CartPole-v1", "ppo", ("discrete",), backend="gymnasium") == []
    assert "is made by gymnasium only" in refusal("gymnasium:CartPole-v1", backend="envpool")


def test_environment_that_a_module_registers_under_a_known_id_is_the_modules_own(folder: Path) -> None:
    text = """
        import gymnasium
        import minigrid

        class Env(gymnasium.Env):
            pass

        class Wrapped(gymnasium.Wrapper):
            pass

        gymnasium.register("Pendulum-v1", entry_point=Env)
        gymnasium.register("MiniGrid-Empty-5x5-v0", entry_point="namesakes:Env")
        gymnasium.register("Acrobot-v1", entry_point=gymnasium.spec("Acrobot-v1").entry_point, additional_wrappers=(
            gymnasium.envs.registration.WrapperSpec("Wrapped", "namesakes:Wrapped", {}),
        ))
    """
    (folder / "namesakes.py").write_text(dedent(text))
    flat: dict[str, Any] = {"observation_spaces": ("vector",), "backend": "gymnasium"}
    for env_id in ("Pendulum-v1", "MiniGrid-Empty-5x5-v0"):
        assert check_environment(f"namesakes:{env_id}", "dqn", ("discrete",), **flat) == []
    assert check_environment("namesakes:Acrobot-v1", "ppo_continuous_action", ("continuous",), **flat) == []
    assert "takes discrete ones" in refusal("namesakes:CartPole-v1", ("continuous",)), "it registers none of its own"


@pytest.mark.parametrize("env_id", ["minigrid:MiniGrid-Empty-5x5-v0", "ale_py:PongNoFrameskip-v4"])
def test_environment_that_training_knows_by_its_id_is_refused_behind_a_module(env_id: str) -> None:
    name = env_id.rpartition(":")[2]
    assert refusal(env_id, backend="gymnasium") == f"environment {env_id!r} goes by {name!r} here; use that id"
    assert "learns from vector observations" in refusal(env_id, observation_spaces=("vector",))


@pytest.mark.parametrize(
    ("env_id", "limits", "said"),
    [
        ("ALE/Pong-v5", {"vectorization": "async"}, "cannot run with vectorization async; set it to sync or native"),
        ("ALE/Pong-v5", {"vectorization": "native", "film": True}, "a native vector is not filmed"),
        ("mosaic/Catch-v0", {"vectorization": "native"}, "set it to sync"),
        ("LunarLander-v3", {"vectorization": "native"}, "set it to sync or async"),
        ("CartPole-v1", {"vectorization": "native"}, "set it to sync or async"),
        ("own_envs:Own-v0", {"vectorization": "native", "film": True}, "a native vector is not filmed"),
        ("CartPole-v1", {"backend": "envpool", "film": True, "vectorization": "native"}, ""),
        ("HalfCheetah-v5", {"backend": "envpool", "film": True}, "EnvPool cannot film it"),
        ("own_envs:Own-v0", {"vectorization": "native"}, ""),
        ("ALE/Pong-v5", {"vectorization": "native"}, ""),
    ],
)
def test_what_the_kit_would_refuse_is_refused_before_the_run(env_id: str, limits: dict[str, Any], said: str) -> None:
    limits = {"backend": "gymnasium", **limits}
    if said:
        assert said in refusal(env_id, (), **limits)
    else:
        assert check_environment(env_id, "any", (), **limits) == []


def test_the_kit_knows_no_native_vector_of_gymnasiums_own() -> None:
    """What `backends` says of them: when one can be used, it is to be allowed."""
    for env_id in ("LunarLander-v3", "CartPole-v1"):
        with pytest.raises(SystemExit, match="--vectorization sync or async"):
            make_native(env_id, 2)


def test_environment_that_only_the_script_may_know_is_a_warning() -> None:
    (warning,) = check_environment("starpilot-x", "my.py", (), ours=False)
    assert warning.startswith("unknown environment 'starpilot-x'") and warning.endswith("(left to the script)")


def test_folder_of_a_script_is_looked_in_first_and_instead_of_the_current_one(folder: Path) -> None:
    beside = folder / "scripts"
    beside.mkdir()
    text = "import gymnasium\ngymnasium.register('Beside-v0', entry_point='collections:OrderedDict')\n"
    (beside / "beside_envs.py").write_text(text)
    (beside / "own_envs.py").write_text(text)
    here: dict[str, Any] = {"ours": False, "script_folder": str(beside)}
    assert check_environment("beside_envs:Beside-v0", "my.py", (), **here) == []
    assert check_environment("own_envs:Beside-v0", "my.py", (), **here) == []
    (folder / "only_here.py").write_text(text)
    assert "cannot be imported" in check_environment("only_here:Beside-v0", "my.py", (), **here)[0]
    assert check_environment("only_here:Beside-v0", "lab.algo", (), ours=False) == []


def test_file_of_the_current_folder_shadows_nothing_of_the_standard_library(folder: Path) -> None:
    for name in ("json", "functools", "os", "importlib"):
        (folder / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    assert check_environment("own_envs:Own-v0", "ppo", ("discrete",)) == []


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
