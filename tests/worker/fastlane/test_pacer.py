"""A lane: when a frame is due, what it may cost, what its numbers are, and why there is none."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cleanrl_worker.fastlane.pacer import Lane, Settings, as_colours, fitted, tiled, usual_cost
from mosaic.contract.frames import FastLaneReader, FastLaneWriter

PLAIN = Settings("single", 0, 8, 0.0, 1024, 1.0)


@pytest.fixture
def writer() -> Iterator[FastLaneWriter]:
    writer = FastLaneWriter.create("lane-test")
    yield writer
    writer.close()


@pytest.fixture
def reader(writer: FastLaneWriter) -> Iterator[FastLaneReader]:
    with FastLaneReader.attach(writer.name) as reader:
        yield reader


def grey(value: int, height: int = 2, width: int = 3) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def told(folder: Path) -> list[str]:
    notes = folder / "logs" / "notes.jsonl"
    return [json.loads(line)["payload"]["message"] for line in notes.read_text().splitlines()] if notes.exists() else []


def test_settings_come_from_the_variables_and_off_is_none() -> None:
    on = {"GYM_GUI_FASTLANE_ENABLED": "1"}
    assert Settings.read(on) == Settings("single", 0, 8, 0.033, 1024, 0.03)
    assert Settings.read({}) is None
    assert Settings.read({**on, "GYM_GUI_FASTLANE_VIDEO_MODE": "off"}) is None
    chosen = Settings.read(
        {
            **on,
            "GYM_GUI_FASTLANE_VIDEO_MODE": "grid",
            "GYM_GUI_FASTLANE_SLOT": "2",
            "GYM_GUI_FASTLANE_GRID_LIMIT": "4",
            "CLEANRL_FASTLANE_INTERVAL_MS": "100",
            "CLEANRL_FASTLANE_MAX_DIM": "64",
            "CLEANRL_FASTLANE_BUDGET": "0.5",
        }
    )
    assert chosen == Settings("grid", 2, 4, 0.1, 64, 0.5)
    large = {"GYM_GUI_FASTLANE_GRID_LIMIT": "100000", "CLEANRL_FASTLANE_MAX_DIM": "1000000"}
    assert Settings.read({**on, **large}) == Settings("single", 0, 256, 0.033, 8192, 0.03)
    limited = Settings.read({**on, "GYM_GUI_FASTLANE_GRID_LIMIT": "0"})
    assert limited is not None and limited.limit == 8, "0 is the default"


def test_a_frame_is_due_only_while_somebody_looks_and_its_time_has_come(
    writer: FastLaneWriter, reader: FastLaneReader, tmp_path: Path
) -> None:
    lane = Lane(PLAIN._replace(interval=3600.0), writer, tmp_path)
    assert not lane.due()
    lane.next = 0.0
    reader.watch()
    assert lane.due()
    lane.show(lambda: grey(1), 1.0, 1)
    assert not lane.due(), "an hour has not passed"


def test_drawing_stays_within_its_share_of_the_thread(
    writer: FastLaneWriter, reader: FastLaneReader, tmp_path: Path
) -> None:
    lane = Lane(PLAIN._replace(budget=0.01), writer, tmp_path)

    def slow() -> np.ndarray:
        time.sleep(0.02)
        return grey(1)

    lane.show(slow, 0.0, 1)
    assert lane.next - time.monotonic() < 0.5, "the first one is no measure"
    lane.show(slow, 0.0, 2)
    assert lane.next - time.monotonic() > 1.0, "20 ms are one per cent of two seconds"


def test_what_a_frame_usually_costs_is_the_mean_without_what_happens_once() -> None:
    assert usual_cost([]) == 0.0
    assert usual_cost([1.0, 1.0, 1.0, 2.0]) == 1.25
    assert usual_cost([1.0, 1.0, 1.0, 1000.0]) == 1.5


def test_numbers_travel_with_their_frame(writer: FastLaneWriter, reader: FastLaneReader, tmp_path: Path) -> None:
    lane = Lane(PLAIN, writer, tmp_path)
    lane.episode(10.0)
    lane.episode(20.0)
    lane.show(lambda: grey(5), 2.5, 100)
    frame = reader.latest_frame()
    assert frame is not None
    assert (frame.last_reward, frame.rolling_return, frame.step) == (2.5, pytest.approx(11.0), 100)
    lane._counted = (time.monotonic() - 1.0, 0)
    lane.show(lambda: grey(5), 0.0, 600)
    frame = reader.latest_frame()
    assert frame is not None and 100 < frame.step_rate_hz <= 600


def test_a_reason_stands_in_the_header_and_is_warned_of_once(
    writer: FastLaneWriter, reader: FastLaneReader, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    lane = Lane(PLAIN, writer, tmp_path)
    lane.explain("soon", quietly=True)
    assert reader.status().reason == "soon" and told(tmp_path) == []
    for _ in range(2):
        lane.explain("no paint")
    assert reader.status().reason == "no paint"
    assert told(tmp_path) == ["no live view: no paint"]
    lane.show(lambda: grey(1), 0.0, 1)
    assert reader.status().reason == "", "a frame has come"


def test_a_passing_reason_ends_with_the_first_step_though_nobody_looks(
    writer: FastLaneWriter, reader: FastLaneReader, tmp_path: Path
) -> None:
    lane = Lane(PLAIN, writer, tmp_path)
    lane.explain("soon", quietly=True)
    assert not lane.due() and reader.status().reason == ""
    lane.explain("no paint")
    lane.next = 0.0
    assert not lane.due() and reader.status().reason == "no paint"


def test_drawing_that_fails_three_times_is_given_up(
    writer: FastLaneWriter, reader: FastLaneReader, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    lane = Lane(PLAIN, writer, tmp_path)
    for _ in range(3):
        assert lane.next != math.inf
        lane.show(lambda: 1 / 0, 0.0, 1)
    assert lane.next == math.inf
    assert reader.status().reason == "drawing failed: ZeroDivisionError: division by zero"
    assert reader.status().dropped == 3
    lane.begin("(Eval)")
    assert lane.next == 0.0 and reader.status().label == "(Eval)", "something else may well be drawn"


def test_without_room_for_a_ring_nothing_is_ever_due(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lane = Lane(PLAIN, None, tmp_path)
    lane.give_up("shared memory is full")
    assert not lane.due()
    assert told(tmp_path) == ["no live view: shared memory is full"]


@pytest.mark.parametrize(("count", "shape"), [(1, (2, 3)), (2, (2, 6)), (3, (2, 9)), (4, (4, 6)), (8, (4, 12))])
def test_tiles_stand_in_rows_of_equal_length(count: int, shape: tuple[int, int]) -> None:
    assert tiled([grey(1)] * count, 1000).shape[:2] == shape


def test_tiles_of_other_sizes_and_missing_ones_are_black_around() -> None:
    whole = tiled([grey(1), None, grey(3, 1, 1), grey(4)], 1000)
    assert whole.shape == (4, 6, 3)
    assert (whole[:2, :3] == 1).all() and (whole[:2, 3:] == 0).all() and (whole[2:, 3:] == 4).all()
    assert whole[2, 0, 0] == 3 and whole[3, 0, 0] == 0


def test_frames_are_made_to_fit() -> None:
    assert max(tiled([grey(1, 100, 200)] * 8, 64).shape) <= 64
    assert fitted(grey(1, 100, 200), 64).shape == (25, 50, 3)
    assert fitted(grey(1), 64).shape == (2, 3, 3)


def test_only_pictures_of_bytes_are_colours() -> None:
    assert as_colours(np.zeros((2, 3), np.uint8)).shape == (2, 3, 3)
    assert as_colours(np.zeros((2, 3, 4), np.uint8)).shape == (2, 3, 3)
    for wrong in (None, [1], np.zeros((2, 3, 3)), np.zeros((2, 3, 2), np.uint8), np.zeros((0, 3, 3), np.uint8)):
        with pytest.raises(ValueError, match="render\\(\\) gave"):
            as_colours(wrong)
