"""Detection of a policy file's algorithm by playing, if no description names it; used by the shell (`policy_ask`)."""

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cleanrl_worker.envs import play
from cleanrl_worker.envs.views import view_of
from cleanrl_worker.evaluation.policy_loader import SavedPolicy, build_policy, read_policy
from cleanrl_worker.evaluation.policy_match import matches, preferred
from mosaic.contract.errors import ConfigError, shown

EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> None:
    """Print algorithm and environment as one line of JSON; an error is one line on stderr with exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m cleanrl_worker.evaluation.policy_algo", allow_abbrev=False)
    parser.add_argument("--policy-path", type=Path, required=True)
    parser.add_argument("--env-id")
    parser.add_argument("--prefer", action="append", default=[], help="an algorithm to try before the others")
    args = parser.parse_args(argv)
    try:
        found = find_algo(args.policy_path, args.env_id, args.prefer)
    except ConfigError as error:
        print(" ".join(str(error).split()), file=sys.stderr, flush=True)
        raise SystemExit(EXIT_REFUSED) from None
    print(json.dumps({"algo": found.algo, "env_id": found.env_id}), flush=True)


def find_algo(path: Path, env_id: str | None = None, prefer: Sequence[str] = ()) -> SavedPolicy:
    """Return the policy with the first algorithm that has its keys and acts in its environment."""
    saved = read_policy(path, env_id=env_id, prefer=prefer)
    if saved.env_id is None:
        raise ConfigError(_undescribed(saved))
    games: dict[bool, play.Game] = {}
    try:
        try:
            return _acting(saved, saved.candidates, games)
        except ConfigError as refusal:
            if saved.algo not in preferred(path, saved.args, prefer):  # every algorithm was tried
                raise
            others = matches(path, saved.state, saved.args, every=True)
            with contextlib.suppress(ConfigError):
                return _acting(saved, [algo for algo in others if algo not in saved.candidates], games)
            raise refusal
    finally:
        for game in games.values():
            game.close()


def _acting(saved: SavedPolicy, algos: Sequence[str], games: dict[bool, play.Game]) -> SavedPolicy:
    """Return the policy with the first algorithm that acts; add the created environments to `games`."""
    refusal = ConfigError("")
    for algo in algos:
        one = replace(saved, algo=algo, candidates=(algo,))
        try:
            if one.is_atari not in games:
                games[one.is_atari] = _make_game(one)
            build_policy(one, games[one.is_atari])
        except ConfigError as error:
            refusal = error if not str(refusal) else refusal
        else:
            return one
    raise refusal


def _make_game(saved: SavedPolicy) -> play.Game:
    assert saved.env_id is not None
    backend = str(saved.args.get("env_backend", "auto"))
    try:
        return play.make_game(
            saved.env_id, atari=saved.is_atari, backend=backend, view=view_of(saved.env_id, saved.args)
        )
    except SystemExit as error:  # an environment that this algorithm does not play
        raise ConfigError(f"policy {shown(saved.path.name)} fits {saved.algo} by its keys: {error}") from None


def _undescribed(saved: SavedPolicy) -> str:
    first, *others = saved.candidates
    also = f" (its keys also fit {', '.join(others)})" if others else ""
    return (
        f"policy {shown(saved.path.name)} has no description beside it; add --set env_id=…, the environment of its "
        f"training, and --set algo={first}{also}"
    )


if __name__ == "__main__":
    main()
