"""The JSON beside a policy that a script saves: its environment, seed, arguments and observation statistics."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import weakref
from importlib import import_module
from typing import Any, Dict, List, Optional, Tuple

from . import notes
from .after_import import when_imported

FORMAT = 1  # mosaic.contract.sidecars'
ENDINGS = (".cleanrl_model",)
SECRET_NAMES = ("API_KEY", "TOKEN", "SECRET", "PASSWORD")  # mosaic.contract.secrets'
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
DEEPEST = 4  # lists in lists
PACKAGES = ("torch", "jax", "flax", "numpy", "gymnasium")

_script = ""
_env_id = ""
_folder = os.getcwd()
_pid = os.getpid()
_normalizers: "weakref.WeakSet[Any]" = weakref.WeakSet()


def install(script: str) -> None:
    """Write a sidecar whenever the script saves a policy, through torch or through a file that it opens itself."""
    global _script
    _script = script
    when_imported("torch", _patch)
    sys.addaudithook(_opened)


def remember(normalizer: Any) -> None:
    """Include the statistics of a NormalizeObservation wrapper in the sidecars."""
    _normalizers.add(normalizer)


def played(env_id: str) -> None:
    """Record the first environment that the script makes as the one it trains on."""
    global _env_id
    _env_id = _env_id or env_id


def _patch(torch: Any) -> None:
    save = torch.save

    @functools.wraps(save)
    def save_with_sidecar(obj: Any, f: Any, *args: Any, **options: Any) -> Any:
        answer = save(obj, f, *args, **options)
        if isinstance(f, (str, os.PathLike)):
            _write(os.fspath(f))
        return answer

    torch.save = save_with_sidecar


def _opened(event: str, args: Tuple[Any, ...]) -> None:
    """Write the sidecar of a policy file opened for writing, as flax files are."""
    if event != "open":
        return
    path, mode = args[0], args[1]
    if isinstance(path, str) and path.endswith(ENDINGS) and isinstance(mode, str) and mode.startswith(("w", "x")):
        _write(path)


def _write(policy: str) -> None:
    if not policy.endswith(ENDINGS) or os.getpid() != _pid:
        return
    text = json.dumps(_sidecar(), indent=2)
    beside = policy + ".json.part"
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, policy + ".json")
    except OSError as error:  # the script continues without it
        notes.warn("no sidecar of %s: %s" % (os.path.basename(policy), error.strerror))


def _sidecar() -> Dict[str, Any]:
    args = _arguments()
    seed = args.get("seed")
    env_id = _env_id or args.get("env_id")
    return {
        "format": FORMAT,
        "script": _script,
        **({"env_id": env_id} if isinstance(env_id, str) else {}),
        "args": args,
        **({"seed": seed} if type(seed) is int and seed >= 0 else {}),
        "observation_statistics": _statistics(),
        "versions": _versions(),
    }


def _arguments() -> Dict[str, Any]:
    """Return the script's `args` limited to what JSON can hold, without secrets; {} without such a global.

    A sidecar goes where its policy goes, to a store or a public repository too.
    """
    found = getattr(sys.modules.get("__main__"), "args", None)
    values = found if isinstance(found, dict) else getattr(found, "__dict__", {})
    plain = {name: value for name, value in values.items() if isinstance(name, str) and _is_plain(value)}
    return {name: _masked(value) for name, value in plain.items() if not _is_secret(name, value)}


def _is_secret(name: str, value: Any) -> bool:
    """Return True for a text whose name is that of a secret; `num_tokens=8` is none."""
    upper = name.upper().replace("-", "_")
    return isinstance(value, str) and any(secret in upper for secret in SECRET_NAMES)


def _masked(value: Any) -> Any:
    return _URL_LOGIN.sub("***", value) if isinstance(value, str) else value


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, (list, tuple)):  # one that holds itself is deeper than any
        return depth < DEEPEST and all(_is_plain(item, depth + 1) for item in value)
    if isinstance(value, int):
        return abs(value) < 1 << 63
    if isinstance(value, float):
        return value - value == 0.0  # neither infinite nor NaN
    return value is None or isinstance(value, str)


def _statistics() -> Optional[Dict[str, Any]]:
    """Return mean and variance over the observations of all environments: CleanRL normalizes each separately."""
    parts: List[Any] = [each.obs_rms for each in list(_normalizers) if each.obs_rms.count > 1]
    if not parts or len({part.mean.shape for part in parts}) > 1:
        return None
    total = sum(part.count for part in parts)
    mean = sum(part.mean * part.count for part in parts) / total
    var = sum((part.var + (part.mean - mean) ** 2) * part.count for part in parts) / total
    return {"mean": mean.tolist(), "var": var.tolist()}


def _versions() -> Dict[str, str]:
    found = {"python": "%d.%d.%d" % sys.version_info[:3]}
    for name in PACKAGES:
        if name in sys.modules:
            found[name] = str(getattr(import_module(name), "__version__", ""))
    return found
