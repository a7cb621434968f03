"""How well a policy that has learned by playing against itself plays against one that presses buttons at random.

    python benchmarks/self_play.py RUN_FOLDER [RUN_FOLDER …] --games 32
    python benchmarks/self_play.py runs/seed-*/checkpoints/* --games 16 --picture docs/img/a-curve.svg

RUN_FOLDER holds a training of ppo_pettingzoo_ma_atari in a game for two, or is one of its checkpoints. In self-play one
side's gain is the other's loss, so a training's own returns cannot tell that it learns; games against random play can.
Each newest policy plays half of the games on either side; the first row of a game is random play against itself.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from curves import Curve, write_svg
from report import markdown, save
from saved import newest_of, weights

from cleanrl_worker.algorithms.ppo_pettingzoo_ma_atari import load_policy
from cleanrl_worker.envs.players import Match, register
from cleanrl_worker.run.checkpoint import Checkpoint

ALGO, NAME = "ppo_pettingzoo_ma_atari", "self_play"
SEED = 7  # no training of ours has it
Act = Callable[[np.ndarray, np.random.Generator], np.ndarray]


class Games(NamedTuple):
    """What came out, a number for each game."""

    own: np.ndarray
    """what the policy won"""
    others: np.ndarray
    """what its opponent won, who plays at random"""
    lengths: np.ndarray


def main() -> None:
    """Play with each run's policy, print the table, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help=f"run folders of {ALGO} with a checkpoint")
    parser.add_argument("--games", type=int, default=32, help="games with each policy, half of them on either side")
    parser.add_argument("--at-most", type=int, default=5000, help="steps after which a game is counted as it stands")
    parser.add_argument("--picture", type=Path, help="an SVG file to draw into: return over steps trained, of one game")
    args = parser.parse_args()
    if args.games < 2 or args.at_most < 1:
        parser.error("give at least two --games and one step for --at-most")
    found = [newest_of(folder, ALGO) for folder in args.runs]
    if args.picture and (why := why_undrawn(found)):
        parser.error(f"--picture: {why}")
    rows: dict[str, list[dict[str, Any]]] = {}
    returns: dict[int, dict[int, float]] = {}  # by seed and steps trained
    for checkpoint in sorted(found, key=lambda each: (each.document["env_id"], each.step)):
        game, seed = checkpoint.document["env_id"], checkpoint.document["args"]["seed"]
        if (players := register(game)) != 2:
            raise SystemExit(f"{game} is for {players} players; this is for games of two")
        if game not in rows:
            random = play(game, None, args.games, args.at_most)
            rows[game] = [row(game, "random play", 0, random)]
        policy = load_policy(weights(checkpoint, "policy"), spaces_of(game), {})
        seen = play(game, policy, args.games, args.at_most)
        rows[game].append(row(game, f"seed {seed}", checkpoint.step, seen))
        returns.setdefault(seed, {0: float(random.own.mean())})[checkpoint.step] = float(seen.own.mean())
        print(f"{game}, seed {seed}, step {checkpoint.step:,}: {rows[game][-1]['its return']}", flush=True)
    print(markdown([each for game in rows.values() for each in game]))
    save(NAME, {game: {"games": args.games, "rows": table} for game, table in rows.items()})
    if args.picture:
        print(draw(args.picture, game, returns))


def why_undrawn(found: list[Checkpoint]) -> str | None:
    """Why these make no picture, before minutes of play."""
    if len({checkpoint.document["env_id"] for checkpoint in found}) > 1:
        return "it is of one game; these runs are of several"
    steps: dict[int, set[int]] = {}
    for checkpoint in found:
        steps.setdefault(checkpoint.document["args"]["seed"], set()).add(checkpoint.step)
    return None if set.intersection(*steps.values()) else "these seeds have no checkpoint of the same step"


def draw(path: Path, game: str, returns: dict[int, dict[int, float]]) -> Path:
    """A line for each seed over the steps that every seed was measured at, from random play on."""
    steps = sorted(set.intersection(*(set(of_seed) for of_seed in returns.values())))
    seeds = [np.array([of_seed[step] for step in steps]) for of_seed in returns.values()]
    curve = Curve(f"{ALGO} {game}", np.array(steps), seeds, measure="mean return against random play")
    return write_svg(path, curve)


def spaces_of(game: str) -> SimpleNamespace:
    """What both players see and may press."""
    match = Match(game)
    spaces = SimpleNamespace(single_observation_space=match.observation_space, single_action_space=match.action_space)
    match.close()
    return spaces


def play(game: str, act: Act | None, games: int, at_most: int) -> Games:
    """Games side by side until each is over; the policy, if any, is the first player in the even ones."""
    rng = np.random.default_rng(SEED)
    matches = [Match(game) for _ in range(games)]
    obs = np.stack([match.reset(seed=SEED + number)[0] for number, match in enumerate(matches)])
    buttons = int(matches[0].action_space.nvec[0])
    own = np.arange(games) % 2
    returns, lengths = np.zeros((games, 2)), np.zeros(games, int)
    playing = np.arange(games)
    while len(playing):
        actions = rng.integers(0, buttons, (len(playing), 2))
        if act is not None:
            mine = np.arange(len(playing)), own[playing]
            actions[mine] = act(obs[playing], rng)[mine]
        over = []
        for number, action in zip(playing, actions, strict=True):
            obs[number], _, terminated, truncated, _ = matches[number].step(action)
            returns[number] += matches[number].rewards
            lengths[number] += 1
            over.append(terminated or truncated or lengths[number] >= at_most)
        playing = playing[~np.array(over)]
    for match in matches:
        match.close()
    every = np.arange(games)
    return Games(returns[every, own], returns[every, 1 - own], lengths)


def row(game: str, name: str, step: int, seen: Games) -> dict[str, Any]:
    """A line of the table."""
    error = seen.own.std(ddof=1) / np.sqrt(len(seen.own))
    won, lost = int((seen.own > seen.others).sum()), int((seen.own < seen.others).sum())
    return {
        "game": game,
        "policy": name,
        "steps trained": f"{step:,}",
        "its return": f"{seen.own.mean():.1f} ± {error:.1f}",
        "its opponent's": f"{seen.others.mean():.1f}",
        "won, drawn, lost": f"{won}, {len(seen.own) - won - lost}, {lost}",
        "length of a game": round(float(seen.lengths.mean())),
    }


if __name__ == "__main__":
    main()
