"""The registry's methods over gRPC, and a handle on a run.

from mosaic import Client

run = Client().train("ppo", "CartPole-v1", seed=1).wait()
curve = run.metrics("charts/episodic_return")
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

from mosaic.contract import errors, variables
from mosaic.contract.channel import Address, credentials, find_daemon, open_channel
from mosaic.contract.events import Event
from mosaic.contract.kinds import whole
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.contract.proto import trainer_pb2_grpc
from mosaic.trainer.rpc import messages
from mosaic.trainer.run import Change, Page, Rebuilt, Run, Series
from mosaic.trainer.states import State, parse_state

# A submission waits for a dry run of its worker; all other calls only read the registry.
SUBMIT_SECONDS, CALL_SECONDS, REBUILD_SECONDS = 150.0, 30.0, 86400.0
CREDITS, REFILL = 400, 100

_Answer = TypeVar("_Answer")


class Client:
    """A client of a daemon. Thread-safe; close it, or use it in a `with` block.

    Without arguments it finds the daemon by MOSAIC_TARGET and MOSAIC_TOKEN, by ./var, or by the user's state folder.
    """

    def __init__(
        self, target: str | None = None, *, token: str | None = None, home: Path | str | None = None, ca: str = ""
    ) -> None:
        if target is not None and token is not None:
            self.address = Address(target, token, ca)
        else:
            found = find_daemon(target, None if home is None else Path(home))
            self.address = Address(found.target, token or found.token, ca or found.ca, found.home)
        self._channel = open_channel(self.address)
        self._stub = trainer_pb2_grpc.TrainerStub(self._channel)

    # Runs

    def submit_run(
        self, payload: Mapping[str, Any], *, priority: int = 0, external: bool = False, run_id: str = ""
    ) -> Run:
        """Submit a flat worker config or a nested payload; a RefusedError contains the reason of a refusal.

        With a fresh `run_id` (a ULID) a repeated call is safe: a second run of that id is a ConfigError.
        """
        whole(-(1 << 31), (1 << 31) - 1).check(priority, "priority")
        try:
            text = json.dumps(self._with_key(payload), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise errors.ConfigError(f"a submission is made of JSON values: {error}") from None
        request = pb.SubmitRunRequest(payload=text.encode(), priority=priority, external=external, run_id=run_id)
        return messages.run_from_pb(self._call(self._stub.SubmitRun, request, SUBMIT_SECONDS))

    def get_run(self, run_id: str) -> Run:
        """Return one run with its payload, last values and artefacts."""
        return messages.run_from_pb(self._call(self._stub.GetRun, pb.RunRequest(run_id=run_id)))

    def list_runs(
        self,
        *,
        states: Sequence[State | str] = (),
        algo: str = "",
        env_id: str = "",
        mode: str = "",
        text: str = "",
        group: str = "",
        page_size: int = 50,
        page: str = "",
        curve_points: int = 0,
    ) -> Page:
        """Return a page of the matching runs, newest first; `next_page` is the `page` of the next call."""
        request = pb.ListRunsRequest(
            states=[messages.state_to_pb(parse_state(state)) for state in states],
            algo=algo,
            env_id=env_id,
            mode=mode,
            text=text,
            group=group,
            page_size=page_size,
            page=page,
            curve_points=curve_points,
        )
        return messages.page_from_pb(self._call(self._stub.ListRuns, request))

    def cancel_run(self, run_id: str, grace_seconds: float | None = None) -> Run:
        """End a run gently, and by force after the grace period (by default the run's own)."""
        request = pb.CancelRunRequest(run_id=run_id, grace_seconds=grace_seconds)
        return messages.run_from_pb(self._call(self._stub.CancelRun, request))

    def pause_run(self, run_id: str) -> Run:
        """Ask an executing run to pause; it is PAUSED once its worker reports it."""
        return messages.run_from_pb(self._call(self._stub.PauseRun, pb.RunRequest(run_id=run_id)))

    def continue_run(self, run_id: str) -> Run:
        """Ask a paused run to continue."""
        return messages.run_from_pb(self._call(self._stub.ContinueRun, pb.RunRequest(run_id=run_id)))

    def delete_run(self, run_id: str) -> None:
        """Delete an ended run: its folder, its configs, its rows."""
        self._call(self._stub.DeleteRun, pb.RunRequest(run_id=run_id))

    def watch_runs(self, cursor: int = -1, *, progress: bool = False, run_id: str = "") -> Iterator[Change]:
        """Yield changes after a cursor (0: all, -1: from now on), endlessly; `progress` adds changes of numbers."""
        request = pb.WatchRunsRequest(cursor=cursor, progress=progress, run_id=run_id)
        with self._stream(self._stub.WatchRuns, request) as stream:
            for message in self._answers(stream):
                yield messages.change_from_pb(message)

    def wait_run(self, run_id: str, timeout: float | None = None) -> Run:
        """Return the run once it has ended; raise TimeoutError if it has not by then."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = 0.1  # growing: a run of hours need not be polled ten times a second
        while not (run := self.get_run(run_id)).ended:
            left = pause if end is None else end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"run {run_id} is {run.state} after {timeout:g} s")
            time.sleep(min(pause, left))
            pause = min(1.0, 1.2 * pause)
        return run

    # Telemetry

    def get_metrics(
        self,
        run_id: str,
        keys: Sequence[str] = (),
        *,
        max_points: int = 0,
        since: Mapping[str, int] | None = None,
        average: bool = False,
    ) -> list[Series]:
        """Return curves, downsampled to `max_points` each (0: every point), or only points after `since` cursors."""
        cursors = since or {}
        request = pb.GetMetricsRequest(run_id=run_id, keys=keys, max_points=max_points, since=cursors, average=average)
        return [messages.series_from_pb(series) for series in self._call(self._stub.GetMetrics, request).series]

    def read_events(self, run_id: str, from_seq: int = 0, until_seq: int | None = None) -> Iterator[Event]:
        """Yield the events that the registry has stored, in order."""
        yield from self._events(run_id, from_seq, until_seq, follow=False)

    def follow_events(self, run_id: str, from_seq: int = 0) -> Iterator[Event]:
        """Yield events in order and without gaps, as they arrive, to the run's end; a slow reader misses none."""
        position = from_seq
        for event in self._events(run_id, from_seq, None, follow=True):
            if event.seq > position:  # skipped while we had no credit: read them by cursor
                yield from self._events(run_id, position, event.seq, follow=False)
            if event.seq >= position:
                yield event
                position = event.seq + 1
        yield from self._events(run_id, position, None, follow=False)

    def stream_frames(self, run_id: str, max_fps: float = 30.0) -> Iterator[Any]:
        """Yield live frames to the run's end: messages with width, height, channels, raw data, or a reason for none."""
        request = pb.StreamFramesRequest(run_id=run_id, max_fps=max_fps)
        with self._stream(self._stub.StreamFrames, request) as stream:
            yield from self._answers(stream)

    def health(self, seconds: float = CALL_SECONDS) -> dict[str, Any]:
        """Return version, home, runs by state, GPUs, CPU slots, subscribers, memory, workers, and any problem."""
        found = self._call(self._stub.GetHealth, pb.GetHealthRequest(), seconds)
        of_gpu = ("index", "name", "memory_bytes", "run_id")
        plain = ("version", "proto_version", "pid", "started_at", "home", "trouble", "cpu_slots", "cpu_slots_free")
        return {
            **{name: getattr(found, name) for name in (*plain, "subscribers", "rss_bytes")},
            "target": self.address.target,
            "runs": dict(found.runs),
            "gpus": [{name: getattr(gpu, name) for name in of_gpu} for gpu in found.gpus],
            "workers": list(found.workers),
            "problems": list(found.problems),
        }

    def rebuild(self) -> Rebuilt:
        """Recreate the rows of run folders without one; it takes as long as reading them."""
        found = self._call(self._stub.Rebuild, pb.RebuildRequest(), REBUILD_SECONDS)
        return Rebuilt(list(found.rebuilt), dict(sorted(found.skipped.items())), found.known)

    # Runs as objects

    def run(self, run_id: str) -> RunHandle:
        """Return a handle on a run; raise UnknownRunError if it does not exist."""
        return RunHandle(self, self.get_run(run_id))

    def train(
        self,
        algo: str,
        env_id: str,
        *,
        seed: int | None = None,
        total_timesteps: int | None = None,
        extras: Mapping[str, Any] | None = None,
        priority: int = 0,
        **params: Any,
    ) -> RunHandle:
        """Submit a training: `params` are the algorithm's parameters, `extras` the worker's own settings."""
        config: dict[str, Any] = {"algo": _absolute_script(algo), "env_id": env_id, "seed": seed}
        if total_timesteps is not None:
            config["total_timesteps"] = total_timesteps
        config["extras"] = _merged(extras, params)
        return RunHandle(self, self.submit_run(config, priority=priority))

    def resume(
        self,
        checkpoint: str,
        *,
        additional_timesteps: int | None = None,
        extras: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> RunHandle:
        """Submit a new run that continues from a run's newest checkpoint, a checkpoint folder, or a policy file."""
        more: dict[str, Any] = {"mode": "resume_training", "checkpoint_path": _absolute_path(checkpoint)}
        if additional_timesteps is not None:
            more["additional_timesteps"] = additional_timesteps
        return RunHandle(self, self.submit_run({"extras": {**_merged(extras, params), **more}}))

    def evaluate(
        self, policy_path: str, *, env_id: str | None = None, seed: int | None = None, **extras: Any
    ) -> RunHandle:
        """Submit an evaluation of a policy file; `extras` are eval_episodes, eval_capture_video and similar."""
        more = {**extras, "mode": "policy_eval", "policy_path": _absolute_path(policy_path)}
        given = {"env_id": env_id, "seed": seed}
        return RunHandle(
            self,
            self.submit_run({**{name: value for name, value in given.items() if value is not None}, "extras": more}),
        )

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _events(self, run_id: str, from_seq: int, until_seq: int | None, *, follow: bool) -> Iterator[Event]:
        subscribe = pb.TelemetryRequest.Subscribe(
            run_id=run_id, from_seq=from_seq, until_seq=until_seq, follow=follow, credits=CREDITS
        )
        requests: queue.SimpleQueue[pb.TelemetryRequest | None] = queue.SimpleQueue()
        requests.put(pb.TelemetryRequest(subscribe=subscribe))
        used = 0
        with self._stream(self._stub.StreamTelemetry, iter(requests.get, None)) as stream:
            try:
                for reply in self._answers(stream):
                    if reply.WhichOneof("reply") == "ended":
                        return
                    if reply.WhichOneof("reply") == "starved":
                        requests.put(pb.TelemetryRequest(refill=CREDITS))
                    for event in reply.batch.events:
                        yield messages.event_from_pb(event, run_id)
                        used += 1
                        if used >= REFILL:
                            requests.put(pb.TelemetryRequest(refill=used))
                            used = 0
            finally:
                requests.put(None)

    def _with_key(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add this process's W&B key to a run that tracks, if nobody else can eavesdrop."""
        key = os.environ.get(variables.WANDB_API_KEY)
        nested = payload if "metadata" in payload else {"metadata": {"worker": {"config": dict(payload)}}}
        with contextlib.suppress(AttributeError, KeyError, TypeError):  # the daemon refuses malformed payloads
            extras = nested["metadata"]["worker"]["config"].get("extras") or {}
            environment = nested.get("environment") or {}
            if (
                key
                and extras.get("track_wandb")
                and self.address.is_private
                and variables.WANDB_API_KEY not in environment
            ):
                return {**nested, "environment": {**environment, variables.WANDB_API_KEY: key}}
        return payload

    def _call(self, method: Callable[..., _Answer], request: Any, seconds: float = CALL_SECONDS) -> Any:
        try:
            return method(request, timeout=seconds, metadata=credentials(self.address))
        except grpc.RpcError as error:
            raise self._error(error) from None

    @contextlib.contextmanager
    def _stream(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        stream = method(request, metadata=credentials(self.address))
        try:
            yield stream
        finally:
            stream.cancel()

    def _answers(self, stream: Any) -> Iterator[Any]:
        try:
            yield from stream
        except grpc.RpcError as error:
            raise self._error(error) from None

    def _error(self, error: Any) -> errors.MosaicError:
        """Return the error that the daemon raised, or the reason why it cannot be reached."""
        told = dict(error.trailing_metadata() or ())
        text = error.details() or str(error.code())
        kind = getattr(errors, str(told.get("mosaic-error", "")), None)
        if isinstance(kind, type) and issubclass(kind, errors.MosaicError):
            return kind(text)
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return errors.NoDaemonError(
                f"no trainer daemon answers at {self.address.target}; start one with: mosaic up"
            )
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.UnavailableError(f"the daemon at {self.address.target} did not answer in time; try again")
        return errors.TrainerError(f"the daemon at {self.address.target} says {error.code().name}: {text}")


class RunHandle:
    """A run and its methods; `info` is the run at the last refresh."""

    def __init__(self, client: Client, info: Run) -> None:
        self._client, self.info = client, info
        self.run_id = info.run_id

    @property
    def state(self) -> State:
        """Return the present state."""
        return self.refresh().state

    @property
    def folder(self) -> Path:
        return Path(self.info.folder)

    def refresh(self) -> Run:
        """Fetch the run's present state."""
        self.info = self._client.get_run(self.run_id)
        return self.info

    def wait(self, timeout: float | None = None) -> RunHandle:
        """Wait until the run has ended, whatever its outcome; raise TimeoutError if it has not by then."""
        self.info = self._client.wait_run(self.run_id, timeout)
        return self

    def metrics(self, key: str, max_points: int = 0) -> Series:
        """Return one curve; raise KeyError with the known ones if it does not exist."""
        found = self._client.get_metrics(self.run_id, [key], max_points=max_points)
        if not found:
            known = ", ".join(self.refresh().last_values) or "none yet"
            raise KeyError(f"run {self.run_id} has no metric {key!r}; it has: {known}")
        return found[0]

    def events(self, *, follow: bool = False, from_seq: int = 0) -> Iterator[Event]:
        """Yield its events so far, or with `follow` to its end."""
        read = self._client.follow_events if follow else self._client.read_events
        return read(self.run_id, from_seq)

    def pause(self) -> Run:
        return self._client.pause_run(self.run_id)

    def go_on(self) -> Run:
        return self._client.continue_run(self.run_id)

    def cancel(self, grace_seconds: float | None = None) -> Run:
        return self._client.cancel_run(self.run_id, grace_seconds)

    def delete(self) -> None:
        self._client.delete_run(self.run_id)

    def __repr__(self) -> str:
        return f"<run {self.run_id} {self.info.algo} {self.info.env_id} {self.info.state}>"


def _merged(extras: Mapping[str, Any] | None, params: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(extras or {})
    if params:
        merged["algo_params"] = {**(merged.get("algo_params") or {}), **params}
    return merged


def _absolute_script(algo: str) -> str:
    return str(Path(algo).resolve()) if algo.endswith(".py") else algo


def _absolute_path(text: str) -> str:
    """Return a path of this process's folder as an absolute path for the daemon; a run id stays as it is."""
    path = Path(text).expanduser()
    return str(path.resolve()) if path.exists() else text
