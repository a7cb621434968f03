import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker import cli
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.runtime import CleanRLWorkerRuntime
from mosaic.contract.errors import StorageError

FLAT = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 10000}
DRY = ("--dry-run", "--emit-summary")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MOSAIC_RUN_ID", "TRACK_TENSORBOARD", "TRACK_WANDB", "CLEANRL_NUM_ENVS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worker_config.json").write_text(json.dumps(FLAT))
    return tmp_path


def summary(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """What a dry run of the flat config prints."""
    assert cli.main(["--config", "./worker_config.json", *DRY, *flags]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    before = sorted(Path.cwd().rglob("*"))
    assert cli.main(list(flags)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cleanrl-worker: ") and err.count("\n") == 1
    assert sorted(Path.cwd().rglob("*")) == before
    return err


def run_cli(*flags: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options.pop("python", ()), "-m", "cleanrl_worker.cli", *flags]
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_operators_dry_run_prints_the_summary_and_writes_nothing(home: Path) -> None:
    done = run_cli("--config", "./worker_config.json", *DRY)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert list(found) == ["status", "module", "callable", "argv", "config", "extras", "warnings", "needs"]
    assert (found["status"], found["module"]) == ("dry-run", "cleanrl_worker.algorithms.ppo")
    assert found["callable"] == "main"
    assert found["argv"][:3] == ["--env-id=CartPole-v1", "--total-timesteps=10000", "--seed=1"]
    assert found["config"].items() >= FLAT.items()
    assert os.listdir(home) == ["worker_config.json"]


def test_operators_algo_params_become_flags(capsys: pytest.CaptureFixture[str]) -> None:
    given = '{"algo_params": {"num_envs": 8, "learning_rate": 0.0003, "gamma": 0.99}}'
    found = summary(capsys, "--extras", given)
    assert found["argv"][4:] == ["--num-envs=8", "--learning-rate=0.0003", "--gamma=0.99"]
    assert found["extras"] == json.loads(given)


def test_operators_registration_extras_stay_with_the_worker(capsys: pytest.CaptureFixture[str]) -> None:
    given = '{"supports_pause": true, "supports_checkpoint": true, "schema_version": 2}'
    found = summary(capsys, "--extras", given)
    assert found["extras"] == json.loads(given)
    assert len(found["argv"]) == 4


def test_operators_nested_payload_is_taken(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    payload = {
        "run_name": "first",
        "entry_point": "python",
        "arguments": ["-m", "cleanrl_worker.cli"],
        "environment": {"WANDB_API_KEY": "s3cret"},
        "resources": {"cpus": 1, "memory_mb": 512, "gpus": {"requested": 0, "mandatory": False}},
        "metadata": {
            "ui": {"agent_id": "a"},
            "worker": {"worker_id": "w", "module": "cleanrl_worker.cli", "config": {**FLAT, "run_id": "run-7"}},
        },
    }
    (home / "worker_config.json").write_text(json.dumps(payload))
    found = summary(capsys)
    assert (found["config"]["run_id"], found["config"]["worker_id"]) == ("run-7", "w")
    assert found["extras"] == {"agent_id": "a"}
    assert "s3cret" not in json.dumps(found)


def test_secrets_are_masked_in_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    found = summary(capsys, "--extras", '{"wandb_https_proxy": "http://me:s3cret@proxy:1"}')
    assert "s3cret" not in json.dumps(found)


def test_command_line_wins_over_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--algo", "dqn", "--env-id", "Acrobot-v1", "--total-timesteps", "7", "--seed", "0", "--worker-id", "w")
    found = summary(capsys, *flags)
    assert found["module"] == "cleanrl_worker.algorithms.dqn"
    assert found["argv"][:3] == ["--env-id=Acrobot-v1", "--total-timesteps=7", "--seed=0"]
    assert found["config"]["worker_id"] == "w"


def test_dry_run_without_summary_says_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--config", "worker_config.json", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "this would run cleanrl_worker.algorithms.ppo --env-id=CartPole-v1" in err


def test_dry_run_without_summary_shows_the_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--config", "worker_config.json", "--dry-run", "--algo", "cleanrl.ppo"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "warning: module 'cleanrl.ppo' is not installed" in lines[0]
    assert "this would run" in lines[1]


def test_dry_run_imports_nothing_heavy() -> None:
    done = run_cli("--config", "worker_config.json", *DRY, python=("-X", "importtime"))
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert not imported & {"torch", "jax", "gymnasium", "numpy", "pydantic", "grpc", "tensorboard", "wandb", "tyro"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--algo", "ppoo"), "unknown algo 'ppoo'; did you mean 'ppo'?"),
        (("--algo", "no_such.module"), "module 'no_such.module' cannot be found"),
        (("--algo", "my.py"), "script 'my.py' is not there"),
        (("--env-id", "CartPol-v1"), "did you mean 'CartPole-v1'?"),
        (
            ("--env-id", "Pendulum-v1"),
            "use ppo_continuous_action, rpo_continuous_action, ",
        ),
        (("--env-id", "ALE/Pong-v5"), "use ppo_atari, "),
        (("--algo", "dqn", "--env-id", "MiniGrid-Empty-5x5-v0"), "gives grid ones; use ppo"),
        (("--algo", "ppo_atari_envpool"), "is for atari and image-games environments only"),
        (("--extras", '{"num_envs": 0}'), "extras.num_envs: 1 or more is needed, not 0 (default 4)"),
        (("--total-timesteps", "0"), "total_timesteps is 0"),
        (("--total-timesteps", "many"), "--total-timesteps"),
        (("--seed", "-1"), "seed: a whole number"),
        (("--extras", "{"), "--extras: no valid JSON"),
        (("--extras", "[1]"), "--extras: a JSON object is needed"),
        (("--extras", '{"algo_params": {"gama": 1}}'), "did you mean 'gamma'?"),
        (("--extras", '{"algo_params": {"gamma": "x"}}'), "a number is needed"),
        (("--extras", '{"mode": "policy_eval"}'), "needs extras.policy_path"),
        (("--extras", '{"mode": "policy_eval", "policy_path": "gone"}'), "'gone' is not there"),
        (("--extras", '{"checkpoint_path": "gone"}'), "'gone' is not there"),
        (("--extras", '{"curriculum": {"a": 1}}'), "extras.curriculum: unknown key 'a'"),
        (("--extras", '{"tensorboard_dir": "../.."}'), "leads out of the run folder"),
        (("--run-id", "x"), "--run-id and --policy-path go with --interactive"),
        (("--policy-path", "x"), "--run-id and --policy-path go with --interactive"),
        (("--interactive", "--policy-path", "x"), "extras.policy_path: 'x' is not there"),
        (("--interactive", "--env-id", "CartPole-v9"), "did you mean 'CartPole-v1'?"),
        (("--interactive", "--run-id", "../x"), "run id"),
        (("--extras", '{"mode": "interactive"}'), "mode 'interactive' goes with --interactive"),
        (("--json",), "--json goes with --list"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--config", "none.json"), "config none.json: cannot be read"),
    ],
)
@pytest.mark.parametrize("dry", [DRY, ()], ids=["dry", "real"])
def test_what_is_refused_exits_2_with_one_line_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str, dry: tuple[str, ...]
) -> None:
    assert message in refusal(capsys, "--config", "worker_config.json", *dry, *flags)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "no valid JSON"),
        ('{"algo": "ppo",}', "no valid JSON"),
        ("[]", "a JSON object is needed"),
        ("{}", "metadata.worker.config: missing|is missing"),
        (json.dumps({**FLAT, "run_id": "../x"}), "run id '../x' is refused"),
        (json.dumps({**FLAT, "env_id": None}), "'env_id' is missing"),
        (json.dumps({**FLAT, "total_timesteps": "x"}), "total_timesteps: a whole number from"),
        (json.dumps({"metadata": {"worker": {"config": {}}}}), "'algo' is missing"),
        (json.dumps({"metadata": {"worker": {"config": FLAT}}, "retry": 3}), "retry"),
    ],
)
def test_config_that_is_refused_exits_2_with_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], document: str, message: str
) -> None:
    (home / "worker_config.json").write_text(document)
    line = refusal(capsys, "--config", "worker_config.json")
    assert any(part in line for part in message.split("|"))


def test_config_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--config PATH is needed" in refusal(capsys)


def test_list_prints_every_algorithm_and_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list"]) == 0
    text = capsys.readouterr().out
    for name in DEFAULT_ALGO_REGISTRY:
        assert f"\n{name} (" in f"\n{text}"
    assert "    learning_rate (float, default " in text


def test_list_as_json_is_the_schema() -> None:
    done = run_cli("--list", "--json", python=("-X", "importtime"))
    found = json.loads(done.stdout)
    assert list(found) == list(DEFAULT_ALGO_REGISTRY)
    field = found["ppo"]["fields"][0]
    assert set(field) == {"name", "type", "default", "optional", "choices", "help", "limits"}
    assert not any(line.rpartition("|")[2].strip() in ("torch", "gymnasium") for line in done.stderr.splitlines())


def test_reader_that_leaves_early_gets_no_traceback() -> None:
    done = subprocess.run(f"{sys.executable} -m cleanrl_worker.cli --list | head -n 1", shell=True, capture_output=True)
    assert done.stderr == b""


@pytest.mark.parametrize(("returncode", "code"), [(3, 3), (75, 75), (-signal.SIGKILL, 137), (-signal.SIGTERM, 143)])
def test_exit_code_of_the_algorithm_is_passed_on(monkeypatch: pytest.MonkeyPatch, returncode: int, code: int) -> None:
    def fail(_: CleanRLWorkerRuntime) -> None:
        raise subprocess.CalledProcessError(returncode, "ppo")

    monkeypatch.setattr(CleanRLWorkerRuntime, "run", fail)
    assert cli.main(["--config", "worker_config.json"]) == code


def test_trouble_with_the_disk_is_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: CleanRLWorkerRuntime) -> None:
        raise StorageError("cannot write x: disk full")

    monkeypatch.setattr(CleanRLWorkerRuntime, "run", fail)
    assert cli.main(["--config", "worker_config.json"]) == 1
    assert capsys.readouterr().err == "cleanrl-worker: cannot write x: disk full\n"


def test_script_of_the_users_own_runs_and_its_exit_code_comes_out(home: Path) -> None:
    (home / "mine.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(5)\n")
    done = run_cli("--config", "worker_config.json", "--algo", "mine.py")
    assert done.returncode == 5, done.stderr
    (home / "mine.py").write_text("print('fine')\n")
    done = run_cli("--config", "worker_config.json", "--algo", "mine.py", "--emit-summary")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "completed"
