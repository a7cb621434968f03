"""Training videos: mp4 files written frame by frame, so that an episode is never held in memory."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


def is_filmed(episode: int) -> bool:
    """Return True for episodes 0, 1, 8, 27, … up to 1000, then every 1000th: dense while learning is fast."""
    return round(episode ** (1 / 3)) ** 3 == episode if episode < 1000 else episode % 1000 == 0


class EpisodeFilm:
    """One mp4 per filmed episode of one environment, named after the episode's number."""

    def __init__(self, folder: Path, fps: int) -> None:
        self.folder, self.fps, self.episode = folder, fps, 0
        self._container: Any = None
        self._stream: Any = None

    @property
    def rolling(self) -> bool:
        """Return True if the current episode is filmed: render only then."""
        return is_filmed(self.episode)

    def add(self, frame: np.ndarray) -> None:
        import av

        frame = frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]  # yuv420p halves both sides
        if self._container is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(self.folder / f"episode-{self.episode}.mp4"), "w")
            self._stream = self._container.add_stream("libx264", rate=Fraction(self.fps))
            self._stream.height, self._stream.width = frame.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        self._container.mux(self._stream.encode(picture))

    def cut(self) -> None:
        """End the current episode and its file."""
        self.close()
        self.episode += 1

    def close(self) -> None:
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._container = None


class FilmWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that films an environment made with `render_mode="rgb_array"`."""

    def __init__(self, env: gym.Env[Any, Any], folder: Path) -> None:
        super().__init__(env)
        self.film = EpisodeFilm(folder, int(env.metadata.get("render_fps") or 30))
        self._under_way = False

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        if self._under_way:
            self.film.cut()
        answer = self.env.reset(**options)
        self._under_way = True
        self._shoot()
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer = self.env.step(action)
        self._shoot()
        return answer

    def close(self) -> None:
        self.film.close()
        self.env.close()

    def _shoot(self) -> None:
        if self.film.rolling:
            frame = self.env.render()
            if isinstance(frame, np.ndarray):
                self.film.add(frame)
