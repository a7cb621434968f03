"""The JSON beside a policy file: its algorithm, environment, args and observation statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mosaic.contract.errors import ConfigError
from mosaic.contract.fields import SIDECAR_BYTES, read_object
from mosaic.contract.files import ACTING, SIDECAR
from mosaic.contract.kinds import FieldError

FORMAT = 1
POLICY, BEST = ".cleanrl_model", ".best.cleanrl_model"


def sidecar_of(policy: Path) -> Path:
    return policy.with_name(policy.name + ".json")


def newest_policy(folder: Path) -> Path | None:
    """Return the policy saved last below a folder; the best one has a separate file name."""
    saved = [path for path in folder.rglob(f"*{POLICY}") if not path.name.endswith(BEST)]
    return max(saved, key=_modified) if saved else None


def read_sidecar(policy: Path) -> dict[str, Any]:
    """Return a policy file's sidecar; {} if it has none, as with CleanRL's. Raise ConfigError if it is invalid."""
    path = sidecar_of(policy)
    if not path.exists():
        return {}
    what = f"policy sidecar {path}"
    known = read_object(path, what, SIDECAR_BYTES, wide=True)
    return checked(known, what)


def checked(known: dict[str, Any], what: str) -> dict[str, Any]:
    """Return a sidecar with all fields checked; people write those of CleanRL's files by hand."""
    if type(version := known.get("format", FORMAT)) is int and version > FORMAT:
        raise ConfigError(f"{what}: format {version} is newer than this version reads ({FORMAT})")
    try:
        SIDECAR.check_fields(known, "")
        ACTING.check_fields(known.get("args") or {}, "args")
    except FieldError as error:
        raise ConfigError(f"{what}: {error}") from None
    return known


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # gone since it was listed
        return 0.0
