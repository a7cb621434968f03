"""Videos: which episodes are filmed, and that every file holds every frame of its episode."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import av
import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.envs import play, pools, vectors
from cleanrl_worker.envs.video import EpisodeFilm, FilmWrapper, is_filmed
from cleanrl_worker.run.args import RunArgs


def frames_of(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as video:
        return [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_episodes_are_filmed_densely_while_learning_is_fast() -> None:
    assert [episode for episode in range(3001) if is_filmed(episode)] == [
        *(n**3 for n in range(10)),
        *(1000, 2000, 3000),
    ]


def test_a_film_is_a_file_per_episode_with_every_frame_and_even_sides(tmp_path: Path) -> None:
    film = EpisodeFilm(tmp_path / "videos", fps=25)
    for episode in range(9):
        if film.rolling:
            for shade in range(5):
                film.add(np.full((31, 45, 3), 50 * shade, np.uint8))
        film.cut()
        assert film.episode == episode + 1
    film.close()
    assert names_in(tmp_path / "videos") == ["episode-0.mp4", "episode-1.mp4", "episode-8.mp4"]
    frames = frames_of(tmp_path / "videos" / "episode-8.mp4")
    assert [frame.shape for frame in frames] == [(30, 44, 3)] * 5
    assert np.allclose([frame.mean() for frame in frames], [0, 50, 100, 150, 200], atol=8)
    with av.open(str(tmp_path / "videos" / "episode-0.mp4")) as video:
        assert video.streams.video[0].average_rate == 25


def test_an_episode_cut_short_can_be_watched(tmp_path: Path) -> None:
    film = EpisodeFilm(tmp_path, fps=30)
    for _ in range(3):
        film.add(np.zeros((16, 16, 3), np.uint8))
    film.close()
    film.close()
    assert len(frames_of(tmp_path / "episode-0.mp4")) == 3


def test_nothing_is_written_before_the_first_frame(tmp_path: Path) -> None:
    film = EpisodeFilm(tmp_path / "videos", fps=30)
    film.cut()
    film.close()
    assert not (tmp_path / "videos").exists()


def test_a_gymnasium_environment_is_filmed_from_its_first_observation_to_its_last(tmp_path: Path) -> None:
    wrapper = FilmWrapper(gym.make("CartPole-v1", render_mode="rgb_array"), tmp_path)
    lengths = []
    for _ in range(3):
        wrapper.reset(seed=1)
        steps = 1
        while not wrapper.step(1)[2]:
            steps += 1
        lengths.append(steps)
    wrapper.close()
    assert names_in(tmp_path) == ["episode-0.mp4", "episode-1.mp4"]
    for episode in range(2):
        assert len(frames_of(tmp_path / f"episode-{episode}.mp4")) == lengths[episode] + 1


def test_an_environment_in_a_process_of_its_own_is_filmed_too(tmp_path: Path) -> None:
    envs = vectors.vector(RunArgs(env_id="CartPole-v1", num_envs=2, vectorization="async"), video_folder=tmp_path)
    envs.reset(1)
    for _ in range(5):
        envs.step(np.array([0, 1]))
    envs.close()
    assert len(frames_of(tmp_path / "episode-0.mp4")) == 6


def test_envpool_atari_is_filmed_game_by_game(tmp_path: Path) -> None:
    film = EpisodeFilm(tmp_path, fps=15)
    envs = pools.PoolEnvs(
        lambda seeds: pools.make_pool("Pong-v5", seeds, max_episode_steps=12, noop_max=1, render_mode="rgb_array"),
        2,
        seed=1,
        lives=True,
    )
    envs.film = film
    envs.reset(1)
    lengths = [e.length for _ in range(30) for e in envs.step(np.array([2, 3])).episodes if e.env == 0]
    assert lengths == [12, 12]
    assert film.episode == 2
    envs.close()
    assert names_in(tmp_path) == ["episode-0.mp4", "episode-1.mp4"]
    frames = frames_of(tmp_path / "episode-0.mp4")
    assert [frame.shape for frame in frames] == [(210, 160, 3)] * 13
    starts = [frames_of(tmp_path / f"episode-{episode}.mp4")[0].astype(int) for episode in range(2)]
    moved = np.abs(frames[-1].astype(int) - starts[0]).mean()
    assert np.abs(starts[1] - starts[0]).mean() < moved / 2, "a film ends with its own game, not with the next one"


def test_atari_with_a_video_folder_takes_raw_screens_while_the_learner_sees_its_own(tmp_path: Path) -> None:
    envs = vectors.atari(RunArgs(env_id="ALE/Pong-v5", num_envs=2), video_folder=tmp_path)
    assert envs.reset(1).shape == (2, 4, 84, 84)
    for _ in range(3):
        assert envs.step(np.array([0, 0])).obs.shape == (2, 4, 84, 84)
    envs.close()
    assert [frame.shape for frame in frames_of(tmp_path / "episode-0.mp4")] == [(210, 160, 3)] * 4


def has_egl() -> bool:
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True


FILM_MUJOCO = """
import sys
from pathlib import Path
import numpy as np
from cleanrl_worker.envs import vectors
from cleanrl_worker.run.args import RunArgs
made = vectors.vector(RunArgs(env_id="InvertedPendulum-v5"), video_folder=Path(sys.argv[1]))
made.reset(1)
for _ in range(3):
    made.step(np.zeros((1, 1), np.float32))
made.close()
"""


@pytest.mark.skipif(not has_egl(), reason="drawing MuJoCo without a screen needs libegl1")
def test_mujoco_is_filmed_without_a_screen(tmp_path: Path) -> None:
    # a fresh process: MuJoCo chooses its way to draw once
    headless = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MUJOCO_GL")}
    subprocess.run([sys.executable, "-c", FILM_MUJOCO, str(tmp_path)], env=headless, check=True, timeout=300)
    frames = frames_of(tmp_path / "episode-0.mp4")
    assert len(frames) == 4
    assert frames[0].std() > 5, "there is something to see"


def test_every_filmed_game_of_an_evaluation_is_there_from_its_first_step_to_its_last(tmp_path: Path) -> None:
    pytest.importorskip("envpool", reason="Atari needs the extra envpool")
    rng = np.random.default_rng(1)
    game = play.make_game("Breakout-v5", atari=True, video_folder=tmp_path)
    played = [
        play.play_episode(lambda obs, _: rng.integers(4, size=len(obs)), game, number, seed=number, max_steps=limit)
        for number, limit in enumerate((0, 30, 5))  # one to its own end, the others cut off
    ]
    game.close()
    assert names_in(tmp_path) == ["episode-0.mp4", "episode-1.mp4"]
    for one in played[:2]:
        assert one is not None
        assert len(frames_of(tmp_path / f"episode-{one.episode}.mp4")) == one.length + 1
