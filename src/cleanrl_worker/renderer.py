"""The renderer of MuJoCo's pictures: a process of its own, on a copy of the model set to the same physics state.

One such picture takes tens of milliseconds on a CPU, and on some GPUs drawing hangs: neither may happen to training.
The training side only copies a few numbers into a block of shared memory; this process draws and writes into the ring.
Loaded by file path inside people's own interpreters, too: Python 3.8, standard library, numpy; MuJoCo where it is used.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this file's folder: its names would shadow other people's

import contextlib
import importlib
import json
import os
import signal
import subprocess
import tempfile
import time
import types
from typing import Any, Sequence

import numpy as np

if __name__.startswith("_mosaic."):
    from _mosaic import ring
elif __name__ != "__main__":
    from mosaic.wire import ring

SILENCE_SECONDS = 5.0
START_SECONDS = 60.0  # imports and a first GL context, on a busy machine
HEAD = 4096
# Words of the block: counts first, then floats.
ASKED, DONE, READY, COUNT, LENGTH, MODEL_BYTES, MODEL_VERSION, STEP = range(8)
LAST_REWARD, ROLLING_RETURN, STEP_RATE, DRAWN_AT = range(16, 20)
CAMERA_AT, CAMERA_ROOM = 2048, 2000


class Physics:
    """The MuJoCo model and state behind an environment, and the camera that looks at it."""

    def __init__(self, model: Any, data: Any, camera: dict[str, Any]) -> None:
        self.model, self.data, self.camera = model, data, camera

    @classmethod
    def of(cls, env: Any) -> Physics | None:
        """None for an environment that MuJoCo does not simulate."""
        inner = env.unwrapped
        model, data = getattr(inner, "model", None), getattr(inner, "data", None)
        if _is_mujoco(model):
            drawer = getattr(inner, "mujoco_renderer", None)
            config = getattr(drawer, "default_cam_config", None) or {}
            camera = {
                "width": int(getattr(inner, "width", 0) or 480),
                "height": int(getattr(inner, "height", 0) or 480),
                "camera_id": getattr(drawer, "camera_id", None),
                "config": {key: np.asarray(value).tolist() for key, value in config.items()},
            }
            return cls(model, data, camera)
        physics: Any = getattr(getattr(inner, "_env", None), "physics", None)  # DM Control behind Shimmy
        model = getattr(getattr(physics, "model", None), "ptr", None)
        if not _is_mujoco(model):
            return None
        return cls(model, physics.data.ptr, {"width": 320, "height": 240, "camera_id": 0, "config": {}})

    def state(self) -> np.ndarray:
        """All that a picture depends on."""
        data = self.data
        parts = (data.qpos, data.qvel, data.mocap_pos.ravel(), data.mocap_quat.ravel())
        return np.concatenate([[data.time], *parts])

    def saved_model(self) -> np.ndarray:
        """The model, compiled, as bytes."""
        import mujoco

        buffer = np.empty(mujoco.mj_sizeModel(self.model), np.uint8)
        mujoco.mj_saveModel(self.model, None, buffer)
        return buffer


class Renderer:
    """The training side: starts the process, hands states over, and ends it when it has been silent too long."""

    def __init__(self, ring_name: str, physics: Physics, limit: int, max_dim: int) -> None:
        model = physics.saved_model()
        self._room = limit * physics.state().size
        self._model_at = HEAD + 8 * self._room
        camera = json.dumps(physics.camera).encode()
        if len(camera) > CAMERA_ROOM:
            raise ValueError("the camera's settings are too long")
        with tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
            size = self._model_at + model.size
            os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
            self._block = ring.Mapping(file.fileno(), size)
            self._block.bytes[CAMERA_AT : CAMERA_AT + len(camera)] = camera
            self._block.words[LENGTH] = physics.state().size
            self._put_model(model)
            command = [sys.executable, os.path.abspath(__file__), str(file.fileno()), ring_name, str(max_dim)]
            self._process = subprocess.Popen(
                [*command, os.path.abspath(ring.__file__)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(file.fileno(),),
                # Mesa draws with as many threads as there are cores: training needs the others.
                env={**os.environ, "LP_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._asked_at = self._looked_at = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether it has drawn all that it was asked for."""
        return bool(self._block.words[READY] and self._block.words[DONE] == self._block.words[ASKED])

    @property
    def drawn(self) -> int:
        """How many pictures it has published."""
        return int(self._block.words[DONE])

    def ask(self, states: Sequence[np.ndarray], numbers: Sequence[float], step: int, model: np.ndarray | None) -> None:
        """Have these states drawn, tiled where there are several; only while `idle`. `model` replaces a changed one."""
        block = self._block
        flat = np.concatenate(states)
        block.bytes[HEAD : HEAD + flat.nbytes] = flat.tobytes()
        if model is not None and model.size == block.words[MODEL_BYTES]:
            self._put_model(model)
        block.words[COUNT], block.words[STEP] = len(states), step
        for word, number in zip((LAST_REWARD, ROLLING_RETURN, STEP_RATE), numbers):
            block.floats[word] = number
        block.floats[DRAWN_AT] = self._asked_at = self._looked_at = time.monotonic()
        ring.fence()
        block.words[ASKED] += 1
        self._wake()

    def trouble(self) -> str | None:
        """Why no picture can be expected any more, once that is so; a process that hangs is ended."""
        code = self._process.poll()
        if code is not None:
            said = self._block.read_text("reason")
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return said or f"the renderer died ({how}; MUJOCO_GL={os.environ.get('MUJOCO_GL', 'unset')})"
        patience = SILENCE_SECONDS if self._block.words[READY] else START_SECONDS
        now = time.monotonic()
        # What passes while nobody asks (an update, a pause that stops the renderer, too) counts as a second of silence.
        self._asked_at += max(0.0, now - self._looked_at - 1.0)
        self._looked_at = now
        if self.idle or now - self._asked_at < patience:
            return None
        self.close()
        return f"the renderer hung: nothing for {patience:.0f} s; its process was ended, training goes on"

    def close(self) -> None:
        """End the process."""
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
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # awake already; dead, which `trouble` tells
            os.write(self._process.stdin.fileno(), b"\n")


def main() -> None:
    """Draw what the block asks for until the pipe from the training side ends."""
    descriptor, name, max_dim, ring_file = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    package = types.ModuleType("_mosaic")
    package.__path__ = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(ring_file)]
    sys.modules["_mosaic"] = package
    ring, lane = importlib.import_module("_mosaic.ring"), importlib.import_module("_mosaic.lane")
    os.nice(5)  # training comes first
    block = ring.Mapping(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    try:
        canvas = _Canvas(block)
    except Exception as error:  # GL fails in as many ways as there are drivers
        block.write_text("reason", _no_gl(error))
        raise SystemExit(1) from error
    writer = ring.FastLaneWriter.stand_in(name)
    block.words[READY] = 1
    shown_at, rate = 0.0, 0.0
    while True:
        if block.words[DONE] == block.words[ASKED] and not os.read(0, 4096):
            return
        asked = block.words[ASKED]
        if block.words[DONE] == asked:
            continue
        frames = canvas.draw()
        frame = lane.fitted(frames[0], max_dim) if len(frames) == 1 else lane.tiled(frames, max_dim)
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


class _Canvas:
    """MuJoCo's own renderer on a copy of the model."""

    def __init__(self, block: Any) -> None:
        import mujoco

        self._mujoco, self._block = mujoco, block
        camera = bytes(block.bytes[CAMERA_AT : CAMERA_AT + CAMERA_ROOM]).rstrip(b"\0")
        self._about = json.loads(camera)
        self._version = -1
        self._renderer: Any = None
        self._refresh()

    def draw(self) -> list[np.ndarray]:
        """A picture of each state in the block."""
        self._refresh()
        count, length = self._block.words[COUNT], self._block.words[LENGTH]
        states = np.frombuffer(bytes(self._block.bytes[HEAD : HEAD + 8 * count * length])).reshape(count, length)
        return [self._picture(state) for state in states]

    def _picture(self, state: np.ndarray) -> np.ndarray:
        model, data = self._model, self._data
        data.time = state[0]
        at = 1
        for part in (data.qpos, data.qvel, data.mocap_pos, data.mocap_quat):
            part[:] = state[at : at + part.size].reshape(part.shape)
            at += part.size
        self._mujoco.mj_forward(model, data)
        self._renderer.update_scene(data, camera=self._camera)
        picture: np.ndarray = self._renderer.render()
        return picture

    def _refresh(self) -> None:
        """Take the model anew where it has changed: some tasks move their targets within it."""
        version = self._block.words[MODEL_VERSION]
        if version == self._version:
            return
        self._version = version
        size, start = self._block.words[MODEL_BYTES], self._block.size - self._block.words[MODEL_BYTES]
        saved = bytes(self._block.bytes[start : start + size])
        model = self._mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": saved})
        width, height = self._about["width"], self._about["height"]
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        if self._renderer is not None:
            self._renderer.close()
        self._model, self._data = model, self._mujoco.MjData(model)
        self._renderer = self._mujoco.Renderer(model, height, width)
        self._camera = self._camera_of(model)

    def _camera_of(self, model: Any) -> Any:
        """Gymnasium's choice: the camera called "track", else a free one as the environment sets it up."""
        camera = self._mujoco.MjvCamera()
        number = self._about["camera_id"]
        if number is None:
            number = self._mujoco.mj_name2id(model, self._mujoco.mjtObj.mjOBJ_CAMERA, "track")
        if 0 <= number < model.ncam:
            camera.type, camera.fixedcamid = self._mujoco.mjtCamera.mjCAMERA_FIXED, number
            return camera
        self._mujoco.mj_forward(model, self._data)
        camera.type, camera.fixedcamid = self._mujoco.mjtCamera.mjCAMERA_FREE, -1
        camera.lookat[:] = np.median(self._data.geom_xpos, axis=0)
        camera.distance = model.stat.extent
        for name, value in self._about["config"].items():
            if isinstance(value, list):
                getattr(camera, name)[:] = value
            else:
                setattr(camera, name, value)
        return camera


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
