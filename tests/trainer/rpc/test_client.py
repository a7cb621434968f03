"""The client: runs as objects, other threads and processes, TLS, errors that say what to do."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.errors import ConfigError, NoDaemonError
from mosaic.trainer.rpc.client import Client
from mosaic.trainer.states import State


def test_the_client_of_the_readme(shared: Any) -> None:
    extras = {"episodes": 4}
    run = shared.client.train("tiny", "CartPole-v1", seed=1, extras=extras, learning_rate=0.1).wait(180)
    curve = run.metrics("charts/episodic_return")
    assert curve.values.tolist() == [1.0, 2.0, 3.0, 4.0] and len(curve) == 4
    assert run.info.payload["metadata"]["worker"]["config"]["extras"]["algo_params"] == {"learning_rate": 0.1}
    assert run.state == State.COMPLETED and run.folder.is_dir() and "COMPLETED" in repr(run)
    with pytest.raises(KeyError, match="it has: charts/SPS, "):
        run.metrics("charts/nothing")
    document = run.info.to_json()
    assert document["state"] == "COMPLETED" and document["progress"] == 0.04
    run.delete()


def test_following_a_run_from_its_queue_to_its_end(shared: Any) -> None:
    run = shared.client.train("tiny", "x", extras={"episodes": 5, "pause": 0.05})
    kinds = [event.event for event in run.events(follow=True)]
    assert kinds == ["run_started", *["episode"] * 5, "run_completed"]
    assert [event.seq for event in run.events(from_seq=5)] == [5, 6]


def test_waiting_ends_with_the_time_that_was_given(shared: Any) -> None:
    run = shared.client.train("tiny", "x", extras={"episodes": 100_000, "pause": 0.05})
    with pytest.raises(TimeoutError, match=f"run {run.run_id} is"):
        run.wait(0.5)
    run.cancel()
    assert run.wait(180).info.state == State.CANCELLED


def test_resuming_and_evaluating_are_submissions_like_others(shared: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-run"):
        shared.client.resume("no-such-run", additional_timesteps=100)
    with pytest.raises(ConfigError, match="is not there"):
        shared.client.evaluate(str(tmp_path / "missing.cleanrl_model"), eval_episodes=2)


def test_relative_scripts_mean_this_process_folder(
    shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("print('hello')\n")
    run = shared.client.train("mine.py", "CartPole-v1", total_timesteps=1)
    assert run.info.algo == str(tmp_path / "mine.py")
    assert run.wait(180).info.state == State.COMPLETED


def test_importing_mosaic_or_its_client_name_costs_no_grpc(environment: dict[str, str]) -> None:
    code = "import sys, mosaic; assert 'grpc' not in sys.modules; from mosaic import Client; print(Client.__name__)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout == b"Client\n"
    assert subprocess.run(
        [sys.executable, "-c", "from mosaic import Clint"], env=environment, capture_output=True
    ).returncode


def test_a_daemon_with_tls_is_reached_with_its_certificate_only(daemon: Any, tmp_path: Path) -> None:
    daemon.stop()
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    daemon.start("--listen", "127.0.0.1:0", "--tls-cert", str(certificate), "--tls-key", str(key))
    assert daemon.client.health()["home"] == str(daemon.home)
    address = daemon.client.address
    assert address.ca == str(certificate) and address.is_private
    with Client(address.target, token=address.token) as plain, pytest.raises(NoDaemonError):
        plain.health()
    with pytest.raises(ConfigError, match="cannot be read"):
        Client(address.target, token=address.token, ca=str(tmp_path / "none.pem"))
