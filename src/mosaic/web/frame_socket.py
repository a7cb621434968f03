"""Live frames for browsers: one stream per watched run, each frame encoded once, sent as fast as each browser draws.

A viewer is a websocket `/frames/{run_id}`. It receives texts, a JSON object with `state` (waiting, reconnecting,
unavailable, ended, gone) and `reason`, and frames: four bytes with the length of a JSON head, the head, the JPEG. It
acknowledges each frame once drawn, and only then receives the newest one: a slow viewer skips frames, and delays no
other. A viewer leaves when its tab or window is hidden; with the last one the stream ends, and the run stops drawing.
"""

from __future__ import annotations

import asyncio
import io
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from PIL import Image
from starlette.websockets import WebSocket, WebSocketDisconnect

from mosaic.contract.errors import MosaicError, RunIdError, TrainerError, UnknownRunError
from mosaic.contract.paths import check_run_id
from mosaic.trainer.rpc.client import Client

FRAMES_PER_SECOND = 30.0
QUALITY = 82  # below 80 the thin lines of classic control blur; above 90 a frame has twice the bytes
RETRY_SECONDS = 1.0
DRAWN = "drawn"  # a browser's acknowledgement of a frame; any other text is a keep-alive
# A browser silent for so long is gone, or asleep: it opens another socket when it wakes.
ANSWER_SECONDS = 60.0
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(eq=False)
class _Viewer:
    """One browser: its pending frame and status, and its readiness for the next frame."""

    loop: asyncio.AbstractEventLoop
    ready: bool = True
    frame: bytes | None = None
    told: bytes | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.woken.set)
        except RuntimeError:  # the server is shutting down
            return


class FrameSockets:
    """The streams of all watched runs; `serve` handles one websocket."""

    def __init__(self, client: Callable[[], Client]) -> None:
        self._client = client
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()

    async def serve(self, socket: WebSocket, run_id: str) -> None:
        """Stream a run to one browser until it disconnects."""
        try:
            check_run_id(run_id)
        except RunIdError:
            await socket.close(1008)
            return
        await socket.accept()
        viewer = _Viewer(asyncio.get_running_loop())
        stream = self._joined(run_id, viewer)
        sending = asyncio.create_task(_send(socket, viewer))
        try:
            while True:
                text = await asyncio.wait_for(socket.receive_text(), ANSWER_SECONDS)
                viewer.ready = viewer.ready or text == DRAWN
        except (WebSocketDisconnect, TimeoutError, RuntimeError, KeyError):
            return  # it left, timed out, or sent a non-text message
        finally:
            stream.leave(viewer)
            sending.cancel()

    def _joined(self, run_id: str, viewer: _Viewer) -> _Stream:
        with self._lock:
            self._streams = {name: stream for name, stream in self._streams.items() if stream.is_alive()}
            stream = self._streams.get(run_id)
            if stream is None or not stream.join_if_open(viewer):
                stream = self._streams[run_id] = _Stream(run_id, self._client)
                stream.join_if_open(viewer)
                stream.start()
            return stream


class _Stream(threading.Thread):
    """The frames of one run, from the daemon to its viewers; it ends without viewers."""

    def __init__(self, run_id: str, client: Callable[[], Client]) -> None:
        super().__init__(name=f"frames-{run_id[:8]}", daemon=True)
        self._run_id, self._client = run_id, client
        self._viewers: set[_Viewer] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._status = _status("waiting", "")

    def join_if_open(self, viewer: _Viewer) -> bool:
        """Add a viewer and send it the current status; return False if this stream is ending."""
        with self._lock:
            if self._closed:
                return False
            self._viewers.add(viewer)
            viewer.told = self._status
        viewer.wake()
        return True

    def leave(self, viewer: _Viewer) -> None:
        with self._lock:
            self._viewers.discard(viewer)

    def run(self) -> None:
        while self._is_watched():
            try:
                for message in self._client().stream_frames(self._run_id, FRAMES_PER_SECOND):
                    if not self._is_watched():
                        return
                    self._show(message)
                if self._client().get_run(self._run_id).ended:
                    self._tell("ended", "the run has ended", last=True)
                    return
                self._tell("reconnecting", "the trainer daemon is going down")
            except UnknownRunError:
                self._tell("gone", "this run was deleted", last=True)
                return
            except TrainerError as error:
                self._tell("reconnecting", str(error))
            except (MosaicError, ValueError) as error:  # ValueError: an invalid frame, or a closed channel
                self._tell("unavailable", str(error))
            time.sleep(RETRY_SECONDS)

    def _is_watched(self) -> bool:
        with self._lock:
            if not self._viewers:
                self._closed = True
            return not self._closed

    def _show(self, message: Any) -> None:
        if not message.data:
            self._tell("unavailable", message.reason)
            return
        with self._lock:
            self._status = _status("waiting", "")  # the status of a new viewer until its first frame
            ready = [viewer for viewer in self._viewers if viewer.ready]
        if not ready:
            return  # no viewer is ready: skip the encoding
        packed = pack(message)
        for viewer in ready:
            viewer.ready, viewer.frame = False, packed
            viewer.wake()

    def _tell(self, state: str, reason: str, *, last: bool = False) -> None:
        """Send a status to all viewers, unless it is the current one."""
        status = _status(state, reason)
        with self._lock:
            viewers = list(self._viewers) if status != self._status else []
            self._status, self._closed = status, self._closed or last
            for viewer in viewers:
                viewer.told = status
        for viewer in viewers:
            viewer.wake()


async def _send(socket: WebSocket, viewer: _Viewer) -> None:
    try:
        while True:
            await viewer.woken.wait()
            viewer.woken.clear()
            told, viewer.told = viewer.told, None
            if told is not None:
                await socket.send_text(told.decode())
            frame, viewer.frame = viewer.frame, None
            if frame is not None:
                await socket.send_bytes(frame)
    except (WebSocketDisconnect, RuntimeError):
        return  # the browser has gone; the receiving side notices it, too


def pack(message: Any) -> bytes:
    """Encode a frame for the browser: the length of the head, the head, the JPEG."""
    head = orjson.dumps(
        {
            "index": message.index,
            "width": message.width,
            "height": message.height,
            "reward": _finite(message.last_reward),
            "return": _finite(message.rolling_return),
            "rate": _finite(message.step_rate_hz),
            "step": message.step,
            "label": message.label,
            "note": message.note,
        }
    )
    return struct.pack(">I", len(head)) + head + jpeg(message.data, message.width, message.height, message.channels)


def jpeg(pixels: bytes, width: int, height: int, channels: int) -> bytes:
    """Encode a raw frame as JPEG; ValueError if the size does not match."""
    if channels not in _MODES or width * height * channels != len(pixels):
        raise ValueError(f"a frame of {width}×{height}×{channels} has {len(pixels)} bytes")
    image = Image.frombuffer(_MODES[channels], (width, height), pixels, "raw", _MODES[channels], 0, 1)
    buffer = io.BytesIO()
    (image.convert("RGB") if channels == 4 else image).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def _finite(value: float) -> float | None:
    return value if value - value == 0.0 else None


def _status(state: str, reason: str) -> bytes:
    return orjson.dumps({"state": state, "reason": reason})
