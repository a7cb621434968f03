"""The `mosaic` command, in this process for its words and as a real process for its signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic import cli
from mosaic.wire.errors import ConfigError
from mosaic.wire.workers import WorkerCapabilities

# A worker that says what its algorithm's name tells it to; the real one is met at the end of this file.
STUB = """
import json, sys, time
config = json.load(open(sys.argv[sys.argv.index("--config") + 1]))
seq = 0
def say(event, **payload):
    global seq
    line = {"event": event, "run_id": config["run_id"], "seq": seq, "timestamp": time.time(), "payload": payload}
    print(json.dumps(line), flush=True)
    seq += 1
if config["algo"] == "refuses":
    print("seed: a whole number is needed", file=sys.stderr)
    sys.exit(2)
say("run_started", seed=config.get("seed", 11), algo=config["algo"])
print("not an event", flush=True)
if config["algo"] == "vanishes":
    print("no space left", file=sys.stderr)
    sys.exit(70)
for step in range(100):
    say("episode", step=10 * step, **{"return": 500.0}, length=10)
say("metrics", step=1000, **{"charts/SPS": 2000.0})
if config["algo"] == "fails":
    say("run_failed", exit_code=3, signal=None, hint="try less", stderr_tail=["ValueError: no"])
    sys.exit(3)
say("run_completed", manifest={})
"""


def schema() -> dict[str, Any]:
    rows = [
        ("total_timesteps", "int", 1000, None, "steps"),
        ("gamma", "float", 0.99, None, "the discount"),
        ("network", "str", "a", ["a", "b"], "which"),
    ]
    fields = [
        {"name": name, "type": kind, "default": default, "optional": False, "choices": choices, "help": text}
        for name, kind, default, choices, text in rows
    ]
    entry = {"module": "m", "doc": "An algorithm.", "action_spaces": ["discrete"], "fields": fields}
    return dict.fromkeys(("learns", "fails", "refuses", "vanishes"), entry)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "stub.py"
    script.write_text(STUB)
    worker = WorkerCapabilities(
        worker_type="stub",
        label="Stub",
        supported_paradigms=("sequential",),
        env_families=("gymnasium",),
        action_spaces=("discrete",),
        observation_spaces=("vector",),
        command=(sys.executable, str(script)),
        schema=schema,
    )
    monkeypatch.setattr(cli, "discover_workers", lambda: ({"stub": worker}, ["worker plug-in 'x' is left out: broken"]))
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def configs(home: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted((home / "var/trainer/configs").glob(pattern))]


def test_completed_run_exits_0_and_ends_with_one_summary_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "learns", "CartPole-v1"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "completed (seed 11): mean return of the last 100 episodes 500 (solved: the threshold is 475)"
    )
    assert "1,000 steps in" in last
    assert "2,000 steps/s" in last and "home/var/trainer/runs/" in last


def test_config_is_written_for_the_worker_and_for_the_record(home: Path) -> None:
    line = "train learns CartPole-v1 --set gamma=0.9 --set total_timesteps=77 --set seed=0 --set track_wandb=true"
    assert cli.main([*line.split(), "--set", "network=b"]) == 0
    assert cli.main(["train", "learns", "CartPole-v1"]) == 0
    first, second = configs(home, "worker-*.json")
    assert configs(home, "config-*.json") == [first, second]
    assert {key: value for key, value in first.items() if key != "run_id"} == {
        "algo": "learns",
        "env_id": "CartPole-v1",
        "total_timesteps": 77,
        "seed": 0,
        "extras": {"track_wandb": True, "algo_params": {"gamma": 0.9, "network": "b"}},
    }
    assert "seed" not in second and second["total_timesteps"] == 1000
    slots = sorted(file.stem.rpartition("-")[2] for file in (home / "var/trainer/configs").glob("worker-*.json"))
    assert slots == ["1", "2"]


def test_failed_run_exits_1_with_reason_hint_and_stderr(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "fails", "CartPole-v1"]) == 1
    out = capsys.readouterr().out
    for part in ("failed: the algorithm ended with exit code 3", "hint: try less", "ValueError: no"):
        assert part in out


def test_worker_that_ends_without_a_closing_event_is_a_failure(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "vanishes", "CartPole-v1"]) == 1
    out = capsys.readouterr().out
    assert "exit code 70 and no closing event" in out and "no space left" in out


def test_refused_config_exits_2_with_the_workers_line_and_leaves_no_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "refuses", "CartPole-v1"]) == 2
    assert capsys.readouterr().err == "mosaic: seed: a whole number is needed\n"
    assert configs(home, "*.json") == []


def test_unknown_algo_names_the_nearest(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "lerns", "CartPole-v1"]) == 2
    expected = "mosaic: unknown algo 'lerns'; did you mean 'learns'? List them with: mosaic algos\n"
    assert capsys.readouterr().err == expected


def test_no_worker_says_why(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "discover_workers", lambda: ({}, ["plug-in 'x' is left out"]))
    assert cli.main(["train", "learns", "CartPole-v1"]) == 1
    assert "no worker is installed; plug-in 'x' is left out" in capsys.readouterr().err


def test_worker_that_cannot_be_started_is_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home.parent / "home").write_text("a file, not a folder")
    assert cli.main(["train", "learns", "CartPole-v1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("mosaic: cannot write ") and error.count("\n") == 1


def test_several_seeds_run_one_after_the_other_and_are_summed_up(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "learns", "CartPole-v1", "--seeds", "3-5"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 of 3 runs completed: mean return 500, from 500 to 500"
    assert [config["seed"] for config in configs(home, "config-*.json")] == [3, 4, 5]


def test_json_is_one_document_on_stdout_and_the_view_goes_to_stderr(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "learns", "CartPole-v1", "--json", "--follow"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["state"], found["seed"], found["step"], found["solved"]) == ("COMPLETED", 11, 1000, True)
    assert found["run_id"] in found["folder"] and "completed (seed 11):" in captured.err
    assert cli.main(["train", "fails", "CartPole-v1", "--seeds", "1,2", "--json"]) == 1
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["state"] for run in runs] == ["FAILED"] and "exit code 3" in runs[0]["reason"]


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("gamma=0.9", ("gamma", 0.9)),
        ("num-envs=8", ("num_envs", 8)),
        ("--learning-rate=1e-3", ("learning_rate", 0.001)),
        ("cuda=False", ("cuda", False)),
        ("target_kl=null", ("target_kl", None)),
        ("name=a=b", ("name", "a=b")),
        ("sizes=[64, 64]", ("sizes", [64, 64])),
        ("extras.notes=first try", ("extras.notes", "first try")),
    ],
)
def test_set_reads_json_where_it_can(text: str, pair: tuple[str, Any]) -> None:
    assert cli.parse_setting(text) == pair


@pytest.mark.parametrize("text", ["gamma", "=1", "wandb_api_key=abc"])
def test_set_refuses_what_is_no_pair_and_what_is_a_secret(text: str) -> None:
    with pytest.raises(ConfigError):
        cli.parse_setting(text)


@pytest.mark.parametrize(("text", "seeds"), [("1-3", [1, 2, 3]), ("7", [7]), ("1, 4-5", [1, 4, 5]), ("0-0", [0])])
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert cli.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["a", "3-1", "1-", "-1", "1,1", "1..3", ","])
def test_seeds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds"):
        cli.parse_seeds(text)


def test_seed_given_twice_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "learns", "CartPole-v1", "--seeds", "1-2", "--set", "seed=1"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_own_script_needs_a_budget_and_gets_every_setting_as_a_parameter(home: Path) -> None:
    line = ["train", "my_ppo.py", "CartPole-v1", "--set", "foo=1", "--set", "extras.python=/usr/bin/python3"]
    assert cli.main(line) == 2
    assert cli.main([*line, "--set", "total_timesteps=10"]) == 0
    (config,) = configs(home, "config-*.json")
    assert config["algo"] == str(Path.cwd() / "my_ppo.py")
    assert config["extras"] == {"python": "/usr/bin/python3", "algo_params": {"foo": 1}}


def test_frames_of_an_atari_run_replace_the_default_budget() -> None:
    args = cli.parser().parse_args(["train", "ppo_atari", "Pong-v5", "--set", "total_frames=4000"])
    (config,) = cli.build_configs(args, schema()["learns"])
    assert "total_timesteps" not in config and config["extras"] == {"total_frames": 4000}


@pytest.mark.parametrize(
    ("env_id", "threshold"),
    [("CartPole-v1", 475.0), ("Acrobot-v1", -100.0), ("LunarLander-v3", 200.0), ("Pendulum-v1", None), ("My-v0", None)],
)
def test_threshold_is_the_one_the_catalog_tells(env_id: str, threshold: float | None) -> None:
    assert cli.reward_threshold(env_id) == threshold


def test_algos_lists_names_and_one_algorithms_parameters(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["algos"]) == 0
    captured = capsys.readouterr()
    assert "learns" in captured.out and "left out: broken" in captured.err
    assert cli.main(["algos", "learns"]) == 0
    out = capsys.readouterr().out
    assert "gamma" in out and "0.99" in out and "the discount" in out and "a | b" in out
    assert cli.main(["algos", "learns", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["worker"] == "stub" and [field["name"] for field in found["fields"]][1] == "gamma"
    assert cli.main(["algos", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["algos"]) == set(schema())
    assert cli.main(["algos", "lern"]) == 2


def test_envs_lists_families_groups_and_single_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["envs"]) == 0
    assert "minigrid" in capsys.readouterr().out
    assert cli.main(["envs", "classic-control"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out
    assert cli.main(["envs", "atari", "--json"]) == 0
    ids = [entry["env_id"] for entry in json.loads(capsys.readouterr().out)["environments"]]
    assert "ALE/Pong-v5" in ids
    assert cli.main(["envs", "CartPole-v1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["environments"][0]["action_space"] == "discrete"
    assert cli.main(["envs", "--json"]) == 0
    families = json.loads(capsys.readouterr().out)["families"]
    assert {"gymnasium", "mujoco"} <= {family["name"] for family in families}
    assert cli.main(["envs", "atary"]) == 2
    assert "did you mean 'atari'?" in capsys.readouterr().err


def mosaic(*words: str, home: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mosaic.cli", *words]
    environment = {**os.environ, "MOSAIC_HOME": str(home)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **{**pipes, **options})


def test_lists_need_neither_torch_nor_gymnasium(tmp_path: Path) -> None:
    code = (
        "import sys; from mosaic import cli; cli.main(['algos']); cli.main(['envs']); "
        "print(sorted({'torch', 'jax', 'gymnasium', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_list_cut_by_head_ends_quietly(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m mosaic.cli envs atari | head -1", shell=True, capture_output=True, text=True, check=True
    )
    assert done.stderr == "" and done.stdout.startswith("environment")


def test_real_worker_trains_and_leaves_its_run_folder(tmp_path: Path) -> None:
    run = mosaic("train", "ppo", "CartPole-v1", "--set", "total_timesteps=2048", "--set", "seed=1", home=tmp_path)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, out + err
    assert out.splitlines()[-1].startswith("completed (seed 1): mean return of the last ")
    (folder,) = (tmp_path / "var/trainer/runs").iterdir()
    assert (folder / "metrics.jsonl").is_file() and (folder / "logs/worker.jsonl").is_file()


def test_real_worker_refuses_a_misspelt_parameter(tmp_path: Path) -> None:
    run = mosaic("train", "ppo", "CartPole-v1", "--set", "learning_rat=1", home=tmp_path)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 2 and "did you mean 'learning_rate'" in err and err.count("\n") == 1
    assert not (tmp_path / "var/trainer/runs").exists()


def test_interrupt_is_passed_on_gently_and_said(tmp_path: Path) -> None:
    run = mosaic("train", "ppo", "CartPole-v1", "--set", "total_timesteps=100000000", home=tmp_path)
    assert run.stdout is not None
    first = run.stdout.readline()
    assert "of 100,000,000 steps" in first
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 1, out + err
    assert "Stopping: asked the run to end." in out and "stopped at step" in out
    wait_until_gone(tmp_path)


def wait_until_gone(home: Path) -> None:
    """No process that was started for this home lives on."""
    for _ in range(50):
        lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        alive = [line for line in lines if str(home) in line]
        if not alive:
            return
        time.sleep(0.1)
    raise AssertionError(alive)
