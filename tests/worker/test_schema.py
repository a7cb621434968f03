import json
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from cleanrl_worker import schema
from cleanrl_worker.runtime import DEFAULT_ALGO_REGISTRY

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


def script(tmp_path: Path, text: str) -> schema.ScriptFlags:
    path = tmp_path / "script.py"
    path.write_text(dedent(text))
    return schema.read_flags(path)


def test_fields_are_read_with_type_default_choices_and_help(algorithm: Path) -> None:
    fields = {field.name: field for field in schema.read_fields(algorithm)}
    assert fields["env_id"] == schema.Field("env_id", "str", "CartPole-v1", help="which environment to learn")
    assert fields["total_timesteps"].default == 1_000_000
    assert fields["learning_rate"] == schema.Field("learning_rate", "float", 2.5e-4)
    assert fields["target_kl"] == schema.Field("target_kl", "float", None, optional=True, help="end early")
    assert (fields["clip"].type, fields["clip"].optional, fields["clip"].default) == ("float", True, 0.2)
    assert fields["network"] == schema.Field("network", "str", "separate", choices=("shared", "separate"))
    assert fields["width"] == schema.Field("width", "int", None, optional=True, choices=(32, 64))
    assert (fields["hidden"].type, fields["hidden"].default) == ("list[int]", [64, 64])
    assert (fields["shape"].type, fields["shape"].default) == ("list[int]", [8, 4])
    assert (fields["mixed"].type, fields["note"].type) == ("float", "str")
    assert "COUNTER" not in fields


def test_inherited_fields_come_first_and_keep_their_help_when_overridden(algorithm: Path) -> None:
    fields = schema.read_fields(algorithm)
    assert [field.name for field in fields][:4] == ["exp_name", "seed", "run_dir", "env_id"]
    assert fields[0] == schema.Field("exp_name", "str", "tiny", help="name of this experiment")
    assert fields[2] == schema.Field("run_dir", "path", None, optional=True)


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
    assert [field.name for field in schema.read_fields(path)] == ["exp_name", "seed", "run_dir", "x"]


def test_docstring_action_spaces_imports_and_main_are_read(algorithm: Path) -> None:
    assert schema.first_line(algorithm) == "A tiny algorithm. More words."
    assert schema.action_spaces(algorithm) == ("discrete", "continuous")
    assert schema.imported_packages(algorithm) == ("os", "dataclasses", "typing", "base")
    assert schema.has_main(algorithm)
    assert not schema.has_main(algorithm.with_name("base.py"))


def test_action_spaces_below_the_args_are_found(tmp_path: Path) -> None:
    path = tmp_path / "algo.py"
    path.write_text("class Args:\n    x: int = 1\n\n\nACTION_SPACES = ['discrete']\n")
    assert schema.action_spaces(path) == ("discrete",)


def test_help_that_looks_like_code_does_not_cut_the_args_short(tmp_path: Path) -> None:
    path = tmp_path / "algo.py"
    path.write_text('class Args:\n    x: int = 1\n    """use it\nif in doubt"""\n    y: int = 2\n\n\ndef f(): ...\n')
    fields = schema.read_fields(path)
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
    assert (found["tag"].type, found["tag"].many) == ("list[str]", "repeat")
    assert found["kind"].choices == ("a", "b")
    assert "positional" not in found


def test_script_without_flags_declares_none(tmp_path: Path) -> None:
    assert script(tmp_path, "print('hello')") == schema.ScriptFlags("none", {})


def test_every_registered_algorithm_describes_itself_completely() -> None:
    described = schema.describe()
    assert list(described) == list(DEFAULT_ALGO_REGISTRY)
    for name, entry in described.items():
        fields = {field["name"]: field for field in entry["fields"]}
        assert entry["module"] == DEFAULT_ALGO_REGISTRY[name]
        assert entry["doc"], name
        assert set(entry["action_spaces"]) & {"discrete", "continuous"}, name
        assert {"env_id", "total_timesteps", "seed", "run_dir", "num_threads"} <= set(fields), name
        assert all(field["help"] for field in fields.values()), name
        assert set(fields["env_id"]) == {"name", "type", "default", "optional", "choices", "help"}


def test_schema_says_what_the_algorithms_own_parser_says() -> None:
    """The one test that imports the algorithms: what is read from the source is what Python makes of it."""
    code = (
        "import dataclasses, importlib, json, sys\n"
        "modules = {name: importlib.import_module(name) for name in sys.argv[1:]}\n"
        "defaults = {name: {f.name: f.default for f in dataclasses.fields(m.Args)} for name, m in modules.items()}\n"
        "print(json.dumps(defaults, default=str))"
    )
    described = schema.describe().values()
    command = [sys.executable, "-c", code, *(entry["module"] for entry in described)]
    imported = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    read = {entry["module"]: {field["name"]: field["default"] for field in entry["fields"]} for entry in described}
    assert read == imported


def test_all_algorithms_are_described_in_a_tenth_of_a_second() -> None:
    from cleanrl_worker.source import _parse

    times = []
    for _ in range(5):
        _parse.cache_clear()
        start = time.perf_counter()
        schema.describe()
        times.append(time.perf_counter() - start)
    assert min(times) < 0.1
