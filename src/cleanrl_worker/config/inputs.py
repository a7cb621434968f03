"""The shell's lookup of earlier runs' policies, sidecars and checkpoints. Paths and JSON only."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cleanrl_worker.config import policy_ask
from cleanrl_worker.config.evaluation import settle
from mosaic.contract import variables
from mosaic.contract.checkpoints import checkpoints_of, nothing_left, saved_args, saved_state
from mosaic.contract.errors import ConfigError, StoreError, shown
from mosaic.contract.paths import RunPaths, resolve_home
from mosaic.contract.sidecars import newest_policy, read_sidecar, sidecar_of
from mosaic.contract.typed import CURRICULA, imported_by, refuse_untyped, stages, submitted_for, trusted_algo, typed_for
from mosaic.store.storage import OFF, check_url
from mosaic.store.stored import ensure, fetch_newest

TAIL_BYTES = 1 << 20
NEEDED = ("algo", "env_id", "seed")  # of a run that continues from a policy or plays it


def check_paths(extras: dict[str, Any], values: dict[str, Any], run_id: str) -> None:
    """Refuse a missing policy or checkpoint; fill in open fields from the saved run or the sidecar."""
    mode = extras.get("mode") or "train"
    if mode == "policy_eval" and not extras.get("policy_path"):
        raise ConfigError("mode 'policy_eval' needs extras.policy_path, the policy to evaluate")
    if mode == "resume_training" and not (extras.get("checkpoint_path") or extras.get("policy_path")):
        raise ConfigError("mode 'resume_training' needs extras.checkpoint_path, the checkpoint to go on from")
    for name in ("policy_path", "checkpoint_path"):
        given = extras.get(name)
        if not given:
            continue
        path = find_checkpoint(given) if mode == "resume_training" else find_path(given)
        if not path.exists():
            runs = f", nor is it a run of {resolve_home()}" if mode == "resume_training" else ""
            raise ConfigError(f"extras.{name}: {given!r} is not there (looked for {path}){runs}")
        may_be_folder = name == "checkpoint_path" or mode == "resume_training"
        if not os.access(path, os.R_OK) or not (may_be_folder or path.is_file()):
            raise ConfigError(f"extras.{name}: {given!r} is no file that can be read")
    if mode == "resume_training":
        source = find_checkpoint(extras.get("checkpoint_path") or extras["policy_path"])
        _fill_from_checkpoint(source, values, extras, run_id)
    if mode in ("policy_eval", "interactive") and extras.get("policy_path"):
        _fill_from_policy(find_path(extras["policy_path"]), values, extras)
    if mode == "policy_eval":
        settle(extras, values)
    elif mode == "interactive":
        if values["env_id"] is None:
            raise ConfigError("nothing to play: give --env-id, or --policy-path of a policy that says its environment")
        values["algo"] = values["algo"] or ""
    if mode != "train" and values["total_timesteps"] is None:
        values["total_timesteps"] = extras.get("additional_timesteps") or 0


def fetch_missing(extras: dict[str, Any], run_id: str) -> None:
    """Fetch the config's policy or checkpoint from its run's store if it is missing on this machine.

    A run that resumes from its own checkpoint on a new machine gets its logs and curves as well.
    """
    url = str(extras.get("storage_url") or "").strip()
    off = url.lower() == OFF
    if url and not off:
        check_url(url, "extras.storage_url")
    own, home = RunPaths(run_id), resolve_home()
    for name in ("policy_path", "checkpoint_path"):
        for path in _places(str(extras.get(name) or "")):
            try:
                if url and not off and path == own.checkpoints and not own.events.exists():
                    fetch_newest(own, url)
                ensure(path, home, "" if off else url)
            except StoreError as error:
                raise ConfigError(f"extras.{name}: {error}") from None


def _places(text: str) -> list[Path]:
    """Return the possible paths in run folders; a path of another machine's home is mapped to this one's."""
    if not text:
        return []
    if re.fullmatch(r"[\w-]{1,128}", text):
        return [RunPaths(text).folder]
    path = Path(text).expanduser()
    return [path if path.is_absolute() else resolve_home() / path, *_moved(path)]


def _moved(path: Path) -> list[Path]:
    """Return the same file of the same run below this home."""
    found = re.search(r"(?:^|/)(var/trainer/runs/[\w-]+/.*)$", path.as_posix())
    return [resolve_home() / found[1]] if found else []


def find_checkpoint(text: str) -> Path:
    """Return the path that a run continues from, given as a user's path or a run id.

    A script's run has no checkpoints of ours: its saved policy is used instead.
    """
    path = find_path(text)
    if path.exists() or not re.fullmatch(r"[\w-]{1,128}", text):
        return path
    paths = RunPaths(text)
    if not paths.folder.exists():
        return path
    return paths.folder if checkpoints_of(paths.folder) else newest_policy(paths.policies) or paths.folder


def run_before(mode: str, extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the resumed run; {} for other modes, and if they cannot be read."""
    if mode != "resume_training":
        return {}
    return saved_args(find_checkpoint(extras.get("checkpoint_path") or extras["policy_path"]))


def _fill_from_checkpoint(source: Path, values: dict[str, Any], extras: dict[str, Any], run_id: str) -> None:
    """Fill a resumption's open fields from the saved run; additional steps count from the checkpoint."""
    more = extras.get("additional_timesteps")
    if source.is_file():
        if isinstance(more, int) and values["total_timesteps"] is None:
            values["total_timesteps"] = more  # a policy starts at step 0
        _fill_from_policy(source, values, extras, names=(*NEEDED, "total_timesteps"))
        return
    if not (found := checkpoints_of(source)):
        raise ConfigError(f"there is no checkpoint in {source}")
    state = saved_state(source)
    if not state:
        raise ConfigError(f"all checkpoints in {source} are damaged ({', '.join(path.name for path in found)})")
    _fill(f"checkpoint {source}: state.json", {**state, **(state.get("args") or {})}, source, values, extras)
    if isinstance(more, int) and more > 0:
        values["total_timesteps"] = state["step"] + more  # as the algorithm computes it; the displayed value must agree
    total = values["total_timesteps"]
    if type(total) in (int, float) and state["step"] >= total and not _is_cut_short(source, RunPaths(run_id)):
        done = nothing_left(source, state["step"], int(total))
        raise ConfigError(f"{done}: mosaic resume {_name_of(source)} --additional-timesteps 100000")


def _is_cut_short(source: Path, own: RunPaths) -> bool:
    """Return True for a run that resumes from its own checkpoint because it ended before completion."""
    given = own.checkpoints_in({**variables.read_dotenv(own.home), **os.environ})
    if not source.is_relative_to(own.folder) and source != given:
        return False
    try:
        with own.events.open("rb") as events:
            events.seek(-min(events.seek(0, os.SEEK_END), TAIL_BYTES), os.SEEK_END)
            tail = events.read()
    except OSError:
        return True
    return tail.rfind(b'{"event":"run_completed"') <= tail.rfind(b'{"event":"run_started"')


def _name_of(source: Path) -> str:
    """Return the run id for a run of this home, else the path, as a user types it."""
    runs = RunPaths("any").folder.parent
    return source.relative_to(runs).parts[0] if source.is_relative_to(runs) and source != runs else str(source)


def _fill_from_policy(
    policy: Path, values: dict[str, Any], extras: dict[str, Any], names: tuple[str, ...] = NEEDED
) -> None:
    """Fill open fields from the sidecar, else from the policy's run; the policy's keys decide an unknown algorithm."""
    from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY

    known, submitted = read_sidecar(policy), submitted_for(policy)
    named = (values["algo"], known.get("algo"), submitted.get("algo"))
    of_script = str(submitted.get("algo") or "").endswith(".py")
    if extras.get("mode") != "resume_training" and str(values["algo"] or "").endswith(".py"):
        values["algo"] = None  # as the run was submitted: a script trains, but its policy acts as one of ours
    algo = str(known.get("algo") or submitted.get("algo") or "").removeprefix("cleanrl.")
    told = {name: submitted.get(name) for name in names} | (known.get("args") or {})
    told |= {name: value for name, value in known.items() if value is not None}
    told["algo"] = None if of_script or algo not in DEFAULT_ALGO_REGISTRY else algo
    _fill(f"policy sidecar {sidecar_of(policy)}", told, policy, values, extras, names)
    # a session whose environment is known tries the algorithms itself
    if values["algo"] in (None, "") and (of_script or values["env_id"] is None or extras["mode"] != "interactive"):
        stems = [re.split(r"[./]", str(name or "").removesuffix(".py"))[-1] for name in named]
        prefer = [stem for stem in stems if stem.isidentifier()]
        values["algo"], values["env_id"] = policy_ask.find_algo(policy, values["env_id"], prefer)


def _fill(
    place: str,
    saved: Mapping[str, Any],
    source: Path,
    values: dict[str, Any],
    extras: dict[str, Any],
    names: tuple[str, ...] = (*NEEDED, "total_timesteps"),
) -> None:
    """Fill open values from a file; raise ConfigError for a value that would run code the user did not type."""
    from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY

    trains, typed = extras.get("mode") == "resume_training", typed_for(source)
    given = {**(extras.get("algo_params") or {}), **extras, "env_id": values["env_id"]}
    inherited = saved if trains else {"env_id": saved.get("env_id")}
    if trains and source.is_file():  # a policy file's stages are over
        inherited = {name: value for name, value in saved.items() if name != "curriculum_schedule"}
    refuse_untyped(place, inherited, given, typed)
    for name in CURRICULA if trains and not any(given.get(one) for one in CURRICULA) else ():
        kept = list(stages(inherited.get(name)))
        if any(map(imported_by, kept)) and values["env_id"] in (None, *kept):
            extras[name] = inherited[name]  # as typed before: the algorithm reads none of these from the file itself
    known = {name: saved.get(name) for name in names if values[name] is None}
    if "algo" in known:
        known["algo"] = trusted_algo(place, known["algo"], DEFAULT_ALGO_REGISTRY, typed)
    values.update(known)


def find_path(text: str) -> Path:
    """Return the path for a user's text: relative to the current folder, then to MOSAIC_HOME."""
    path = Path(text).expanduser()
    for base in (Path.cwd(), resolve_home()):
        if (base / path).exists():
            return base / path
    return next((moved for moved in _moved(path) if moved.exists()), Path.cwd() / path)


def find_file(name: str, text: str) -> Path:
    """Return a parameter's file as an absolute path: the algorithm runs in another folder."""
    path = find_path(text)
    if not path.exists():
        raise ConfigError(f"{name}: {text!r} is not there (looked for {path})")
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ConfigError(f"{name}: {text!r} is no file that can be read")
    return path.absolute()


def read_object(text: str, what: str) -> dict[str, Any]:
    """Parse a JSON object from `text`; `what` names it in the error."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{what}: no valid JSON: {error.msg} (line {error.lineno}, column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what}: no valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{what}: a JSON object is needed, not {shown(found)}")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
