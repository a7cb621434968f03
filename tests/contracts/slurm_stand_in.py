"""sbatch, squeue and scancel in a few lines: each batch script really runs, as a process of this machine.

Installed under those three names in a folder on PATH; the folder in SLURM_STAND_IN holds the jobs. `preempt ID` does
what a scheduler does to make room: the job is killed and put back into the queue.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

JOBS = Path(os.environ["SLURM_STAND_IN"])


def sbatch(words):
    options = dict(word[2:].partition("=")[::2] for word in words)
    for needed in ("parsable", "requeue", "signal", "open-mode", "job-name", "output"):
        assert needed in options, needed
    if options.get("partition") == "nowhere":
        print("sbatch: error: invalid partition specified: nowhere", file=sys.stderr)
        return 1
    number = 1
    while True:
        try:
            (JOBS / str(number)).mkdir(parents=True)
            break
        except FileExistsError:
            number += 1
    folder = JOBS / str(number)
    (folder / "script").write_text(sys.stdin.read())
    (folder / "options").write_text("\n".join(words))
    put(folder, name=options["job-name"], output=options["output"].replace("%j", str(number)), state="PENDING")
    if not (JOBS / "hold").exists():
        launch(folder)
    print(number)
    return 0


def launch(folder):
    subprocess.Popen(
        [sys.executable, __file__, "_run", folder.name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def run(folder):
    with open(get(folder, "output"), "ab") as log:
        environment = {**os.environ, "SLURM_JOB_ID": folder.name, "SLURM_RESTART_COUNT": get(folder, "restarts") or "0"}
        job = subprocess.Popen(
            ["bash", str(folder / "script")], stdout=log, stderr=log, env=environment, start_new_session=True
        )
    put(folder, pid=job.pid, state="RUNNING", start=time.strftime("%Y-%m-%dT%H:%M:%S"))
    code = job.wait()
    put(folder, end=time.strftime("%Y-%m-%dT%H:%M:%S"), code=f"{code}:0" if code >= 0 else f"0:{-code}")
    if (folder / "preempted").exists():
        put(folder, restarts=int(get(folder, "restarts") or 0) + 1, state="PENDING")
    else:
        put(folder, state="COMPLETED" if code == 0 else "CANCELLED" if (folder / "cancelled").exists() else "FAILED")
    return 0


def squeue(words):
    for folder in JOBS.glob("*/state"):
        folder = folder.parent
        names = ("name", "state", "node", "start", "end", "code", "restarts", "reason")
        print(
            "|".join(
                [
                    folder.name,
                    *(get(folder, name) or {"node": "here", "restarts": "0"}.get(name, "") for name in names),
                    "",
                ]
            )
        )
    return 0


def scancel(words):
    folder = JOBS / words[-1]
    options = dict(word[2:].partition("=")[::2] for word in words[:-1])
    state = get(folder, "state")
    if state == "PENDING":
        put(folder, state="CANCELLED")
    elif state == "RUNNING" and options.get("state") != "PENDING":
        number = signal.SIGTERM if options.get("signal", "TERM") == "TERM" else signal.SIGKILL
        if "signal" not in options:
            (folder / "cancelled").touch()
        try:
            (os.kill if "batch" in options else os.killpg)(int(get(folder, "pid")), number)
        except ProcessLookupError:
            pass
    return 0


def preempt(words):
    folder = JOBS / words[-1]
    (folder / "preempted").touch()
    os.killpg(int(get(folder, "pid")), signal.SIGKILL)
    return 0


def put(folder, **values):
    for name, value in values.items():
        beside = folder / f".{name}.{os.getpid()}"
        beside.write_text(str(value))
        beside.replace(folder / name)


def get(folder, name):
    try:
        return (folder / name).read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    called = Path(sys.argv[0]).name
    if sys.argv[1:2] == ["_run"]:
        sys.exit(run(JOBS / sys.argv[2]))
    sys.exit({"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "preempt": preempt}[called](sys.argv[1:]))
