"""Between messages and values: every text of a run within a cap, so that a list of any runs fits into a message."""

from mosaic.contract.fields import RUN_TEXT_BYTES, WARNINGS_BYTES
from mosaic.trainer.rpc.messages import change_to_pb, page_to_pb, run_from_pb, run_to_pb
from mosaic.trainer.run import Change, Page, Run
from mosaic.trainer.states import State

MESSAGE_BYTES = 64 << 20


def test_a_page_of_runs_with_huge_texts_fits_into_a_message() -> None:
    loud = Run(
        "a",
        State.FAILED,
        reason="r" * 20_000_000,
        run_name="n" * 5_000_000,
        warnings=tuple(f"{n} " + "w" * 20_000_000 for n in range(4)),
    )
    few = page_to_pb(Page((loud,) * 4, "", 4))
    assert few.ByteSize() < 1 << 20 and len(few.runs[0].warnings) == 4
    chatty = Run("b", State.FAILED, reason="r" * 4000, warnings=tuple("w" * 3900 + str(n) for n in range(16)))
    many = page_to_pb(Page((chatty,) * 1000, "", 1000))
    assert many.ByteSize() < MESSAGE_BYTES / 2 and many.runs[0].warnings


def test_reasons_and_names_are_cut_with_their_length() -> None:
    run = Run("a", State.FAILED, reason="x" * 20_000_000)
    message = run_to_pb(run)
    assert len(message.reason.encode()) == RUN_TEXT_BYTES and message.reason.endswith("(20,000,000 bytes)")
    change = change_to_pb(Change(1, "moved", "a", None, State.FAILED, run.reason, 1.0, run))
    assert change.ByteSize() < 20_000


def test_what_is_within_the_caps_comes_back_as_it_was() -> None:
    run = Run("a", State.EXECUTING, reason="é" * 100, warnings=("one", "two"), stalled=True, stalled_since=12.5)
    assert run_from_pb(run_to_pb(run)) == run
    assert sum(map(len, run_to_pb(Run("a", State.INIT, warnings=("w" * 4000,) * 40)).warnings)) <= WARNINGS_BYTES
