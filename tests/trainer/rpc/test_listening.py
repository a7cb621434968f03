"""The daemon's listening address: a taken port is refused in one line, without gRPC's own log."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mosaic.contract.errors import ConfigError
from mosaic.trainer.rpc.listening import Listening


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_taken_port_is_one_line(host: str, environment: dict[str, str], home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        target = f"{host}:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "mosaic.cli", "daemon", "--insecure-listen", "--listen", target]
        done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=180)
    expected = f"mosaic: cannot listen on {target}: another program has it; choose another with --listen\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_an_address_that_this_machine_lacks_is_one_line(host: str, environment: dict[str, str], home: Path) -> None:
    command = [sys.executable, "-m", "mosaic.trainer.daemon", "--insecure-listen", "--listen", f"{host}:50055"]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=180)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"mosaic: cannot listen on {host}:50055: ")


def test_an_unencrypted_port_for_others_must_be_asked_for() -> None:
    Listening("[::1]:0").check()
    with pytest.raises(ConfigError, match="--insecure-listen"):
        Listening("0.0.0.0:1").check()
