"""Procgen's games under their usual names, with a choice of difficulty and levels; EnvPool makes them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from cleanrl_worker.envs.pools import knows, nearest
from cleanrl_worker.envs.registration import OWN

GAMES = tuple(
    """
    bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper maze miner ninja plunder
    starpilot
    """.split()
)
Backend = Literal["auto", "gymnasium", "envpool"]
MODES = ("easy", "hard", "extreme", "memory", "exploration")
# starpilot and EnvPool's StarpilotEasy-v0; procgen-starpilot-v0 is the procgen package's own, hard by default
_NAMES = re.compile(rf"(?:procgen:)?(procgen-)?({'|'.join(GAMES)})({'|'.join(MODES)})?(?:-v0)?", re.IGNORECASE)


def is_procgen(env_id: str) -> bool:
    """Return True if an environment is one of Procgen's games."""
    return _NAMES.fullmatch(env_id) is not None


def backend_of(env_id: str, asked: Backend) -> Backend:
    """Return the backend; for auto, EnvPool for Procgen's games and Gymnasium for our image games."""
    return asked if asked != "auto" else "gymnasium" if env_id in OWN else "envpool"


def view_of(args: Mapping[str, Any]) -> "ProcgenView":
    """Return the view of Procgen's games for these args."""
    given = {name: args[name] for name in ("distribution_mode", "start_level", "num_levels") if name in args}
    return ProcgenView(**given)


@dataclass(frozen=True)
class ProcgenView:
    """The levels of a game to play; images are unchanged, channels first: 64×64 in colour from Procgen."""

    distribution_mode: str = "auto"
    start_level: int = 0
    num_levels: int = 0

    def pool(self, env_id: str) -> tuple[str, dict[str, Any]]:
        """Return EnvPool's name of the game, and its options."""
        found = _NAMES.fullmatch(env_id)
        if found is None:
            raise SystemExit(f"{env_id!r} is no game of Procgen{nearest(env_id, GAMES) or ': ' + ', '.join(GAMES)}")
        package, game, named = found.groups()
        mode = named.lower() if named else "hard" if package else "easy"
        if self.distribution_mode != "auto":
            if named and mode != self.distribution_mode:
                raise SystemExit(
                    f"{env_id} says {mode} and --distribution-mode says {self.distribution_mode}; leave one of them out"
                )
            mode = self.distribution_mode
        made = {other: f"{game.capitalize()}{other.capitalize()}-v0" for other in MODES}
        if not knows(made[mode]) and (modes := [other for other in MODES if knows(made[other])]):
            raise SystemExit(f"{game.lower()} has no {mode} levels, only {', '.join(modes)}")
        return made[mode], {"start_level": self.start_level, "num_levels": self.num_levels}

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        if env.spec is not None and env.spec.id in OWN:
            return env
        raise SystemExit("Procgen's games are made by EnvPool only: use --env-backend envpool or auto")

    def space(self, space: gym.Space[Any]) -> gym.spaces.Box:
        assert isinstance(space, gym.spaces.Box)
        return space

    def __call__(self, obs: Any) -> np.ndarray:
        return np.asarray(obs)
