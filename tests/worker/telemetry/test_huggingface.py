"""Pushing a policy: a real client, and the hub stubbed at the HTTP border."""

import base64
import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.algorithms import ppo

yaml = pytest.importorskip("yaml")
if importlib.util.find_spec("huggingface_hub") is None:
    pytest.skip("huggingface_hub is not installed", allow_module_level=True)

TINY: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "total_timesteps": 64}


class Hub(ThreadingHTTPServer):
    """Answers as the hub does when a repository is made and a commit of small files is pushed."""

    def __init__(self, broken: bool) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.broken = broken
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.made: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.broken:
            self.answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self.server.made.append(json.loads(body))
            self.answer(200, {"url": f"{self.server.address}/someone/x", "name": "someone/x", "id": "someone/x"})
        elif self.path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
            self.answer(200, {"files": files})
        elif "/commit/" in self.path:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.server.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            commit = {"commitUrl": f"{self.server.address}/someone/x/commit/1", "commitOid": "1" * 40}
            self.answer(200, {**commit, "pullRequestUrl": None, "success": True})
        else:
            self.answer(404, {"error": self.path})

    def do_GET(self) -> None:
        self.answer(401 if self.server.broken else 404, {"error": "Invalid username or password."})

    def answer(self, code: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(broken=getattr(request, "param", False))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


def train(folder: Path, **options: Any) -> dict[str, Any]:
    ppo.main(ppo.Args(run_dir=folder, save_model=True, upload_model=True, cuda=False, **(TINY | options)))
    outcome = json.loads((folder / "hub.json").read_text())
    assert isinstance(outcome, dict)
    return outcome


def test_policy_sidecar_card_and_video_are_pushed(hub: Hub, tmp_path: Path) -> None:
    outcome = train(tmp_path, hf_entity="someone", capture_video=True)
    assert outcome.keys() == {"repository"}, outcome
    assert (hub.made[0]["name"], hub.made[0].get("organization")) == ("CartPole-v1-ppo-seed1", "someone")
    assert hub.files.keys() == {"ppo.cleanrl_model", "ppo.cleanrl_model.json", "README.md", "replay.mp4"}
    assert json.loads(hub.files["ppo.cleanrl_model.json"])["env_id"] == "CartPole-v1"
    card = hub.files["README.md"].decode()
    header = yaml.safe_load(card.split("---")[1])
    assert header["model-index"][0]["results"][0]["metrics"][0]["type"] == "mean_reward"
    assert "10 sampled episodes" in card


@pytest.mark.parametrize("hub", [True], indirect=True)
def test_push_that_fails_is_reported_and_fails_nothing_else(hub: Hub, tmp_path: Path) -> None:
    outcome = train(tmp_path)
    assert "Invalid username or password" in outcome["error"] or "401" in outcome["error"], outcome
    assert list(tmp_path.glob("runs/*/ppo.cleanrl_model"))


def test_upload_without_a_saved_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="needs --save-model"):
        ppo.main(ppo.Args(run_dir=tmp_path, upload_model=True, **TINY))
