"""RecordVideo without moviepy: mp4 files written frame by frame through PyAV, if it is installed."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any, Callable, Optional, Sequence, Tuple

import gymnasium
import numpy as np

from . import notes

try:
    import av
except ImportError:
    av = None  # type: ignore[assignment]

Trigger = Callable[[int], bool]
MISSING = "no films are written: PyAV is missing; install it with: pip install av"


def cubes(episode: int) -> bool:
    """Return True for episodes 0, 1, 8, 27, … and every 1000th, Gymnasium's default."""
    return round(episode ** (1 / 3)) ** 3 == episode if episode < 1000 else episode % 1000 == 0


class RecordVideo(gymnasium.Wrapper):
    """A wrapper that films episodes into a folder; without PyAV it is a no-op and warns once."""

    # wandb.init(monitor_gym=True) patches `close` to upload one file if this is true, and fails without it.
    enabled = False

    def __new__(cls, env: Any, *args: Any, **options: Any) -> Any:
        if isinstance(env, gymnasium.vector.VectorEnv):
            notes.warn("RecordVideo: films of vector environments are not recorded")
            return env
        return super().__new__(cls)

    def __init__(
        self,
        env: Any,
        video_folder: str,
        episode_trigger: Optional[Trigger] = None,
        step_trigger: Optional[Trigger] = None,
        video_length: int = 0,
        name_prefix: str = "rl-video",
        disable_logger: bool = False,
        fps: Optional[int] = None,
    ) -> None:
        super().__init__(env)
        self._folder, self._prefix, self._length = os.path.abspath(video_folder), name_prefix, video_length
        self._wants_step = step_trigger
        self._wants_episode = episode_trigger or (cubes if step_trigger is None else None)
        self._fps = fps or int((env.metadata or {}).get("render_fps") or 30)
        self._film: Optional[Film] = None
        self.episode_id, self.step_id = -1, 0
        os.makedirs(self._folder, exist_ok=True)
        self._able = av is not None and env.render_mode in ("rgb_array", "rgb_array_list")
        if av is None:
            notes.warn(MISSING)
        elif not self._able:
            notes.warn("RecordVideo: no films are written, make the environment with render_mode='rgb_array'")

    def reset(self, **options: Any) -> Tuple[Any, Any]:
        answer = self.env.reset(**options)
        self.episode_id += 1
        if self._length == 0:
            self._cut()
        if self._wants_episode is not None and self._wants_episode(self.episode_id):
            self._begin("episode-%d" % self.episode_id)
        self._shoot()
        return answer

    def step(self, action: Any) -> Tuple[Any, Any, bool, bool, Any]:
        answer: Any = self.env.step(action)
        self.step_id += 1
        if self._wants_step is not None and self._wants_step(self.step_id):
            self._begin("step-%d" % self.step_id)
        self._shoot()
        if (answer[2] or answer[3]) and self._length == 0:
            self._cut()
        return (answer[0], answer[1], answer[2], answer[3], answer[4])

    def close(self) -> None:
        self._cut()
        self.env.close()

    def _begin(self, name: str) -> None:
        if self._able and self._film is None:
            self._film = Film(os.path.join(self._folder, "%s-%s.mp4" % (self._prefix, name)), self._fps)

    def _shoot(self) -> None:
        if self._film is None:
            return
        frame: Any = self.env.render()
        for picture in frame if isinstance(frame, list) else [frame]:
            if isinstance(picture, np.ndarray):
                self._film.add(picture)
        if self._length and self._film.frames >= self._length:
            self._cut()

    def _cut(self) -> None:
        if self._film is not None:
            self._film.close()
        self._film = None


class Film:
    """One mp4 file."""

    def __init__(self, path: str, fps: int) -> None:
        self._path, self._fps, self.frames = path, fps, 0
        self._container: Any = None
        self._stream: Any = None

    def add(self, frame: Any) -> None:
        """Append a picture of height × width × 3 bytes."""
        frame = frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]  # yuv420p halves both sides
        if self._container is None:
            self._container = av.open(self._path, "w")
            self._stream = self._container.add_stream("libx264", rate=Fraction(self._fps))
            self._stream.height, self._stream.width = frame.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame, np.uint8), format="rgb24")
        self._container.mux(self._stream.encode(picture))
        self.frames += 1

    def close(self) -> None:
        """Finish the file."""
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
        self._container = None


class ImageSequenceClip:
    """The part of moviepy's class that CleanRL's evaluations use."""

    def __init__(self, sequence: Sequence[Any], fps: float = 30) -> None:
        self._frames, self._fps = list(sequence), int(fps)

    def write_videofile(self, filename: str, **options: Any) -> None:
        """Write the frames as mp4; without PyAV, only warn."""
        if av is None:
            notes.warn(MISSING)
            return
        film = Film(filename, self._fps)
        for frame in self._frames:
            film.add(frame)
        film.close()
