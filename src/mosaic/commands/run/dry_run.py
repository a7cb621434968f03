"""The worker's check of a submission, before a daemon receives it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mosaic.contract import variables
from mosaic.contract.paths import resolve_home
from mosaic.contract.workers import WorkerCapabilities, discover_workers

# Each dry run is a process of a third of a second.
DRY_RUNS = 4


def refusals(payloads: Sequence[Mapping[str, Any]], told: str) -> list[str]:
    """Return each payload's refusal, "" for none; `told` is shown on the terminal meanwhile."""
    from mosaic.commands.printing import waiting
    from mosaic.web.forms.check import dry_run

    workers = discover_workers()[0]
    schemas = {name: worker.schema() for name, worker in workers.items()}

    def ask(payload: Mapping[str, Any]) -> str:
        worker = _worker_for(str(payload["metadata"]["worker"]["config"]["algo"]), workers, schemas)
        if worker is None:  # a remote daemon's own algorithm; the daemon checks it
            return ""
        return dry_run(payload, worker, resolve_home()).error

    with waiting(told), ThreadPoolExecutor(DRY_RUNS) as threads:
        return list(threads.map(ask, payloads))


def _worker_for(
    algo: str, workers: Mapping[str, WorkerCapabilities], schemas: Mapping[str, Mapping[str, Any]]
) -> WorkerCapabilities | None:
    for name, schema in schemas.items():
        if algo in schema:
            return workers[name]
    if os.environ.get(variables.MOSAIC_TARGET):
        return None
    return workers.get("cleanrl") or next(iter(workers.values()), None)
