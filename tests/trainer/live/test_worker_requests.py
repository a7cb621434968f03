"""Orders for distant workers."""

from mosaic.trainer.live.worker_requests import WorkerRequests


def test_orders_go_to_a_workers_newest_stream_and_to_nobody_once_its_attempt_is_over() -> None:
    controls = WorkerRequests()
    cut = controls.attach("attempt")
    controls.tell("attempt", "pause")
    present = controls.attach("attempt")
    assert controls.take("attempt", cut) == [] and not controls.is_newest("attempt", cut)
    assert controls.take("attempt", present) == [("pause", 0.0)]
    controls.tell("attempt", "cancel", 5.0)
    controls.forget("attempt")
    assert controls.take("attempt", present) == [] and not controls.is_newest("attempt", present)
