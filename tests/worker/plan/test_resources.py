"""A dry run tells the memory and disk that a run will need, and warns where the machine has less."""

import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import needs as tests_needs
import pytest
import tiny_envs

from cleanrl_worker import cli
from cleanrl_worker.config.config import parse_worker_config
from cleanrl_worker.learn.frame_buffer import FrameReplay
from cleanrl_worker.plan import resources
from cleanrl_worker.runtime import CleanRLWorkerRuntime, RuntimeSummary
from cleanrl_worker.telemetry import process_stats

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def roomy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    monkeypatch.setattr(resources, "_free_memory", lambda: 10**13)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**13, 0, 10**13))


def dry_run(algo: str, env_id: str, total_timesteps: int = 10**7, **params: Any) -> RuntimeSummary:
    config = {"algo": algo, "env_id": env_id, "total_timesteps": total_timesteps, "seed": 1}
    payload = {**config, "extras": {"algo_params": params}}
    return CleanRLWorkerRuntime(parse_worker_config(payload), dry_run=True).run()


def needed(algo: str, env_id: str, **params: Any) -> resources.Needs:
    found = dry_run(algo, env_id, **params).needs
    assert found is not None
    return found


def test_a_memory_of_frames_is_told_as_large_as_it_will_be() -> None:
    plain = needed("dqn_atari", "Breakout-v5", buffer_size=8)
    million = needed("dqn_atari", "BreakoutNoFrameskip-v4")
    frames = FrameReplay(1_000_000, (4, 84, 84)).nbytes  # zeros take no memory before they are written
    saving = 3 * 25_000 * frames // 1_000_000
    assert million.memory - plain.memory == pytest.approx(frames + saving, rel=0.01)
    assert 7e9 < million.memory < 9e9 and not million.at_least


def test_a_short_run_needs_no_more_than_what_it_will_keep() -> None:
    short = needed("dqn_atari", "Pong-v5", total_timesteps=10_000)
    assert short.memory < 1.2e9 and short.disk < 0.5e9


@pytest.mark.parametrize("params", [{"max_grad_norm": "inf"}, {"exp_name": "nan"}])
def test_what_is_not_finite_counts_nothing(params: dict[str, str]) -> None:
    assert needed("ppo", "CartPole-v1", **params) == needed("ppo", "CartPole-v1")


def test_checkpoints_stay_within_their_budget() -> None:
    assert needed("c51_atari", "Pong-v5").disk == 10_000 * 2**20
    assert needed("c51_atari", "Pong-v5", checkpoint_budget_mb=9000).disk == 9000 * 2**20
    assert needed("c51_atari", "Pong-v5", checkpoint_budget_mb=0).disk > 15e9


def test_of_observations_that_the_catalog_does_not_measure_the_least_is_told() -> None:
    assert needed("dqn", "CartPole-v1").at_least
    assert not needed("ppo", "CartPole-v1").at_least


def test_a_machine_with_less_is_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert dry_run("dqn_atari", "Pong-v5").warnings == ()
    monkeypatch.setattr(resources, "_free_memory", lambda: 4 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**12, 0, 2 * 10**9))
    memory, disk = dry_run("dqn_atari", "Pong-v5").warnings
    assert "of memory, and 4.0 GB are free here: lower buffer_size" in memory
    assert f"2.0 GB are free in {tmp_path}" in disk and "MOSAIC_HOME" in disk


def test_what_is_free_can_be_told_here() -> None:
    assert 10**7 < (resources._free_memory() or 0)


def test_the_dry_run_prints_it_and_the_summary_holds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"algo": "dqn_atari", "env_id": "Pong-v5", "total_timesteps": 10**7, "seed": 1}))
    assert cli.main(["--config", str(config), "--dry-run"]) == 0
    assert "it needs about 8.7 GB of memory and, for checkpoints, up to 10.5 GB of disk" in capsys.readouterr().err
    assert cli.main(["--config", str(config), "--dry-run", "--emit-summary"]) == 0
    told = json.loads(capsys.readouterr().out)["needs"]
    assert told["memory_bytes"] > 8e9 and told["disk_bytes"] == 10_000 * 2**20


def test_a_memory_that_fits_the_gpu_and_one_that_does_not_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_stats, "free_gpu_memory", lambda: 100 * 10**9)
    roomy = needed("dqn_atari", "Pong-v5")
    assert roomy.fits_gpu and str(roomy).endswith("its replay memory (7.5 GB) fits the GPU, where 100.0 GB are free")
    assert needed("dqn_atari", "Pong-v5", buffer_size=10**7).fits_gpu is False  # a copy takes 8 GB at most
    monkeypatch.setattr(process_stats, "free_gpu_memory", lambda: 8 * 10**9)
    tight = needed("c51_atari", "Pong-v5")
    assert tight.fits_gpu is False and tight.as_json()["fits_gpu"] is False
    assert "does not fit the GPU, where a copy may take 4.0 GB" in str(tight)
    for elsewhere in (needed("dqn_atari", "Pong-v5", cuda=False), needed("ppo_atari", "Pong-v5")):
        assert elsewhere.fits_gpu is None and "GPU" not in str(elsewhere)


@pytest.mark.parametrize("algo", ["rainbow_atari", "sac_atari", "qdagger_dqn_atari_impalacnn"])
def test_every_memory_of_frames_is_compared_with_the_gpu(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_stats, "free_gpu_memory", lambda: 100 * 10**9)
    lesson = tiny_envs.small_lesson() if algo.startswith("qdagger") else {}
    assert needed(algo, "Pong-v5", **lesson).fits_gpu
    assert needed(algo, "Pong-v5", buffer_size=10**7, **lesson).fits_gpu is False


def test_every_process_of_several_is_counted() -> None:
    one, eight = (needed("ppo_atari_multigpu", "Pong-v5", world_size=ranks) for ranks in (1, 8))
    assert eight.memory == 8 * one.memory and eight.lever == "world_size"
    assert needed("ppo_atari_multigpu", "Pong-v5", device_ids=[0, 1]).memory == 2 * one.memory
    assert needed("ppo_atari_multigpu", "Pong-v5", local_num_envs=64).memory > one.memory


def test_what_layers_keep_of_a_minibatch_is_counted_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    tests_needs.needed("procgen")
    monkeypatch.setattr(process_stats, "free_gpu_memory", lambda: 100 * 10**9)
    here, there = (needed("ppo_procgen", "starpilot", cuda=cuda).memory for cuda in (False, True))
    assert here - there == 64 * 256 // 8 * resources.RESIDUAL_LAYERS


@pytest.mark.parametrize(
    ("algo", "layers"),
    [
        ("dqn_atari", resources.SMALL_LAYERS),
        ("dqn_atari_jax", resources.SMALL_LAYERS),
        ("qdagger_dqn_atari_impalacnn", resources.RESIDUAL_LAYERS),
        ("qdagger_dqn_atari_jax_impalacnn", resources.RESIDUAL_LAYERS),
    ],
)
def test_a_sample_of_a_memory_is_counted_by_the_network_that_the_file_has(
    algo: str, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "jax" in algo:
        pytest.importorskip("jax")
    monkeypatch.setattr(process_stats, "free_gpu_memory", lambda: None)
    lesson = {"offline_steps": 100} if algo.startswith("qdagger") else {}
    few, many = (needed(algo, "Pong-v5", batch_size=size, **lesson).memory for size in (32, 64))
    assert many - few == 32 * layers


def test_the_batches_that_a_phase_of_ppg_keeps_are_counted() -> None:
    tests_needs.needed("procgen")
    one, whole = (needed("ppg_procgen", "starpilot", n_iteration=count) for count in (1, 32))
    assert whole.memory - one.memory == 31 * 64 * 256 * 64 * 64 * 3
    assert (whole.lever, needed("dqn_atari", "Pong-v5").lever) == ("n_iteration", "buffer_size")
