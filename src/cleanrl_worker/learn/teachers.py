"""QDagger's teacher: the policy file of a DQN, given by its path or from the hub."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cleanrl_worker.envs.pools import atari_game
from cleanrl_worker.learn import dqn_files
from cleanrl_worker.run import policy_files

Network = TypeVar("Network")


def load_teacher(args: Any, build: Callable[[dqn_files.State], Network]) -> Network:
    """Return `build` of the teacher's arrays; raise a one-line SystemExit for a missing or unsuitable file.

    It only reads the `args` named `teacher_…` and `env_id`.
    """
    path = Path(args.teacher_policy_path or _download(args))
    try:
        return build(dqn_files.read(policy_files.read_file(path)))
    except policy_files.UNREADABLE as error:
        line = " ".join(str(error).split())[:200]
        raise SystemExit(f"--teacher-policy-path {path} is no DQN's policy for {args.env_id}: {line}") from error


def only_offline(args: Any) -> str | None:
    """Return the warning for a run whose student never plays, as `total_timesteps` includes the offline steps."""
    if args.offline_steps < args.total_timesteps:
        return None
    offline, total = args.offline_steps, args.total_timesteps
    return (
        f"--offline-steps {offline:,} leaves no step of --total-timesteps {total:,} online: the student never plays; "
        f"CleanRL adds the two, as --total-timesteps {offline + total} does here"
    )


def _download(args: Any) -> Path:
    repo = args.teacher_policy_hf_repo or _repository(args)
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise SystemExit(
            "a teacher is needed: give --teacher-policy-path, or pip install 'mosaic-rl[hub]' to load one from the hub"
        ) from None
    try:
        return Path(hf_hub_download(repo, f"{args.teacher_model_exp_name}.cleanrl_model"))
    except (OSError, ValueError) as error:  # huggingface_hub's own errors are among these
        line = " ".join(str(error).split())[:200]
        raise SystemExit(f"no teacher from the hub ({repo}): {line}; or give --teacher-policy-path") from error


def _repository(args: Any) -> str:
    """Return the hub repository of CleanRL's policy for this game, named by its Gym id."""
    if "/" in (game := atari_game(args.env_id)):
        raise SystemExit(f"a teacher is needed, and the hub has none for {args.env_id}: give --teacher-policy-path")
    return f"cleanrl/{game}NoFrameskip-v4-{args.teacher_model_exp_name}-seed1"
