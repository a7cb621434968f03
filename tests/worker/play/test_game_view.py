"""Pictures that any program reads, and EnvPool's environments one at a time."""

import base64
import struct
import zlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.play.game_view import PoolEnv, Scene, encode_png, open_scene
from mosaic.contract.errors import MosaicError


def decode_png(data: bytes) -> np.ndarray:
    """A reader of its own, strict about signature, lengths and checksums."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_png_holds_the_picture() -> None:
    frame = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
    assert np.array_equal(decode_png(encode_png(frame)), frame)
    turned = frame.transpose(1, 0, 2)
    assert np.array_equal(decode_png(encode_png(turned)), turned)


class Painter(gym.Env[Any, Any]):
    """Draws what it is told to."""

    render_mode = "rgb_array"
    observation_space = gym.spaces.Box(0.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.drawn = 0

    def render(self) -> Any:
        self.drawn += 1
        return self.frame


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 3), (4, 6, 4)])
def test_grey_and_transparent_pictures_become_colour(shape: tuple[int, ...]) -> None:
    frame = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    picture = Scene(Painter(frame)).picture()
    assert picture is not None and (picture["width"], picture["height"]) == (6, 4)
    colours = decode_png(base64.b64decode(picture["data"]))
    assert np.array_equal(colours, np.broadcast_to(frame.reshape(4, 6, -1)[..., :3], (4, 6, 3)))


@pytest.mark.parametrize(
    "frame", [None, "text", [np.zeros((2, 2, 3), np.uint8)], np.zeros((2, 2, 3)), np.zeros((0, 2, 3), np.uint8)]
)
def test_drawing_that_gives_no_picture_is_tried_once(frame: Any) -> None:
    painter = Painter(frame)
    scene = Scene(painter)
    assert [scene.picture(), scene.picture(), painter.drawn] == [None, None, 1]
    assert scene.no_picture is not None and "drawing gave no picture" in scene.no_picture


def test_environment_is_played_as_it_is_unless_a_policy_wants_it_flat() -> None:
    scene = open_scene("MiniGrid-Empty-5x5-v0")
    assert set(scene.reset(1)) == {"image", "direction", "mission"} and scene.picture() is not None
    assert open_scene("FrozenLake-v1", flat=True).observation_space.shape == (16,)


def test_environment_that_cannot_be_drawn_is_played_without() -> None:
    gym.register("Blind-v0", lambda render_mode=None: _blind(render_mode))
    scene = open_scene("Blind-v0")
    assert scene.no_picture == "it cannot be made with rgb_array: ImportError: no library"
    assert scene.picture() is None
    del gym.registry["Blind-v0"]


def _blind(render_mode: str | None) -> gym.Env[Any, Any]:
    if render_mode is not None:
        raise ImportError("no library")
    painter = Painter(None)
    painter.metadata = {"render_modes": ["rgb_array"]}
    return painter


def test_unknown_environment_is_one_line() -> None:
    with pytest.raises(MosaicError, match="NoSuchThing-v0") as refused:
        open_scene("NoSuchThing-v0")
    assert "\n" not in str(refused.value)


def test_atari_game_is_played_whole() -> None:
    scene = open_scene("ALE/Breakout-v5", atari=True)
    ended, rewards, length = False, 0.0, 0
    scene.reset(1)
    assert scene.observation_space.shape == (4, 84, 84)
    while not ended:
        obs, reward, terminated, truncated = scene.step(1 if length % 40 == 0 else 2)  # serve, then stay at the right
        ended, length, rewards = terminated or truncated, length + 1, rewards + reward
    assert length > 100 and np.shape(obs) == (4, 84, 84)  # five lives; the first alone lasts some twenty steps
    picture = scene.picture()
    assert picture is not None and decode_png(base64.b64decode(picture["data"])).shape == (210, 160, 3)


def test_pool_is_drawn_unless_that_would_kill_the_process() -> None:
    assert PoolEnv("CartPole-v1").render_mode == "rgb_array"
    assert PoolEnv("HalfCheetah-v5").render_mode is None
    assert open_scene("HalfCheetah-v5", backend="envpool").no_picture is None  # Gymnasium's, which can be drawn
    old = open_scene("Pusher-v4", flat=True, backend="envpool")  # which Gymnasium, with today's MuJoCo, does not make
    assert old.no_picture == "EnvPool cannot draw it" and old.reset(1).shape == (23,)


def test_toy_text_of_a_pool_is_drawn_by_gymnasium_where_a_policy_finds_its_row_there() -> None:
    lake = open_scene("FrozenLake-v1", flat=True, backend="envpool")
    assert lake.reset(1).shape == (16,) and lake.picture() is not None
    cards = open_scene("Blackjack-v1", flat=True, backend="envpool")
    assert cards.reset(1).shape == (3,) and cards.no_picture == "EnvPool cannot draw it"
