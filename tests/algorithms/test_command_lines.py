"""Command lines that CleanRL's users know: our files accept the flags that CleanRL's accept."""

import functools
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import tiny_envs
from needs import needed

from cleanrl_worker.learn import teachers
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run.args import parse, require
from mosaic.contract import metrics
from mosaic.contract.checkpoints import read_finished

# Flags of the lines that CleanRL's own tests run (facts; their versions of 2025), one row for each script.
_IMAGES = "--learning-starts 10 --total-timesteps 16 --buffer-size 10 --batch-size 4"
_LESSON = f"{_IMAGES} --teacher-steps 16 --offline-steps 16 --teacher-eval-episodes 1"
_FLAT = "--learning-starts 200 --total-timesteps 205"
_HOPPER = "--env-id Hopper-v4 --learning-starts 100 --batch-size 32 --total-timesteps 105"
_ROLLOUT = "--num-envs 1 --num-steps 64 --total-timesteps 256"
_BALANCE = "--env-id dm_control/cartpole-balance-v0 --num-envs 1 --num-steps 64 --total-timesteps 128"
_POOL = "--num-envs 8 --num-steps 32 --total-timesteps 256"
_XLA = "--num-envs 8 --num-steps 6 --update-epochs 1 --num-minibatches 1 --total-timesteps 256"
_SCRIPTS: dict[str, tuple[str, ...]] = {
    "ppo": (_ROLLOUT,),
    "ppo_atari": (_ROLLOUT,),
    "ppo_atari_lstm": ("--num-envs 4 --num-steps 64 --total-timesteps 256",),
    "ppo_atari_multigpu": (_POOL,),
    "ppo_atari_envpool": (_POOL,),
    "ppo_rnd_envpool": (f"{_POOL} --num-iterations-obs-norm-init 1",),
    "ppo_atari_envpool_xla_jax": (_XLA,),
    "ppo_atari_envpool_xla_jax_scan": (_XLA, f"--save-model {_XLA}"),
    "ppo_pettingzoo_ma_atari": ("--num-steps 32 --num-envs 6 --total-timesteps 256",),
    "ppo_procgen": (f"{_ROLLOUT} --num-minibatches 2",),
    "ppg_procgen": (f"{_ROLLOUT} --num-minibatches 2 --n-iteration 1",),
    **{
        name: (f"--env-id Hopper-v4 {_ROLLOUT}".replace("256", "128"), _BALANCE)
        for name in ("ppo_continuous_action", "rpo_continuous_action")
    },
    "sac_continuous_action": ("--env-id Hopper-v4 --batch-size 128 --total-timesteps 135",),
    **dict.fromkeys(("td3_continuous_action", "td3_continuous_action_jax"), (_HOPPER,)),
    **dict.fromkeys(("ddpg_continuous_action", "ddpg_continuous_action_jax"), (_HOPPER, f"--save-model {_HOPPER}")),
    **dict.fromkeys(("dqn", "dqn_jax"), (_FLAT,)),
    **dict.fromkeys(("c51", "c51_jax"), (_FLAT, f"--save-model {_FLAT}")),
    **dict.fromkeys(
        ("dqn_atari", "dqn_atari_jax", "c51_atari", "c51_atari_jax", "rainbow_atari"),
        (_IMAGES, f"--save-model {_IMAGES}"),
    ),
    "sac_atari": (_IMAGES,),
    **dict.fromkeys(
        ("qdagger_dqn_atari_impalacnn", "qdagger_dqn_atari_jax_impalacnn"), (_LESSON, f"--save-model {_LESSON}")
    ),
}
LINES = [(name, flags) for name, rows in _SCRIPTS.items() for flags in rows]
tiny_envs.register()
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc_per_node=2")
TEACHERS = ("qdagger_dqn_atari_impalacnn", "qdagger_dqn_atari_jax_impalacnn")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """The address of a stand-in for the Hugging Face hub; every repository holds the same teacher, of four actions."""
    serve = functools.partial(_Hub, content=Path(tiny_envs.small_lesson(actions=4)["teacher_policy_path"]).read_bytes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), serve)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class _Hub(BaseHTTPRequestHandler):
    """Answers the two requests of `hf_hub_download`."""

    def __init__(self, *given: object, content: bytes) -> None:
        self.content = content
        super().__init__(*given)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self.send_response(200)
        for name, value in {"ETag": '"1"', "X-Repo-Commit": "0" * 40, "Content-Length": len(self.content)}.items():
            self.send_header(name, str(value))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None: ...


def test_there_are_as_many_lines_as_cleanrl_tests() -> None:
    assert len(LINES) == 44 and len({*LINES}) == 44


@pytest.mark.parametrize("name", _SCRIPTS)
def test_the_flags_of_cleanrls_command_lines_are_accepted(name: str) -> None:
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    for flags in _SCRIPTS[name]:
        require(parse(module.Args, flags.split()))


def test_a_flag_that_the_run_computes_has_no_effect_and_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY["ppo_atari_multigpu"])
    args = parse(module.Args, ["--num-envs", "8", "--batch-size=3"])
    require(args)
    assert (args.num_envs, args.batch_size, args.local_num_envs) == (0, 0, 8)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: --batch-size 3 has no effect: the run computes it from other flags")
    assert second.startswith("warning: --num-envs 8 has no effect")


@pytest.mark.parametrize("name", [TEACHERS[0], pytest.param(TEACHERS[1], marks=pytest.mark.full)])
def test_as_many_offline_steps_as_steps_leave_the_student_offline_with_a_warning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The teacher comes from the hub, whose client is replaced at the network's border."""
    teacher = tiny_envs.small_lesson()["teacher_policy_path"]
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repo, _file: {"lab/teacher": teacher}[repo])
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    # a small game, for whose shapes JAX compiles in other tests, too
    flags = [*_LESSON.split(), "--env-id=mosaic/Catch-v0", "--teacher-policy-hf-repo=lab/teacher"]
    flags += ["--no-cuda", "--num-threads=1", f"--run-dir={tmp_path}"]
    module.main(parse(module.Args, flags))
    said = capsys.readouterr()
    assert "leaves no step of --total-timesteps 16 online: the student never plays; CleanRL adds" in said.out + said.err
    rows = metrics.read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if "charts/offline/loss" in row] == [16]


def test_online_steps_need_no_warning() -> None:
    args = importlib.import_module(DEFAULT_ALGO_REGISTRY[TEACHERS[0]]).Args
    assert teachers.only_offline(args(offline_steps=16, total_timesteps=17)) is None
    assert "as --total-timesteps 33 does here" in str(teachers.only_offline(args(offline_steps=17, total_timesteps=16)))


@pytest.mark.full
@pytest.mark.parametrize(("name", "flags"), LINES, ids=[f"{name} {flags[:12].strip()}" for name, flags in LINES])
def test_cleanrls_command_lines_run(
    name: str, flags: str, hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(name)
    monkeypatch.setenv("HF_ENDPOINT", hub)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    launch = TORCHRUN if "multigpu" in name else ()
    command = [sys.executable, *launch, "-m", DEFAULT_ALGO_REGISTRY[name], *flags.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_finished(folder / "checkpoints")  # sixteen steps log no row
    assert ("--save-model" in flags) == (folder / f"{name}.cleanrl_model").is_file()


def test_a_line_without_network_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> Callable[..., Path]:
        raise OSError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[TEACHERS[0]])
    with pytest.raises(
        SystemExit, match=r"no teacher from the hub \(cleanrl/.*service not known; .*--teacher-policy-path"
    ):
        teachers.load_teacher(parse(module.Args, _LESSON.split()), dict)
