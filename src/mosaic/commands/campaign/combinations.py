"""The matrix of a benchmark (algorithms × environments × seeds), the check of its combinations, and their runs."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.commands.run.settings import find_schema, parse_settings, payload_of, split_settings
from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.groups import BENCHMARK, check_name, group_of
from mosaic.contract.settings import parse_seeds

if TYPE_CHECKING:
    from mosaic.trainer.run import Run

# More is a typing error; the registry would accept them.
MOST_RUNS = 10_000


@dataclass(frozen=True)
class Combination:
    """One algorithm on one environment; its seeds form a group."""

    algo: str
    env_id: str
    config: Mapping[str, Any] = field(compare=False)
    """the flat worker config, without a seed"""

    @property
    def label(self) -> str:
        return f"{Path(self.algo).name if self.algo.endswith('.py') else self.algo} {self.env_id}"


@dataclass(frozen=True)
class Matrix:
    """The runs to train, under a name."""

    name: str
    combinations: tuple[Combination, ...]
    seeds: tuple[int, ...]

    @property
    def group(self) -> str:
        return group_of(BENCHMARK, self.name)

    def group_of(self, combination: Combination) -> str:
        return group_of(BENCHMARK, self.name, combination.label)

    def cells(self) -> Iterator[Cell]:
        """Yield the cells seed by seed, so that a half-finished benchmark covers every combination."""
        for seed in self.seeds:
            for combination in self.combinations:
                yield Cell(combination, seed)

    def __len__(self) -> int:
        return len(self.combinations) * len(self.seeds)


@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    combination: Combination
    seed: int

    @property
    def key(self) -> str:
        return f"{self.combination.label} seed {self.seed}"


def read_matrix(args: argparse.Namespace) -> Matrix:
    """Return the matrix that the command line describes."""
    algos, envs = (_words(getattr(args, name), f"--{name}") for name in ("algos", "envs"))
    settings = {**parse_settings(args.settings), **parse_flags(args.flags)}
    for name in ("seed", "env_id"):
        if name in settings:
            raise ConfigError(
                f"{name} cannot be set for a whole benchmark; its place is --{'seeds' if 'seed' in name else 'envs'}"
            )
    seeds = parse_seeds(args.seeds)
    combinations = []
    for algo in algos:
        schema = find_schema(algo)
        if not schema and "." in algo and not {"total_timesteps", "total_frames"} & set(settings):
            raise ConfigError(f"how long shall {algo} train? Add: --set total_timesteps=100000")
        path = str(Path(algo).resolve()) if algo.endswith(".py") else algo
        config = {"algo": path, **with_steps(split_settings(settings, schema), schema)}
        combinations += [Combination(path, env_id, {**config, "env_id": env_id}) for env_id in envs]
    if len({one.label for one in combinations}) < len(combinations):
        raise ConfigError("two of --algos are files of one name; give them different names")
    if len(combinations) * len(seeds) > MOST_RUNS:
        raise ConfigError(
            f"{len(combinations) * len(seeds):,} runs are asked for; a benchmark has at most {MOST_RUNS:,}"
        )
    return Matrix(check_name(args.name) if args.name else default_name(combinations), tuple(combinations), tuple(seeds))


def with_steps(config: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with the number of steps: the given one, else the algorithm's default."""
    extras = config.get("extras") or {}
    if "total_timesteps" in config or "total_frames" in {*extras, *(extras.get("algo_params") or {})}:
        return dict(config)
    default = next((one.get("default") for one in schema.get("fields", ()) if one["name"] == "total_timesteps"), None)
    return dict(config) if default is None else {**config, "total_timesteps": default}


def parse_flags(words: Sequence[str]) -> dict[str, Any]:
    """Parse the flags after `--` as an algorithm's own command line: --x=1, --x 1, --x, --no-x."""
    found: dict[str, Any] = {}
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("--") or word == "--":
            raise ConfigError(f"after -- stand flags such as --learning-rate 0.001, not {shown(word)}")
        if "=" not in word and place < len(words) and not words[place].startswith("--"):
            word, place = f"{word}={words[place]}", place + 1
        elif "=" not in word:
            word = f"--{word[5:]}=false" if word.startswith("--no-") else f"{word}=true"
        found |= parse_settings([word])
    return found


def default_name(combinations: Sequence[Combination]) -> str:
    """Return a name that depends on algorithms, environments and settings: the same command continues."""
    algos, envs = (
        "+".join(dict.fromkeys(names))
        for names in zip(*((c.label.split()[0], c.env_id) for c in combinations), strict=True)
    )
    told = json.dumps([dict(one.config) for one in combinations], sort_keys=True, default=str)
    words = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in f"{algos}-{envs}")
    return check_name(f"{words[:55].strip('-._')}-{hashlib.sha256(told.encode()).hexdigest()[:6]}")


def payload(matrix: Matrix, cell: Cell, args: argparse.Namespace) -> dict[str, Any]:
    """Return the submission of one run."""
    named = argparse.Namespace(**{**vars(args), "name": f"{matrix.name} {cell.combination.label}"})
    made = payload_of({**cell.combination.config, "seed": cell.seed}, named)
    made["metadata"]["ui"] = {"group": matrix.group_of(cell.combination)}
    return made


def misfits(matrix: Matrix, args: argparse.Namespace) -> dict[Combination, str]:
    """Return the combinations that cannot run, with the reason: the worker checks them before any submission."""
    from mosaic.commands.run.dry_run import refusals

    payloads = [payload(matrix, Cell(one, matrix.seeds[0]), args) for one in matrix.combinations]
    reasons = refusals(payloads, f"asking the worker whether {len(payloads)} combinations fit")
    return {one: reason for one, reason in zip(matrix.combinations, reasons, strict=True) if reason}


def without(matrix: Matrix, left_out: Iterable[Combination]) -> Matrix:
    """Return the matrix without some combinations."""
    gone = {one.label for one in left_out}
    return Matrix(matrix.name, tuple(one for one in matrix.combinations if one.label not in gone), matrix.seeds)


def chosen_runs(matrix: Matrix, runs: Iterable[Run]) -> dict[str, Run]:
    """Return for each cell's key its run: a completed one, else a live one, else the newest."""
    cells = {(matrix.group_of(cell.combination), cell.seed): cell.key for cell in matrix.cells()}
    found: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: (run.created_at, run.run_id)):
        key = cells.get((run.group, -1 if run.seed is None else run.seed))
        if key is not None and (key not in found or _rank(run) >= _rank(found[key])):
            found[key] = run
    return found


def _rank(run: Run) -> int:
    return 2 if str(run.state) == "COMPLETED" else 0 if run.ended else 1


def check_same(matrix: Matrix, known: Mapping[str, Run], get_run: Any) -> None:
    """Raise ConfigError if a benchmark of this name has other settings; one run of each combination is compared."""
    for combination in matrix.combinations:
        run = next(
            (known[key] for cell in matrix.cells() if cell.combination is combination and (key := cell.key) in known),
            None,
        )
        if run is None:
            continue
        had = get_run(run.run_id).payload["metadata"]["worker"]["config"]
        wanted = combination.config
        steps = wanted.get("total_timesteps")
        if _that_score(had) != _that_score(wanted) or steps not in (None, had.get("total_timesteps")):
            raise ConfigError(
                f"benchmark {matrix.name!r} has {combination.label} with {_told(had)}, not with {_told(wanted)}; "
                "give this one another --name"
            )


def _that_score(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras that affect a score; `storage_url`, which the daemon fills in, does not."""
    return {key: value for key, value in (config.get("extras") or {}).items() if key != "storage_url"}


def _told(config: Mapping[str, Any]) -> str:
    extras = dict(config.get("extras") or {})
    settings = {"total_timesteps": config.get("total_timesteps"), **(extras.pop("algo_params", None) or {}), **extras}
    return ", ".join(f"{key}={value}" for key, value in settings.items() if value is not None) or "no settings"


def _words(text: str, what: str) -> list[str]:
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise ConfigError(f"{what} takes names with commas between them, not {shown(text)}")
    if len(set(found)) < len(found):
        raise ConfigError(f"{what} {shown(text)} names one twice")
    return found
