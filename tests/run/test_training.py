"""A run's folder: rows, TensorBoard, W&B, the policy; alone and hosted, and on disks that refuse."""

import json
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanrl_worker.envs.episodes import Episode
from cleanrl_worker.run import policy, training
from cleanrl_worker.run.args import RunArgs
from mosaic.contract import companions, metrics
from mosaic.contract.tensorboard import ScalarReader

RETURN, LENGTH = "charts/episodic_return", "charts/episodic_length"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., training.Run]:
    """Starts a run in an empty current folder, where nobody hosts it and nobody ever logged in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    for name in ("MOSAIC_SHELL_PID", "WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    return lambda **options: training.start(RunArgs(cuda=False, **options))


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch, start: Callable[..., training.Run]) -> None:
    monkeypatch.setenv("MOSAIC_SHELL_PID", str(os.getppid()))


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        found += [(step, tag, value) for _, step, tag, value in ScalarReader(path).read()]
    return found


def as_scalars(rows: list[dict[str, Any]]) -> list[tuple[int, str, float]]:
    """Rows as TensorBoard holds them: one float of 32 bits each."""
    tags = [(row["step"], tag, value) for row in rows for tag, value in row.items() if tag not in ("step", "time")]
    return [(step, tag, float(np.float32(value))) for step, tag, value in tags]


def test_rows_come_in_order_with_numbers_that_json_lacks_as_words(start: Callable[..., training.Run]) -> None:
    run = start(run_dir=Path("mine"))
    began = time.time()
    run.log(4, {"losses/value_loss": 0.5, "losses/explained_variance": math.nan})
    run.log_episodes(6, [Episode(env=1, ret=9.0, length=9), Episode(env=3, ret=-math.inf, length=12)])
    run.log_speed(8)
    run.log(8, {"losses/q": np.float32(0.25), "charts/k": math.inf})  # type: ignore[dict-item]
    lines = Path("mine/metrics.jsonl").read_bytes().splitlines()
    run.finish(8)
    raw = [json.loads(line) for line in lines]
    assert [list(row) for row in raw] == [
        ["step", "time", "losses/value_loss", "losses/explained_variance"],
        ["step", "time", RETURN, LENGTH],
        ["step", "time", RETURN, LENGTH],
        ["step", "time", "charts/SPS", "charts/mean_return"],
        ["step", "time", "losses/q", "charts/k"],
    ]
    assert [row["step"] for row in raw] == [4, 6, 6, 8, 8]
    assert (raw[0]["losses/value_loss"], raw[0]["losses/explained_variance"]) == (0.5, "NaN")
    assert [(row[RETURN], row[LENGTH]) for row in raw[1:3]] == [(9.0, 9), ("-Infinity", 12)]
    assert isinstance(raw[3]["charts/SPS"], int)
    assert (raw[4]["losses/q"], raw[4]["charts/k"]) == (0.25, "Infinity")
    times = [row["time"] for row in raw]
    assert times == sorted(times) and began - 1 <= times[0] <= times[-1] <= time.time() + 1
    rows = metrics.read_rows(Path("mine/metrics.jsonl"))
    assert math.isnan(rows[0]["losses/explained_variance"])
    assert [metrics.is_episode(row) for row in rows] == [False, True, True, False, False]


def test_alone_tensorboard_holds_every_row(start: Callable[..., training.Run]) -> None:
    run = start()
    for step in range(1, 300):
        run.log(step, {"losses/a": step / 7, "losses/b": -step})
    run.log_episodes(300, [Episode(0, 21.0, 300)])
    run.log_speed(300)
    run.finish(300)
    rows = metrics.read_rows(run.folder / "metrics.jsonl")
    assert len(rows) == 301
    assert scalars(run.folder / "tensorboard") == as_scalars(rows)


def test_alone_tensorboard_grows_while_training(start: Callable[..., training.Run]) -> None:
    run = start(tensorboard_dir=Path("elsewhere"))
    run.log(1, {"losses/a": 1.5})
    end = time.monotonic() + 60
    while not scalars(Path("elsewhere")) and time.monotonic() < end:
        time.sleep(0.05)
    assert scalars(Path("elsewhere")) == [(1, "losses/a", 1.5)]
    run.finish(1)
    assert not (run.folder / "tensorboard").exists()


def test_tensorboard_that_fails_is_said_once_and_training_goes_on(
    start: Callable[..., training.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(run_dir=Path("mine"))
    with open("mine/metrics.jsonl", "ab") as file:
        file.write(b"no row\n")
    run.log(1, {"losses/a": 1.0})
    run.finish(1)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and told.startswith("TensorBoard ended early, training goes on: ")


@pytest.mark.usefixtures("hosted")
def test_hosted_only_rows_are_written(start: Callable[..., training.Run]) -> None:
    run = start(run_dir=Path("mine"), track=True, tensorboard_dir=Path("mine/tensorboard"))
    assert run.hosted
    run.log(1, {"losses/a": 1.0})
    run.finish(1)
    assert [path.name for path in Path("mine").iterdir()] == ["metrics.jsonl"]


def test_a_shell_that_is_not_the_parent_hosts_nothing(
    start: Callable[..., training.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_SHELL_PID", str(os.getpid()))
    run = start()
    run.finish(0)
    assert not run.hosted and (run.folder / "tensorboard").is_dir()


def test_runs_of_the_same_second_have_folders_of_their_own(start: Callable[..., training.Run]) -> None:
    runs = [start(seed=7, exp_name="a/b:c", env_id="ALE/Pong-v5") for _ in range(3)]
    for index, run in enumerate(runs):
        run.log(index, {"losses/a": index})
        path = run.save_policy(index, {"w": np.zeros(1)})
        assert path == run.folder / "a-b-c.cleanrl_model"
        assert run.folder == Path("runs").absolute() / run.name
        assert run.name.rpartition("__")[0] == "ALE-Pong-v5__a-b-c__7"
        run.finish(index)
    assert len({run.folder for run in runs}) == 3
    assert [len(metrics.read_rows(run.folder / "metrics.jsonl")) for run in runs] == [1, 1, 1]


def test_a_second_run_in_a_folder_cuts_the_torn_tail_and_appends(start: Callable[..., training.Run]) -> None:
    first = start(run_dir=Path("mine"))
    first.log(1, {"losses/a": 1.0})
    first.finish(1)
    with open("mine/metrics.jsonl", "ab") as file:
        file.write(b'{"step":2,"time":17')  # as a killed run leaves it
    again = start(run_dir=Path("mine"))
    again.log(1, {"losses/a": 2.0})
    again.finish(1)
    rows = metrics.read_rows(Path("mine/metrics.jsonl"))
    assert [row["losses/a"] for row in rows] == [1.0, 2.0]
    files = sorted(Path("mine/tensorboard").iterdir())
    assert [ScalarReader(path).read()[0][3] for path in files] == [1.0, 2.0], "each file has its own run's rows"


def test_time_spent_paused_is_left_out_of_the_speed(start: Callable[..., training.Run]) -> None:
    run = start(run_dir=Path("mine"))
    run._started -= 300.0  # as if it had begun so long ago
    plain = run.steps_per_second(1000)
    os.kill(os.getpid(), signal.SIGCONT)
    assert run.steps_per_second(1000) <= plain, "continued by somebody who left no word of a pause"
    Path("mine/logs").mkdir()
    Path("mine/logs/paused_seconds").write_text("200.0\n")
    os.kill(os.getpid(), signal.SIGCONT)
    lasted = time.monotonic() - run._started
    assert run.steps_per_second(1000) == pytest.approx(1000 / (lasted - 200), rel=0.05)
    run.log_speed(100_000)
    run.finish(100_000)
    assert metrics.read_rows(Path("mine/metrics.jsonl"))[0]["charts/SPS"] > 120 * plain


def test_the_terminal_is_told_how_far_training_is(
    start: Callable[..., training.Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(total_timesteps=2000)
    run.log_speed(500)
    assert capsys.readouterr().out == "", "not at every step"
    run._told -= 3600
    run.log_episodes(1000, [Episode(0, 10.0, 5), Episode(0, 20.0, 5)])
    run.log_speed(1000)
    told = capsys.readouterr().out
    assert told.startswith("step      1,000 ( 50 %)   return     15.00 ") and told.endswith(" steps/s\n")
    run.say("something else goes on")
    assert capsys.readouterr().out == "", "not so soon after another line"
    run.finish(2000)


def test_a_long_closing_evaluation_says_how_far_it_is(
    start: Callable[..., training.Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "EVAL_EPISODES", 2)
    run = start(env_id="Pendulum-v1")
    run._tell_every = 0.0
    run.evaluate(0, lambda obs, _rng: np.zeros((len(obs), 1), np.float32))
    told = capsys.readouterr().out.splitlines()
    assert told == [f"evaluating the policy: episode {one} of 2, step {step}" for one in (1, 2) for step in (100, 200)]
    run.finish(0)


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ({"env_id": "Pong-v5", "num_envs": 2}, "envpool"),
        ({"env_id": "Pong-v5", "num_envs": 2, "env_backend": "gymnasium"}, "gymnasium"),
        ({"env_id": "Pong-v5", "num_envs": 2, "vectorization": "native"}, "auto"),
        ({"env_id": "Pong-v5"}, "auto"),
        ({"env_id": "mosaic/Catch-v0", "num_envs": 2}, "auto"),  # also where a stage before it was EnvPool's
    ],
)
def test_a_closing_evaluation_of_a_game_plays_on_the_backend_of_the_training(
    options: dict[str, Any], backend: str, start: Callable[..., training.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = start(**options), []

    def make_game(_env_id: str, **given: Any) -> None:
        asked.append(given["backend"])
        raise InterruptedError

    monkeypatch.setattr(training.play, "make_game", make_game)
    with pytest.raises(InterruptedError):
        run.evaluate(0, lambda obs, _rng: obs, atari=True)
    assert asked == [backend]
    run.finish(0)


def test_a_torch_policy_and_its_sidecar_come_back_as_saved(start: Callable[..., training.Run]) -> None:
    import torch

    run = start(run_dir=Path("mine"), seed=5, exp_name="best", env_id="Pendulum-v1")
    network = torch.nn.Linear(3, 2)
    statistics = {"mean": np.array([1.0, 2.5]), "var": np.array([0.1, 1e-12])}
    path = run.save_policy(640, network.state_dict(), statistics)
    run.finish(640)
    assert path.parent.parent == Path("mine/runs").absolute() and path.name == "best.cleanrl_model"
    state = torch.load(path, weights_only=True)
    assert set(state) == {"weight", "bias"}
    assert all(torch.equal(state[key], value) for key, value in network.state_dict().items())
    sidecar = json.loads(path.with_name("best.cleanrl_model.json").read_text())
    assert sidecar["format"] == policy.FORMAT
    assert (sidecar["env_id"], sidecar["seed"], sidecar["step"]) == ("Pendulum-v1", 5, 640)
    assert sidecar["args"] == {**vars(run.args), "run_dir": "mine"}
    assert sidecar["observation_statistics"] == {"mean": [1.0, 2.5], "var": [0.1, 1e-12]}
    assert {"python", "torch", "numpy", "gymnasium", "mosaic-rl"} <= set(sidecar["versions"])
    kept = {f"best{best}.cleanrl_model{ending}" for best in ("", ".best") for ending in ("", ".json")}
    assert {file.name for file in path.parent.iterdir()} == kept, "the last and the best, nothing half-written"


def test_the_best_policy_is_the_newest_of_equals_and_judged_by_scores_where_there_are_some(
    start: Callable[..., training.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "BEST_EVERY", 1)
    run = start(run_dir=Path("mine"), save_model=True)

    def step_of_best(step: int, ret: float, score: float) -> int:
        run.log_episodes(step, [Episode(0, ret, 1)] * 100, [score] * 100)
        run.keep_best(step, lambda: {"weight": np.zeros(1)})
        (sidecar,) = run.policy_folder.glob("*.best.cleanrl_model.json")
        return int(json.loads(sidecar.read_text())["step"])

    assert [step_of_best(1, 5.0, 0.0), step_of_best(2, -9.0, 0.0)] == [1, 2], "returns of one player say nothing"
    assert [step_of_best(3, 99.0, -1.0), step_of_best(4, 0.0, 1.0)] == [2, 4]
    rows = metrics.read_rows(Path("mine/metrics.jsonl"))
    assert {row[RETURN] for row in rows} == {5.0, -9.0, 99.0, 0.0}, "rows tell the returns"
    run.finish(4)


def test_a_policy_of_numpy_arrays_comes_back_as_saved(start: Callable[..., training.Run]) -> None:
    from safetensors.numpy import load_file

    run = start()
    state = {"params/Dense_0/kernel": np.arange(6, dtype=np.float32).reshape(2, 3).T, "params/Dense_0/bias": np.ones(2)}
    path = run.save_policy(1, state)
    run.finish(1)
    loaded = load_file(path)
    assert all(np.array_equal(loaded[key], value) for key, value in state.items()) and len(loaded) == 2
    assert json.loads(path.with_name(path.name + ".json").read_text())["observation_statistics"] is None


def test_runs_that_break_off_in_one_process_leave_no_growing_chain_of_handlers(
    start: Callable[..., training.Run],
) -> None:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for _ in range(3):  # none of them gets to its end
            start(run_dir=Path("mine")).restore({})
        assert len(repr(signal.getsignal(signal.SIGTERM))) < 200  # signal.signal shows the handler that it replaces
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def refusal(start: Callable[[], object]) -> str:
    with pytest.raises(SystemExit) as refused:
        start()
    line = refused.value.code
    assert isinstance(line, str) and "\n" not in line
    return line


def test_folders_that_cannot_be_written_are_refused_in_one_line(start: Callable[..., training.Run]) -> None:
    Path("file").touch()
    assert refusal(lambda: start(run_dir=Path("file"))).startswith("cannot write into the run folder")
    assert "file/run: Not a directory" in refusal(lambda: start(run_dir=Path("file/run")))
    assert "Not a directory" in refusal(lambda: start(tensorboard_dir=Path("file/tensorboard")))
    Path("taken/metrics.jsonl").mkdir(parents=True)
    assert "Is a directory" in refusal(lambda: start(run_dir=Path("taken")))
    Path("runs").rename("earlier")
    Path("runs").touch()
    assert "cannot write into the run folder" in refusal(start)


@pytest.mark.usefixtures("hosted")  # alone, TensorBoard's thread would read /dev/full, which never ends
def test_a_full_disk_is_said_in_one_line(start: Callable[..., training.Run]) -> None:
    Path("mine").mkdir()
    Path("mine/metrics.jsonl").symlink_to("/dev/full")
    run = start(run_dir=Path("mine"))
    line = refusal(lambda: run.log(1, {"losses/a": 1.0}))
    assert line == f"cannot write into the run folder {Path('mine').absolute()}: No space left on device"
    Path("mine/runs").touch()
    assert "Not a directory" in refusal(lambda: run.save_policy(1, {"w": np.zeros(1)}))
    run.finish(1)


def test_wandb_offline_gets_every_row_and_blocks_nothing(
    start: Callable[..., training.Run], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(companions, "TRACKER_PATIENCE", 240.0)  # a busy machine takes its time to import W&B
    run = start(run_dir=Path("mine"), track=True, wandb_project_name="tests", wandb_entity="lab", wandb_run_name="-x")
    assert not Path("mine/wandb.json").exists(), "nobody waits until W&B is ready"
    for step in range(200):
        run.log(step, {"losses/tracked": step + 0.125})
    run.finish(200)
    status = json.loads(Path("mine/wandb.json").read_text())
    assert (status["mode"], status["project"], status["entity"], status["error"]) == ("offline", "tests", "lab", None)
    (log,) = (Path("mine") / status["folder"]).glob("*.wandb")
    content = log.read_bytes()
    assert content.count(b"losses/tracked") >= 200 and b"199.125" in content
    assert "W&B" not in "".join(capfd.readouterr()), "offline was asked for: nothing to say"


FAKE_WANDB = """
import time
class Error(Exception): pass
def Settings(**settings): pass
class Run:
    dir, path, entity = "/tmp/nowhere/files", "a/b/c", "a"
    def define_metric(self, *a, **k): pass
    def log(self, row): pass
    def finish(self, exit_code): time.sleep({seconds})
def init(**options): return Run()
"""


@pytest.fixture
def fake_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes `import wandb` in child processes find this source."""

    def fake(source: str) -> None:
        (tmp_path / "fake").mkdir()
        (tmp_path / "fake" / "wandb.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fake'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    return fake


def test_without_a_key_it_is_said_that_tracking_is_offline(
    start: Callable[..., training.Run],
    fake_wandb: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(companions, "TRACKER_PATIENCE", 120.0)
    fake_wandb(FAKE_WANDB.format(seconds=0))
    start(run_dir=Path("mine"), track=True).finish(1)
    told = capfd.readouterr().err
    assert "there is no W&B key (WANDB_API_KEY): tracking offline; upload later with: wandb sync" in told


def test_wandb_that_hangs_is_ended_and_wandb_that_dies_is_named(
    start: Callable[..., training.Run],
    fake_wandb: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(companions, "TRACKER_PATIENCE", 1.5)
    fake_wandb(FAKE_WANDB.format(seconds=600))
    began = time.monotonic()
    start(run_dir=Path("mine"), track=True).finish(1)
    assert time.monotonic() - began < 120, "it would have taken ten minutes"
    assert "W&B did not finish within 2 s and was ended" in capfd.readouterr().out
    monkeypatch.setattr(companions, "TRACKER_PATIENCE", 120.0)  # time to start, and to die of itself
    Path("fake/wandb.py").write_text("import os\nos._exit(9)\n")
    start(run_dir=Path("mine"), track=True).finish(1)
    assert "W&B's process failed (exit code 9)" in capfd.readouterr().out
