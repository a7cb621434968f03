"""Runs as jobs of Ray, by a stand-in for its job server: what is tried again, and what is refused."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mosaic.trainer.states import State

LATER = "No available agent to submit job, please try again later."


class JobServer(ThreadingHTTPServer):
    """Answers submissions with the refusals it was given, one each, then takes the job."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), JobHandler)
        self.refusals: list[tuple[int, str]] = []
        self.jobs: list[str] = []
        self.asked = 0


class JobHandler(BaseHTTPRequestHandler):
    server: JobServer

    def do_GET(self) -> None:
        self._say(200, json.dumps([{"submission_id": job, "status": "RUNNING"} for job in self.server.jobs]))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked += 1
        if self.server.refusals:
            self._say(*self.server.refusals.pop(0))
        else:
            self.server.jobs.append(body["submission_id"])
            self._say(200, "{}")

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def jobs() -> Iterator[JobServer]:
    with JobServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def place(daemon: Any, jobs: JobServer) -> Any:
    daemon.stop()
    daemon.start("--executor", "ray", "--ray-address", f"http://127.0.0.1:{jobs.server_address[1]}")
    return daemon


def test_a_job_server_that_is_busy_is_asked_again_and_again_until_it_takes_the_job(
    place: Any, jobs: JobServer, until: Any
) -> None:
    jobs.refusals = [(500, LATER), (503, "starting"), (429, "too many requests")]
    run = place.submit({"episodes": 1})
    waiting = until(lambda: (found := place.client.get_run(run.run_id)).reason and found, "a reason")
    assert waiting.state == State.INIT and waiting.reason.startswith("Ray takes no job now: ")
    accepted = place.until_state(run.run_id, State.HANDSHAKE)
    until(lambda: jobs.jobs, "the job")
    assert jobs.asked == 4 and len(jobs.jobs) == 1
    assert (accepted.attempt, accepted.restarts) == (1, 0), "nothing ran before"


def test_what_ray_refuses_for_good_fails_the_run(place: Any, jobs: JobServer) -> None:
    jobs.refusals = [(400, "ValueError: entrypoint_num_gpus must be a number")]
    ended = place.client.wait_run(place.submit({"episodes": 1}).run_id, 180)
    assert ended.state == State.FAILED and "entrypoint_num_gpus" in ended.reason and jobs.asked == 1
