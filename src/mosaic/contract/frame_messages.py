"""A ring's frame as a message for another machine."""

from mosaic.contract.frames import FastLaneReader, Frame
from mosaic.contract.proto import trainer_pb2 as pb


def frame_message(run_id: str, frame: Frame, reader: FastLaneReader) -> pb.Frame:
    """Return the frame as a message, with its numbers and its ring's present label and note."""
    status = reader.status()
    return pb.Frame(
        run_id=run_id,
        index=frame.index,
        width=frame.width,
        height=frame.height,
        channels=frame.channels,
        data=frame.pixels,
        encoding="raw",
        last_reward=frame.last_reward,
        rolling_return=frame.rolling_return,
        step_rate_hz=frame.step_rate_hz,
        step=frame.step,
        label=status.label,
        note=status.note,
    )
