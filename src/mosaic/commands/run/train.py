"""mosaic train: one run per seed, submitted to the daemon."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mosaic.commands.connection import connect_or_start
from mosaic.commands.run.settings import add_settings, find_schema, parse_settings, payload_of, split_settings
from mosaic.commands.run.submission import add_follow, submit
from mosaic.contract.errors import ConfigError
from mosaic.contract.settings import group_name, parse_seeds


def add_to(commands: Any) -> None:
    """Declare the command."""
    one = commands.add_parser("train", help="train an algorithm on an environment")
    one.add_argument("algo", metavar="ALGO", help="a name that `mosaic algos` lists, or the path of your own script")
    one.add_argument("env_id", metavar="ENV", help="an environment id (see `mosaic envs`)")
    add_settings(one)
    one.add_argument("--seeds", metavar="1-5", help="one run for each seed: 1-5, or 1,2,7")
    add_follow(one)
    one.set_defaults(command=train)


def train(args: argparse.Namespace) -> int:
    """Submit one run per seed; start a daemon first if none runs."""
    payloads = [payload_of(config, args) for config in build_configs(args, find_schema(args.algo))]
    if args.seeds:
        group = args.name or group_name(args.algo, args.env_id, args.seeds)
        for payload in payloads:
            payload["run_name"], payload["metadata"]["ui"] = group, {"group": group}
    with connect_or_start() as client:
        return submit(client, payloads, args)


def build_configs(args: argparse.Namespace, schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the flat worker config of each run."""
    settings = parse_settings(args.settings)
    if args.seeds and "seed" in settings:
        raise ConfigError("both --seeds and --set seed=… were given; give one of them")
    algo = str(Path(args.algo).resolve()) if args.algo.endswith(".py") else args.algo
    if not schema and "." in args.algo and not {"total_timesteps", "total_frames"} & set(settings):
        raise ConfigError(f"how long shall {args.algo} train? Add: --set total_timesteps=100000")
    config = {"algo": algo, "env_id": args.env_id, **split_settings(settings, schema)}
    if not args.seeds:
        return [config]
    return [{**config, "seed": seed} for seed in parse_seeds(args.seeds)]
