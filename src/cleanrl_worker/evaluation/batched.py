"""Evaluating a saved policy in batches of episodes; runs in the algorithm's process (`mode = "policy_eval"`)."""

import json
import os
import queue
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from cleanrl_worker.envs import episodes, play
from cleanrl_worker.envs.views import view_of
from cleanrl_worker.evaluation.policy_loader import SavedPolicy, build_policy, read_policy
from cleanrl_worker.run.policy import Policy
from mosaic.contract import metrics
from mosaic.contract.errors import ConfigError, MosaicError
from mosaic.contract.paths import write_atomic
from mosaic.contract.tensorboard import ScalarWriter

GAMMA = 0.99
AT_ONCE = 4
EXIT_REFUSED = 2
STOP_SECONDS = 0.2  # maximum delay of a stop request between two episodes
# In eval_summary.json, and under eval/ in TensorBoard.
BATCH_NUMBERS = ("episodes", "avg_return", "min_return", "max_return", "median_return", "std_return", "duration_sec")


@dataclass(kw_only=True)
class EvalArgs:
    """Settings of an evaluation."""

    policy_path: Path
    """policy to evaluate: a .cleanrl_model of ours or of CleanRL"""
    run_dir: Path
    """folder the evaluation writes into"""
    algo: str | None = None
    """algorithm of the policy (default: from its sidecar or its keys)"""
    env_id: str | None = None
    """environment to play (default: the one it was trained on)"""
    seed: int = 1
    """seed from which every episode's own is derived"""
    episodes: int = 50
    """total number of episodes"""
    batch_size: int = 50
    """episodes per summary"""
    repeat: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """continue with batch after batch until stopped"""
    greedy: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """use the most likely or best action instead of a sampled one"""
    gamma: float | None = None
    """discount factor of the discounted return (default: as in training)"""
    max_episode_steps: int = 0
    """truncate episodes at this length (0: only the environment ends them)"""
    capture_video: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """film episodes 0, 1, 8, 27, … into videos/<run>-eval/"""
    num_envs: int = 0
    """environments played in parallel (0: four for Atari, else one); does not change results"""
    env_backend: Literal["auto", "gymnasium", "envpool"] | None = None
    """backend of the environment (default: as in training)"""
    tensorboard_dir: Path | None = None
    """folder for TensorBoard files (default: tensorboard_eval/ in the run folder)"""
    num_threads: int = 1
    """CPU threads for the network (0: torch's default)"""
    check: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """make the environment, read the policy, try it once and write nothing"""


@dataclass(frozen=True)
class EvaluationBatch:
    """One batch of played episodes."""

    index: int
    played: tuple[play.Played, ...]
    seconds: float

    def summary(self) -> dict[str, Any]:
        """Return the content of eval_summary.json."""
        returns = [episode.ret for episode in self.played]
        return {
            "batch_index": self.index,
            "episodes": len(returns),
            "avg_return": statistics.fmean(returns),
            "min_return": min(returns),
            "max_return": max(returns),
            "median_return": statistics.median(returns),
            "std_return": statistics.pstdev(returns),
            "duration_sec": round(self.seconds, 3),
            "updated_at": time.time(),
        }


def main(args: EvalArgs | None = None) -> None:
    """Evaluate by the command line; an error is one line on stderr, with exit code 2 if nothing was written."""
    args = args or tyro.cli(EvalArgs, description=__doc__)
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        run_batched_evaluation(args, stop)
    except ConfigError as error:  # from the policy, which is read before anything is written
        print(" ".join(str(error).split()), file=sys.stderr, flush=True)
        raise SystemExit(EXIT_REFUSED) from error
    except MosaicError as error:
        raise SystemExit(" ".join(str(error).split())) from error
    if stop.is_set() and not args.repeat:  # a repeated evaluation ends by a stop; others were interrupted
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def run_batched_evaluation(args: EvalArgs, stop: threading.Event | None = None) -> list[dict[str, Any]]:
    """Play the episodes, write each batch's files when it ends, and return the summaries; `stop` ends it early."""
    stop = stop or threading.Event()
    saved = read_policy(args.policy_path, algo=args.algo, env_id=args.env_id)
    if saved.step is None:
        print(f"{saved.path.name} has no sidecar: it gets the observations as they are, not normalised", flush=True)
    games = _make_games(args, saved)
    try:
        policy = build_policy(saved, games[0])
        if args.check:
            return []
        _set_threads(args.num_threads)
        log = _Log(args)
        try:
            return _play_batches(args, saved, policy, games, log, stop)
        finally:
            log.close()
    finally:
        for game in games:
            game.close()


def _play_batches(
    args: EvalArgs,
    saved: SavedPolicy,
    policy: Policy,
    games: Sequence[play.Game],
    log: "_Log",
    stop: threading.Event,
) -> list[dict[str, Any]]:
    gamma = args.gamma if args.gamma is not None else float(saved.args.get("gamma", GAMMA))
    summaries: list[dict[str, Any]] = []
    first = 0
    while args.repeat or first < args.episodes:
        # episodes are numbered through all batches, so no two batches play the same ones
        last = first + args.batch_size if args.repeat else min(first + args.batch_size, args.episodes)
        started = time.monotonic()
        played = []
        for episode in play_all(
            policy,
            games,
            args.seed,
            range(first, last),
            greedy=args.greedy,
            gamma=gamma,
            max_steps=args.max_episode_steps,
            stop=stop,
        ):
            log.episode(episode)
            played.append(episode)
        if len(played) < last - first:
            break  # stopped during the batch
        batch = EvaluationBatch(len(summaries), tuple(played), time.monotonic() - started)
        summaries.append(log.batch(batch))
        first = last
    return summaries


def _make_games(args: EvalArgs, saved: SavedPolicy) -> list[play.Game]:
    if min(args.episodes, args.batch_size) < 1:
        raise SystemExit(f"at least one episode is needed, not {min(args.episodes, args.batch_size)}")
    if saved.env_id is None:
        raise SystemExit(f"policy {saved.path} has no sidecar that names its environment; give --env-id")
    backend = args.env_backend or saved.args.get("env_backend", "auto")
    folder = args.run_dir.absolute() / "videos" / f"{args.run_dir.absolute().name}-eval" if args.capture_video else None
    at_most = min(args.episodes, args.batch_size)
    count = games_at_once(at_most, atari=saved.is_atari, filming=args.capture_video)
    if args.num_envs and not args.capture_video:
        count = min(args.num_envs, at_most)
    env_id, atari = saved.env_id, saved.is_atari
    view = view_of(env_id, saved.args)
    options: dict[str, Any] = {"atari": atari, "backend": backend, "video_folder": folder, "view": view}
    games = [play.make_game(env_id, **options) for _ in range(count)]
    return [episodes.onlooker.evaluation(game, env_id) if episodes.onlooker else game for game in games]


def games_at_once(episodes: int, *, atari: bool, filming: bool) -> int:
    """Return the default number of parallel environments.

    Convolutions benefit from several threads; steps of flat environments are mostly Python, and do not (HalfCheetah:
    0.43 s with one, 0.64 s with four). Some machines hang when several threads draw.
    """
    return max(1, min(AT_ONCE, os.cpu_count() or 1, episodes)) if atari and not filming else 1


def play_all(
    policy: Policy,
    games: Sequence[play.Game],
    seed: int,
    episodes: range,
    *,
    greedy: bool = False,
    gamma: float = 0.99,
    max_steps: int = 0,
    stop: threading.Event | None = None,
) -> Iterator[play.Played]:
    """Play these episodes of an evaluation and yield them in order; end early when `stop` is set.

    Each game gets every n-th episode in advance: assigning the next one to whichever game is free would favour short
    episodes and bias the mean.
    """
    stop = stop or threading.Event()
    halt = threading.Event()

    def play_on(game: play.Game, own: range) -> Iterator[play.Played]:
        for episode in own:
            played = play.play_episode(
                policy, game, episode, play.episode_seed(seed, episode), greedy, gamma, max_steps, (stop, halt)
            )
            if played is None:
                return
            yield played

    games = games[: max(len(episodes), 1)]
    if len(games) == 1:
        yield from play_on(games[0], episodes)
        return
    done: queue.SimpleQueue[play.Played | BaseException] = queue.SimpleQueue()

    def work(game: play.Game, own: range) -> None:
        try:
            for played in play_on(game, own):
                done.put(played)
        except BaseException as error:
            done.put(error)
            raise

    with ThreadPoolExecutor(len(games), "game") as pool:
        try:
            for index, game in enumerate(games):
                pool.submit(work, game, episodes[index :: len(games)])
            yield from _in_order(done, episodes, stop)
        finally:
            halt.set()


def _in_order(
    done: "queue.SimpleQueue[play.Played | BaseException]", episodes: range, stop: threading.Event
) -> Iterator[play.Played]:
    """Yield episodes by number, as soon as all earlier ones have ended; a player's error is raised here."""
    waiting: dict[int, play.Played] = {}
    for episode in episodes:
        while episode not in waiting:
            try:
                found = done.get(timeout=STOP_SECONDS)
            except queue.Empty:
                if stop.is_set():
                    return
                continue
            if isinstance(found, BaseException):
                raise found
            waiting[found.episode] = found
        yield waiting.pop(episode)


def _set_threads(num_threads: int) -> None:
    if num_threads > 0 and "torch" in sys.modules:
        import torch

        torch.set_num_threads(num_threads)


class _Log:
    """The outputs of an evaluation: rows of metrics.jsonl, TensorBoard scalars, eval_summary.json, lines on stdout."""

    def __init__(self, args: EvalArgs) -> None:
        folder = args.run_dir.absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._metrics = os.open(folder / "metrics.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise SystemExit(f"cannot write into the run folder {folder}: {error.strerror}") from error
        self._summary = folder / "eval_summary.json"
        self._tensorboard = ScalarWriter(args.tensorboard_dir or folder / "tensorboard_eval")

    def episode(self, played: play.Played) -> None:
        number, now = played.episode + 1, time.time()
        self._row(
            number,
            now,
            {
                "eval/episode_return": played.ret,
                "eval/episode_length": played.length,
                "eval/discounted_return": played.discounted,
                "eval/episode_seed": played.seed,
            },
        )
        self._tensorboard.add("eval/episode_return", played.ret, number, now)
        self._tensorboard.flush()

    def batch(self, batch: EvaluationBatch) -> dict[str, Any]:
        summary = batch.summary()
        write_atomic(self._summary, json.dumps(summary, indent=2) + "\n")
        now = summary["updated_at"]
        for name in BATCH_NUMBERS:
            self._tensorboard.add(f"eval/{name}", summary[name], batch.index, now)
        self._tensorboard.flush()
        speed = int(sum(played.length for played in batch.played) / max(batch.seconds, 1e-9))
        discounted = statistics.fmean(played.discounted for played in batch.played)
        numbers = {f"eval/{name}": summary[name] for name in ("batch_index", *BATCH_NUMBERS)}
        numbers |= {"eval/avg_discounted_return": discounted, "charts/SPS": speed}
        self._row(batch.played[-1].episode + 1, now, numbers)
        line = (
            f"batch {batch.index}: {summary['episodes']} episodes, return {summary['avg_return']:.2f} "
            f"± {summary['std_return']:.2f} (from {summary['min_return']:.2f} to {summary['max_return']:.2f})"
        )
        print(line, flush=True)
        if episodes.onlooker:
            episodes.onlooker.note(line)
        return summary

    def close(self) -> None:
        self._tensorboard.close()
        os.close(self._metrics)

    def _row(self, step: int, now: float, values: dict[str, float]) -> None:
        os.write(self._metrics, metrics.encode_row(step, now, values))


if __name__ == "__main__":
    main()
