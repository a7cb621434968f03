"""resume, eval, script: what they take, and what the daemon is given."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.checkpoints import write_checkpoint
from mosaic.trainer.rpc.client import Client


def config_of(client: Client, told: Any) -> dict[str, Any]:
    run_id = told.out.split()[1].rstrip(":")
    return dict(client.get_run(run_id).payload["metadata"]["worker"]["config"])


def test_policy_is_trained_resumed_and_evaluated(mosaic: Callable[..., Any], client: Client, place: Any) -> None:
    words = ["--set", "total_timesteps=2048", "--set", "save_model=true", "--set", "seed=3", "--follow"]
    trained = mosaic("train", "ppo", "CartPole-v1", *words)
    assert trained.code == 0, trained
    assert trained.out.splitlines()[-1].startswith("completed (seed 3): return ")
    assert str(place.home / "var/trainer/runs") in trained.out.splitlines()[-1]
    run_id = trained.out.split()[1].rstrip(":")
    resumed = mosaic("resume", run_id[-8:], "--additional-timesteps", "1024", "--set", "gamma=0.98", "--follow")
    assert resumed.code == 0 and "resumed at step" in resumed.out, resumed
    assert config_of(client, resumed)["extras"] == {
        "mode": "resume_training",
        "checkpoint_path": run_id,
        "additional_timesteps": 1024,
        "algo_params": {"gamma": 0.98},
    }
    run = client.get_run(resumed.out.split()[1].rstrip(":"))
    assert run.total_timesteps == run.step == 2048 + 1024 and run.progress == 1.0
    policy = str(Path(client.get_run(run_id).folder) / client.get_run(run_id).artifacts[-1].path)
    warm = mosaic("resume", policy, "--additional-timesteps", "512", "--follow")
    assert warm.code == 0 and client.get_run(warm.out.split()[1].rstrip(":")).total_timesteps == 512, warm
    judged = mosaic("eval", run_id, "--episodes", "3", "--greedy", "--follow")
    assert judged.code == 0 and "mean return of 3 episodes" in judged.out, judged
    extras = config_of(client, judged)["extras"]
    assert extras["eval_greedy"] is True and extras["policy_path"].endswith("/ppo.cleanrl_model")
    assert "eval_capture_video" not in extras


def test_run_without_a_policy_says_how_to_get_one(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    told = mosaic("eval", start(exit=3).run_id)
    assert told.code == 2 and "--set save_model=true" in told.err


def test_best_policy_lies_beside_the_last(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    run = start()
    told = mosaic("eval", run.run_id, "--best")
    assert told.code == 2 and "there is no best policy beside" in told.err and run.run_id in told.err
    folder = Path(run.folder) / "runs/a"
    folder.mkdir(parents=True)
    for name in ("tiny.cleanrl_model", "tiny.best.cleanrl_model"):
        (folder / name).touch()
    for flag, name in (([], "tiny.cleanrl_model"), (["--best"], "tiny.best.cleanrl_model")):
        for source in (run.run_id, run.folder):
            told = mosaic("eval", source, *flag)  # the worker cannot read it; which one it was is what counts
            assert told.code == 2 and f"/runs/a/{name}" in told.err


def test_policy_that_a_worker_left_elsewhere_is_told_in_a_line(
    mosaic: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    run = start(policy="/gone/tiny.cleanrl_model")
    told = mosaic("eval", run.run_id)
    assert told.code == 2 and "as /gone/tiny.cleanrl_model, which is not on this machine; copy it here" in told.err
    assert len(told.err.strip().splitlines()) == 1


def test_path_that_holds_nothing_to_resume_is_refused(mosaic: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "there is no checkpoint in empty" in mosaic("resume", "empty").err
    assert "there is no policy file in empty" in mosaic("eval", "empty").err
    assert "is no policy file" in mosaic("eval", "gone.cleanrl_model").err
    for verb in ("resume", "eval"):
        for name in ("nobody", "", "x" * 300, "~nobody/x"):
            told = mosaic(verb, name)
            assert told.code == 2 and "no run's id is, starts or ends with" in told.err


def test_script_runs_as_one_run_and_one_outside_the_home_is_refused(
    mosaic: Callable[..., Any], client: Client, place: Any, tmp_path: Path
) -> None:
    text = 'test "$MOSAIC_SCRIPT" = 1 && test -f "$MOSAIC_CONFIG_FILE" && exit 5\n'
    (tmp_path / "outside.sh").write_text(text)
    (place.home / "phases.sh").write_text(text)
    outside = mosaic("script", "outside.sh", "tiny", "CartPole-v1")
    assert outside.code == 2 and "lies outside the daemon's home" in outside.err
    told = mosaic("script", "phases.sh", "tiny", "CartPole-v1", "--follow")
    assert told.code == 1 and "exit code 5" in told.out
    run = client.list_runs(mode="script", page_size=1).runs[0]
    assert (run.mode, run.exit_code) == ("script", 5)


def test_scripts_are_listed_with_what_their_headers_say(mosaic: Callable[..., Any], place: Any) -> None:
    (place.home / "mine.sh").write_text("# @description: small rooms first\n# @phases: 2\n# @author: me\ntrue\n")
    told = mosaic("script")
    assert told.code == 0 and "small rooms first" in told.out and "curriculum_doorkey.sh" in told.out
    listed = {
        entry["path"].rpartition("/")[2]: entry for entry in json.loads(mosaic("script", "--json").out)["scripts"]
    }
    door = listed["curriculum_doorkey.sh"]
    assert (door["phases"], door["total_timesteps"], door["shipped"]) == (3, 600000, True)
    assert (listed["mine.sh"]["author"], listed["mine.sh"]["shipped"]) == ("me", False)
    (place.home / "mine.sh").unlink()


def test_nothing_that_a_file_names_is_run_unless_a_person_names_it(
    mosaic: Callable[..., Any], client: Client, place: Any, tmp_path: Path
) -> None:
    mark, known = tmp_path / "it-ran", {run.run_id for run in client.list_runs().runs}
    for folder in (tmp_path, place.home):
        (folder / "evilmod.py").write_text(f"open({str(mark)!r}, 'w')")
    args = {"env_id": "evilmod:X-v0", "seed": 1, "total_timesteps": 100}
    module = write_checkpoint(tmp_path / "module", 5, {"algo": "ppo", "args": args}, {})
    args = args | {"env_id": "CartPole-v1"}
    script = write_checkpoint(tmp_path / "script", 5, {"algo": str(tmp_path / "evilmod.py"), "args": args}, {})
    (tmp_path / "x.cleanrl_model").write_bytes(b"weights")
    (tmp_path / "x.cleanrl_model.json").write_text('{"algo": "ppo", "env_id": "evilmod:X-v0"}')
    for words, line in (
        (
            ("resume", str(module)),
            "names the environment 'evilmod:X-v0', which would import 'evilmod'; add --set env_id=",
        ),
        (
            ("resume", str(script)),
            f"names the algorithm '{tmp_path / 'evilmod.py'}', which is not built in; add --set algo=",
        ),
        (("eval", str(tmp_path / "x.cleanrl_model")), "which would import 'evilmod'; add --set env_id=evilmod:X-v0"),
    ):
        told = mosaic(*words)
        assert told.code == 2 and line in told.err and told.err.count("\n") == 1, told
        assert not mark.exists()
    assert mosaic("resume", str(module), "--set", "env_id=evilmod:X-v0").code == 2 and mark.exists(), "named, it is run"
    states = {run.state for run in client.list_runs().runs if run.run_id not in known}
    assert states <= {"FAILED"}


def test_finished_run_is_resumed_only_with_more_steps(mosaic: Callable[..., Any], client: Client) -> None:
    trained = mosaic("train", "ppo", "CartPole-v1", "--set", "total_timesteps=512", "--follow")
    run_id = trained.out.split()[1].rstrip(":")
    told = mosaic("resume", run_id)
    assert told.code == 2 and told.err.count("\n") == 1, told
    assert f"is done; give more steps: mosaic resume {run_id} --additional-timesteps 100000" in told.err


def test_hostile_policy_is_refused_before_a_run_exists(mosaic: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "x.cleanrl_model").write_bytes(b"no weights")
    (tmp_path / "x.cleanrl_model.json").write_text('{"algo": "ppo", "env_id": "CartPole-v1"}')
    told = mosaic("eval", str(tmp_path / "x.cleanrl_model"))
    assert told.code == 2 and "cannot be read as a policy" in told.err, told
    told = mosaic("resume", str(tmp_path / "x.cleanrl_model"), "--additional-timesteps", "100")
    assert told.code == 2 and "cannot be read as a policy" in told.err, told


SCRIPT = """
import argparse, os, time
import gymnasium, torch

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--total-timesteps", type=int, default=100)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
env = gymnasium.make(args.env_id)
env.reset(seed=args.seed)
layers = (torch.nn.Linear(4, 120), torch.nn.ReLU(), torch.nn.Linear(120, 84), torch.nn.ReLU(), torch.nn.Linear(84, 2))
network = torch.nn.Sequential(*layers)
folder = f"runs/{args.env_id}__my_q__{args.seed}__{int(time.time())}"
os.makedirs(folder)
torch.save({f"PREFIX.{name}": value for name, value in network.state_dict().items()}, f"{folder}/my_q.cleanrl_model")
"""


@pytest.mark.full
def test_a_scripts_policy_is_evaluated_and_trained_further_by_its_runs_id(
    mosaic: Callable[..., Any], client: Client, tmp_path: Path
) -> None:
    for prefix in ("network", "q"):
        (tmp_path / "my_q.py").write_text(SCRIPT.replace("PREFIX", prefix))
        trained = mosaic("train", "./my_q.py", "CartPole-v1", "--set", "total_timesteps=100", "--follow")
        assert trained.code == 0, trained
        run_id = trained.out.split()[1].rstrip(":")
        judged = mosaic("eval", run_id, "--episodes", "3", "--greedy", "--follow")
        if prefix == "q":
            assert judged.code == 2, judged
            assert "fits no algorithm here: no algorithm's network has its keys: q.0.weight, q.0.bias" in judged.err
            continue
        assert judged.code == 0 and "mean return of 3 episodes" in judged.out, judged
        warm = mosaic("resume", run_id, "--additional-timesteps", "300", "--follow")
        assert warm.code == 0, warm
        run = client.get_run(warm.out.split()[1].rstrip(":"))
        assert (run.algo, run.env_id, run.total_timesteps) == ("dqn", "CartPole-v1", 300)
        assert (
            any(event.kind == "resumed" for event in client.events(run.run_id)) if hasattr(client, "events") else True
        )
