"""The provenance of a run (command, sources, packages, machine), collected into its folder during the training."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cleanrl_worker.plan.interpreter import ask, locate
from cleanrl_worker.supervise import repository
from cleanrl_worker.telemetry import process_stats
from mosaic import catalog
from mosaic.contract.errors import ConfigError, StorageError
from mosaic.contract.event_reader import decoded
from mosaic.contract.fields import EVENT_BYTES
from mosaic.contract.lines import read_lines
from mosaic.contract.provenance import add_attempt, copy_script, read_provenance, summary
from mosaic.contract.secrets import MASK, is_secret, mask_flag, mask_secrets, mask_text

if TYPE_CHECKING:
    from cleanrl_worker.config.config import CleanRLWorkerConfig
    from cleanrl_worker.plan.plan import Plan
    from mosaic.contract.paths import RunPaths

LAST_SECONDS = 10.0  # timeout at the end of a run shorter than the collection
_SHORTEST_SECRET = 8
_PYTHON = """
import json, platform, sys
about = [platform.python_version(), platform.python_implementation()]
sys.stdout.write("\\n" + json.dumps([sys.path, *about]))
"""


class Provenance:
    """A collector with its own thread, after the algorithm's start: git or a network disk may take seconds."""

    def __init__(
        self,
        config: CleanRLWorkerConfig,
        plan: Plan,
        paths: RunPaths,
        digest: str,
        inherited: Mapping[str, str],
        phase: str | None,
    ) -> None:
        self._config, self._plan, self._paths, self._digest, self._phase = config, plan, paths, digest, phase
        self._secrets = sorted(
            {value for name, value in inherited.items() if is_secret(name) and len(value) >= _SHORTEST_SECRET},
            key=len,
            reverse=True,
        )
        self._warning = ""
        self.summary: dict[str, Any] | None = None
        """for the manifest; None until the collection is complete"""
        self._thread = threading.Thread(target=self._collect, name="provenance", daemon=True)
        self._thread.start()

    def take_warning(self) -> str:
        """Return, once, a warning about a missing file or an earlier one set aside."""
        warning, self._warning = self._warning, ""
        return warning

    def close(self) -> None:
        """Wait for the end of the collection."""
        self._thread.join(LAST_SECONDS)

    def _collect(self) -> None:
        try:
            sources = repository.Repositories(self._masked)
            entry = self._entry(sources)
            self._warning = add_attempt(self._paths, entry, sources.diffs)
            document = read_provenance(self._paths)
            self.summary = summary(entry, len((document or {"attempts": ()})["attempts"]))
        except (ConfigError, StorageError, OSError) as error:
            self._warning = f"provenance.json is not written: {error}"

    def _entry(self, sources: repository.Repositories) -> dict[str, Any]:
        config, plan = self._config, self._plan
        started = time.time()
        python, folders = _python(plan.interpreter)
        packages = _packages(folders)
        target = [str(plan.script)] if plan.script is not None else ["-m", str(plan.module)]
        entry = {
            "started_at": started,
            "mode": config.mode,
            "phase": self._phase,
            "command": [plan.interpreter, *target, *map(mask_flag, plan.argv)],
            "cwd": os.getcwd(),
            "config": mask_secrets(config.to_dict()),
            "config_digest": self._digest,
            "mosaic": _made_by(sources, module="mosaic", file=Path(__file__), version=packages.get("mosaic-rl")),
            "script": self._script(sources),
            "environment": self._environment(sources, packages),
            "python": python,
            "packages": packages,
            "machine": _machine(),
        }
        return _without(entry, self._masked_values)

    def _script(self, sources: repository.Repositories) -> dict[str, Any] | None:
        """Copy the user's files that run; return the Python script or module, else a phase's bash script."""
        plan, path = self._plan, self._plan.script
        if path is None and not plan.ours and plan.module is not None:
            path = locate(plan.module, plan.interpreter)
        bash = _bash_script(self._paths) if self._phase is not None else None
        files = [file for file in (path, bash) if file is not None and file.is_file()]
        about = [copy_script(file, self._paths, self._secrets) | _made_by(sources, file=file) for file in files]
        return about[0] if about else None

    def _environment(self, sources: repository.Repositories, packages: Mapping[str, str]) -> dict[str, Any] | None:
        env_id = str(self._config.env_id or "")
        module, colon, _ = env_id.rpartition(":")
        known = catalog.find(env_id)
        if not colon and known is None:
            return None
        if known is not None:
            module = next(iter(catalog.group_of(known).packages), "") or "gymnasium"
        file = None
        with contextlib.suppress(ConfigError):
            file = locate(module, self._plan.interpreter)
        return _made_by(sources, module=module, file=file, version=packages.get(_normal(module)))

    def _masked(self, text: str) -> str:
        return mask_text(text, self._secrets)

    def _masked_values(self, text: str) -> str:
        for value in self._secrets:
            text = text.replace(value, MASK)
        return text


def _made_by(
    sources: repository.Repositories, *, file: Path | None, module: str | None = None, version: str | None = None
) -> dict[str, Any]:
    about = {"module": module, "version": version, "path": file and str(file), "git": file and sources.of(file)}
    return {name: value for name, value in about.items() if value}


def _bash_script(paths: RunPaths) -> Path | None:
    """Return the script of this phase, as named in its host's first event."""
    first = next(iter(read_lines(paths.events, 0, EVENT_BYTES).lines), b"")
    event = decoded(first)
    script = event.payload.get("script") if event is not None else None
    return Path(script) if isinstance(script, str) and script else None


def _python(interpreter: str) -> tuple[dict[str, str], Sequence[str]]:
    """Return the algorithm's interpreter and its import folders."""
    if interpreter == sys.executable:
        folders, version, name = sys.path, platform.python_version(), platform.python_implementation()
    else:
        try:
            folders, version, name = json.loads(ask(interpreter, _PYTHON))
        except (ConfigError, ValueError):
            return {"executable": interpreter}, ()
    return {"version": version, "implementation": name, "executable": interpreter}, folders


def _packages(folders: Sequence[str]) -> dict[str, str]:
    """Return the installed packages by name, from the names of their folders: reading their metadata takes 0.3 s."""
    found: dict[str, str] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                if name.endswith(".dist-info"):
                    package, _, version = name.removesuffix(".dist-info").rpartition("-")
                    found.setdefault(_normal(package), version)
    return dict(sorted(found.items()))


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _machine() -> dict[str, Any]:
    gpus, driver = process_stats.describe_gpus()
    about = {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "host": platform.node(),
        "cpu": _cpu() or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpus": gpus,
        "driver": driver,
    }
    return {name: value for name, value in about.items() if value != ""}


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _without(value: Any, mask: Any) -> Any:
    """Return a copy with `mask` applied to every string and without nulls."""
    if isinstance(value, Mapping):
        return {mask(str(key)): _without(item, mask) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without(item, mask) for item in value]
    return mask(value) if isinstance(value, str) else value
