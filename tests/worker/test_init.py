import subprocess
import sys

from cleanrl_worker import get_worker_metadata
from mosaic.contract.workers import discover_workers


def test_worker_says_what_it_can_do() -> None:
    worker = get_worker_metadata()
    assert (worker.worker_type, worker.label, worker.max_agents) == ("cleanrl", "CleanRL Worker", 1)
    assert worker.env_families == ("gymnasium", "atari", "procgen", "mujoco", "dm_control", "minigrid", "babyai")
    assert (worker.action_spaces, worker.observation_spaces) == (("discrete", "continuous"), ("vector", "image"))
    assert worker.supports_checkpointing and worker.supports_policy_load and not worker.requires_gpu
    assert worker.command == (sys.executable, "-P", "-m", "cleanrl_worker.cli")
    assert "ppo" in worker.schema()


def test_platform_finds_the_worker() -> None:
    workers, problems = discover_workers()
    assert workers["cleanrl"] == get_worker_metadata()
    assert problems == []


def test_importing_the_package_imports_nothing_of_ours() -> None:
    code = "import cleanrl_worker, sys; print([m for m in sys.modules if m.startswith(('cleanrl_worker.', 'mosaic'))])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
