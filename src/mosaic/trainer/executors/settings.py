"""The daemon's settings of executors, from flags, variables or the home's `.env`; and the executors they create."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.channel import is_loopback
from mosaic.contract.errors import ConfigError, nearest, shown
from mosaic.contract.settings import EXECUTORS
from mosaic.trainer.executors.choice import Executors
from mosaic.trainer.executors.cluster import ClusterSite
from mosaic.trainer.executors.contract import Executor
from mosaic.trainer.executors.ray import RayExecutor
from mosaic.trainer.executors.ray_head import PrivateHead, ray_problem
from mosaic.trainer.executors.slurm import SlurmExecutor
from mosaic.trainer.live.worker_requests import WorkerRequests


@dataclass(frozen=True)
class ExecutorSettings:
    """The default executor, and how clusters and their nodes are reached."""

    executor: str = "local"
    ray_address: str = ""
    """a dashboard's URL; "" is a private cluster of this machine"""
    advertise: str = ""
    """HOST:PORT of the daemon for nodes"""
    scratch: str = ""
    node_python: str = ""

    @classmethod
    def read(cls, given: Mapping[str, str | None], home: Path) -> ExecutorSettings:
        """Return the settings from flags, else from the environment, else from the home's `.env`."""
        written = variables.read_dotenv(home)
        found = {
            name: given.get(name) or os.environ.get(variable) or written.get(variable) or ""
            for name, variable in _VARIABLES.items()
        }
        settings = cls(**{**found, "executor": found["executor"] or "local"})
        if settings.executor not in EXECUTORS:
            near = nearest(settings.executor, EXECUTORS)
            raise ConfigError(f"--executor takes {', '.join(EXECUTORS)}, not {shown(settings.executor)}{near}")
        if settings.ray_address and not settings.ray_address.startswith(("http://", "https://")):
            raise ConfigError(
                f"--ray-address takes the URL of a cluster's dashboard, such as http://head:8265, "
                f"not {shown(settings.ray_address)}"
            )
        return settings


_VARIABLES = {
    "executor": variables.MOSAIC_EXECUTOR,
    "ray_address": variables.MOSAIC_RAY_ADDRESS,
    "advertise": variables.MOSAIC_ADVERTISE,
    "scratch": variables.MOSAIC_NODE_SCRATCH,
    "node_python": variables.MOSAIC_NODE_PYTHON,
}
FLAGS = {
    "--executor": ("NAME", "where runs run that do not say: local, ray or slurm (local)"),
    "--ray-address": ("URL", "dashboard of a Ray cluster (default: a private one on this machine)"),
    "--advertise": ("HOST:PORT", "where a cluster's nodes reach this daemon (default: as --listen)"),
    "--scratch": ("DIR", "nodes keep runs in this folder of theirs, even where they see the home"),
    "--node-python": ("PATH", "the interpreter on the nodes (default: this one's path)"),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the daemon's flags of this module."""
    for flag, (metavar, text) in FLAGS.items():
        parser.add_argument(flag, metavar=metavar, help=text)


def make_executors(
    settings: ExecutorSettings,
    home: Path,
    controls: WorkerRequests,
    target: Callable[[], str],
    certificate: Path | None,
) -> Executors:
    """Create all executors that this machine can use."""
    site = ClusterSite(
        home=home,
        target=lambda: settings.advertise or reachable(target()),
        certificate=certificate,
        scratch=settings.scratch,
        python=settings.node_python,
    )
    others: dict[str, Executor] = {}
    problems: dict[str, str] = {}
    if settings.ray_address:
        others["ray"] = RayExecutor(site, controls, settings.ray_address)
    elif problem := ray_problem():
        problems["ray"] = problem
    else:
        others["ray"] = RayExecutor(site, controls, head=PrivateHead(home))
    if problem := SlurmExecutor.problem():
        problems["slurm"] = problem
    else:
        others["slurm"] = SlurmExecutor(site, controls)
    if settings.executor != "local" and settings.executor not in others:
        raise ConfigError(f"--executor {settings.executor}: {problems[settings.executor]}")
    return Executors(others, default=settings.executor, problems=problems)


def reachable(target: str) -> str:
    """Return an address that other machines can use, also for one that binds all interfaces."""
    host, _, port = target.rpartition(":")
    if is_loopback(target) or host.strip("[]") not in ("0.0.0.0", "::", ""):
        return target
    return f"{socket.gethostname()}:{port}"


def given_flags(args: Any) -> dict[str, str | None]:
    """Return the given flags of this module."""
    return {name: getattr(args, name, None) for name in _VARIABLES}
