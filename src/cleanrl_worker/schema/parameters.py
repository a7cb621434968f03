"""An algorithm's parameters (names, types, defaults, choices, help), read from its source without importing it."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cleanrl_worker.schema.source import Definition, Source, dotted, locate_module, package_exists
from mosaic.contract.errors import ConfigError
from mosaic.contract.extras import pip_line
from mosaic.contract.flags import plain
from mosaic.contract.limits import Limits


@dataclass(frozen=True)
class Field:
    """One parameter. `type` is int, float, str, bool, path, list[...], or the annotation as written."""

    name: str
    type: str
    default: Any = None
    optional: bool = False
    choices: tuple[Any, ...] = ()
    help: str = ""
    limits: Limits | None = None


@dataclass(frozen=True)
class Flag(Field):
    """A parameter as spelled on a user's script's command line."""

    option: str = ""
    switch: str = "value"
    """spelling of a bool: `pair` (--x, --no-x), `value` (--x=true), `on` (--x or nothing), `off` (the reverse)"""
    many: str = "words"
    """spelling of a sequence: `words` (--x a b) or `repeat` (--x=a --x=b)"""

    def written(self, value: Any) -> list[str]:
        """Return the command-line words for a value, in the script's dialect."""
        if isinstance(value, list | tuple):
            words = [plain(item) for item in value]
            return [self.option, *words] if self.many == "words" else [f"{self.option}={word}" for word in words]
        if isinstance(value, bool) and self.switch != "value":
            if self.switch == "pair":
                group, dot, name = self.option[2:].rpartition(".")  # tyro writes --group.no-name
                return [self.option if value else f"--{group}{dot}no-{name}"]
            return [self.option] if value == (self.switch == "on") else []
        return [f"{self.option}={plain(value)}"]


@dataclass(frozen=True)
class ScriptFlags:
    """A script's flags, by name with `_`; the dialect is `tyro`, `argparse`, or `none` without flags.

    `unread`: the source does not show its flags; the usual ones of CleanRL-style scripts are assumed.
    """

    dialect: str
    flags: dict[str, Flag]


@dataclass(frozen=True)
class Scope:
    """An algorithm's declared scope, in the catalog's terms; empty if not declared."""

    action_spaces: tuple[str, ...] = ()
    observation_spaces: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    default_backend: str = "gymnasium"
    """backend of the environments if the config sets none"""
    saved_environments: tuple[str, ...] = ()
    """ids whose whole state is in the checkpoints: no checkpoint cuts their episodes"""


_PARSERS = frozenset(("tyro", "argparse", "simple_parsing", "click", "typer", "fire"))
_USUAL_FLAGS = {
    "env_id": Flag("env_id", "str", option="--env-id"),
    "total_timesteps": Flag("total_timesteps", "int", option="--total-timesteps"),
    "seed": Flag("seed", "int", option="--seed"),
}


def describe(registry: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Return each algorithm's module, first docstring line, scope and fields, as plain JSON types."""
    from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY

    described = {}
    for name, module in (DEFAULT_ALGO_REGISTRY if registry is None else registry).items():
        path = locate_module(module)
        if path is None:
            raise ConfigError(f"algo {name!r}: its module {module!r} cannot be found; reinstall mosaic-rl")
        scope = read_scope(path)
        described[name] = {
            "module": module,
            "doc": first_line(path),
            "action_spaces": list(scope.action_spaces),
            "observation_spaces": list(scope.observation_spaces),
            "families": list(scope.families),
            "fields": [{**asdict(field), "choices": list(field.choices)} for field in read_fields(path)],
        }
    return described


def read_fields(path: Path) -> list[Field]:
    """Return the fields of the file's `Args` (or of its argument to `tyro.cli`), inherited ones first; else []."""
    source = Source.read(path, head=True)
    found = source.find("Args") if "Args" in source.definitions else source.tyro_target()
    return list(_fields(*found).values()) if found else []


def read_flags(path: Path) -> ScriptFlags:
    """Return the flags that a script declares, in its own dialect."""
    source = Source.read(path)
    found = source.tyro_target()
    if found:
        return ScriptFlags("tyro", {flag.name: flag for flag in _tyro_flags(*found)})
    flags = {flag.name: flag for flag in _argparse_flags(source)}
    if not flags and source.imports_any(_PARSERS):
        return ScriptFlags("unread", dict(_USUAL_FLAGS))
    return ScriptFlags("argparse" if flags else "none", flags)


def read_scope(path: Path) -> Scope:
    """Return the module's declared constants (ACTION_SPACES, OBSERVATION_SPACES, FAMILIES, …); all are optional."""
    source = Source.read(path, head=True)
    if "ACTION_SPACES" not in source.constants:  # in our files, all are above `Args`
        source = Source.read(path)

    def words(name: str) -> tuple[str, ...]:
        value = source.value(source.constants.get(name))
        return tuple(value) if isinstance(value, tuple | list) else ()

    backend = source.value(source.constants.get("DEFAULT_BACKEND")) or Scope.default_backend
    spaces = words("ACTION_SPACES"), words("OBSERVATION_SPACES")
    return Scope(*spaces, words("FAMILIES"), str(backend), words("SAVED_ENVIRONMENTS"))


def trouble(path: Path, value_of: Callable[[str], Any], observations: str | None) -> str | None:
    """Return the error of the file's own `trouble(args, observations)` for conflicting parameters, None without one.

    Only that function is executed, not the file, whose imports take seconds: it uses only its arguments. The result is
    also None if it reads an unknown parameter (`value_of` returns None).
    """
    source = Source.read(path)
    function = source.definitions.get(trouble.__name__)
    if not isinstance(function, ast.FunctionDef):
        return None
    names: dict[str, Any] = {}
    # annotations stay strings, as in this module: `Args` is not defined
    exec(compile(ast.Module([function], []), str(path), "exec"), names)
    try:
        told: str | None = names[function.name](_Parameters(value_of), observations)
    except _NotKnown:
        return None
    return told


class _NotKnown(Exception):
    """A parameter that is left to the saved run, which does not record it."""


@dataclass(frozen=True)
class _Parameters:
    """The known part of an algorithm's future `args`."""

    value_of: Callable[[str], Any]

    def __getattr__(self, name: str) -> Any:
        if (value := self.value_of(name)) is None:
            raise _NotKnown(name)
        return value


TYPE_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "path": "a path"}


def convert(value: Any, kind: str) -> Any:
    """Return a value as a field's type, or raise; numbers and bools may also be strings, as for a flag."""
    if kind.startswith("list["):
        items = value if isinstance(value, list | tuple) else [value]
        return [convert(item, kind[5:-1]) for item in items]
    if kind not in TYPE_WORDS:
        return value
    if kind == "bool":
        return {"true": True, "false": False}[str(value).lower()]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    if kind == "int":
        if isinstance(value, float) and not value.is_integer():
            raise ValueError
        return int(value)
    if kind == "float":
        if math.isnan(float(value)):
            raise ValueError
        return value if isinstance(value, int) else float(value)
    return str(value)


def action_spaces(path: Path) -> tuple[str, ...]:
    """Return the module's declared action spaces."""
    return read_scope(path).action_spaces


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(Source.read(path, head=True).tree) or "").partition("\n")[0]


def require_packages(algo: str, path: Path | None) -> None:
    """Refuse our own algorithm if its package is missing: it would fail at import."""
    for package in imported_packages(path) if path else ():
        if not package_exists(package):
            raise ConfigError(f"algo {algo!r} needs {package}, which is not installed: {pip_line(package)}")


def imported_packages(path: Path) -> tuple[str, ...]:
    """Return the packages that the module's top level imports, in order, each once."""
    found: dict[str, None] = {}
    for node in Source.read(path, head=True).tree.body:
        if isinstance(node, ast.Import):
            found.update((alias.name.partition(".")[0], None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found[node.module.partition(".")[0]] = None
    return tuple(found)


def has_main(path: Path) -> bool:
    """Return True if the module has a top-level `main` function."""
    body = Source.read(path).tree.body
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "main" for node in body)


def _tyro_flags(source: Source, node: Definition) -> Iterator[Flag]:
    for field in _fields(source, node).values():
        option = "--" + field.name.replace("_", "-")
        found = source.find(field.type) if isinstance(node, ast.FunctionDef) else None
        nested = list(_tyro_flags(*found)) if found else []
        yield from (replace(inner, option=f"{option}.{inner.option[2:]}") for inner in nested)
        if not nested:
            yield Flag(**vars(field), option=option, switch="pair")


def _fields(source: Source, node: Definition) -> dict[str, Field]:
    return _class_fields(source, node) if isinstance(node, ast.ClassDef) else _parameters(source, node)


def _parameters(source: Source, node: ast.FunctionDef) -> dict[str, Field]:
    """Return a function's parameters that can be flags; their help, in the docstring for tyro, is not read."""
    given = node.args
    places = [*given.posonlyargs, *given.args]
    required = [None] * (len(places) - len(given.defaults))
    defaults = [*required, *given.defaults, *given.kw_defaults]
    return {
        item.arg: _field(source, item.arg, item.annotation, default)
        for item, default in zip([*places, *given.kwonlyargs], defaults, strict=True)
        if item.annotation
    }


def _class_fields(source: Source, node: ast.ClassDef) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for base in reversed(node.bases):
        found = source.find(dotted(base))
        if found and isinstance(found[1], ast.ClassDef):
            fields.update(_class_fields(found[0], found[1]))
    for index, statement in enumerate(node.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if dotted(statement.annotation).endswith(("ClassVar", "InitVar")):
            continue
        field = _field(source, statement.target.id, statement.annotation, statement.value)
        follower = node.body[index + 1] if index + 1 < len(node.body) else None
        text = source.value(follower.value) if isinstance(follower, ast.Expr) else None
        inherited = fields[field.name].help if field.name in fields else ""
        fields[field.name] = replace(field, help=" ".join(text.split()) if isinstance(text, str) else inherited)
    return fields


def _field(source: Source, name: str, annotation: ast.expr, default: ast.expr | None) -> Field:
    home = source
    if isinstance(annotation, ast.Name) and annotation.id not in _PLAIN:
        home, annotation = source.find_constant(annotation.id) or (source, annotation)
    kind, optional, choices = read_type(annotation)
    if isinstance(default, ast.Call) and dotted(default.func).endswith("field"):
        given = {keyword.arg: keyword.value for keyword in default.keywords}
        factory = given.get("default_factory")
        default = factory.body if isinstance(factory, ast.Lambda) else given.get("default")
    value = source.value(default)
    if isinstance(value, tuple):
        value = list(value)
    return Field(name, kind, value, optional, choices, limits=_limits(home, annotation))


def _limits(source: Source, annotation: ast.expr) -> Limits | None:
    """Return the limits of `Annotated[int, Limits(1, below="n")]`, None for any other type."""
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
        return None
    for extra in annotation.slice.elts[1:]:
        if isinstance(extra, ast.Call) and dotted(extra.func) == Limits.__name__:
            named = {keyword.arg: source.value(keyword.value) for keyword in extra.keywords if keyword.arg}
            return Limits(*map(source.value, extra.args), **named)
    return None


_PLAIN = {"int": "int", "float": "float", "str": "str", "bool": "bool", "Path": "path", "PathLike": "path"}


def read_type(node: ast.expr) -> tuple[str, bool, tuple[Any, ...]]:
    """Return an annotation as (type, optional, choices)."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return read_type(ast.parse(node.value, mode="eval").body)
    name = dotted(node).rpartition(".")[2]
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Literal":
            choices = tuple(item.value for item in inner if isinstance(item, ast.Constant))
            kinds = {type(choice).__name__ for choice in choices}
            return kinds.pop() if len(kinds) == 1 else "str", False, choices
        if name == "Optional":
            return read_type(inner[0])[0], True, read_type(inner[0])[2]
        if name == "Union":
            return _read_union(inner)
        if name == "Annotated":
            return read_type(inner[0])
        if name.lower() in ("list", "tuple", "sequence"):
            return f"list[{read_type(inner[0])[0]}]", False, ()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _read_union([node.left, node.right])
    return _PLAIN.get(name, ast.unparse(node)), False, ()


def _read_union(members: list[ast.expr]) -> tuple[str, bool, tuple[Any, ...]]:
    real = [member for member in members if not (isinstance(member, ast.Constant) and member.value is None)]
    read = [read_type(member) for member in real]
    kinds = {kind for kind, _, _ in read}
    optional = len(real) < len(members) or any(inner for _, inner, _ in read)
    choices = tuple(choice for _, _, some in read for choice in some)
    if len(kinds) == 1:
        return kinds.pop(), optional, choices
    return ("float" if kinds == {"int", "float"} else " | ".join(kind for kind, _, _ in read)), optional, choices


def _argparse_flags(source: Source) -> Iterator[Flag]:
    for call in source.calls():
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            continue
        options = [value for value in map(source.value, call.args) if isinstance(value, str)]
        option = next((value for value in options if value.startswith("--")), None)
        if option is None:
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        name = source.value(given.get("dest")) or option.lstrip("-").replace("-", "_")
        action = source.value(given.get("action")) or dotted(given.get("action")).rpartition(".")[2]
        kind, switch = _argparse_kind(given.get("type"), action)
        nargs = source.value(given.get("nargs"))
        many = action in ("append", "extend") or nargs in ("+", "*") or isinstance(nargs, int)
        choices = source.value(given.get("choices"))
        yield Flag(
            name=name,
            type=f"list[{kind}]" if many else kind,
            default=source.value(given.get("default")),
            choices=tuple(choices) if isinstance(choices, tuple | list) else (),
            help=str(source.value(given.get("help")) or ""),
            option=option,
            switch=switch,
            many="repeat" if action == "append" and nargs is None else "words",
        )


_SWITCHES = {"store_true": "on", "store_false": "off", "BooleanOptionalAction": "pair"}


def _argparse_kind(node: ast.expr | None, action: str) -> tuple[str, str]:
    if action in _SWITCHES:
        return "bool", _SWITCHES[action]
    if node is None:
        return "str", "value"
    if isinstance(node, ast.Lambda) or dotted(node).endswith(("strtobool", "str2bool")):
        return ("bool" if "bool" in ast.unparse(node) else "str"), "value"
    return _PLAIN.get(dotted(node).rpartition(".")[2], "str"), "value"
