"""Live frames for browsers: through a real daemon's service, a real ring and real websockets."""

import importlib.util
import json
import socket as sockets
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from io import BytesIO
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from mosaic.contract.channel import OPTIONS
from mosaic.contract.frames import FastLaneWriter
from mosaic.contract.proto import trainer_pb2_grpc
from mosaic.trainer.rpc.client import Client
from mosaic.trainer.rpc.service import TokenCheck, TrainerService
from mosaic.web import frame_socket
from mosaic.web.frame_socket import FrameSockets, jpeg

SECONDS = 90.0


def contracts() -> Any:
    """The homes without processes that the trainer's contract tests use."""
    path = Path(__file__).parents[1] / "contracts" / "conftest.py"
    spec = importlib.util.spec_from_file_location("contracts_conftest", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Site:
    """A home with its service, and a web server that shows its frames."""

    def __init__(self, folder: Path) -> None:
        self.home, self._parts = contracts().make_home(folder)
        self._server: grpc.Server | None = None
        self.port = self.serve()
        self.client = Client(f"127.0.0.1:{self.port}", token="token")
        self.frames = FrameSockets(lambda: self.client)

        async def show(websocket: WebSocket) -> None:
            await self.frames.serve(websocket, websocket.path_params["run_id"])

        app = Starlette(routes=[WebSocketRoute("/frames/{run_id}", show)])
        self._listening = sockets.create_server(("127.0.0.1", 0))
        self.web = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="websockets-sansio"))
        self._thread = threading.Thread(target=self.web.run, args=([self._listening],), daemon=True)
        self._thread.start()

    def serve(self, port: int = 0) -> int:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(16),
            interceptors=[TokenCheck("token", self._parts.happenings)],
            options=[*OPTIONS, ("grpc.so_reuseport", 0)],
        )
        trainer_pb2_grpc.add_TrainerServicer_to_server(TrainerService(self._parts), self._server)
        end = time.monotonic() + SECONDS
        while True:
            try:
                bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
                break
            except RuntimeError:  # the one before it lets go of it only now
                assert time.monotonic() < end
                time.sleep(0.1)
        self._server.start()
        return bound

    def stop_service(self) -> None:
        assert self._server is not None
        self._server.stop(0).wait(10)

    def viewer(self, run_id: str) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self._listening.getsockname()[1]}/frames/{run_id}", open_timeout=SECONDS)

    def close(self) -> None:
        self.web.should_exit = True
        self._thread.join(30)
        self.client.close()
        self.stop_service()
        self.home.registry.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    found.close()


@pytest.fixture
def drawing(site: Site) -> Iterator[tuple[FastLaneWriter, threading.Event]]:
    """Run `a`, which draws frames as long as somebody looks."""
    site.home.add("a")
    site.home.execute("a")
    writer = FastLaneWriter.create("a", site.home.registry.paths("a").fastlane)
    over = threading.Event()

    def draw() -> None:
        number = 0
        while not over.wait(0.02):
            if writer.watched:
                number += 1
                pixels = np.full((20, 30, 3), (number % 200, 0, 0), np.uint8)
                writer.publish(pixels.tobytes(), 30, 20, 3, last_reward=1.0, rolling_return=float("nan"), step=number)
            else:
                writer.beat()

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    yield writer, over
    over.set()
    thread.join(10)
    writer.close()


def until(happens: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)


def next_frame(viewer: ClientConnection) -> tuple[dict[str, Any], bytes]:
    while isinstance(message := viewer.recv(timeout=SECONDS), str):
        pass
    (length,) = struct.unpack(">I", message[:4])
    return json.loads(message[4 : 4 + length]), message[4 + length :]


def next_status(viewer: ClientConnection, state: str) -> str:
    while True:
        message = viewer.recv(timeout=SECONDS)
        if isinstance(message, str):
            if (status := json.loads(message))["state"] == state:
                return str(status["reason"])
        else:
            viewer.send("drawn")


def test_two_viewers_share_one_stream_and_each_gets_the_newest_when_it_has_drawn(
    site: Site, drawing: tuple[FastLaneWriter, threading.Event]
) -> None:
    writer, _ = drawing
    with site.viewer("a") as quick, site.viewer("a") as slow:
        assert json.loads(quick.recv(timeout=SECONDS))["state"] == "waiting"
        head, picture = next_frame(quick)
        image = Image.open(BytesIO(picture))
        assert image.size == (30, 20) and abs(image.getpixel((5, 5))[0] - head["step"] % 200) < 12
        assert head["reward"] == 1.0 and head["return"] is None
        first, _ = next_frame(slow)
        for _ in range(20):
            quick.send("drawn")
            later, _ = next_frame(quick)
        with pytest.raises(TimeoutError):
            slow.recv(timeout=0.3)
        slow.send("drawn")
        second, _ = next_frame(slow)
        assert second["index"] >= later["index"] > first["index"] + 15, "what it missed is not sent after"
        assert sum(thread.name.startswith("frames-a") for thread in threading.enumerate()) == 1
    until(lambda: not writer.watched)
    until(lambda: not any(thread.name.startswith("frames-a") for thread in threading.enumerate()))


def test_a_daemon_that_goes_and_comes_is_said_and_survived(
    site: Site, drawing: tuple[FastLaneWriter, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_socket, "RETRY_SECONDS", 0.1)
    with site.viewer("a") as viewer:
        next_frame(viewer)
        site.stop_service()
        viewer.send("drawn")
        assert "daemon" in next_status(viewer, "reconnecting")
        assert site.serve(site.port) == site.port
        viewer.send("drawn")
        assert next_frame(viewer)[0]["width"] == 30


def test_the_end_of_a_run_and_why_there_is_no_picture_are_said(site: Site) -> None:
    site.home.add("b")
    site.home.execute("b")
    with site.viewer("b") as viewer:
        assert "shows nothing yet" in next_status(viewer, "unavailable")
        viewer.send(".")
        site.home.end("b")
        assert "has ended" in next_status(viewer, "ended")
    with site.viewer("b") as late:
        assert "has ended" in next_status(late, "ended")
    with site.viewer("nobody") as viewer:
        assert "deleted" in next_status(viewer, "gone")


def test_a_hostile_run_id_opens_nothing(site: Site) -> None:
    for run_id in ("..%2f..", "a%0ab", "x" * 300, "a%5cb"):
        with pytest.raises((InvalidStatus, ConnectionClosed)), site.viewer(run_id) as viewer:
            viewer.recv(timeout=SECONDS)


def test_frames_of_every_kind_become_jpeg_and_others_are_refused() -> None:
    for channels in (1, 3, 4):
        assert Image.open(BytesIO(jpeg(bytes(8 * 8 * channels), 8, 8, channels))).size == (8, 8)
    with pytest.raises(ValueError, match="2×2×3"):
        jpeg(b"abc", 2, 2, 3)
