import ast
import builtins
import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.schema import parameters
from mosaic import catalog

ALGORITHM = '''
    """A tiny algorithm. More words.

    And a second paragraph."""
    import os
    from dataclasses import dataclass, field
    from typing import ClassVar, Literal, Optional

    from base import Common

    ACTION_SPACES = ("discrete", "continuous")


    @dataclass
    class Args(Common):
        env_id: str = "CartPole-v1"
        """which environment
        to learn"""
        exp_name: str = os.path.basename(__file__)[: -len(".py")]
        total_timesteps: int = int(1e6)
        learning_rate: float = 2.5e-4
        target_kl: float | None = None
        """end early"""
        clip: Optional[float] = 0.2
        network: Literal["shared", "separate"] = "separate"
        width: Literal[32, 64] | None = None
        hidden: list[int] = field(default_factory=lambda: [64, 64])
        shape: tuple[int, ...] = (8, 4)
        mixed: int | float = 1
        note: "str" = "x"
        COUNTER: ClassVar[int] = 0


    raise RuntimeError("this file must never run")


    def main() -> None:
        pass
'''
BASE = '''
    from dataclasses import dataclass
    from pathlib import Path

    @dataclass
    class Common:
        exp_name: str = ""
        """name of this experiment"""
        seed: int = 1
        """seed"""
        run_dir: Path | None = None
'''


@pytest.fixture
def algorithm(tmp_path: Path) -> Path:
    (tmp_path / "base.py").write_text(dedent(BASE))
    path = tmp_path / "tiny.py"
    path.write_text(dedent(ALGORITHM))
    return path


def script(tmp_path: Path, text: str) -> parameters.ScriptFlags:
    path = tmp_path / "script.py"
    path.write_text(dedent(text))
    return parameters.read_flags(path)


def test_fields_are_read_with_type_default_choices_and_help(algorithm: Path) -> None:
    fields = {field.name: field for field in parameters.read_fields(algorithm)}
    assert fields["env_id"] == parameters.Field("env_id", "str", "CartPole-v1", help="which environment to learn")
    assert fields["total_timesteps"].default == 1_000_000
    assert fields["learning_rate"] == parameters.Field("learning_rate", "float", 2.5e-4)
    assert fields["target_kl"] == parameters.Field("target_kl", "float", None, optional=True, help="end early")
    assert (fields["clip"].type, fields["clip"].optional, fields["clip"].default) == ("float", True, 0.2)
    assert fields["network"] == parameters.Field("network", "str", "separate", choices=("shared", "separate"))
    assert fields["width"] == parameters.Field("width", "int", None, optional=True, choices=(32, 64))
    assert (fields["hidden"].type, fields["hidden"].default) == ("list[int]", [64, 64])
    assert (fields["shape"].type, fields["shape"].default) == ("list[int]", [8, 4])
    assert (fields["mixed"].type, fields["note"].type) == ("float", "str")
    assert "COUNTER" not in fields


def test_inherited_fields_come_first_and_keep_their_help_when_overridden(algorithm: Path) -> None:
    fields = parameters.read_fields(algorithm)
    assert [field.name for field in fields][:4] == ["exp_name", "seed", "run_dir", "env_id"]
    assert fields[0] == parameters.Field("exp_name", "str", "tiny", help="name of this experiment")
    assert fields[2] == parameters.Field("run_dir", "path", None, optional=True)


@pytest.mark.parametrize(
    ("import_line", "base"),
    [
        ("from .parts.base import Common", "Common"),
        ("from .parts import Common", "Common"),
        ("from .parts import base", "base.Common"),
    ],
)
def test_base_class_is_followed_through_relative_imports(tmp_path: Path, import_line: str, base: str) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "__init__.py").write_text("from .base import Common\n")
    (parts / "base.py").write_text(dedent(BASE))
    path = tmp_path / "algo.py"
    path.write_text(f"{import_line}\n\nclass Args({base}):\n    x: int = 1\n")
    assert [field.name for field in parameters.read_fields(path)] == ["exp_name", "seed", "run_dir", "x"]


def test_docstring_action_spaces_imports_and_main_are_read(algorithm: Path) -> None:
    assert parameters.first_line(algorithm) == "A tiny algorithm. More words."
    assert parameters.action_spaces(algorithm) == ("discrete", "continuous")
    assert parameters.imported_packages(algorithm) == ("os", "dataclasses", "typing", "base")
    assert parameters.has_main(algorithm)
    assert not parameters.has_main(algorithm.with_name("base.py"))


def test_scope_is_read_from_constants_above_or_below_the_args(tmp_path: Path, algorithm: Path) -> None:
    assert parameters.read_scope(algorithm) == parameters.Scope(("discrete", "continuous"), (), (), "gymnasium")
    path = tmp_path / "algo.py"
    constants = """
        ACTION_SPACES = ['discrete']
        OBSERVATION_SPACES: tuple[str, ...] = ("image",)
        FAMILIES = ("atari",)
        DEFAULT_BACKEND = "envpool"
    """
    args = "\n\nclass Args:\n    x: int = 1\n\n\n"
    for text in (dedent(constants) + args, args + dedent(constants)):
        path.write_text(text)
        assert parameters.read_scope(path) == parameters.Scope(("discrete",), ("image",), ("atari",), "envpool")
        assert parameters.action_spaces(path) == ("discrete",)
    path.write_text("x = 1\n")
    assert parameters.read_scope(path) == parameters.Scope()


def test_scopes_of_the_algorithms_are_in_the_catalogs_words() -> None:
    environments = [found for env_id in catalog.ids() if (found := catalog.find(env_id))]
    for name, entry in parameters.describe().items():
        assert set(entry["action_spaces"]) <= {one.action_space for one in environments}, name
        assert set(entry["observation_spaces"]) <= {one.observation_space for one in environments}, name
        assert set(entry["families"]) <= {word for one in environments for word in (one.family, one.group)}, name


def test_help_that_looks_like_code_does_not_cut_the_args_short(tmp_path: Path) -> None:
    path = tmp_path / "algo.py"
    path.write_text('class Args:\n    x: int = 1\n    """use it\nif in doubt"""\n    y: int = 2\n\n\ndef f(): ...\n')
    fields = parameters.read_fields(path)
    assert [field.name for field in fields] == ["x", "y"]
    assert fields[0].help == "use it if in doubt"


def test_tyro_script_declares_its_dataclass(tmp_path: Path) -> None:
    flags = script(
        tmp_path,
        """
        import tyro
        from dataclasses import dataclass

        @dataclass
        class Settings:
            env_id: str = "CartPole-v1"
            cuda: bool = True

        if __name__ == "__main__":
            args = tyro.cli(Settings)
        """,
    )
    assert flags.dialect == "tyro"
    assert flags.flags["env_id"].option == "--env-id"
    assert (flags.flags["cuda"].type, flags.flags["cuda"].switch) == ("bool", "pair")


@pytest.mark.parametrize(
    ("import_line", "name"),
    [
        ("from settings import Settings", "Settings"),
        ("from settings import Settings as S", "S"),
        ("import settings", "settings.Settings"),
        ("import lab.settings as own", "own.Settings"),
        ("import lab.settings", "lab.settings.Settings"),
        ("from lab import settings", "settings.Settings"),
    ],
)
def test_tyro_dataclass_is_followed_into_the_file_it_comes_from(tmp_path: Path, import_line: str, name: str) -> None:
    (tmp_path / "lab").mkdir()
    for folder in (tmp_path, tmp_path / "lab"):
        (folder / "settings.py").write_text("class Settings:\n    env_id: str = 'CartPole-v1'\n    seed: int = 1\n")
    flags = script(tmp_path, f"import tyro\n{import_line}\n\nargs = tyro.cli({name})\n")
    assert (flags.dialect, list(flags.flags)) == ("tyro", ["env_id", "seed"])


def test_file_beside_a_script_counts_before_a_package_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("class Args:\n    mine: int = 1\n")
    assert list(script(tmp_path, "import tyro\nfrom json import Args\ntyro.cli(Args)\n").flags) == ["mine"]


def test_tyro_function_declares_its_parameters_and_the_fields_of_a_dataclass_among_them(tmp_path: Path) -> None:
    flags = script(
        tmp_path,
        """
        import tyro
        from dataclasses import dataclass

        @dataclass
        class Net:
            hidden_size: int = 64
            bias: bool = True

        def main(env_id: str, net: Net, total_timesteps: int = 100, *, seed: int = 1, untyped=3) -> None:
            pass

        if __name__ == "__main__":
            tyro.cli(main)
        """,
    )
    found = flags.flags
    assert (flags.dialect, list(found)) == ("tyro", ["env_id", "hidden_size", "bias", "total_timesteps", "seed"])
    assert (found["env_id"].type, found["env_id"].default) == ("str", None)
    assert (found["total_timesteps"].default, found["seed"].default) == (100, 1)
    assert (found["hidden_size"].option, found["hidden_size"].type) == ("--net.hidden-size", "int")


@pytest.mark.parametrize(
    "text",
    [
        "import click\n@click.command()\n@click.option('--env-id')\ndef main(env_id): ...\n",
        "from simple_parsing import ArgumentParser\nArgumentParser().add_arguments(X, 'x')\n",
        "import tyro\ntyro.cli(make_args())\n",
        "if True:\n    import argparse\n    add_flags(argparse.ArgumentParser())\n",
    ],
)
def test_script_whose_flags_its_source_does_not_show_is_taken_to_have_the_usual_ones(tmp_path: Path, text: str) -> None:
    flags = script(tmp_path, text)
    assert flags.dialect == "unread"
    assert [flag.option for flag in flags.flags.values()] == ["--env-id", "--total-timesteps", "--seed"]


def test_argparse_script_declares_its_arguments(tmp_path: Path) -> None:
    flags = script(
        tmp_path,
        """
        import argparse
        from distutils.util import strtobool

        def parse_args():
            parser = argparse.ArgumentParser()
            parser.add_argument("--exp-name", type=str, default=os.path.basename(__file__).rstrip(".py"), help="a name")
            parser.add_argument("-l", "--learning_rate", type=float, default=2.5e-4)
            parser.add_argument("--cuda", type=lambda x: bool(strtobool(x)), default=True, nargs="?", const=True)
            parser.add_argument("--track", action="store_true")
            parser.add_argument("--no-video", dest="video", action="store_false")
            parser.add_argument("--save-model", action=argparse.BooleanOptionalAction)
            parser.add_argument("--layers", type=int, nargs="+", default=[64, 64])
            parser.add_argument("--range", type=float, nargs=2)
            parser.add_argument("--more", action="extend", nargs="+")
            parser.add_argument("--tag", action="append")
            parser.add_argument("--kind", choices=["a", "b"])
            parser.add_argument("positional")
            return parser.parse_args()
        """,
    )
    found = flags.flags
    assert flags.dialect == "argparse"
    assert (found["exp_name"].default, found["exp_name"].help) == ("script", "a name")
    assert (found["learning_rate"].option, found["learning_rate"].type) == ("--learning_rate", "float")
    assert (found["cuda"].type, found["cuda"].switch, found["cuda"].default) == ("bool", "value", True)
    assert (found["track"].switch, found["video"].switch, found["save_model"].switch) == ("on", "off", "pair")
    assert found["video"].option == "--no-video"
    assert (found["layers"].type, found["layers"].many) == ("list[int]", "words")
    assert (found["range"].type, found["range"].many) == ("list[float]", "words")
    assert (found["more"].type, found["more"].many) == ("list[str]", "words")
    assert (found["tag"].type, found["tag"].many) == ("list[str]", "repeat")
    assert found["kind"].choices == ("a", "b")
    assert "positional" not in found


def test_script_without_flags_declares_none(tmp_path: Path) -> None:
    assert script(tmp_path, "print('hello')") == parameters.ScriptFlags("none", {})


def test_every_registered_algorithm_describes_itself_completely() -> None:
    described = parameters.describe()
    assert list(described) == list(DEFAULT_ALGO_REGISTRY)
    for name, entry in described.items():
        fields = {field["name"]: field for field in entry["fields"]}
        assert entry["module"] == DEFAULT_ALGO_REGISTRY[name]
        assert entry["doc"], name
        assert set(entry["action_spaces"]) & {"discrete", "continuous", "multi_discrete"}, name
        assert {"env_id", "total_timesteps", "seed", "run_dir", "num_threads"} <= set(fields), name
        assert all(field["help"] for field in fields.values()), name
        assert set(fields["env_id"]) == {"name", "type", "default", "optional", "choices", "help", "limits"}


def test_schema_says_what_the_algorithms_own_parser_says() -> None:
    """The one test that imports the algorithms: what is read from the source is what Python makes of it."""
    code = (
        "import dataclasses, importlib, json, sys\n"
        "modules = {name: importlib.import_module(name) for name in sys.argv[1:]}\n"
        "defaults = {name: {f.name: getattr(m.Args(), f.name) for f in dataclasses.fields(m.Args)} "
        "for name, m in modules.items()}\n"
        "print(json.dumps(defaults, default=str))"
    )
    described = parameters.describe().values()
    command = [sys.executable, "-c", code, *(entry["module"] for entry in described)]
    imported = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    read = {entry["module"]: {field["name"]: field["default"] for field in entry["fields"]} for entry in described}
    assert read == imported


def test_all_algorithms_are_described_by_reading_each_file_once_and_only_its_head() -> None:
    from cleanrl_worker.schema.source import Source, _parse, locate_module

    _parse.cache_clear()
    parameters.describe()
    assert _parse.cache_info().misses == len(DEFAULT_ALGO_REGISTRY) + 1  # and the base of their Args
    for module in DEFAULT_ALGO_REGISTRY.values():
        path = locate_module(module)
        assert path is not None
        assert "main" not in Source.read(path, head=True).definitions, f"{module}: its training loop was parsed too"


TROUBLE = """
    import heavy_package_that_is_not_there

    class Args:
        x: int = 1

    def trouble(args: Args, observations: str | None) -> str | None:
        return f"{args.x} on {observations}" if args.x > 1 and args.y else None
"""


def test_what_a_file_says_of_its_parameters_is_asked_without_running_the_file(tmp_path: Path) -> None:
    path = tmp_path / "algo.py"
    path.write_text(dedent(TROUBLE))
    assert parameters.trouble(path, {"x": 2, "y": True}.get, "grid") == "2 on grid"
    assert parameters.trouble(path, {"x": 1, "y": True}.get, None) is None
    assert parameters.trouble(path, {"x": 2}.get, None) is None  # y is not known
    path.write_text("x = 1\n")
    assert parameters.trouble(path, {}.get, None) is None


def test_what_is_asked_of_a_file_without_running_it_uses_nothing_of_the_file() -> None:
    asked = []
    for module in DEFAULT_ALGO_REGISTRY.values():
        path = parameters.locate_module(module)
        assert path is not None
        function = parameters.Source.read(path).definitions.get("trouble")
        if not isinstance(function, ast.FunctionDef):
            continue
        names = [node for line in function.body for node in ast.walk(line) if isinstance(node, ast.Name)]
        own = {"args", "observations"} | {node.id for node in names if isinstance(node.ctx, ast.Store)}
        assert {node.id for node in names} - own <= set(dir(builtins)), module
        asked.append(module.rpartition(".")[2])
    assert asked == ["ppo", "ppo_atari_multigpu"]
