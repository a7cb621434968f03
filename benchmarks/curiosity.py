"""How far curiosity has come in Montezuma's Revenge before its first point: what is new to it, and where it goes.

    python benchmarks/curiosity.py RANDOM_RUN RUN_FOLDER [RUN_FOLDER …] --picture docs/img/curiosity.svg

RANDOM_RUN is a training with `--int-coef=0 --ext-coef=0`, whose policy stays random while its predictor learns. Each
run's newest policy plays, and that one predictor, which knows what random play sees, tells how new its steps are.
Positions are read from the game's memory, which no training sees; EnvPool tells it with every step.
"""

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import ale_py
import numpy as np
import torch
from report import markdown, save
from saved import newest_of, weights

from cleanrl_worker.algorithms.ppo_rnd_envpool import Agent, FrameScale, Novelty
from cleanrl_worker.envs.atari import Shrinker
from cleanrl_worker.envs.episodes import env_seeds
from cleanrl_worker.envs.pools import atari_game, make_pool

ALGO, GAME, ACTIONS = "ppo_rnd_envpool", "MontezumaRevenge", 18
GAMES, SEED = 64, 7  # games side by side keep two cores busy; no training of ours has that seed
ROOM, ACROSS, UP = 3, 42, 43  # bytes of the game's memory; the first room has number 1
CELL, WIDTH, HEIGHT, LOWEST = 8, 20, 14, 18  # the room in cells of 8×8, from the floor's row up
# Where the way to the first key leads, in that order, as positions of the player.
WAY = {"start": (77, 235), "right ladder": (133, 170), "floor": (84, 148), "left ladder": (20, 170), "key": (14, 192)}


class Known(NamedTuple):
    """What a checkpoint holds."""

    name: str
    step: int
    sticky: float
    """how often the game takes the last action again"""
    rewarded: bool
    """whether it was trained for anything"""
    agent: Agent
    novelty: Novelty
    frames: FrameScale


class Play(NamedTuple):
    """What the steps of all games were like."""

    novelty: float
    places: float
    """as many as an even walk over so many cells would visit: the exponential of the visits' entropy"""
    points: int
    visits: np.ndarray


def main() -> None:
    """Play with each run's policy, print the table, draw where they went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("random", type=Path, help="run folder of ppo_rnd_envpool that is not paid for anything")
    parser.add_argument("runs", type=Path, nargs="+", help="run folders of ppo_rnd_envpool with a checkpoint")
    parser.add_argument("--steps", type=int, default=1000, help=f"steps in each of {GAMES} games side by side")
    parser.add_argument("--picture", type=Path, help="an SVG file to draw the visits into")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: give at least 1")
    judge, *others = [read(folder) for folder in (args.random, *args.runs)]
    if judge.rewarded:
        raise SystemExit(f"{args.random} was trained for curiosity or points; train one with --int-coef=0 --ext-coef=0")
    rows, maps = [], []
    for known in (judge, *others):
        print(f"{known.name}: step {known.step:,}", flush=True)
        seen = play(known, judge, args.steps)
        rows.append(row(known, seen))
        maps.append((f"{known.name}, step {known.step:,}", seen.visits))
    print(markdown(rows))
    save("curiosity", {"rows": rows, "steps": args.steps})
    if args.picture:
        draw(args.picture, maps)


def read(folder: Path) -> Known:
    """The newest checkpoint of a run."""
    found = newest_of(folder, ALGO)
    if atari_game(env_id := found.document["env_id"]) != GAME:
        raise SystemExit(f"{folder} is a run in {env_id}; give one in {GAME}-v5")
    agent = Agent(SimpleNamespace(single_action_space=SimpleNamespace(n=ACTIONS)))
    agent.load_state_dict(weights(found, "policy"))
    novelty = Novelty()
    novelty.load_state_dict(weights(found, "novelty"))
    frames = FrameScale(torch.device("cpu"))
    frames.statistics.load_state_dict(weights(found, "frames"))
    frames.refresh()
    used = found.document["args"]
    rewarded = bool(used["int_coef"] or used["ext_coef"])
    sticky = used["repeat_action_probability"]
    return Known(folder.resolve().name, found.step, sticky, rewarded, agent, novelty, frames)


def row(known: Known, seen: Play) -> dict[str, Any]:
    """What the table tells of a checkpoint; of the way to the key, how new its places still are to it."""
    way = " · ".join(f"{place} {new:.0f}" for place, new in zip(WAY, places_on_the_way(known), strict=True))
    return {
        "run": known.name,
        "steps trained": f"{known.step:,}",
        "places": round(seen.places),
        "novelty of a step": round(seen.novelty, 1),
        "points of all games": seen.points,
        "novelty on the way to the key": way,
    }


@torch.no_grad()
def play(known: Known, judge: Known, steps: int) -> Play:
    """Steps with sampled actions of the policy."""
    rng = np.random.default_rng(0)
    envs = make_pool(f"{GAME}-v5", env_seeds(SEED, GAMES), repeat_action_probability=known.sticky, episodic_life=True)
    obs, visits, points = envs.reset()[0], np.zeros((32, 32)), 0
    news: list[float] = []
    going_on = np.ones(GAMES, bool)
    for _ in range(steps):
        scores = known.agent(torch.from_numpy(obs))[0].numpy()
        obs, rewards, terminations, truncations, info = envs.step((scores + rng.gumbel(size=scores.shape)).argmax(1))
        news.extend(new_to(judge, obs[:, 3:])[going_on])  # after an end EnvPool begins anew and takes no action
        points += int(rewards.sum())
        memory = info["ram"][going_on & (info["ram"][:, ROOM] == 1)]
        np.add.at(visits, (memory[:, UP] // CELL, memory[:, ACROSS] // CELL), 1)
        going_on = ~(terminations | truncations)
    shares = visits / visits.sum()
    some = shares[shares > 0]
    return Play(float(np.mean(news)), np.exp(-(some * np.log(some)).sum()), points, shares)


def new_to(known: Known, frames: np.ndarray) -> np.ndarray:
    """How new single frames are, as training pays it before it is scaled."""
    return (known.novelty(known.frames(torch.from_numpy(frames))).sum(dim=1) / 2).numpy()


@torch.no_grad()
def places_on_the_way(known: Known) -> np.ndarray:
    """How new it would be to be at each place on the way: the player is put there, and two frames are drawn."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.loadROM(ale_py.roms.get_rom_path("montezuma_revenge"))
    for _ in range(60):  # until the room stands still
        ale.act(0)
    begun, shrink, frames = ale.cloneState(), Shrinker(*ale.getScreenDims()), []
    for across, up in WAY.values():
        ale.restoreState(begun)
        ale.setRAM(ACROSS, across)
        ale.setRAM(UP, up)
        drawn = []
        for _ in range(2):  # a frame that is seen is the larger of two
            ale.act(0)
            drawn.append(ale.getScreenGrayscale())
        frames.append(shrink(np.maximum(*drawn)))
    return new_to(known, np.stack(frames)[:, None])


def draw(path: Path, maps: list[tuple[str, np.ndarray]]) -> None:
    """One room for each, darker where more steps were spent."""
    size, gap, label = 12, 20, 22
    wide = len(maps) * (WIDTH * size + gap)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {HEIGHT * size + label}" font-size="13" ']
    parts[0] += 'font-family="sans-serif">'
    for number, (name, shares) in enumerate(maps):
        left = number * (WIDTH * size + gap)
        parts.append(f'<text x="{left}" y="14" fill="#555">{escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{label}" width="{WIDTH * size}" height="{HEIGHT * size}" fill="#f4f4f4"/>')
        room = shares[LOWEST : LOWEST + HEIGHT, :WIDTH]
        for up, across in np.argwhere(room > 0):
            # 1 in 10,000 steps is just seen, 1 in 20 is full
            dark = np.clip(np.log10(room[up, across] * 10_000) / np.log10(500), 0.03, 1)
            x, y = left + across * size, label + (HEIGHT - 1 - up) * size
            parts.append(f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="#1f5fa8" opacity="{dark:.2f}"/>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
