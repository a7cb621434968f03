"""A home in which a real worker has trained once, for all tests of the forms."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = {
    "run_id": "first",
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "total_timesteps": 1024,
    "seed": 3,
    "extras": {
        "save_model": True,
        "fastlane_video_mode": "grid",
        "fastlane_grid_limit": 3,
        "algo_params": {"checkpoint_every": 512, "checkpoint_episodes": 0},
    },
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home; its one run is called `first`."""
    home = tmp_path_factory.mktemp("trained")
    config = home / "var" / "trainer" / "configs" / "config-first.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"metadata": {"worker": {"config": CONFIG}}}))
    environment = {**os.environ, "MOSAIC_HOME": str(home), "MUJOCO_GL": "egl"}
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(config)]
    done = subprocess.run(
        command, env=environment, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return home
