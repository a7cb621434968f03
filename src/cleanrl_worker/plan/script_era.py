"""A script's Gymnasium era and required modules, read from its source."""

from __future__ import annotations

import ast
import json
import stat
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from cleanrl_worker.foreign.eras import GYM_023, GYMNASIUM_029, MODULES
from cleanrl_worker.foreign.stand_ins import PACKAGES, STAND_INS
from cleanrl_worker.plan.interpreter import ask
from cleanrl_worker.schema.source import Source, dotted, package_exists
from mosaic.contract.errors import ConfigError
from mosaic.contract.extras import EXTRA_OF, pip_line

RETURN_TAG, MEAN_TAG = "charts/episodic_return", "charts/avg_episodic_return"
ANOTHER = "name an interpreter that has it: --set python=PATH"
# The reasons why pip cannot install them, for CleanRL's scripts.
_NO_WHEEL = {
    "procgen": "procgen has no wheel for Python 3.11 or later; train ppo_procgen or ppg_procgen of MOSAIC, or",
    "isaacgym": "Isaac Gym is NVIDIA's own download for Python 3.8 or older;",
    "isaacgymenvs": "Isaac Gym is NVIDIA's own download for Python 3.8 or older;",
    "cleanrl_utils": "run the file where it lies in a checkout of CleanRL, or",
    "cleanrl": "run the file where it lies in a checkout of CleanRL, or",
}
# Names of `gymnasium.wrappers` that Gymnasium 1 renamed or removed, and those that it added.
_OLD_NAMES = frozenset(("GrayScaleObservation", "FrameStack", "AutoResetWrapper", "PixelObservationWrapper"))
_NEW_NAMES = frozenset(("AutoresetMode", "GrayscaleObservation", "FrameStackObservation", "AddRenderObservation"))
_NEW_MODULE = "gymnasium.wrappers.vector"
_OLD_MODULES = frozenset(f"gymnasium.wrappers.{name}" for name in ("normalize", "frame_stack", "record_video"))
_WITH_CV2 = frozenset(("ResizeObservation", "AtariPreprocessing", "WarpFrame"))


@dataclass(frozen=True)
class ScriptEra:
    """The needs of a script; `era` is "" if it has none."""

    era: str = ""
    count_episodes: bool = False
    """the script logs no returns itself"""
    logs_means: bool = False
    """the script logs only mean returns, as `MEAN_TAG`"""
    also_path: str = ""
    """the folder of a checkout whose packages the script imports"""

    @property
    def old(self) -> bool:
        """Return True if the script is of an era that `foreign.compat` patches for."""
        return self.era in (GYMNASIUM_029, GYM_023)


NO_ERA = ScriptEra()


def read_era(script: Path) -> ScriptEra:
    """Return the needs of the script and of the files beside it that it imports."""
    sources = list(_with_neighbours(script))
    imported = {name for source in sources for name in _imported(source.tree)}
    packages = {name.partition(".")[0] for name in imported if not _lies_in(script.parent, name)}
    root = _checkout(script, packages)
    if "gym" in packages and "gymnasium" not in packages:
        era = GYM_023
    elif "gymnasium" in packages and _is_of_029(sources, imported):
        era = GYMNASIUM_029
    else:
        return ScriptEra(MODULES if imported & STAND_INS.keys() else "", also_path=root)
    nodes = (node for source in sources for node in ast.walk(source.tree))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    returns, means = (any(tag in text for text in texts) for tag in (RETURN_TAG, MEAN_TAG))
    return ScriptEra(era, not returns and not means, means and not returns, root)


def require_modules(script: Path, interpreter: str, era: ScriptEra, argv: Collection[str]) -> None:
    """Refuse a script whose imports its interpreter lacks; a script that edits `sys.path` is not checked.

    Imports below `if args.flag:` count only if `argv` has the flag.
    """
    source = Source.read(script)
    if any(
        isinstance(node, ast.Attribute) and dotted(node) in ("sys.path", "site.addsitedir")
        for node in ast.walk(source.tree)
    ):
        return
    on = {flag[2:].partition("=")[0].replace("-", "_") for flag in argv if not flag.lower().endswith("=false")}
    wanted = list(_always_imported(source.tree.body, on))
    if any(name in _WITH_CV2 for name in _gymnasium_names(source)):
        wanted.append("cv2")
    given = {*(STAND_INS if era.era else ()), *(("gym",) if era.era == GYM_023 else ())}
    folders = [script.parent, *([Path(era.also_path)] if era.also_path else [])]
    unknown = {
        package: name
        for name in wanted
        if name not in given
        and not ((package := name.partition(".")[0]) == "gym" and era.era == GYM_023)
        and not any(_lies_in(folder, package) for folder in folders)
    }
    if era.era == GYM_023 and interpreter != sys.executable and not ask(interpreter, _HAS_GYM):
        raise ConfigError(
            f"script {script}: it imports gym, and {interpreter} has neither gym nor Gymnasium 1: "
            f"{interpreter} -m pip install -U gymnasium"
        )
    for package in _missing(list(unknown), interpreter):
        raise ConfigError(f"script {script}: it imports {unknown[package]}, {_remedy(package, interpreter)}")


def _remedy(package: str, interpreter: str) -> str:
    if package in _NO_WHEEL:
        return f"which is not installed: {_NO_WHEEL[package]} {ANOTHER}"
    if interpreter != sys.executable:
        return f"which {interpreter} does not have: {interpreter} -m pip install {package}"
    line = pip_line(package) if package in EXTRA_OF else f"pip install {package}"
    return f"which is not installed: {line}, or {ANOTHER}"


def _missing(packages: list[str], interpreter: str) -> list[str]:
    if interpreter == sys.executable:
        return [package for package in packages if not package_exists(package)]
    answer = ask(interpreter, _FIND, *packages) if packages else ""
    return list(json.loads(answer)) if answer else []


_FIND = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import importlib.util, json
sys.stdout.write("\\n" + json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""


_HAS_GYM = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import importlib.metadata, importlib.util
old = importlib.util.find_spec("gym")
new = importlib.util.find_spec("gymnasium") and not importlib.metadata.version("gymnasium").startswith("0.")
sys.stdout.write("\\nyes" if old or new else "\\n")
"""


def _with_neighbours(script: Path) -> Iterator[Source]:
    """Yield the script, and each readable file beside it that it imports."""
    waiting, seen = [script], {script}
    while waiting:
        path = waiting.pop()
        try:
            source = Source.read(path)
        except ConfigError:
            if path == script:
                raise
            continue
        yield source
        for name in _imported(source.tree):
            beside = script.parent.joinpath(*name.split(".")).with_suffix(".py")
            if beside not in seen and beside.is_file():
                seen.add(beside)
                waiting.append(beside)


def _lies_in(folder: Path, name: str) -> bool:
    """Return True if a package or file of the folder would be imported as this module."""
    package = name.partition(".")[0]
    return (folder / package).is_dir() or (folder / f"{package}.py").is_file()


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names of all modules that are imported anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module in PACKAGES:  # their names are modules
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def _always_imported(body: list[ast.stmt], on: Collection[str]) -> Iterator[str]:
    """Yield the dotted names of the modules that the file imports with the flags `on`."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(node)
        elif isinstance(node, ast.If) and _holds(node.test, on):
            yield from _always_imported(node.body, on)


def _holds(test: ast.expr, on: Collection[str]) -> bool:
    """Return True for `__name__ == "__main__"` and for `args.flag` of a flag that is on."""
    if isinstance(test, ast.Compare):
        return dotted(test.left) == "__name__"
    return isinstance(test, ast.Attribute) and test.attr in on


def _checkout(script: Path, packages: set[str]) -> str:
    """Return the script's grandparent folder if it holds packages that the script imports, else ""."""
    root = script.parent.parent
    if root.stat().st_mode & stat.S_IWOTH:  # /tmp: anybody could place a package there
        return ""
    missing = (package for package in packages if any((root / package).glob("*.py")) and not package_exists(package))
    return str(root) if any(missing) else ""


def _is_of_029(sources: list[Source], imported: set[str]) -> bool:
    found = {mark for source in sources for mark in _marks(source.tree)}
    return True not in found and (False in found or bool(imported & _OLD_MODULES))


def _marks(tree: ast.Module) -> Iterator[bool]:
    """Yield True for each sign of Gymnasium 1, False for each of 0.29; classes of the file's own are none."""
    names = set(_names_of_gymnasium(tree))
    for node in ast.walk(tree):
        if (mark := _mark(node, names)) is not None:
            yield mark


def _names_of_gymnasium(tree: ast.Module) -> Iterator[str]:
    """Yield the names that the file gives to Gymnasium, to its modules and to what it imports from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or "gymnasium") for alias in node.names if _is_gymnasium(alias.name))
        elif isinstance(node, ast.ImportFrom) and _is_gymnasium(node.module or ""):
            yield from (alias.asname or alias.name for alias in node.names)


def _is_gymnasium(module: str) -> bool:
    return module.partition(".")[0] == "gymnasium"


def _mark(node: ast.AST, names: set[str]) -> bool | None:
    """Return True for a sign of Gymnasium 1, False for one of 0.29, None for neither."""
    if isinstance(node, ast.ImportFrom) and _is_gymnasium(node.module or ""):
        taken = {alias.name for alias in node.names}
        new = node.module == _NEW_MODULE or not taken.isdisjoint(_NEW_NAMES)
        return True if new else None if taken.isdisjoint(_OLD_NAMES) else False
    if isinstance(node, ast.Attribute) and (name := dotted(node)).partition(".")[0] in names:
        new = node.attr in _NEW_NAMES or name.endswith("wrappers.vector")
        return True if new else False if node.attr in _OLD_NAMES else None
    if isinstance(node, ast.Constant):
        new = node.value in ("final_obs", "autoreset_mode")
        return True if new else False if node.value == "final_observation" else None
    if isinstance(node, ast.keyword):
        return True if node.arg == "autoreset_mode" else None
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        two = name.endswith("wrappers.TransformObservation") and len(node.args) == 2 and not node.keywords
        sized = name.endswith("RecordEpisodeStatistics") and any(word.arg == "deque_size" for word in node.keywords)
        return False if two or sized or name.endswith("gym.vector.make") else None
    if isinstance(node, ast.For | ast.comprehension):
        return False if _is_looped(node.iter) else None
    return False if isinstance(node, ast.Subscript) and _is_final_info(node.value) and not _has_key(node) else None


def _is_looped(node: ast.AST) -> bool:
    """Return True if a loop runs over the array `infos["final_info"]`, not over something in a dictionary there."""
    if _is_final_info(node):
        return True
    within = isinstance(node, ast.Attribute) or (isinstance(node, ast.Subscript) and _has_key(node))
    return not within and any(map(_is_looped, ast.iter_child_nodes(node)))


def _has_key(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)


def _is_final_info(node: ast.AST) -> bool:
    """Return True for `infos["final_info"]` and `infos.get("final_info")`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return any(isinstance(word, ast.Constant) and word.value == "final_info" for word in node.args[:1])
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == "final_info"


def _gymnasium_names(source: Source) -> Iterator[str]:
    """Yield the names of wrappers that the file uses from Gymnasium or Stable-Baselines3."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and dotted(node.value).endswith("wrappers"):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith("wrappers"):
            yield from (alias.name for alias in node.names)
