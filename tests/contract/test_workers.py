"""Discovery of worker plug-ins, real ones that are installed on the path."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract import errors, workers

GOOD = """
from mosaic.contract.workers import WorkerCapabilities

def describe():
    return {"algo": {"fields": []}}

def metadata(**changes):
    fields = dict(worker_type="toy", label="Toy Worker", supported_paradigms=("sequential",),
                  env_families=("gymnasium",), action_spaces=("discrete",), observation_spaces=("vector",),
                  command=("python", "-m", "toy"), schema=describe)
    return WorkerCapabilities(**(fields | changes))
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, *targets: str) -> None:
    """Put a distribution with one plug-in per target on the path, as pip would."""
    (folder / "toy_plugin.py").write_text(GOOD + source)
    record = folder / "toy_plugin-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-plugin\nVersion: 1.0\n")
    lines = [f"toy{number} = {target}" for number, target in enumerate(targets)]
    (record / "entry_points.txt").write_text("\n".join([f"[{workers.GROUP}]", *lines]))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(__import__("sys").modules, "toy_plugin", raising=False)
    importlib.invalidate_caches()


def found_toys() -> tuple[dict[str, workers.WorkerCapabilities], list[str]]:
    found, problems = workers.discover_workers()
    toys = {name: worker for name, worker in found.items() if worker.command[-1:] == ("toy",)}
    return toys, [problem for problem in problems if "toy" in problem]


def test_a_plugin_is_found_with_its_command_and_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "", "toy_plugin:metadata")
    toys, problems = found_toys()
    assert problems == []
    assert toys["toy"].label == "Toy Worker" and toys["toy"].max_agents == 1
    assert toys["toy"].schema() == {"algo": {"fields": []}}


BROKEN: dict[str, tuple[str, str]] = {
    "no such attribute": ("", "AttributeError"),
    "raises": ("def broken(): raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    "exits": ("def broken(): raise SystemExit(3)", "SystemExit: 3"),
    "wrong type": ("def broken(): return {}", "it must return WorkerCapabilities, not {}"),
    "list for tuple": ("def broken(): return metadata(env_families=['x'])", r"env_families must be tuple[str, ...]"),
    "text for tuple": ("def broken(): return metadata(command='python')", "command must be tuple"),
    "not callable": ("def broken(): return metadata(schema={})", "schema must be Callable"),
    "bool for int": ("def broken(): return metadata(max_agents=True)", "max_agents must be int, not True"),
    "empty command": ("def broken(): return metadata(command=())", "may not be empty"),
    "missing field": ("def broken(): return WorkerCapabilities(worker_type='x')", "TypeError"),
}


@pytest.mark.parametrize("case", sorted(BROKEN))
def test_a_broken_plugin_is_reported_in_one_line_and_the_others_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    source, reason = BROKEN[case]
    install(tmp_path, monkeypatch, source, "toy_plugin:broken", "toy_plugin:metadata")
    toys, problems = found_toys()
    assert list(toys) == ["toy"]
    (problem,) = problems
    assert problem.startswith("worker plug-in 'toy0' (toy_plugin:broken) is left out: ")
    assert reason in problem and "\n" not in problem


@pytest.mark.parametrize("target", ["no_such_module:x", "toy_plugin"])
def test_a_plugin_that_cannot_be_imported_or_called_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    install(tmp_path, monkeypatch, "", target)
    toys, problems = found_toys()
    assert toys == {} and len(problems) == 1


def test_two_plugins_of_one_type_are_no_silent_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "", "toy_plugin:metadata", "toy_plugin:metadata ")
    toys, problems = found_toys()
    assert list(toys) == ["toy"]
    assert problems == [
        "worker plug-in 'toy1' (toy_plugin:metadata) is left out: another plug-in already provides 'toy'"
    ]


def test_capabilities_cannot_be_changed() -> None:
    fields: dict[str, Any] = dict.fromkeys(("env_families", "action_spaces", "observation_spaces"), ())
    worker = workers.WorkerCapabilities(
        worker_type="x", label="X", supported_paradigms=(), command=("x",), schema=dict, **fields
    )
    with pytest.raises(AttributeError):
        worker.label = "other"  # type: ignore[misc]


def test_a_schema_provider_that_fails_is_a_clear_error() -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("no\nluck")

    worker = workers.WorkerCapabilities(
        worker_type="odd",
        label="Odd",
        supported_paradigms=(),
        env_families=(),
        action_spaces=(),
        observation_spaces=(),
        command=("odd",),
        schema=broken,
    )
    with pytest.raises(errors.WorkerError, match="worker 'odd' cannot list its algorithms: no luck"):
        workers.schema_of(worker)
