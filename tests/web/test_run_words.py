"""What a run's page says: why, how far, what differs, where it is tracked; from any values."""

from pathlib import Path
from typing import Any

import pytest

from mosaic.trainer.rpc.client import Run, State
from mosaic.web.pages.run_header import numbers_of, progress_of, reason_line
from mosaic.web.pages.tabs.config import config_of, differences
from mosaic.web.pages.tabs.live import eval_line
from mosaic.web.pages.tabs.wandb import Tracking, tracking_of

SUMMARY = {"batch_index": 2, "episodes": 50, "avg_return": 112.34, "min_return": 90.1, "max_return": 142.6}


def evaluation(**extras: Any) -> dict[str, Any]:
    return {"metadata": {"worker": {"config": {"extras": extras}}}}


def test_an_evaluations_line_counts_batches_from_one() -> None:
    assert eval_line(SUMMARY) == "eval batch 3 | episodes=50 avg=112.3 min=90.1 max=142.6"
    assert eval_line({**SUMMARY, "avg_return": "NaN"}) == "eval batch 3 | episodes=50 avg=NaN min=90.1 max=142.6"
    assert eval_line({}) == eval_line({**SUMMARY, "episodes": None}) == ""


def test_the_page_shows_the_return_of_the_run_and_apart_from_it_the_last_episodes() -> None:
    told = numbers_of(Run("a", State.EXECUTING, mean_return=410.5, last_return=9.0, episodes=30))
    assert (told["Return"], told["Last episode"]) == ("410.5", "9") and "Mean of 100" not in told


@pytest.mark.parametrize(
    ("run", "share", "text"),
    [
        (Run("a", State.INIT, total_timesteps=1000), 0.0, "0 of 1,000 steps · 0 %"),
        (
            Run("a", State.EXECUTING, total_timesteps=1000, step=250, eta_seconds=90.0),
            0.25,
            "250 of 1,000 steps · 25 % · 2 min to go",
        ),
        (Run("a", State.COMPLETED, total_timesteps=1000, step=990), 1.0, "990 of 1,000 steps"),
        (Run("a", State.EXECUTING, step=7, mode="script"), None, "7 steps"),
        (
            Run(
                "a",
                State.EXECUTING,
                step=7,
                mode="policy_eval",
                payload=evaluation(eval_repeat=True, eval_batch_size=5),
            ),
            0.4,
            "7 episodes, batch 2 of 5 episodes each",
        ),
        (Run("a", State.EXECUTING, step=5, mode="policy_eval", total_timesteps=10), 0.5, "5 of 10 episodes"),
    ],
)
def test_progress_is_told_as_it_is(run: Run, share: float | None, text: str) -> None:
    assert progress_of(run) == (share, text)


def test_the_reason_says_more_than_an_exit_code() -> None:
    assert reason_line(Run("a", State.FAILED, "exit code 1"), "ValueError: no") == "exit code 1: ValueError: no"
    told = "exit code 1: out of memory; choose a smaller batch"
    assert reason_line(Run("a", State.FAILED, told), "ValueError: no") == told
    killed = "its worker ended without a closing event"
    assert reason_line(Run("a", State.FAILED, killed), "a warning of hours ago") == killed
    assert "2 runs are before it" in reason_line(Run("a", State.INIT, queue_position=2))
    assert reason_line(Run("a", State.EXECUTING)) == ""
    assert "compiles first" in reason_line(Run("a", State.READY, algo="ppo_jax"))
    assert "compiles" not in reason_line(Run("a", State.READY, algo="ppo"))


def test_differences_name_what_was_set_and_what_it_would_have_been() -> None:
    fields = [
        {"name": "learning_rate", "default": 0.00025, "help": "how fast"},
        {"name": "anneal_lr", "default": True, "help": ""},
        {"name": "seed", "default": 1, "help": ""},
        {"name": "target_kl", "default": None, "help": ""},
    ]
    config = {
        "env_id": "CartPole-v1",
        "seed": 1,
        "extras": {"algo_params": {"learning_rate": 0.1, "anneal_lr": False, "target_kl": None}, "notes": "x"},
    }
    found = {row["name"]: (row["value"], row["default"]) for row in differences(config, fields)}
    assert found == {
        "learning_rate": ("0.1", "0.00025"),
        "anneal_lr": ("false", "true"),
        "env_id": ("CartPole-v1", "not set"),
        "notes": ("x", "not set"),
    }
    assert differences({}, []) == [] and config_of({"metadata": {"worker": {"config": [1]}}}) == {}


def test_tracking_is_online_with_an_address_or_offline_with_a_command(tmp_path: Path) -> None:
    manifest = {
        "artifacts": {"wandb": {"enabled": True, "run_path": "me/mosaic/abc", "entity": "me", "project": "mosaic"}}
    }
    assert tracking_of({}, {}, tmp_path) == Tracking(False)
    online = tracking_of(manifest, {"mode": "online"}, tmp_path)
    assert online.address == "https://wandb.ai/me/mosaic/abc" and online.project == "me/mosaic" and not online.sync
    hostile = {"artifacts": {"wandb": {"enabled": True, "run_path": "javascript:alert(1)//x/y"}}}
    assert tracking_of(hostile, {"mode": "online"}, tmp_path).address == ""
    status = {"mode": "offline", "error": "no key", "folder": "wandb/offline-run-1"}
    offline = tracking_of({"artifacts": {"wandb": {"enabled": True}}}, status, tmp_path)
    assert offline.sync == f"wandb sync {tmp_path}/wandb/offline-run-1" and offline.error == "no key"
    outside = {**status, "folder": "../../etc; rm"}
    assert tracking_of({"artifacts": {"wandb": {"enabled": True}}}, outside, tmp_path).sync == ""
