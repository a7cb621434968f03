"""Clusters to measure: Ray nodes in a network namespace of their own, and a Slurm of one machine."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil


def enter_namespace() -> None:
    """Start this program anew where the only network is loopback: Ray's nodes then meet nobody else's."""
    if os.environ.get("MOSAIC_BENCH_NAMESPACE"):
        return
    environment = {**os.environ, "MOSAIC_BENCH_NAMESPACE": "1"}
    inner = 'ip link set lo up && exec "$@"'
    command = ["unshare", "-n", "sh", "-c", inner, "sh", sys.executable, *sys.argv]
    sys.exit(subprocess.run(command, env=environment).returncode)


class RayNodes:
    """A head without slots and some nodes with; ended by their own processes, never by `ray stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[psutil.Process] = []
        self.port, self.dashboard = 6379, 8265
        self.address = f"http://127.0.0.1:{self.dashboard}"

    def start(self, nodes: int, cpus: int) -> None:
        timeout = {"RAY_JOB_START_TIMEOUT_SECONDS": "86400"}
        self._node("--head", f"--port={self.port}", "--dashboard-host=127.0.0.1", "--num-cpus=0",
                   f"--dashboard-port={self.dashboard}", f"--temp-dir={self.folder}", **timeout)  # fmt: skip
        self._until(lambda: self._answers() and self._started() == 1)
        for _ in range(nodes):
            self.add(cpus)

    def add(self, cpus: int) -> None:
        """One after the other: two that start together take each other's ports."""
        before = self._started()
        self._node(f"--address=127.0.0.1:{self.port}", f"--num-cpus={cpus}")
        self._until(lambda: self._started() == before + 1)

    def _until(self, happens: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not happens():
            assert time.monotonic() < end, (self.folder / "ray.log").read_text()[-2000:]
            time.sleep(0.25)

    def _started(self) -> int:
        return (self.folder / "ray.log").read_text().count("Ray runtime started")

    def kill(self, node: psutil.Process) -> None:
        """As a power cut: every process of the node at once, the runs on it included."""
        everybody = [node, *node.children(recursive=True)]
        for process in everybody:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def close(self) -> None:
        for node in self.nodes:
            with contextlib.suppress(psutil.Error):
                self.kill(node)

    def _node(self, *words: str, **environment: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *words]
        command.append(f"--dashboard-agent-listen-port={52365 + len(self.nodes)}")
        kept = {**os.environ, "RAY_AUTH_MODE": "disabled", **environment}  # in a namespace that nobody else reaches
        with (self.folder / "ray.log").open("ab") as log:
            started = subprocess.Popen(command, stdout=log, stderr=log, env=kept, start_new_session=True)
        self.nodes.append(psutil.Process(started.pid))

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/api/jobs/", timeout=2):
                return True
        except OSError:
            return False


CONFIG = """
ClusterName=mosaic
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmctldParameters=preempt_send_user_signal
KillWait=20
MinJobAge=300
SlurmdTimeout=30
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=2000 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10
"""


@contextlib.contextmanager
def slurm(cpus: int) -> Iterator[dict[str, str]]:
    """slurmctld and slurmd of this machine (Debian's slurm-wlm and munge); the variables that lead to them."""
    folder = Path(tempfile.mkdtemp(prefix="mosaic-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = os.uname().nodename
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(host=host, folder=folder, cpus=cpus))
    environment = {**os.environ, "SLURM_CONF": str(config)}
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: str) -> None:
        with (folder / f"{command[0]}.out").open("ab") as log:
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))

    try:
        own = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "log-file": "munge.log"}
        own["seed-file"] = "munge.seed"
        run("munged", "--foreground", "--force", *(f"--{name}={folder}/{file}" for name, file in own.items()))
        time.sleep(1)
        run("slurmctld", "-D", "-i", "-f", str(config))
        time.sleep(2)
        run("slurmd", "-D", "-N", host, "-f", str(config))
        end = time.monotonic() + 60
        while "idle" not in subprocess.run(["sinfo", "-h"], env=environment, capture_output=True, text=True).stdout:
            assert time.monotonic() < end, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.5)
        yield environment
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in reversed(started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
