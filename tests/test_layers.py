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
SHELL = tuple(
    f"{WORKER}.{name}"
    for name in (
        *("cli", "config", "schema", "source", "interpreter", "registry", "runtime", "telemetry", "analytics"),
        "command",
        *("environments", "lock", "saved", "process", "tracking", "handover", "hub", "eval_plan", "eval_telemetry"),
        *("vitals", "causes", "attempt", "phase", "wandb_keys", "live", "handshake", "outlet"),
        *("schedule", "needs", "backends", "policy_ask", "policy_check", "provenance", "repository", "script_era"),
    )
)
SIDE = tuple(
    f"{WORKER}.{name}"
    for name in (
        *("evaluation", "eval_registry", "policy_match", "policy_algo", "interactive", "session", "scene"),
        *("curriculum_training", "fastlane", "lane", "stage", "renderer", "canvas", "onlooker"),
    )
)
# Loaded by file path inside people's own interpreters, too, where `_mosaic` stands for our packages.
IN_FOREIGN = tuple(f"{WORKER}.{name}" for name in ("fastlane", "lane", "stage", "renderer", "canvas"))
# Loaded by file path into the process of a script: what needs nothing but the standard library, and the rest, which
# `compat` imports once it has found Gymnasium. Torch and JAX are the script's own, imported in functions.
FOREIGN = f"{WORKER}.foreign"
FOREIGN_PLAIN = tuple(
    f"{FOREIGN}.{name}"
    for name in (
        *("compat", "eras", "stand_ins", "notes", "old_ids", "after_import", "jax_names", "seeds", "words"),
        "sidecars",
    )
)
KIT, AGENTS, WRAPPERS = (f"{WORKER}.{name}" for name in ("kit", "agents", "wrappers"))
POLICY_FILES = (f"{WORKER}.policy_files",)
STDLIB_ONLY: tuple[str, ...] = ()
HEAVY = {"torch", "jax", "jaxlib", "flax", "optax"}


@dataclass(frozen=True)
class Layer:
    """Modules (a package stands for all below it), what they may import of ours, and of others (None: anything)."""

    members: tuple[str, ...]
    ours: tuple[str, ...] = ()
    others: tuple[str, ...] | None = None


LAYERS = (
    Layer(("mosaic.contract.ring",), others=STDLIB_ONLY),
    Layer(("mosaic.store.storage",), ours=("mosaic.wire", "mosaic.contract"), others=("fsspec",)),
    # The room that mosaic.wire becomes: its modules and wire's use each other until they have moved.
    Layer(("mosaic.contract.identity",), others=("psutil",)),
    Layer(("mosaic.contract",), ours=("mosaic.wire",), others=STDLIB_ONLY),
    Layer(
        ("mosaic.wire",),
        ours=("mosaic.contract",),
        others=("pydantic", "orjson", "ulid", "grpc", "google", "tensorboard", "numpy"),
    ),
    Layer(("mosaic.catalog",), others=STDLIB_ONLY),
    Layer(("mosaic.stats",), others=("numpy",)),
    Layer(("mosaic.trainer",), ours=("mosaic.wire", "mosaic.contract", "mosaic.catalog")),
    Layer(
        ("mosaic.web",),
        ours=("mosaic.wire", "mosaic.contract", "mosaic.catalog", "mosaic.stats", "mosaic.trainer.client"),
    ),
    Layer(
        ("mosaic.cli", "mosaic.commands", "mosaic.console", "mosaic.tables", "mosaic.doctor", "mosaic.watch"),
        ours=("mosaic",),
    ),
    Layer(("gym_gui",), ours=("mosaic.cli",)),
    Layer(SHELL, ours=(*SHELL, FOREIGN, "mosaic.wire", "mosaic.contract", "mosaic.catalog")),
    Layer(FOREIGN_PLAIN, ours=(FOREIGN,), others=("gymnasium",)),
    Layer((FOREIGN,), ours=(FOREIGN,), others=("numpy", "gymnasium", "ale_py", "av", "cv2", *HEAVY)),
    Layer((f"{WORKER}.launcher",), others=STDLIB_ONLY),
    Layer((f"{WORKER}.sitecustomize",), others=("numpy",)),
    Layer(IN_FOREIGN, ours=(*IN_FOREIGN, "mosaic.contract.ring"), others=("numpy", "gymnasium", "mujoco", "_mosaic")),
    Layer(SIDE, ours=(*SIDE, *POLICY_FILES, "mosaic.wire", "mosaic.contract", KIT, AGENTS, WRAPPERS, ALGORITHMS)),
    Layer((f"{WORKER}.catch",), others=("numpy", "gymnasium")),
    Layer(POLICY_FILES, ours=("mosaic.contract",), others=("numpy", "safetensors", "msgpack")),
    Layer((KIT,), ours=(*POLICY_FILES, "mosaic.wire", "mosaic.contract")),
    Layer((AGENTS,), ours=(*POLICY_FILES, KIT)),
    Layer((WRAPPERS,), ours=(KIT,)),
    Layer((ALGORITHMS,), ours=(KIT, AGENTS, WRAPPERS)),
)
# A package's own __init__ exports names; the worker's describes itself to the platform, the algorithms' answers the
# signals that come while `python -m` imports one.
ROOTS = {
    "mosaic": ("mosaic.trainer.client",),
    WORKER: (*SHELL, "mosaic.wire", "mosaic.contract"),
    ALGORITHMS: ("mosaic.contract.stopping",),
    "mosaic.__main__": ("mosaic.cli",),
    f"{WORKER}.__main__": (f"{WORKER}.cli",),
}

MAY_BE_HEAVY = (*SIDE, AGENTS, WRAPPERS, ALGORITHMS)
# The worker's top, the frame publisher, the loading of plug-ins that strangers wrote, a session with an environment
# that they wrote, and the daemon's loop and the GUI's stream of changes, which must go on for the other runs and pages.
# The daemon's and the rebuild's border around one run: it is BROKEN or skipped, with the reason.
# And the stores: each comes with a package that has exceptions of its own for everything.
MAY_CATCH_ALL = (
    *(f"{WORKER}.{name}" for name in ("attempt", "cli", "fastlane", "lane", "renderer", "scene")),
    *("mosaic.contract.workers", "mosaic.store.storage", "mosaic.web.live"),
    *("mosaic.trainer.daemon", "mosaic.trainer.service", "mosaic.trainer.border", "mosaic.trainer.rebuild"),
)

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


def violations(src: Path) -> list[str]:
    """Every broken rule below a source folder, one line each."""
    modules = list(read_modules(src))
    known = {module.name for module in modules}
    found: list[str] = []
    for module in modules:
        imports = list(imports_of(module, known))
        found += layer_violations(module, imports)
        found += heavy_violations(module, imports)
        found += size_violations(module)
        found += call_violations(module)
    return found


def read_modules(src: Path) -> Iterator[Module]:
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        if "_pb" in parts:
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        yield Module(name, path, ast.parse(text, str(path)), len(text.splitlines()))


def imports_of(module: Module, known: set[str]) -> Iterator[Import]:
    """Imports at every depth, `from package import submodule` and `import_module("name")` included."""
    lazy = {id(node) for block in ast.walk(module.tree) if runs_later(block) for node in ast.walk(block)}
    for node in ast.walk(module.tree):
        at_module_level = id(node) not in lazy
        for name in imported_names(node, module, known):
            yield Import(name, getattr(node, "lineno", 0), at_module_level)


def runs_later(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return any(
            "TYPE_CHECKING" in (getattr(part, "id", ""), getattr(part, "attr", "")) for part in ast.walk(node.test)
        )
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


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


def layer_violations(module: Module, imports: list[Import]) -> Iterator[str]:
    if module.name in ROOTS:
        layer = Layer((module.name,), ours=ROOTS[module.name])
    else:
        found = [layer for layer in LAYERS if any(within(module.name, member) for member in layer.members)]
        if not found:
            yield f"{module.path}: {module.name} belongs to no layer; name it in LAYERS"
            return
        layer = found[0]
    for item in imports:
        if is_ours(item.name):
            if not may_import(module, layer, item.name):
                yield f"{module.path}:{item.line}: {module.name} must not import {item.name}"
        elif layer.others is not None and not is_stdlib(item.name) and root(item.name) not in layer.others:
            yield f"{module.path}:{item.line}: {module.name} must not import {item.name}"
    if within(module.name, "mosaic.wire") and module.name != "mosaic.contract.frames":
        for item in imports:
            if root(item.name) == "numpy":
                yield f"{module.path}:{item.line}: numpy is for mosaic.contract.frames only"


def may_import(module: Module, layer: Layer, name: str) -> bool:
    if within(module.name, ALGORITHMS) and within(name, ALGORITHMS):
        return name in {module.name, ALGORITHMS} and module.path.name != "__init__.py"
    own_package = next((member for member in layer.members if within(module.name, member)), "")
    if own_package and within(name, own_package):
        return True
    return name == "mosaic" or any(within(name, allowed) for allowed in layer.ours)


def heavy_violations(module: Module, imports: list[Import]) -> Iterator[str]:
    """torch and jax belong to the algorithm's process; `kit` may reach for them inside a function."""
    if any(within(module.name, side) for side in MAY_BE_HEAVY):
        return
    lazily_allowed = within(module.name, KIT) or within(module.name, FOREIGN)
    if module.name in FOREIGN_PLAIN:
        for item in imports:
            if item.at_module_level and not (is_stdlib(item.name) or within(item.name, FOREIGN)):
                yield f"{module.path}:{item.line}: {module.name} must not import {item.name} at module level"
    for item in imports:
        if root(item.name) in HEAVY and (item.at_module_level or not lazily_allowed):
            yield f"{module.path}:{item.line}: {module.name} must not import {item.name}" + (
                " at module level" if lazily_allowed else ""
            )


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
    ("mosaic/wire/a.py", "import mosaic.catalog", "must not import mosaic.catalog"),
    ("mosaic/wire/a.py", "import rich", "must not import rich"),
    ("mosaic/wire/a.py", "import numpy", "numpy is for mosaic.contract.frames only"),
    ("mosaic/catalog/a.py", "import gymnasium", "must not import gymnasium"),
    ("mosaic/catalog/a.py", "from ..wire import errors", "must not import mosaic.wire"),
    ("mosaic/trainer/a.py", "from mosaic.web import app", "must not import mosaic.web"),
    ("mosaic/web/a.py", "from mosaic.trainer import registry", "must not import mosaic.trainer"),
    (
        "mosaic/cli.py",
        "def f():\n    import cleanrl_worker.schema.parameters",
        "must not import cleanrl_worker.schema.parameters",
    ),
    ("mosaic/cli.py", "import_module('cleanrl_worker')", "must not import cleanrl_worker"),
    ("mosaic/unheard_of.py", "", "belongs to no layer"),
    ("cleanrl_worker/runtime.py", "from cleanrl_worker import kit", "must not import cleanrl_worker"),
    ("cleanrl_worker/cli.py", "from .evaluation import evaluate", "must not import cleanrl_worker.evaluation.batched"),
    ("cleanrl_worker/cli.py", "def f():\n    import torch", "must not import torch"),
    ("cleanrl_worker/foreign/launcher.py", "import psutil", "must not import psutil"),
    ("cleanrl_worker/foreign/a.py", "import pydantic", "must not import pydantic"),
    ("cleanrl_worker/foreign/a.py", "import mosaic.contract.paths", "must not import mosaic.contract.paths"),
    ("cleanrl_worker/foreign/a.py", "import torch", "must not import torch at module level"),
    ("cleanrl_worker/foreign/compat.py", "import gymnasium", "must not import gymnasium at module level"),
    ("cleanrl_worker/foreign/launcher.py", "import mosaic.contract.paths", "must not import mosaic.contract.paths"),
    ("cleanrl_worker/kit/a.py", "import torch.nn as nn", "must not import torch.nn at module level"),
    ("cleanrl_worker/kit/a.py", "try:\n    import jax\nexcept ImportError:\n    pass", "must not import jax"),
    ("cleanrl_worker/kit/a.py", "from cleanrl_worker.agents import mlp", "must not import cleanrl_worker.agents"),
    ("cleanrl_worker/agents/a.py", "from mosaic.wire import paths", "must not import mosaic.wire"),
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
    ("cleanrl_worker/kit/a.py", "try:\n    pass\nexcept:\n    pass", "not every exception"),
    ("mosaic/cli.py", "with contextlib.suppress(Exception):\n    pass", "not every exception"),
    ("cleanrl_worker/agents/a.py", "torch.load(path)", "unless weights_only=True"),
    ("cleanrl_worker/agents/a.py", "torch.load(path, weights_only=False)", "unless weights_only=True"),
]


@pytest.mark.parametrize(("path", "source", "message"), PLANTED, ids=[f"{p[0]}-{p[2]}" for p in PLANTED])
def test_planted_violation_is_found(tmp_path: Path, path: str, source: str, message: str) -> None:
    plant(tmp_path, path, source)
    plant(tmp_path, "cleanrl_worker/algorithms/b.py", "")
    found = violations(tmp_path)
    assert len(found) == 1 and message in found[0], found


ALLOWED = [
    ("mosaic/cli.py", "from mosaic.trainer import client\nfrom mosaic import console"),
    ("mosaic/contract/frames.py", "import numpy"),
    ("mosaic/contract/proto/trainer_pb2.py", "import mosaic.web\n" * 500),
    ("cleanrl_worker/cli.py", "from cleanrl_worker import runtime\nfrom mosaic.catalog import find"),
    ("cleanrl_worker/runtime.py", "try:\n    pass\nexcept Exception:\n    raise"),
    ("mosaic/cli.py", "try:\n    pass\nexcept BaseException:\n    tidy()\n    raise"),
    ("cleanrl_worker/kit/a.py", "if TYPE_CHECKING:\n    import torch\ndef f():\n    import torch"),
    ("cleanrl_worker/evaluation/batched.py", "import torch\nfrom cleanrl_worker.algorithms import ppo"),
    ("cleanrl_worker/algorithms/a.py", "import torch\nfrom cleanrl_worker.kit import envs\n" + LONG_MAIN),
    ("cleanrl_worker/agents/a.py", "torch.load(path, weights_only=True)"),
]


@pytest.mark.parametrize(("path", "source"), ALLOWED, ids=[path for path, _ in ALLOWED])
def test_what_the_table_allows_passes(tmp_path: Path, path: str, source: str) -> None:
    plant(tmp_path, path, source)
    for module in ("mosaic/console", "mosaic/trainer/client", "cleanrl_worker/runtime", "cleanrl_worker/kit/envs"):
        if f"{module}.py" != path:
            plant(tmp_path, f"{module}.py", "")
    assert violations(tmp_path) == []


def plant(src: Path, path: str, source: str) -> None:
    file = src / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
