"""Static reading of Python files: classes, constants and imports, and lookup of a module's file."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mosaic.contract.errors import ConfigError

Definition = ast.ClassDef | ast.FunctionDef


class Source:
    """A parsed file with its top-level classes, functions, constants and imports."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self.definitions = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        self.constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }

    @classmethod
    def read(cls, path: Path, head: bool = False) -> Source:
        """Parse a file, or with `head` only up to the end of `Args`: the training loop below costs most of the time."""
        try:
            stamp = path.stat()
            return _parse(path, stamp.st_mtime_ns, stamp.st_size, head)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        except RecursionError as error:
            raise ConfigError(f"{path}: too deeply nested to be read; shorten its longest expression") from error
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = f"{path} line {line}" if line else str(path)
            raise ConfigError(f"{where}: no valid Python: {getattr(error, 'msg', error)}") from error

    def tyro_target(self) -> tuple[Source, Definition] | None:
        """Return the class or function passed to `tyro.cli`, or the class passed to our `parse`, which calls it."""
        for call in self.calls():
            function = dotted(call.func).rpartition(".")[2]
            found = self.find(dotted(call.args[0])) if function in ("cli", "parse") and call.args else None
            if found and (function == "cli" or isinstance(found[1], ast.ClassDef)):
                return found
        return None

    def imports_any(self, packages: frozenset[str]) -> bool:
        """Return True if one of the packages is imported, at the top or anywhere below."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] in packages for alias in node.names):
                return True
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in packages:
                return not node.level
        return False

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def value(self, node: ast.expr | None) -> Any:
        """Return an expression's value, None if it cannot be evaluated statically."""
        if node is None:
            return None
        try:
            return _evaluate(node, self)
        except (_Unknown, ArithmeticError, TypeError, ValueError, IndexError, AttributeError, RecursionError):
            return None

    def find(self, name: str) -> tuple[Source, Definition] | None:
        """Return the file and node of a class or function used here, resolved through the top-level imports."""
        if name in self.definitions:
            return self, self.definitions[name]
        found = self._imported(name)
        return found[0].find(found[1]) if found else None

    def find_constant(self, name: str) -> tuple[Source, ast.expr] | None:
        """Return the file and value of a constant used here, resolved through the top-level imports."""
        if name in self.constants:
            return self, self.constants[name]
        found = self._imported(name)
        return found[0].find_constant(found[1]) if found else None

    def _imported(self, name: str) -> tuple[Source, str] | None:
        """Return the file that defines an imported name, and its name there."""
        for known_as, module, level, wanted in self._imported_names():
            if name != known_as and not name.startswith(f"{known_as}."):
                continue
            rest = name[len(known_as) + 1 :]
            if wanted and rest:  # `from package import module`, then `module.Class`
                module, wanted = f"{module}.{wanted}".lstrip("."), rest
            path = self._import_path(module, level)
            return (Source.read(path), wanted or rest) if path else None
        return None

    def _imported_names(self) -> Iterator[tuple[str, str, int, str]]:
        """Yield each import as (name here, module, level, name there); the last is "" for a whole module."""
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield alias.asname or alias.name, node.module or "", node.level, alias.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.asname or alias.name, alias.name, 0, ""

    def _import_path(self, module: str, level: int) -> Path | None:
        folder = self.path.parents[level - 1] if level else self.path.parent
        found = _imported_file(folder, module, bool(level))
        return found if found != self.path else None


@functools.lru_cache(maxsize=512)  # an `Args` uses the same few imports in many fields
def _imported_file(folder: Path, module: str, relative: bool) -> Path | None:
    """Return an imported module's file, first searched beside the importing file; None for compiled modules."""
    base = folder.joinpath(*module.split("."))
    beside = next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    found = beside or (None if relative else locate_module(module))
    return found if found and found.suffix == ".py" else None


def locate_module(name: str, also: tuple[str, ...] = ()) -> Path | None:
    """Return the file of a dotted name, searched last in the folders `also`.

    Unlike `importlib.util.find_spec`, this does not execute parent packages.
    """
    where: Any = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:count]), where)
        if spec is None and count == 1:
            spec = importlib.machinery.PathFinder.find_spec(parts[0], list(also))
        if spec is None:
            return None
        where = spec.submodule_search_locations
        if where is None and count < len(parts):
            return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def package_exists(name: str) -> bool:
    """Return True if a top-level package can be imported, including namespace packages and built-in modules."""
    return name in sys.builtin_module_names or _find_spec(name, None) is not None


def _find_spec(name: str, where: Any) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, where) if find else None
        if spec is not None:
            return spec
    return None


def dotted(node: ast.expr | None) -> str:
    """Return `a.b.c` for a name, an attribute or the base of a subscript; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return dotted(node.value) if isinstance(node, ast.Subscript) else ""


# A top-level statement after `class Args` ends its body; strings and brackets in it are indented or quoted.
_AFTER_ARGS = re.compile(r"^class Args\b.*?\n(?=(?:class|def|async|@|if|import|from|[A-Za-z_]+ *[:=]))", re.M | re.S)


@functools.lru_cache(maxsize=512)
def _parse(path: Path, _mtime_ns: int, _size: int, head: bool) -> Source:
    text = path.read_text(encoding="utf-8")
    cut = _AFTER_ARGS.search(text) if head else None
    if cut:
        try:
            return Source(path, ast.parse(text[: cut.end()]))
        except SyntaxError:
            pass  # the cut is inside a string: parse the whole file
    return Source(path, ast.parse(text))


class _Unknown(Exception):
    """An expression that cannot be evaluated statically."""


_CALLS: dict[str, Any] = {
    "int": int, "float": float, "str": str, "bool": bool, "round": round, "len": len, "min": min, "max": max,
    "list": list, "tuple": tuple, "os.path.basename": os.path.basename, "os.path.splitext": os.path.splitext,
    "Path": Path, "pathlib.Path": Path,
}  # fmt: skip
_METHODS = ("rstrip", "removesuffix", "replace", "strip", "lower", "split")


def _evaluate(node: ast.expr, source: Source) -> Any:
    """Evaluate literals, arithmetic, module constants, and the usual expressions for a file's own name."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name(id="__file__"):
            return str(source.path)
        case ast.Name() if node.id in source.constants:
            return _evaluate(source.constants[node.id], source)
        case ast.Tuple() | ast.List():
            return [_evaluate(item, source) for item in node.elts]
        case ast.UnaryOp(op=ast.USub()):
            return -_evaluate(node.operand, source)
        case ast.BinOp():
            return _arithmetic(node, source)
        case ast.Subscript(slice=ast.Slice() as part):
            ends = (None if end is None else _evaluate(end, source) for end in (part.lower, part.upper, part.step))
            return _evaluate(node.value, source)[slice(*ends)]
        case ast.Subscript():
            return _evaluate(node.value, source)[_evaluate(node.slice, source)]
        case ast.Attribute(attr="stem"):
            return _evaluate(node.value, source).stem
        case ast.Call(keywords=[]) if dotted(node.func) in _CALLS:
            return _CALLS[dotted(node.func)](*(_evaluate(item, source) for item in node.args))
        case ast.Call(func=ast.Attribute() as method, keywords=[]) if method.attr in _METHODS:
            return getattr(_evaluate(method.value, source), method.attr)(
                *(_evaluate(item, source) for item in node.args)
            )
    raise _Unknown(ast.dump(node))


def _arithmetic(node: ast.BinOp, source: Source) -> Any:
    left, right = _evaluate(node.left, source), _evaluate(node.right, source)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return left // right
        case ast.Pow() if abs(right) <= 64:
            return left**right
    raise _Unknown(ast.dump(node))
