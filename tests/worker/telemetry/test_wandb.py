"""W&B with the real package, offline and against a stand-in for its server; with one that hangs; with none."""

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.telemetry.wandb import Tracker
from mosaic.contract.metrics import encode_resumed, encode_row
from mosaic.contract.paths import RunPaths

KEY = "0123456789abcdef0123456789abcdef01234567"
RETURN = "charts/episodic_return"
LONG = 120.0  # seconds for the real W&B to start and to end on a busy machine


@pytest.fixture
def paths(home: Path) -> RunPaths:
    paths = RunPaths("run-1", home)
    paths.create()
    return paths


@pytest.fixture
def track(paths: RunPaths) -> Iterator[Callable[..., Tracker]]:
    started: list[Tracker] = []

    def track(environment: dict[str, str] | None = None, **options: Any) -> Tracker:
        tracker = Tracker(paths, {**os.environ, **(environment or {})}, **{"project": "tests", **options})
        started.append(tracker)
        return tracker

    yield track
    for tracker in started:
        tracker.kill()


def append(paths: RunPaths, *steps: int) -> None:
    with paths.metrics.open("ab") as file:
        file.write(b"".join(encode_row(step, time.time(), {RETURN: step / 2}) for step in steps))


def status(paths: RunPaths) -> dict[str, Any]:
    found = json.loads(paths.wandb_status.read_bytes())
    assert isinstance(found, dict)
    return found


class Server(http.server.ThreadingHTTPServer):
    """Stands in for W&B's server, which tests cannot reach: accepts a run and remembers what it is sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.keys: set[str] = set()
        self.history: list[dict[str, Any]] = []
        self.exit_codes: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        server.keys.add(self.headers.get("authorization"))
        answer: dict[str, Any] = {}
        if self.path == "/graphql":
            answer = {"data": self._graphql(json.loads(body))}
        elif self.path.endswith("file_stream"):
            sent = json.loads(body)
            lines = sent.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
            server.history += [json.loads(line) for line in lines]
            server.exit_codes += [sent["exitcode"]] if sent.get("complete") else []
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _graphql(self, request: dict[str, Any]) -> dict[str, Any]:
        given = request.get("variables") or {}
        if "upsertBucket" in request["query"]:
            project = {
                "id": "p",
                "name": given.get("project"),
                "entity": {"id": "e", "name": given.get("entity") or "me"},
            }
            bucket = {"id": "b", "name": given.get("name"), "displayName": "x", "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": 0}, "inserted": True}}
        if "createRunFiles" in request["query"]:
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}}
        return {"model": {"id": "p", "name": "p", "bucket": None, "entity": {"id": "e", "name": "me"}}, "viewer": None}

    def log_message(self, *anything: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def uploaded(paths: RunPaths, server: Server) -> list[tuple[int, float]]:
    """The rows of the offline run, as they arrive where `wandb sync` sends them."""
    command = [sys.executable, "-m", "wandb", "sync", str(paths.folder / status(paths)["folder"])]
    environment = {**os.environ, "WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * LONG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(row["global_step"], row[RETURN]) for row in server.history]


def test_without_a_key_it_tracks_offline_and_says_so_once(
    paths: RunPaths, track: Callable[..., Tracker], until: Callable[..., None], server: Server
) -> None:
    append(paths, 1)
    tracker = track(name="my run", entity="lab", config={"seed": 3})
    append(paths, 2, 2, 3)
    until(lambda: paths.wandb_status.exists() and status(paths)["mode"], LONG, "a mode in wandb.json")
    assert status(paths)["mode"] == "offline" and status(paths)["project"] == "tests"
    said = tracker.poll()
    assert said is not None and "no W&B key" in said and "wandb sync" in said
    assert tracker.poll() is None
    append(paths, 4)
    assert tracker.close(0, LONG) is None
    assert list(Path(os.environ["HOME"]).iterdir()) == []
    assert uploaded(paths, server) == [(2, 1.0), (2, 1.0), (3, 1.5), (4, 2.0)]


def test_offline_that_was_asked_for_is_no_trouble(
    paths: RunPaths, track: Callable[..., Tracker], capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = track({"WANDB_MODE": "offline", "WANDB_API_KEY": KEY})
    append(paths, 1)
    assert tracker.close(0, LONG) is None
    assert (status(paths)["mode"], status(paths)["error"]) == ("offline", None)
    assert capfd.readouterr() == ("", "")


def test_no_network_means_offline_soon(paths: RunPaths, track: Callable[..., Tracker]) -> None:
    # Nobody listens on the discard port of this machine.
    tracker = track({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": "http://127.0.0.1:9"})
    append(paths, 1)
    said = tracker.close(0, LONG)
    assert said is not None and "127.0.0.1 does not answer: tracking offline" in said
    assert (paths.folder / status(paths)["folder"]).is_dir()


def test_server_that_accepts_and_never_answers_means_offline_with_every_row(
    paths: RunPaths, track: Callable[..., Tracker], server: Server
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracker = track({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        append(paths, 1, 2)
        said = tracker.close(0, LONG)
    assert said is not None and "W&B could not be reached" in said and "wandb sync" in said
    assert uploaded(paths, server) == [(1, 0.5), (2, 1.0)]


def test_files_of_the_folder_it_starts_in_are_not_imported(
    paths: RunPaths, track: Callable[..., Tracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    assert track({"WANDB_MODE": "offline"}).close(0, LONG) is None
    assert status(paths)["mode"] == "offline"


def test_online_run_is_sent_whole_and_its_key_lies_nowhere(
    paths: RunPaths, track: Callable[..., Tracker], server: Server, until: Callable[..., None]
) -> None:
    tracker = track({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url}, entity="lab", name="my run")
    append(paths, 1, 1, 2)
    until(paths.wandb_status.exists, LONG, "wandb.json")
    assert status(paths)["run_path"] == "lab/tests/run-1"
    append(paths, 3)
    assert tracker.close(3, LONG) is None
    assert tracker.poll() is None
    assert [(row["global_step"], row[RETURN]) for row in server.history] == [(1, 0.5), (1, 0.5), (2, 1.0), (3, 1.5)]
    assert server.exit_codes == [3]
    assert len(server.keys) == 1
    for file in paths.home.rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes(), file


def test_key_comes_from_dotenv_too(paths: RunPaths, track: Callable[..., Tracker], server: Server) -> None:
    (paths.home / ".env").write_text(f"export WANDB_API_KEY='{KEY}'\n")
    tracker = track({"WANDB_BASE_URL": server.url})
    append(paths, 1)
    assert tracker.close(0, LONG) is None
    assert status(paths)["mode"] == "online"


FAKES = {
    "init": "class Error(Exception): pass\ndef Settings(**k): pass\ndef init(**k):\n    time.sleep(600)\n",
    "log": (
        "class Error(Exception): pass\ndef Settings(**k): pass\n"
        "class Run:\n    dir, path, entity = '/tmp/x/files', 'a/b/c', 'a'\n    def define_metric(self, *a, **k): pass\n"
        "    def log(self, row):\n        time.sleep(600)\n"
        "def init(**k):\n    return Run()\n"
    ),
    "death": "import os\nos._exit(9)\n",
    "absence": "raise ImportError('no wandb')\n",
}


@pytest.fixture
def fake_wandb(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """An environment in which `import wandb` finds a package that misbehaves."""

    def fake(kind: str) -> dict[str, str]:
        folder = tmp_path / "fake"
        folder.mkdir(exist_ok=True)
        (folder / "wandb.py").write_text("import time\n" + FAKES[kind])
        return {"PYTHONPATH": str(folder), "WANDB_MODE": "offline"}

    return fake


def reports(tracker: Tracker, until: Callable[..., None]) -> list[str]:
    """What the tracker's handle says first, waited for."""
    said: list[str] = []

    def heard() -> bool:
        line = tracker.poll()
        said.extend([line] if line else [])
        return bool(said)

    until(heard, LONG, "a report")
    return said


@pytest.mark.parametrize("where", ["init", "log"])
def test_tracker_that_hangs_is_reported_once_and_ended(
    where: str,
    paths: RunPaths,
    track: Callable[..., Tracker],
    fake_wandb: Callable[[str], dict[str, str]],
    until: Callable[..., None],
    lives: Callable[[int], bool],
) -> None:
    tracker = track(fake_wandb(where), hang_seconds=1.0)
    append(paths, 1)
    said = reports(tracker, until)
    assert said == ["W&B has not answered for 1 s; training goes on without it"]
    assert tracker.poll() is None
    began = time.monotonic()
    assert tracker.close(0, seconds=600) is None
    assert time.monotonic() - began < LONG
    assert not lives(tracker._process.pid)


def test_tracker_that_hangs_at_the_end_is_ended_in_time(
    paths: RunPaths,
    track: Callable[..., Tracker],
    fake_wandb: Callable[[str], dict[str, str]],
    until: Callable[..., None],
) -> None:
    tracker = track(fake_wandb("log"))
    append(paths, 1)
    until(lambda: paths.wandb_status.exists() and status(paths)["mode"], LONG, "a tracker that has started")
    began = time.monotonic()
    said = tracker.close(0, seconds=0.5)
    assert said is not None and "ended before it had sent everything" in said
    assert time.monotonic() - began < LONG, "it would have taken ten minutes"


def test_second_request_to_stop_does_not_wait_for_wandb(
    paths: RunPaths, track: Callable[..., Tracker], fake_wandb: Callable[[str], dict[str, str]]
) -> None:
    began = time.monotonic()
    said = track(fake_wandb("init")).close(0, seconds=600, hurry=lambda: time.monotonic() - began > 0.5)
    assert time.monotonic() - began < LONG
    assert said == "W&B was ended before it had started: nothing is tracked, metrics.jsonl has it all"


def test_tracker_that_dies_is_reported_once(
    paths: RunPaths,
    track: Callable[..., Tracker],
    fake_wandb: Callable[[str], dict[str, str]],
    until: Callable[..., None],
) -> None:
    tracker = track(fake_wandb("death"))
    said = reports(tracker, until)
    assert "exit code 9" in said[0] and tracker.poll() is None and tracker.close(0, LONG) is None


def test_missing_package_names_what_to_install(
    paths: RunPaths, track: Callable[..., Tracker], fake_wandb: Callable[[str], dict[str, str]]
) -> None:
    said = track(fake_wandb("absence")).close(0, LONG)
    assert said is not None and "pip install 'mosaic-rl[wandb]'" in said


def test_disabled_means_nothing_at_all(paths: RunPaths, track: Callable[..., Tracker]) -> None:
    assert track({"WANDB_MODE": "disabled"}).close(0, LONG) is None
    assert not paths.wandb_status.exists() and not (paths.folder / "wandb").exists()


def test_sigterm_ends_it_after_the_last_row(
    paths: RunPaths, track: Callable[..., Tracker], until: Callable[..., None], server: Server
) -> None:
    tracker = track({"WANDB_MODE": "offline"})
    until(paths.wandb_status.exists, LONG, "wandb.json")
    append(paths, 1, 2)
    os.kill(tracker._process.pid, signal.SIGTERM)
    assert tracker._process.wait(LONG) == 0
    assert uploaded(paths, server) == [(1, 0.5), (2, 1.0)]


def resumed(paths: RunPaths, step: int) -> None:
    with paths.metrics.open("ab") as file:
        file.write(encode_resumed(step))


def test_resumed_run_has_the_whole_curve_without_overlap_or_gap(
    paths: RunPaths, track: Callable[..., Tracker], server: Server, until: Callable[..., None]
) -> None:
    tracker = track({"WANDB_MODE": "offline"})
    append(paths, 1, 2, 3, 4)
    assert tracker.close(0, LONG) is None
    append(paths, 5)  # logged, and never sent: everything was killed in this moment
    tracker = track({"WANDB_MODE": "offline"})
    until(paths.wandb_status.exists, LONG, "wandb.json")
    assert status(paths)["mode"] is None, "the algorithm has not said yet whether it resumes"
    resumed(paths, 3)
    append(paths, 4, 5, 6)
    assert tracker.close(0, LONG) is None
    assert status(paths)["folder"].endswith("run-1-r1")
    curve = [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0), (5, 2.5), (6, 3.0)]
    assert uploaded(paths, server) == curve
    assert [row["_step"] for row in server.history] == list(range(6)), "W&B's own count has no gap either"
    tracker = track({"WANDB_MODE": "offline"})
    resumed(paths, 6)
    append(paths, 7)
    assert tracker.close(0, LONG) is None
    assert status(paths)["folder"].endswith("run-1-r2")
    server.history.clear()
    assert uploaded(paths, server) == [*curve, (7, 3.5)]


def test_resumed_online_run_leaves_the_rows_that_were_taken_back_to_the_earlier_one(
    paths: RunPaths, track: Callable[..., Tracker], server: Server
) -> None:
    online = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url}
    append(paths, 1, 2)
    tracker = track(online, entity="lab")
    resumed(paths, 1)
    append(paths, 2)
    assert tracker.close(0, LONG) is None
    assert status(paths)["run_path"] == "lab/tests/run-1-r1"
    assert [(row["global_step"], row[RETURN]) for row in server.history] == [(1, 0.5), (2, 1.0)]
