"""mosaic resume, eval and script: runs that start from existing files."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.commands.connection import connect_or_start
from mosaic.commands.daemon.fetch import fetch_for
from mosaic.commands.naming import find_run
from mosaic.commands.printing import print_json
from mosaic.commands.run.settings import add_settings, find_schema, parse_settings, payload_of, split_settings
from mosaic.commands.run.submission import add_follow, submit
from mosaic.contract.checkpoints import checkpoints_of, saved_state
from mosaic.contract.errors import ConfigError
from mosaic.contract.paths import resolve_home
from mosaic.contract.scripts import find_script, list_scripts, shipped_folders
from mosaic.contract.sidecars import POLICY, newest_policy, read_sidecar
from mosaic.contract.workers import discover_workers

if TYPE_CHECKING:
    from mosaic.trainer.rpc.client import Client
    from mosaic.trainer.run import Run


def add_to(commands: Any) -> None:
    """Declare the commands."""
    one = commands.add_parser("resume", help="go on from a run's newest checkpoint, a checkpoint folder or a policy")
    one.add_argument("source", metavar="RUN|PATH", help="a run, or the path of a checkpoint folder or a policy file")
    one.add_argument("--additional-timesteps", type=int, metavar="N", help="train N steps more than it had")
    add_settings(one)
    add_follow(one)
    one.set_defaults(command=resume)

    two = commands.add_parser("eval", help="evaluate a policy: many episodes, their returns, films if wanted")
    two.add_argument("source", metavar="RUN|POLICY", help="a run that saved its policy, or the path of a policy file")
    two.add_argument("--episodes", type=int, metavar="N", help="episodes to play (50)")
    two.add_argument("--best", action="store_true", help="the run's best policy instead of its last")
    two.add_argument("--greedy", action="store_true", help="the likeliest action instead of a sampled one")
    two.add_argument("--video", action="store_true", help="film episodes 0, 1, 8, 27, …")
    add_settings(two)
    add_follow(two)
    two.set_defaults(command=evaluate)

    three = commands.add_parser("script", help="run a bash script of phases as one run; without one, list the scripts")
    three.add_argument(
        "script", nargs="?", metavar="FILE", help="a script inside MOSAIC_HOME, or one that comes with the worker"
    )
    three.add_argument("algo", nargs="?", metavar="ALGO", help="the algorithm of its base config (as its header says)")
    three.add_argument("env_id", nargs="?", metavar="ENV", help="the environment of its base config (its header's)")
    add_settings(three)
    add_follow(three)
    three.set_defaults(command=script)


def resume(args: argparse.Namespace) -> int:
    """Submit a new run that starts from another one's checkpoint."""
    settings = parse_settings(args.settings)
    with connect_or_start() as client:
        source, algo = _checkpoint(client, args.source)
        named = settings.pop("algo", None)  # a script that the checkpoint names runs only if the user names it too
        config = split_settings(settings, find_schema(str(named or algo)) if named or algo else {})
        config |= {"algo": named} if named else {}
        config["extras"] |= {"mode": "resume_training", "checkpoint_path": source}
        if args.additional_timesteps is not None:
            config["extras"]["additional_timesteps"] = args.additional_timesteps
        return submit(client, [payload_of(config, args)], args)


def evaluate(args: argparse.Namespace) -> int:
    """Submit an evaluation of a policy file, or of a run's saved policy."""
    settings = parse_settings(args.settings)
    with connect_or_start() as client:
        config = split_settings(settings, {"fields": [{"name": ""}]})
        given = {
            "mode": "policy_eval",
            "policy_path": str(_policy(client, args.source, best=args.best)),
            "eval_episodes": args.episodes,
            "eval_greedy": True if args.greedy else None,
            "eval_capture_video": True if args.video else None,
        }
        if "algo" in config["extras"]:  # for a policy whose files do not name it
            config["algo"] = config["extras"].pop("algo")
        config["extras"] |= {key: value for key, value in given.items() if value is not None}
        return submit(client, [payload_of(config, args)], args)


def script(args: argparse.Namespace) -> int:
    """Submit a script, or list the scripts; it finds its base config in MOSAIC_CONFIG_FILE."""
    if args.script is None:
        return _list_scripts(as_json=args.json)
    path = Path(args.script).expanduser()
    with connect_or_start() as client:
        home = Path(client.address.home or resolve_home())
        if path.is_file() and not _allowed(path.resolve(), home):
            raise ConfigError(f"{args.script} lies outside the daemon's home {home}; copy it there")
        name = str(path.resolve()) if path.is_file() else args.script
        algo = args.algo or _header_algo(name, home) or "ppo"
        config = {"algo": algo, **split_settings(parse_settings(args.settings), find_schema(algo))}
        if args.env_id is not None:
            config["env_id"] = args.env_id
        payload = payload_of(config, args)
        payload["metadata"]["worker"]["script"] = name
        return submit(client, [payload], args)


def _list_scripts(*, as_json: bool) -> int:
    """List the user's own scripts, then the workers'."""
    found = [script for command in _commands() for script in list_scripts(resolve_home(), command)]
    scripts = list({script.path: script for script in found}.values())
    if as_json:
        print_json({"scripts": [{**asdict(script), "path": str(script.path)} for script in scripts]})
        return 0
    from mosaic import tables

    tables.show_scripts(scripts)
    return 0


def _commands() -> list[tuple[str, ...]]:
    return [worker.command for worker in discover_workers()[0].values()]


def _allowed(path: Path, home: Path) -> bool:
    folders = [home.resolve(), *(folder for command in _commands() for folder in shipped_folders(command))]
    return any(path.is_relative_to(folder) for folder in folders)


def _header_algo(name: str, home: Path) -> str:
    """Return the algorithm that a script's header names; "" for none, or if only a remote daemon has the script."""
    for command in _commands():
        with contextlib.suppress(ConfigError):
            return find_script(name, home, command).algo
    return ""


def _checkpoint(client: Client, source: str) -> tuple[str, str]:
    """Return the source as the daemon finds it, and the algorithm that wrote it ("" if unknown)."""
    path = _path(source)
    if path is None:
        run = client.get_run(find_run(client, source))
        fetch_for(run)
        # a script's policy starts a registered algorithm, which its keys choose
        return run.run_id, "" if run.algo.endswith(".py") else run.algo
    if path.is_dir() and not checkpoints_of(path):
        raise ConfigError(f"there is no checkpoint in {source}")
    known = read_sidecar(path) if path.is_file() else saved_state(path)
    return str(path.resolve()), str(known.get("algo") or "")


def _path(source: str) -> Path | None:
    """Return the existing file or folder of this name; None if none exists, or the name is not a valid path."""
    try:
        path = Path(source).expanduser()
        return path if source and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, ~nobody
        return None


def _policy(client: Client, source: str, *, best: bool) -> Path:
    """Return the given policy file, or the one saved by a run of the daemon's or by a folder copied from elsewhere."""
    path = _path(source)
    if path is not None and path.is_file():
        return path.resolve()
    if path is not None and path.is_dir():
        last = _newest_policy(path)
    elif source.endswith(POLICY):
        raise ConfigError(f"{source} is no policy file; give a file that ends in {POLICY}, or a run")
    else:
        run = client.get_run(find_run(client, source))
        last = _saved_policy(run)
        if last.is_relative_to(run.folder):
            for name in (last, _best(last)) if best else (last,):
                fetch_for(run, str(name.relative_to(run.folder)))
        elif not last.is_file():  # a worker that saves anywhere, on whatever machine it ran
            raise ConfigError(
                f"run {run.run_id} saved its policy outside of its folder, as {last}, which is not on this machine; "
                "copy it here and give the file"
            )
    if not best:
        return last
    found = _best(last)
    if not found.is_file():
        raise ConfigError(f"there is no best policy beside {last}")
    return found


def _best(last: Path) -> Path:
    return last.with_name(last.name.removesuffix(POLICY) + ".best" + POLICY)


def _newest_policy(folder: Path) -> Path:
    if (found := newest_policy(folder)) is None:
        raise ConfigError(f"there is no policy file in {folder}; give a file that ends in {POLICY}, or a run")
    return found.resolve()


def _saved_policy(run: Run) -> Path:
    saved = [artifact.path for artifact in run.artifacts if artifact.kind == "policy"]
    if saved:
        return Path(run.folder) / saved[-1]
    state = "has saved no policy" if run.ended else f"is {run.state} and has saved no policy yet"
    raise ConfigError(
        f"run {run.run_id} {state}; training with --set save_model=true saves one at its end, "
        f"and mosaic resume {run.run_id} --additional-timesteps 100000 --set save_model=true trains on and does so"
    )
