"""CleanRL's own files, unchanged, from a checkout that CLEANRL_CHECKOUT names; at tiny sizes, with `--full` only."""

import faulthandler
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths

CHECKOUT = os.environ.get("CLEANRL_CHECKOUT", "")
LEAST = 20  # of the 27 that can run here
SECONDS = 900  # XLA compiles for minutes on a busy machine

BREAKOUT, HOPPER, CARTPOLE = "BreakoutNoFrameskip-v4", "Hopper-v4", "CartPole-v1"
REPLAY = {"learning_starts": 300, "buffer_size": 400, "batch_size": 4, "save_model": True}
QDAGGER = {"learning_starts": 10, "buffer_size": 64, "batch_size": 4, "teacher_steps": 64, "offline_steps": 16}
ACTOR = {"learning_starts": 100, "batch_size": 32, "save_model": True}
XLA = {"num_envs": 4, "num_steps": 32, "update_epochs": 1, "num_minibatches": 1}
ROLLOUT: dict[str, Any] = {"num_envs": 4, "num_steps": 64}

SIZES: dict[str, tuple[str, int, dict[str, Any]]] = {
    **dict.fromkeys(
        ("c51", "c51_jax", "dqn", "dqn_jax"), (CARTPOLE, 400, {"learning_starts": 200, "save_model": True})
    ),
    **dict.fromkeys(("ddpg_continuous_action", "ddpg_continuous_action_jax"), (HOPPER, 300, ACTOR)),
    **dict.fromkeys(("td3_continuous_action", "td3_continuous_action_jax"), (HOPPER, 300, ACTOR)),
    "sac_continuous_action": (HOPPER, 300, {"learning_starts": 100, "batch_size": 32}),
    "ppo_continuous_action": (HOPPER, 512, {"num_envs": 2, "num_steps": 64, "save_model": True}),
    "rpo_continuous_action": (HOPPER, 512, {"num_envs": 2, "num_steps": 64}),
    "ppo": (CARTPOLE, 1024, {}),
    "pqn": (CARTPOLE, 2048, {}),
    "ppo_atari": (BREAKOUT, 2048, ROLLOUT),
    "ppo_atari_lstm": (BREAKOUT, 2048, {**ROLLOUT, "num_minibatches": 2}),
    "ppo_atari_multigpu": (BREAKOUT, 1024, {"local_num_envs": 2, "num_steps": 64}),
    **dict.fromkeys(("dqn_atari", "c51_atari", "dqn_atari_jax", "c51_atari_jax"), (BREAKOUT, 400, REPLAY)),
    "rainbow_atari": (BREAKOUT, 400, REPLAY),
    "sac_atari": (BREAKOUT, 400, {**REPLAY, "save_model": None}),  # it cannot save one
    **dict.fromkeys(("qdagger_dqn_atari_impalacnn", "qdagger_dqn_atari_jax_impalacnn"), (BREAKOUT, 64, QDAGGER)),
    "ppo_atari_envpool": ("Pong-v5", 8192, ROLLOUT),
    "ppo_rnd_envpool": ("MontezumaRevenge-v5", 4096, {**ROLLOUT, "num_iterations_obs_norm_init": 1}),
    **dict.fromkeys(("pqn_atari_envpool", "pqn_atari_envpool_lstm"), ("Breakout-v5", 2048, ROLLOUT)),
    **dict.fromkeys(("ppo_atari_envpool_xla_jax", "ppo_atari_envpool_xla_jax_scan"), ("Breakout-v5", 1024, XLA)),
    "ppo_pettingzoo_ma_atari": ("pong_v3", 512, ROLLOUT),
    **dict.fromkeys(("ppo_procgen", "ppg_procgen"), ("starpilot", 512, ROLLOUT)),
}

WHY = {
    "rainbow_atari": "it stores an array in a scalar slot, which numpy 2.4 refuses",
    "ppo_procgen": "procgen has no wheel",
    "ppg_procgen": "procgen has no wheel",
    "ppo_pettingzoo_ma_atari": "SuperSuit is not installed",
    "qdagger_dqn_atari_impalacnn": "it loads its teacher from the Hugging Face hub",
    "qdagger_dqn_atari_jax_impalacnn": "it loads its teacher from the Hugging Face hub",
}


@pytest.mark.full
@pytest.mark.skipif(not CHECKOUT, reason="set CLEANRL_CHECKOUT to the folder of a checkout of CleanRL")
def test_cleanrls_files_run_unchanged_with_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulthandler.cancel_dump_traceback_later()  # ten minutes are for tests that hang; here each file has a limit
    files = sorted(Path(CHECKOUT, "cleanrl").glob("*.py"))
    assert files, f"{CHECKOUT} has no cleanrl/*.py"
    failed = {file.stem: why for file in files if (why := _why_not(file, tmp_path / file.stem, monkeypatch))}
    unexpected = {name: why for name, why in failed.items() if name not in WHY}
    ran = len(files) - len(failed)
    print(f"\n{ran} of {len(files)} files of CleanRL ran and showed returns; those that did not:")
    for name, why in failed.items():
        print(f"  {name}: {WHY.get(name, 'unexpected')}\n    {why}")
    assert ran >= LEAST and not unexpected, unexpected


def _why_not(file: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a file; why it failed, or "" where it ended well, showed returns and left a sidecar for each policy."""
    home.mkdir()
    monkeypatch.setenv("MOSAIC_HOME", str(home))
    env_id, steps, params = SIZES[file.stem]
    config = {"run_id": "run", "algo": str(file), "env_id": env_id, "seed": 1, "total_timesteps": steps}
    (home / "config.json").write_text(json.dumps({**config, "extras": {"algo_params": params}}))
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(home / "config.json")]
    try:
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"it did not end within {SECONDS} s"
    paths = RunPaths("run", home)
    if done.returncode:
        log = paths.stderr_log.read_text() if paths.stderr_log.exists() else done.stderr
        errors = [line for line in log.splitlines() if "Error" in line or "refused" in line]
        return (errors or log.splitlines() or ["no output"])[-1][:300]
    rows = read_rows(paths.metrics)
    if not any("charts/episodic_return" in row or "charts/mean_return" in row for row in rows):
        return "it ended well and showed no return"
    policies = list(paths.folder.rglob("*.cleanrl_model"))
    if params.get("save_model") and not policies:
        return "it saved no policy"
    bare = [policy.name for policy in policies if not policy.with_name(policy.name + ".json").exists()]
    return f"no sidecar beside {', '.join(bare)}" if bare else ""
