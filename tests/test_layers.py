"""Who may import whom, how large a file may grow, which calls are refused: a table each, checked on the sources."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"

WORKER = "cleanrl_worker"
ALGORITHMS = f"{WORKER}.algorithms"


@dataclass(frozen=True)
class Room:
    """A folder: the folders that it may import, and the packages of others (None: any); `lazily` in functions alone."""

    ours: tuple[str, ...] = ()
    others: tuple[str, ...] | None = ()
    lazily: tuple[str, ...] = ()


def _worker(*names: str) -> tuple[str, ...]:
    return tuple(f"{WORKER}.{name}" for name in names)


CONTRACT, STORE, CATALOG = "mosaic.contract", "mosaic.store", "mosaic.catalog"
TORCH, JAX = ("torch",), ("jax", "jaxlib", "flax", "optax")
LEARNING = _worker("run", "envs", "learn", "nets")
# The worker's shell, then what runs in the algorithm's process, then the platform. A room may import itself, and what
# lies below it has a row of its own.
ROOMS: dict[str, Room] = {
    WORKER: Room(
        (*_worker("registry", "schema", "config", "plan", "supervise", "telemetry"), CONTRACT, STORE), ("orjson",)
    ),
    f"{WORKER}.registry": Room(),
    f"{WORKER}.schema": Room((*_worker("registry"), CONTRACT)),
    f"{WORKER}.config": Room((*_worker("registry", "foreign"), CONTRACT, STORE)),
    f"{WORKER}.plan": Room((*_worker("schema", "config", "foreign", "fastlane", "telemetry"), CONTRACT, CATALOG)),
    f"{WORKER}.telemetry": Room((CONTRACT,), ("grpc", "huggingface_hub", "orjson", "psutil", "pynvml", "wandb")),
    f"{WORKER}.supervise": Room(
        (
            *_worker("registry", "schema", "config", "plan", "telemetry", "fastlane", "foreign"),
            *(CONTRACT, CATALOG, STORE),
        ),
        ("orjson",),
    ),
    # Also inside other people's interpreters, loaded by path: what they have, torch and JAX only when the script does.
    f"{WORKER}.foreign": Room((), ("numpy", "gymnasium", "ale_py", "av", "cv2"), lazily=(*TORCH, *JAX)),
    f"{WORKER}.fastlane": Room(
        (*_worker("run", "envs", "learn"), CONTRACT), ("numpy", "gymnasium", "mujoco", "_mosaic")
    ),
    f"{WORKER}.envs": Room(
        (CONTRACT, CATALOG), ("numpy", "gymnasium", "av", "ale_py", "envpool", "pettingzoo", "syllabus")
    ),
    f"{WORKER}.envs.jax": Room(_worker("envs"), ("numpy", "gymnasium", "envpool", *JAX)),
    f"{WORKER}.run": Room(
        (*_worker("envs"), CONTRACT), ("numpy", "gymnasium", "tyro", "safetensors", "msgpack"), lazily=(*TORCH, *JAX)
    ),
    f"{WORKER}.nets": Room(_worker("run"), ("numpy", *TORCH)),
    f"{WORKER}.nets.jax": Room(_worker("run"), ("numpy", "gymnasium", *JAX)),
    f"{WORKER}.learn": Room((*_worker("run", "envs"), CONTRACT), ("numpy", "huggingface_hub", *TORCH)),
    ALGORITHMS: Room((*LEARNING, "mosaic.contract.stopping"), ("numpy", *TORCH, *JAX)),
    f"{WORKER}.evaluation": Room(
        (*_worker("run", "envs", "algorithms"), CONTRACT), ("numpy", "gymnasium", "tyro", *TORCH)
    ),
    f"{WORKER}.play": Room((*_worker("run", "envs", "evaluation"), CONTRACT), ("numpy", "gymnasium")),
    f"{WORKER}.agents": Room(),
    f"{WORKER}.wrappers": Room(),
    CONTRACT: Room(
        ("mosaic.contract.ring",), ("pydantic", "orjson", "ulid", "grpc", "google", "tensorboard", "numpy", "psutil")
    ),
    "mosaic.contract.ring": Room(),  # loaded by path inside other people's interpreters
    STORE: Room((CONTRACT,), ("fsspec",)),
    CATALOG: Room((CONTRACT,)),
    "mosaic.stats": Room((), ("numpy",)),
    "mosaic.trainer": Room((CONTRACT, CATALOG, STORE), ("grpc", "numpy", "psutil", "pynvml", "tsdownsample", "ulid")),
    "mosaic.web": Room(
        (CONTRACT, CATALOG, STORE, "mosaic.stats", "mosaic.trainer.rpc.client", "mosaic.trainer.run"), None
    ),
    "mosaic.commands": Room(("mosaic",), None),
    "mosaic": Room(("mosaic",), ("numpy", "pynvml", "rich")),
    "gym_gui": Room(("mosaic.cli",)),
}
HEAVY = {*TORCH, *JAX}
# The worker's top, the frame publisher, the loading of plug-ins that strangers wrote, a session with an environment
# that they wrote, and the daemon's loop and the GUI's stream of changes, which must go on for the other runs and pages.
# The daemon's and the rebuild's border around one run: it is BROKEN or skipped, with the reason.
# And the stores: each comes with a package that has exceptions of its own for everything.
MAY_CATCH_ALL = (
    *_worker("cli", "supervise.supervisor", "play.game_view"),
    *_worker("fastlane.gym_wrapper", "fastlane.pacer", "fastlane.mujoco_process"),
    *("mosaic.contract.workers", "mosaic.store.storage", "mosaic.web.live"),
    *(
        "mosaic.trainer.daemon",
        "mosaic.trainer.rpc.service",
        "mosaic.trainer.border",
        "mosaic.trainer.registry.rebuild",
    ),
)

TWO_SIDED = ("Run",)  # what an algorithm holds and what the platform holds of one run: both are public names
MODULE_LINES, FUNCTION_LINES = 400, 60
ALGORITHM_LINES, ALGORITHM_MAIN_LINES = 600, 300


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    name: str
    path: Path
    tree: ast.Module
    lines: int


@dataclass(frozen=True)
class Import:
    """A module that a source names in an import, and whether importing the source runs it."""

    name: str
    line: int
    at_module_level: bool
    for_types: bool = False


def violations(src: Path) -> list[str]:
    """Every broken rule below a source folder, one line each."""
    modules = list(read_modules(src))
    known = {module.name for module in modules}
    found: list[str] = []
    for module in modules:
        imports = list(imports_of(module, known))
        found += room_violations(module, imports)
        found += size_violations(module)
        found += call_violations(module)
    return [*found, *cycles_of(modules, known), *names_used_twice(modules)]


def read_modules(src: Path) -> Iterator[Module]:
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        if "proto" in parts:  # generated
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        yield Module(name, path, ast.parse(text, str(path)), len(text.splitlines()))


def imports_of(module: Module, known: set[str]) -> Iterator[Import]:
    """Imports at every depth, `from package import submodule` and `import_module("name")` included."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    later = {id(part) for node in ast.walk(module.tree) if isinstance(node, functions) for part in ast.walk(node)}
    typing = {id(part) for node in ast.walk(module.tree) if is_for_types(node) for part in ast.walk(node)}
    for node in ast.walk(module.tree):
        for name in imported_names(node, module, known):
            yield Import(name, getattr(node, "lineno", 0), id(node) not in later | typing, id(node) in typing)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and any(
        "TYPE_CHECKING" in (getattr(part, "id", ""), getattr(part, "attr", "")) for part in ast.walk(node.test)
    )


def imported_names(node: ast.AST, module: Module, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = absolute_base(node, module)
        for alias in node.names:
            child = f"{base}.{alias.name}"
            yield child if child in known else base
    elif isinstance(node, ast.Call) and called_name(node) in {"import_module", "__import__", "importlib.import_module"}:
        if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            yield node.args[0].value


def absolute_base(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    package = module.name.split(".") if module.path.name == "__init__.py" else module.name.split(".")[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, node.module] if node.module else package)


def room_violations(module: Module, imports: list[Import]) -> Iterator[str]:
    room = ROOMS.get(home := room_of(module.name))
    if room is None:
        yield f"{module.path}: {module.name} belongs to no room; name its folder in ROOMS"
        return
    if is_public_name(module):
        return
    for item in imports:
        if item.for_types:
            continue
        where = f"{module.path}:{item.line}: {module.name} must not import {item.name}"
        if is_ours(item.name):
            if not may_import(module, home, room, item.name):
                yield where
        elif room.others is not None and not is_stdlib(item.name) and root(item.name) not in room.others:
            if root(item.name) not in room.lazily:
                yield where
            elif item.at_module_level:
                yield f"{where} at module level"
    if home == CONTRACT and module.name != "mosaic.contract.frames":
        for item in imports:
            if root(item.name) == "numpy":
                yield f"{module.path}:{item.line}: numpy is for mosaic.contract.frames only"


def room_of(name: str) -> str:
    """Return the longest row of the table that a module lies in."""
    return max((room for room in ROOMS if within(name, room)), key=len, default="")


def is_public_name(module: Module) -> bool:
    """Return True for a module that only gives names another place has, so that imports of old stay good."""
    return all(
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.ImportFrom) and all(alias.asname == alias.name for alias in node.names))
        for node in module.tree.body
    )


def may_import(module: Module, home: str, room: Room, name: str) -> bool:
    if home == ALGORITHMS and within(name, ALGORITHMS):  # an algorithm never imports another
        return name in {module.name, ALGORITHMS} and module.path.name != "__init__.py"
    if module.name == f"{home}.__main__":
        return True
    return name == "mosaic" or room_of(name) == home or any(within(name, allowed) for allowed in room.ours)


def cycles_of(modules: list[Module], known: set[str]) -> Iterator[str]:
    """Yield each circle of imports, those inside functions included."""
    graph = {
        module.name: {item.name for item in imports_of(module, known) if item.name in known and not item.for_types}
        - {module.name}
        for module in modules
    }
    left = dict(graph)
    while removable := [name for name, uses in left.items() if not uses & left.keys()]:
        for name in removable:
            del left[name]
    users = {name: {user for user in left if name in left[user]} for name in left}
    while removable := [name for name in left if not users[name] & left.keys()]:
        for name in removable:
            del left[name]
    if left:
        yield f"these modules import each other in circles: {', '.join(sorted(left))}"


def names_used_twice(modules: list[Module]) -> Iterator[str]:
    """Yield each public class name with two meanings; algorithm files and `foreign` have names of other people's."""
    places: dict[str, list[str]] = {}
    for module in modules:
        if within(module.name, ALGORITHMS) or within(module.name, f"{WORKER}.foreign"):
            continue
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module.name)
    for name, found in places.items():
        if len(found) > 1 and name not in TWO_SIDED:
            yield f"the class name {name} has {len(found)} meanings: {', '.join(found)}"


def size_violations(module: Module) -> Iterator[str]:
    algorithm = within(module.name, ALGORITHMS)
    allowed = ALGORITHM_LINES if algorithm else MODULE_LINES
    if module.lines > allowed:
        yield f"{module.path}: {module.lines} lines, allowed are {allowed}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            main = algorithm and node.name == "main" and node in module.tree.body
            allowed = ALGORITHM_MAIN_LINES if main else FUNCTION_LINES
            if length > allowed:
                yield f"{module.path}:{node.lineno}: {node.name} has {length} lines, allowed are {allowed}"


def call_violations(module: Module) -> Iterator[str]:
    may_catch_all = module.name in MAY_CATCH_ALL
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and not may_catch_all and catches_all(node.type) and not raises(node):
            yield f"{module.path}:{node.lineno}: catch what can be answered, not every exception"
        if not isinstance(node, ast.Call):
            continue
        if called_name(node) in {"suppress", "contextlib.suppress"} and any(catches_all(item) for item in node.args):
            yield f"{module.path}:{node.lineno}: suppress what can be answered, not every exception"
        if called_name(node) == "torch.load" and not loads_weights_only(node):
            yield f"{module.path}:{node.lineno}: torch.load runs foreign code unless weights_only=True"


def catches_all(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(catches_all(item) for item in caught.elts)
    return caught is None or (isinstance(caught, ast.Name) and caught.id in {"Exception", "BaseException"})


def raises(handler: ast.ExceptHandler) -> bool:
    """A handler that tidies up and raises again swallows nothing."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def loads_weights_only(call: ast.Call) -> bool:
    return any(
        keyword.arg == "weights_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )


def called_name(call: ast.Call) -> str:
    """`a.b.c`, "" for anything else that is called; ast.unparse would take ten seconds for all sources."""
    called, words = call.func, list[str]()
    while isinstance(called, ast.Attribute):
        words.insert(0, called.attr)
        called = called.value
    return ".".join([called.id, *words]) if isinstance(called, ast.Name) else ""


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def root(name: str) -> str:
    return name.split(".")[0]


def is_ours(name: str) -> bool:
    return root(name) in {"mosaic", "gym_gui", WORKER}


def is_stdlib(name: str) -> bool:
    return root(name) in sys.stdlib_module_names or name == "_sha2"  # which Python 3.12 brought


def test_sources_keep_to_layers_sizes_and_refused_calls() -> None:
    found = violations(SRC)
    assert not found, "\n" + "\n".join(found)


LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 60
LONG_MAIN = "def main():\n" + "    x = 1\n" * 299
PLANTED = [
    ("mosaic/contract/a.py", "import mosaic.catalog", "must not import mosaic.catalog"),
    ("mosaic/contract/a.py", "import rich", "must not import rich"),
    ("mosaic/contract/a.py", "import numpy", "numpy is for mosaic.contract.frames only"),
    ("mosaic/catalog/a.py", "import gymnasium", "must not import gymnasium"),
    ("mosaic/catalog/a.py", "from ..trainer import registry", "must not import mosaic.trainer"),
    ("mosaic/trainer/a.py", "from mosaic.web import app", "must not import mosaic.web"),
    ("mosaic/web/a.py", "from mosaic.trainer import registry", "must not import mosaic.trainer"),
    (
        "mosaic/cli.py",
        "def f():\n    import cleanrl_worker.schema.parameters",
        "must not import cleanrl_worker.schema.parameters",
    ),
    ("mosaic/cli.py", "import_module('cleanrl_worker')", "must not import cleanrl_worker"),
    ("unheard_of/a.py", "", "belongs to no room"),
    ("cleanrl_worker/runtime.py", "from cleanrl_worker.run import args", "must not import cleanrl_worker.run"),
    ("cleanrl_worker/cli.py", "from .evaluation import main", "must not import cleanrl_worker.evaluation"),
    ("cleanrl_worker/cli.py", "def f():\n    import torch", "must not import torch"),
    ("cleanrl_worker/foreign/launcher.py", "import psutil", "must not import psutil"),
    ("cleanrl_worker/foreign/a.py", "import pydantic", "must not import pydantic"),
    ("cleanrl_worker/foreign/a.py", "import mosaic.contract.paths", "must not import mosaic.contract.paths"),
    ("cleanrl_worker/foreign/a.py", "import torch", "must not import torch at module level"),
    ("cleanrl_worker/foreign/launcher.py", "import mosaic.contract.paths", "must not import mosaic.contract.paths"),
    ("cleanrl_worker/run/a.py", "import torch.nn as nn", "must not import torch.nn at module level"),
    ("cleanrl_worker/run/a.py", "try:\n    import jax\nexcept ImportError:\n    pass", "must not import jax"),
    ("cleanrl_worker/run/a.py", "from cleanrl_worker.nets import mlp", "must not import cleanrl_worker.nets"),
    ("cleanrl_worker/nets/a.py", "from mosaic.contract import paths", "must not import mosaic.contract"),
    ("cleanrl_worker/algorithms/a.py", "from cleanrl_worker.algorithms import b", "must not import cleanrl_worker.alg"),
    ("cleanrl_worker/algorithms/a.py", "from .b import gae", "must not import cleanrl_worker.algorithms.b"),
    ("mosaic/cli.py", "x = 1\n" * 401, "401 lines, allowed are 400"),
    ("mosaic/cli.py", LONG_FUNCTION, "f has 61 lines, allowed are 60"),
    ("mosaic/cli.py", "class A:\n" + indent(LONG_FUNCTION, "    "), "f has 61 lines, allowed are 60"),
    ("cleanrl_worker/algorithms/a.py", "x = 1\n" * 601, "601 lines, allowed are 600"),
    ("cleanrl_worker/algorithms/a.py", LONG_FUNCTION, "f has 61 lines, allowed are 60"),
    ("cleanrl_worker/algorithms/a.py", LONG_MAIN + "    x = 1\n", "main has 301 lines, allowed are 300"),
    ("mosaic/cli.py", "try:\n    pass\nexcept Exception:\n    pass", "not every exception"),
    ("mosaic/cli.py", "try:\n    pass\nexcept (OSError, BaseException):\n    pass", "not every exception"),
    ("cleanrl_worker/run/a.py", "try:\n    pass\nexcept:\n    pass", "not every exception"),
    ("mosaic/cli.py", "with contextlib.suppress(Exception):\n    pass", "not every exception"),
    ("cleanrl_worker/nets/a.py", "torch.load(path)", "unless weights_only=True"),
    ("cleanrl_worker/nets/a.py", "torch.load(path, weights_only=False)", "unless weights_only=True"),
]


@pytest.mark.parametrize(("path", "source", "message"), PLANTED, ids=[f"{p[0]}-{p[2]}" for p in PLANTED])
def test_planted_violation_is_found(tmp_path: Path, path: str, source: str, message: str) -> None:
    plant(tmp_path, path, source)
    plant(tmp_path, "cleanrl_worker/algorithms/b.py", "")
    found = violations(tmp_path)
    assert len(found) == 1 and message in found[0], found


def test_class_name_with_two_meanings_is_found(tmp_path: Path) -> None:
    for path in ("mosaic/a.py", "mosaic/b.py", "cleanrl_worker/algorithms/a.py", "cleanrl_worker/algorithms/b.py"):
        plant(tmp_path, path, "class View:\n    pass\nclass _Own:\n    pass")
    assert violations(tmp_path) == ["the class name View has 2 meanings: mosaic.a, mosaic.b"]


def test_circle_of_imports_is_found_inside_functions_too(tmp_path: Path) -> None:
    plant(tmp_path, "mosaic/a.py", "from mosaic import b")
    plant(tmp_path, "mosaic/b.py", "def f():\n    import mosaic.c")
    plant(tmp_path, "mosaic/c.py", "import mosaic.a\nif TYPE_CHECKING:\n    import mosaic.d")
    plant(tmp_path, "mosaic/d.py", "import mosaic.a")
    assert violations(tmp_path) == ["these modules import each other in circles: mosaic.a, mosaic.b, mosaic.c"]


ALLOWED = [
    ("mosaic/cli.py", "from mosaic.trainer.rpc import client\nfrom mosaic import console"),
    ("mosaic/contract/frames.py", "import numpy"),
    ("mosaic/contract/proto/trainer_pb2.py", "import mosaic.web\n" * 500),
    ("cleanrl_worker/cli.py", "from cleanrl_worker import runtime\nfrom mosaic.store import storage"),
    ("cleanrl_worker/runtime.py", "try:\n    pass\nexcept Exception:\n    raise"),
    ("mosaic/cli.py", "try:\n    pass\nexcept BaseException:\n    tidy()\n    raise"),
    ("cleanrl_worker/run/a.py", "if TYPE_CHECKING:\n    import torch\ndef f():\n    import torch"),
    ("cleanrl_worker/evaluation/batched.py", "import torch\nfrom cleanrl_worker.algorithms import ppo"),
    ("cleanrl_worker/algorithms/a.py", "import torch\nfrom cleanrl_worker.envs import vectors\n" + LONG_MAIN),
    ("cleanrl_worker/nets/a.py", "torch.load(path, weights_only=True)"),
]


@pytest.mark.parametrize(("path", "source"), ALLOWED, ids=[path for path, _ in ALLOWED])
def test_what_the_table_allows_passes(tmp_path: Path, path: str, source: str) -> None:
    plant(tmp_path, path, source)
    for module in (
        "mosaic/console",
        "mosaic/trainer/rpc/client",
        "cleanrl_worker/runtime",
        "cleanrl_worker/envs/vectors",
    ):
        if f"{module}.py" != path:
            plant(tmp_path, f"{module}.py", "")
    assert violations(tmp_path) == []


def plant(src: Path, path: str, source: str) -> None:
    file = src / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
