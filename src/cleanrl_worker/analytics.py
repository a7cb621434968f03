"""`analytics.json` under its public name."""

from cleanrl_worker.telemetry.manifest import build_manifest as build_manifest
from cleanrl_worker.telemetry.manifest import write_manifest as write_manifest
