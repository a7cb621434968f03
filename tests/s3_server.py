"""A real S3 server (moto's) in a process of its own, on a port that the system chooses."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""
BUCKET = "lab"
VARIABLES = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def serving() -> Iterator[dict[str, str]]:
    """The variables by which clients find the server; the bucket `lab` is there. It ends with the test process."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        env={name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        address = f"http://127.0.0.1:{int(process.stdout.readline())}"
        request = urllib.request.Request(f"{address}/{BUCKET}", method="PUT")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60):
            pass
        # no proxy of the machine stands between the tests and their own server
        yield {**VARIABLES, "AWS_ENDPOINT_URL": address, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
