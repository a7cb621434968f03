"""MuJoCo renderer: a separate process with a copy of the model, set to the same physics state.

A frame takes tens of milliseconds on a CPU, and on some GPUs drawing hangs: neither may affect training. The training
side only copies a few numbers to shared memory; this process draws and writes to the ring. Also loaded by file path
inside users' own interpreters: Python 3.8, standard library, numpy; MuJoCo if used.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this file's folder: its names would shadow other modules

import contextlib
import importlib
import json
import os
import signal
import subprocess
import tempfile
import time
import types
import weakref
import zlib
from typing import Any, Callable, Sequence, Tuple

import numpy as np

if __name__.startswith("_mosaic."):
    from _mosaic import ring
    from _mosaic.mujoco_picture import moving_parts
elif __name__ != "__main__":
    from cleanrl_worker.fastlane.mujoco_picture import moving_parts
    from mosaic.contract import ring

SILENCE_SECONDS = 5.0
START_SECONDS = 60.0  # imports and a first GL context, on a busy machine
HEAD = 4096
# Words of the block: counts first, then floats.
ASKED, DONE, READY, COUNT, LENGTH, MODEL_BYTES, MODEL_VERSION, STEP = range(8)
LAST_REWARD, ROLLING_RETURN, STEP_RATE, DRAWN_AT = range(16, 20)
CAMERA_AT, CAMERA_ROOM = 2048, 2000


class Physics:
    """The MuJoCo model and state of an environment, and its camera.

    `of_now` returns the current model and state: some DM Control tasks compile a new model for each episode.
    """

    def __init__(self, of_now: Callable[[], Tuple[Any, Any]], camera: dict[str, Any]) -> None:
        self._of_now, self.camera = of_now, camera
        self.changed = True  # since `saved_model`
        self._ground = 0
        self._take(*of_now())

    @classmethod
    def of(cls, env: Any) -> Physics | None:
        """Return an environment's physics, None if MuJoCo does not simulate it."""
        inner = env.unwrapped
        if _is_mujoco(getattr(inner, "model", None)):
            drawer = getattr(inner, "mujoco_renderer", None)
            config = getattr(drawer, "default_cam_config", None) or {}
            camera = {
                "width": int(getattr(inner, "width", 0) or 480),
                "height": int(getattr(inner, "height", 0) or 480),
                "camera_id": getattr(drawer, "camera_id", None),
                "config": {key: np.asarray(value).tolist() for key, value in config.items()},
            }
            seen = weakref.proxy(inner)  # a cache keyed by the environment must not keep it alive
            return cls(lambda: (seen.model, seen.data), camera)
        simulated: Any = getattr(inner, "_env", None)  # DM Control behind Shimmy
        if not _is_mujoco(getattr(getattr(getattr(simulated, "physics", None), "model", None), "ptr", None)):
            return None
        camera = {"width": 320, "height": 240, "camera_id": 0, "config": {}}
        return cls(lambda: (simulated.physics.model.ptr, simulated.physics.data.ptr), camera)

    def state(self) -> np.ndarray:
        """Return all that a frame depends on except the model's shapes; set `changed` if those differ."""
        model, data = self._of_now()
        if model is not self.model or data is not self.data:
            self._take(model, data)
        if model.nhfield and zlib.crc32(model.hfield_data) != self._ground:
            self.changed = True
        return np.concatenate([[data.time], *(part.ravel() for part in self._parts)])

    def saved_model(self) -> np.ndarray:
        """Return the compiled model as bytes."""
        import mujoco

        buffer = np.empty(mujoco.mj_sizeModel(self.model), np.uint8)
        mujoco.mj_saveModel(self.model, None, buffer)
        self.changed, self._ground = False, zlib.crc32(self.model.hfield_data) if self.model.nhfield else 0
        return buffer

    def _take(self, model: Any, data: Any) -> None:
        self.model, self.data, self.changed = model, data, True
        self._parts = moving_parts(model, data)


class Renderer:
    """The training side: starts the process, sends states, and kills it if it does not respond."""

    def __init__(self, ring_name: str, physics: Physics, limit: int, max_dim: int) -> None:
        length = physics.state().size
        model = physics.saved_model()
        self._room = limit * length
        self._model_at = HEAD + 8 * self._room
        camera = json.dumps(physics.camera).encode()
        if len(camera) > CAMERA_ROOM:
            raise ValueError("the camera's settings are too long")
        with tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
            size = self._model_at + model.size
            os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
            self._block = ring.Mapping(file.fileno(), size)
            self._block.bytes[CAMERA_AT : CAMERA_AT + len(camera)] = camera
            self._block.words[LENGTH] = length
            self._put_model(model)
            command = [sys.executable, os.path.abspath(__file__), str(file.fileno()), ring_name, str(max_dim)]
            self._process = subprocess.Popen(
                [*command, os.path.abspath(ring.__file__)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(file.fileno(),),
                # By default Mesa draws with one thread per core, but training needs the cores.
                env={**os.environ, "LP_NUM_THREADS": "0", "OMP_NUM_THREADS": "1"},
            )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._asked_at = self._looked_at = time.monotonic()

    @property
    def idle(self) -> bool:
        """Return True if it has drawn all requested frames."""
        return bool(self._block.words[READY] and self._block.words[DONE] == self._block.words[ASKED])

    @property
    def drawn(self) -> int:
        """Return the number of published frames."""
        return int(self._block.words[DONE])

    def fits(self, physics: Physics, state: np.ndarray) -> bool:
        """Return True if it can draw the current model: a model of another size needs a new process."""
        import mujoco

        words = self._block.words
        return bool(state.size == words[LENGTH] and mujoco.mj_sizeModel(physics.model) == words[MODEL_BYTES])

    def ask(self, states: Sequence[np.ndarray], numbers: Sequence[float], step: int, model: np.ndarray | None) -> None:
        """Request a frame of these states, tiled if several; only while `idle`. `model` replaces a changed one."""
        block = self._block
        alike = [state for state in states if state.size == block.words[LENGTH]]
        flat = np.concatenate(alike)
        block.bytes[HEAD : HEAD + flat.nbytes] = flat.tobytes()
        if model is not None:
            self._put_model(model)
        block.words[COUNT], block.words[STEP] = len(alike), step
        for word, number in zip((LAST_REWARD, ROLLING_RETURN, STEP_RATE), numbers):
            block.floats[word] = number
        block.floats[DRAWN_AT] = self._asked_at = self._looked_at = time.monotonic()
        ring.fence()
        block.words[ASKED] += 1
        self._wake()

    def trouble(self) -> str | None:
        """Return why no more frames will come, else None; kill a hanging process."""
        code = self._process.poll()
        if code is not None:
            said = self._block.read_text("reason")
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return said or f"the renderer died ({how}; MUJOCO_GL={os.environ.get('MUJOCO_GL', 'unset')})"
        patience = SILENCE_SECONDS if self._block.words[READY] else START_SECONDS
        now = time.monotonic()
        # Time without calls (an update, a pause that also stops the renderer) counts as one second of silence.
        self._asked_at += max(0.0, now - self._looked_at - 1.0)
        self._looked_at = now
        if self.idle or now - self._asked_at < patience:
            return None
        self.close()
        return f"the renderer hung: nothing for {patience:.0f} s; its process was ended, training goes on"

    def close(self) -> None:
        """Kill the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _put_model(self, model: np.ndarray) -> None:
        self._block.bytes[self._model_at : self._model_at + model.size] = model.tobytes()
        self._block.words[MODEL_BYTES] = model.size
        self._block.words[MODEL_VERSION] += 1

    def _wake(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # already awake; or dead, which `trouble` reports
            os.write(self._process.stdin.fileno(), b"\n")


def main() -> None:
    """Draw the requested frames until the pipe from the training side closes."""
    descriptor, name, max_dim, ring_file = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    package = types.ModuleType("_mosaic")
    package.__path__ = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(ring_file)]
    sys.modules["_mosaic"] = package
    ring, lane, drawing = (importlib.import_module(f"_mosaic.{name}") for name in ("ring", "pacer", "mujoco_picture"))
    block = ring.Mapping(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    about = json.loads(bytes(block.bytes[CAMERA_AT : CAMERA_AT + CAMERA_ROOM]).rstrip(b"\0"))
    length, loaded = block.words[LENGTH], block.words[MODEL_VERSION]
    try:
        canvas = drawing.MujocoPicture(about, max_dim, lane.ThreadClock().now)
        canvas.load(_model_of(block))
        canvas.open(1)
    except Exception as error:  # each GL driver fails differently
        block.write_text("reason", _no_gl(error))
        raise SystemExit(1) from error
    writer = ring.FastLaneWriter.stand_in(name)
    block.words[READY] = 1
    os.nice(5)  # training has priority; not earlier, or the start would never finish on a busy machine
    shown_at, rate = 0.0, 0.0
    while True:
        if block.words[DONE] == block.words[ASKED] and not os.read(0, 4096):
            return
        asked = block.words[ASKED]
        if block.words[DONE] == asked:
            continue
        if block.words[MODEL_VERSION] != loaded:
            canvas.load(_model_of(block))
            loaded = block.words[MODEL_VERSION]
        states = bytes(block.bytes[HEAD : HEAD + 8 * length * block.words[COUNT]])
        frame = canvas.draw(np.frombuffer(states).reshape(-1, length))
        now = time.monotonic()
        gap, shown_at = now - shown_at, now
        rate = 0.9 * rate + 0.1 / max(gap, 1e-3) if rate and gap < 1.0 else 1.0 / max(gap, 1e-3)
        writer.publish(
            np.ascontiguousarray(frame),
            frame.shape[1],
            frame.shape[0],
            last_reward=block.floats[LAST_REWARD],
            rolling_return=block.floats[ROLLING_RETURN],
            step_rate_hz=block.floats[STEP_RATE],
            frame_rate_hz=rate,
            step=block.words[STEP],
            drawn_at=block.floats[DRAWN_AT],
        )
        block.words[DONE] = asked


def _model_of(block: Any) -> bytes:
    return bytes(block.bytes[block.size - block.words[MODEL_BYTES] :])


def _no_gl(error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    missing = "" if _has_egl() else "; EGL is missing: sudo apt-get install -y libegl1"
    setting = os.environ.get("MUJOCO_GL") or "unset"
    return f"MuJoCo cannot draw here (MUJOCO_GL {setting}){missing}: {type(error).__name__}: {said}"


def _has_egl() -> bool:
    import ctypes

    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return not sys.platform.startswith("linux")
    return True


def _is_mujoco(model: Any) -> bool:
    return model is not None and type(model).__module__.startswith("mujoco") and type(model).__name__ == "MjModel"


if __name__ == "__main__":
    main()
