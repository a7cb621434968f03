"""A MuJoCo model and its GL buffer, drawn with as much detail as time allows; used in the renderer process.

Also loaded by file path inside users' own interpreters: Python 3.8, numpy, MuJoCo.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

DRAW_SECONDS = 0.025  # a viewer polls every 17 to 33 ms, so a frame is rarely older than 50

# Model fields that a task may move or colour, mostly targets.
LOOKS = (
    *(f"{kind}_{what}" for kind in ("body", "geom", "site") for what in ("pos", "quat")),
    *(f"{kind}_{what}" for kind in ("geom", "site") for what in ("size", "rgba")),
    "mat_rgba",
)
# Model fields that a GL context copies.
HELD = ("mesh_vert", "hfield_data", "tex_data", "tex_rgb", "skin_vert")


def moving_parts(model: Any, data: Any) -> list[np.ndarray]:
    """Return views of all that a frame of a model depends on, except its shapes."""
    return [data.qpos, data.qvel, data.mocap_pos, data.mocap_quat, *(getattr(model, name) for name in LOOKS)]


QUICK_ONES = 60  # after two seconds of frames within a quarter of the time, try a higher detail


class Detail(NamedTuple):
    """The level of detail: samples per pixel, a shadow's side, slices of a ball, mirrors; every n-th pixel."""

    samples: int
    shadow: int
    slices: int
    reflection: bool
    every: int = 1


# The first is the model's own, fast enough on a GPU. In software, on one core, the first four draw HalfCheetah in 70,
# 17, 10 and 6 ms, and eight of them (960×480) in 437, 73, 31 and 16.
DETAILS = (
    Detail(64, 1 << 16, 1000, True),
    Detail(0, 1024, 28, True),
    Detail(0, 0, 28, True),
    Detail(0, 0, 12, False),
    Detail(0, 0, 12, False, every=2),
    Detail(0, 0, 8, False, every=3),
)


class Pace:
    """Choice of the detail: a lower one if the fastest of three frames took too long, a higher one after many fast
    frames; a level that is too slow at the second try is not tried again.

    The fastest counts because a busy machine slows down even running processes. The very first compiles shaders.
    """

    def __init__(self) -> None:
        self.level = 0
        self._best = 0
        self._came_up = False
        self.begin()

    def begin(self) -> None:
        """Reset the measurements for a new subject or detail."""
        self._fresh = True
        self._quick = 0
        self._times: deque[float] = deque(maxlen=3)

    def took(self, seconds: float) -> None:
        """Record the duration of a frame."""
        if self._fresh:
            self._fresh = False
            return
        self._times.append(seconds)
        self._quick = self._quick + 1 if seconds < DRAW_SECONDS / 4 else 0
        if len(self._times) == 3 and min(self._times) > DRAW_SECONDS and self.level < len(DETAILS) - 1:
            self._move(1)
        elif self._quick == QUICK_ONES and self.level > self._best:
            self._move(-1)

    def at_most(self, level: int) -> None:
        """Limit the detail to this level."""
        self.level, self._best = max(self.level, level), max(self._best, level)

    def _move(self, by: int) -> None:
        if by > 0 and self._came_up:
            self._best = self.level + 1
        self._came_up = by < 0
        self.level += by
        self.begin()


class MujocoPicture:
    """A tiled drawing of a model's states in floor(sqrt(n)) rows, with no side longer than `max_dim`.

    `about` holds the size and the camera, `clock` returns the seconds of this thread.
    """

    def __init__(self, about: Mapping[str, Any], max_dim: int, clock: Callable[[], float]) -> None:
        import mujoco

        self._mujoco, self._about, self._max_dim, self._clock = mujoco, about, max_dim, clock
        self._pace = Pace()
        self._open_for: tuple[int, int] | None = None  # number of states and level of detail
        self._held = -1
        self._gl: Any = None
        self._context: Any = None

    def load(self, saved: bytes) -> None:
        """Load a compiled model in place of the previous one: some tasks change their shapes."""
        self._model = self._mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": saved})
        quality = self._model.vis.quality
        self._own = Detail(quality.offsamples, quality.shadowsize, quality.numslices, True)
        self._stacks = quality.numstacks
        self._data = self._mujoco.MjData(self._model)
        self._parts = moving_parts(self._model, self._data)
        self._camera = self._chosen_camera()
        held = zlib.crc32(b"".join(getattr(self._model, name).tobytes() for name in HELD if hasattr(self._model, name)))
        if held != self._held:  # else keep the buffer: making one takes as long as ten frames
            self._held, self._open_for = held, None

    def open(self, count: int) -> None:
        """Allocate a buffer for this number of states; GL errors are raised here."""
        if count > 1:
            self._pace.at_most(1)  # the lost detail is not visible in a tile
        if self._open_for != (count, self._pace.level):
            self._make_buffer(count, DETAILS[self._pace.level])
            self._open_for = (count, self._pace.level)

    def draw(self, states: np.ndarray) -> np.ndarray:
        """Return one frame of these states, one per row as returned by `Physics.state`."""
        mujoco, count = self._mujoco, len(states)
        self.open(count)
        started = self._clock()
        for index, state in enumerate(states):
            self._draw_one(index, state)
        whole = self._whole
        mujoco.mjr_readPixels(whole, None, mujoco.MjrRect(0, 0, whole.shape[1], whole.shape[0]), self._context)
        self._pace.took(self._clock() - started)
        picture = whole[::-1]  # GL counts rows from below
        width, height = self._tile
        for row, column in (divmod(index, self._columns) for index in range(count, whole.size // (3 * width * height))):
            picture[row * height : (row + 1) * height, column * width : (column + 1) * width] = 0
        return picture

    def _draw_one(self, index: int, state: np.ndarray) -> None:
        mujoco, model, data = self._mujoco, self._model, self._data
        data.time = state[0]
        at = 1
        for part in self._parts:
            part[:] = state[at : at + part.size].reshape(part.shape)
            at += part.size
        mujoco.mj_forward(model, data)
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(model, data, self._options, None, self._camera, everything, self._scene)
        width, height = self._tile
        row, column = divmod(index, self._columns)
        below = self._whole.shape[0] - (row + 1) * height
        mujoco.mjr_render(mujoco.MjrRect(column * width, below, width, height), self._scene, self._context)

    def _make_buffer(self, count: int, detail: Detail) -> None:
        mujoco, vis = self._mujoco, self._model.vis
        rows = int(count**0.5)
        self._columns = -(-count // rows)
        width, height = self._about["width"], self._about["height"]
        every = max(1, -(-max(rows * height, self._columns * width) // self._max_dim)) * detail.every
        self._tile = width, height = -(-width // every), -(-height // every)
        self._whole = np.zeros((rows * height, self._columns * width, 3), np.uint8)
        vis.global_.offwidth, vis.global_.offheight = self._columns * width, rows * height
        vis.quality.offsamples = min(self._own.samples, detail.samples)
        vis.quality.shadowsize = min(self._own.shadow, detail.shadow)
        vis.quality.numslices = min(self._own.slices, detail.slices)
        vis.quality.numstacks = min(self._stacks, detail.slices)
        if self._gl is not None:
            self._context.free()
            self._gl.free()
        self._gl = mujoco.GLContext(self._columns * width, rows * height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_150.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._options, self._scene = mujoco.MjvOption(), mujoco.MjvScene(self._model, maxgeom=10_000)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = detail.shadow > 0
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = detail.reflection

    def _chosen_camera(self) -> Any:
        """Return the environment's camera, else the model's own that follows the agent, else a free one.

        Gymnasium uses the free one by default, and a cheetah runs out of its frame within seconds.
        """
        mujoco, model = self._mujoco, self._model
        camera, kinds = mujoco.MjvCamera(), mujoco.mjtCamera
        number = self._about["camera_id"]
        if number is None or number < 0:
            number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
        if 0 <= number < model.ncam:
            camera.type, camera.fixedcamid = kinds.mjCAMERA_FIXED, number
            return camera
        mujoco.mj_forward(model, self._data)
        followed = self._about["config"].get("trackbodyid", 0) > 0  # 0 is the world
        camera.type, camera.fixedcamid = kinds.mjCAMERA_TRACKING if followed else kinds.mjCAMERA_FREE, -1
        camera.lookat[:] = np.median(self._data.geom_xpos, axis=0)
        camera.distance = model.stat.extent
        for name, value in self._about["config"].items():
            if isinstance(value, list):
                getattr(camera, name)[:] = value
            else:
                setattr(camera, name, value)
        return camera
