"""Saved policies: reading our and CleanRL's files without executing their code, and acting with them."""

import importlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker import algorithms
from cleanrl_worker.envs.episodes import spaces_of
from cleanrl_worker.envs.views import plays_frames
from cleanrl_worker.evaluation.policy_match import loader_of, matches
from cleanrl_worker.evaluation.policy_match import policy_algos as policy_algos
from cleanrl_worker.run import policy as policies
from cleanrl_worker.run import policy_files
from cleanrl_worker.run.policy import Policy, normalized
from cleanrl_worker.run.policy_files import UNREADABLE
from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.files import ACTING
from mosaic.contract.kinds import PARAMETERS
from mosaic.contract.sidecars import read_sidecar, sidecar_of
from mosaic.contract.typed import refuse_untyped, typed_for

WIDTH = 64  # minimum of the layer before a network's outputs


@dataclass(frozen=True)
class SavedPolicy:
    """The content of a policy's file and sidecar; CleanRL's files have no sidecar, so much may be unknown."""

    path: Path
    algo: str
    env_id: str | None
    seed: int | None = None
    step: int | None = None
    args: dict[str, Any] = field(default_factory=dict)
    statistics: dict[str, np.ndarray] | None = None
    state: dict[str, Any] = field(default_factory=dict, repr=False)
    trained_on: str | None = None
    """the environment of its training; another one may be played"""
    spaces: str | None = None
    """the spaces of its training, as returned by `spaces_of`"""
    candidates: tuple[str, ...] = ()
    """algorithms whose networks have its keys, if no file names the algorithm; `algo` is the first"""

    @property
    def is_atari(self) -> bool:
        """Return True if the policy observes four stacked frames of a game instead of flat observations."""
        module = f"{algorithms.__name__}.{self.algo}"
        families = getattr(importlib.import_module(module), "FAMILIES", ()) if self.algo in policy_algos() else ()
        return plays_frames(families, self.env_id, self.args)


def read_policy(
    path: Path | str, *, algo: str | None = None, env_id: str | None = None, prefer: Iterable[str] | None = None
) -> SavedPolicy:
    """Read a policy file; `algo` and `env_id` override the sidecar's. Raise a one-line ConfigError if refused.

    With `prefer`, the file's keys determine the algorithm regardless of the sidecar; preferred ones are tried first.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"policy {path}: no such file")
    known = read_sidecar(path)
    state, args = _state_of(_read_tensors(path), path)
    place = str(sidecar_of(path) if known else path)
    args = known.get("args") or args
    trained_on = {"env_id": known.get("env_id") or args.get("env_id")}
    refuse_untyped(place, trained_on, {"env_id": env_id}, typed_for(path), alone=prefer is None)
    recorded = str(known.get("algo") or "").rpartition(".")[2]
    named = (algo or "").rpartition(".")[2] or (recorded if prefer is None and recorded in policy_algos() else "")
    candidates = (named,) if named else tuple(matches(path, state, args, (*(prefer or ()), recorded)))
    statistics = known.get("observation_statistics")
    return SavedPolicy(
        path=path,
        algo=candidates[0],
        env_id=env_id or known.get("env_id") or args.get("env_id"),
        seed=known.get("seed", args.get("seed")),
        step=known.get("step"),
        args=args,
        statistics={key: np.asarray(value) for key, value in statistics.items()} if statistics else None,
        state=state,
        trained_on=known.get("env_id"),
        spaces=known.get("spaces"),
        candidates=candidates,
    )


def build_policy(saved: SavedPolicy, spaces: Any) -> Policy:
    """Return the policy with its frozen observation statistics, tried once on an observation of `spaces`."""
    refusal = None
    for algo in saved.candidates or (saved.algo,):
        try:
            return _built(replace(saved, algo=algo), spaces)
        except ConfigError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _built(saved: SavedPolicy, spaces: Any) -> Policy:
    try:
        policy = loader_of(saved.algo)(saved.state, spaces, saved.args)
        if saved.statistics is not None:
            shape = spaces.single_observation_space.shape
            for name in ("mean", "var"):
                if (own := saved.statistics[name].shape) != shape:
                    raise ValueError(f"observation_statistics.{name} has the shape {own}, not {shape}")
            policy = normalized(policy, saved.statistics)
        _try_out(policy, spaces)
    except ConfigError:
        raise
    except UNREADABLE as error:
        if saved.spaces and saved.spaces != (here := spaces_of(spaces)):
            raise ConfigError(
                f"policy {saved.path.name} was trained on {saved.trained_on}, with {saved.spaces}; {saved.env_id} has "
                f"{here}: play it where they are the same"
            ) from error
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"policy {saved.path} is not a {saved.algo!r} policy for observations {spaces.single_observation_space} "
            f"and actions {spaces.single_action_space}: {reason}"
        ) from error
    return policy


def _try_out(policy: Policy, spaces: Any) -> None:
    space = spaces.single_observation_space
    action = policy(np.zeros((1, *(space.shape or ())), space.dtype), None)[0]
    if not spaces.single_action_space.contains(action):
        raise ValueError(f"it returns {np.asarray(action).tolist()}, which is not a valid action")


def _read_tensors(path: Path) -> Any:
    """Return the content of a torch, safetensors or flax file."""
    try:
        return policy_files.read(policy_files.read_file(path), policies.as_tensor)
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"policy {path} cannot be read as a policy: {reason}") from error


def _state_of(content: Any, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the acting network's weights, and the args if the file contains them."""
    try:
        content, args = policy_files.acting_network(content)
        PARAMETERS.check(args, "args")
        ACTING.check_fields(args, "args")
        if not isinstance(content, dict) or not content or not all(_is_tensor(value) for value in content.values()):
            raise ConfigError("it holds no state dict: a mapping of names to tensors is needed")
        if unnamed := [key for key in content if not isinstance(key, str)]:
            raise ConfigError(f"it names a tensor {shown(unnamed[0])}: a mapping of texts to tensors is needed")
        policy_files.require_floats(content)
        numbers = sum(math.prod(one.shape) for one in content.values())
        if (atoms := args.get("n_atoms")) is not None and atoms > numbers:
            raise ConfigError(f"args.n_atoms is {atoms}, more than the numbers in the file")
        for name in content.keys() & {"atoms", "support"}:  # a network has this many outputs for each action
            if math.prod(content[name].shape) * WIDTH > numbers:
                raise ConfigError(f"{name} is too long for a network of {numbers} numbers")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"policy {path} cannot be read as a policy: {error}") from error
    return dict(content), args


def _is_tensor(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")
