"""The forms Script, Resume and Evaluate in a browser."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from web_site import PATIENCE, Site

from mosaic.trainer.rpc.client import Run

LONG = PATIENCE * 1000
expect.set_options(timeout=LONG)
SCRIPT = """#!/bin/bash
# @description: <img src=x onerror=alert(1)> says hello
# @env_family: gymnasium
# @phases: 1
# @total_timesteps: 512
# @author: A. Person
echo "hello from the script"
test -s "$MOSAIC_CONFIG_FILE"
"""


def ready(page: Page, verb: str) -> Page:
    expect(page.get_by_role("button", name=verb)).to_be_visible()
    page.wait_for_function("() => window.socket?.connected === true", timeout=LONG)
    return page


def submitted(page: Page, site: Site) -> Run:
    page.wait_for_url(re.compile(r"/run/\w+"), timeout=LONG)
    return site.client.get_run(page.url.rpartition("/run/")[2].partition("?")[0])


def config_of(run: Run) -> dict[str, Any]:
    return dict(run.payload["metadata"]["worker"]["config"])


@pytest.fixture(scope="module")
def mother(site: Site) -> Run:
    """A run that has ended, with checkpoints and a policy."""
    extras = {
        "save_model": True,
        "fastlane_video_mode": "grid",
        "fastlane_grid_limit": 5,
        "algo_params": {"checkpoint_every": 512, "checkpoint_episodes": 0, "num_steps": 64},
    }
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1024, "seed": 4, "extras": extras}
    run = site.client.wait_run(site.client.submit_run(config).run_id, PATIENCE)
    assert run.state == "COMPLETED", run.reason
    return site.client.get_run(run.run_id)


def test_a_run_is_resumed_from_the_list(site: Site, open_page: Callable[..., Page], mother: Run) -> None:
    page = ready(open_page("/resume"), "Resume training")
    page.get_by_label("Filter").fill(f"{mother.run_id} 512")
    rows = page.locator('[data-listing="true"] tbody tr')
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("CartPole-v1")
    rows.first.click()
    expect(page.locator('[data-told="true"]')).to_have_text("ppo on CartPole-v1, seed 4, at step 512")
    page.get_by_label("Additional timesteps", exact=True).fill("256")
    page.get_by_text(re.compile("^Hyper-parameters")).click()
    expect(page.get_by_label("Num steps", exact=True)).to_have_value("64")
    page.get_by_label("Gamma", exact=True).fill("0.5")
    expect(page.locator('[data-command="true"]')).to_contain_text("gamma=0.5")
    expect(page.locator('[data-command="true"]')).to_contain_text("--additional-timesteps 256")
    page.get_by_role("button", name="Resume training").click()
    run = site.client.wait_run(submitted(page, site).run_id, PATIENCE)
    assert run.state == "COMPLETED" and run.mode == "resume_training" and run.step == 768, run.reason
    extras = config_of(site.client.get_run(run.run_id))["extras"]
    assert extras["algo_params"] == {"gamma": 0.5} and extras["additional_timesteps"] == 256


def test_an_address_names_the_run_to_resume(site: Site, open_page: Callable[..., Page], mother: Run) -> None:
    page = ready(open_page(f"/resume?run={mother.run_id}"), "Resume training")
    expect(page.get_by_label("Checkpoint", exact=True)).to_have_value(re.compile(f"{mother.run_id}/checkpoints/1024$"))
    page.get_by_label("Checkpoint", exact=True).fill("../../../etc")
    expect(page.locator('[data-field="checkpoint_path"]')).to_contain_text("outside")


def test_a_policy_is_evaluated_until_it_is_stopped(site: Site, open_page: Callable[..., Page], mother: Run) -> None:
    (policy,) = [one.path for one in mother.artifacts if one.kind == "policy"][-1:]
    path = Path(mother.folder, policy).relative_to(site.home)
    page = ready(open_page(f"/policy?policy={path}"), "Start evaluation")
    for label, value in (("Environment", "CartPole-v1"), ("Algorithm", "ppo"), ("Training seed", "4")):
        expect(page.get_by_label(label, exact=True)).to_have_value(value)
        expect(page.get_by_label(label, exact=True)).to_be_disabled()
    expect(page.get_by_label("Grid limit", exact=True)).to_have_value("5")
    expect(page.get_by_label("Grid limit", exact=True)).to_be_disabled()
    page.get_by_role("switch", name="Override environment").click()
    expect(page.get_by_label("Environment", exact=True)).to_be_enabled(timeout=LONG)
    expect(page.get_by_label("Grid limit", exact=True)).to_be_enabled()
    page.get_by_label("Episodes per batch", exact=True).fill("2")
    page.get_by_role("switch", name="Repeat until stopped").click()
    page.get_by_role("switch", name="Greedy").click()
    command = page.locator('[data-command="true"]')
    expect(command).to_contain_text("--episodes 2")
    expect(command).to_contain_text("eval_repeat=true")
    expect(command).to_contain_text("--greedy")
    page.get_by_role("button", name="Start evaluation").click()
    run = submitted(page, site)
    extras = config_of(run)["extras"]
    assert run.mode == "policy_eval" and extras["eval_repeat"] and extras["eval_greedy"]
    assert (extras["eval_batch_size"], extras["fastlane_video_mode"], extras["fastlane_grid_limit"]) == (2, "grid", 5)
    batches = page.get_by_text(re.compile(r"^eval batch ([2-9]|\d\d+) \| episodes=2 avg="))
    expect(batches).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator("[data-state=COMPLETED], [data-state=CANCELLED]")).to_be_visible()
    assert site.client.get_run(run.run_id).ended


def test_an_uploaded_policy_is_kept_under_a_safe_name(
    site: Site, open_page: Callable[..., Page], mother: Run, tmp_path: Path
) -> None:
    found = sorted(Path(mother.folder).glob("runs/*/ppo.cleanrl_model"))[0]
    shutil.rmtree(site.home / "var" / "trainer" / "uploads", ignore_errors=True)  # of an earlier try
    page = ready(open_page("/policy"), "Start evaluation")
    chooser = page.locator("input[type=file]")
    side = json.loads(found.with_name("ppo.cleanrl_model.json").read_text())
    page.wait_for_selector("input[type=file]", state="attached")
    chooser.set_input_files({"name": "my <b> one.pt", "mimeType": "x/y", "buffer": found.read_bytes()})
    path = page.get_by_label("Policy file", exact=True)
    expect(path).to_have_value("var/trainer/uploads/my_b_one.pt.cleanrl_model")
    expect(page.locator('[data-told="true"]')).to_contain_text("override")
    sidecar = json.dumps({**side, "seed": 77}).encode()
    chooser.set_input_files({"name": "my <b> one.pt.json", "mimeType": "application/json", "buffer": sidecar})
    expect(page.get_by_label("Training seed", exact=True)).to_have_value("77")
    page.get_by_role("button", name="Validate only").click()
    expect(page.locator('[data-output="true"][data-result="ok"]')).to_contain_text("evaluation")


def test_a_script_is_shown_and_run(site: Site, open_page: Callable[..., Page]) -> None:
    folder = site.home / "scripts"
    folder.mkdir(exist_ok=True)
    (folder / "aaa_first.sh").write_text(SCRIPT)
    (folder / "out.sh").unlink(missing_ok=True)
    (folder / "out.sh").symlink_to("/etc/passwd")
    page = ready(open_page("/script"), "Run the script")
    expect(page.locator('[data-field="script"] input')).to_have_value("scripts/aaa_first.sh")
    expect(page.get_by_text("<img src=x onerror=alert(1)> says hello").first).to_be_visible()
    expect(page.locator('[data-header="true"]')).to_contain_text("Author: A. Person")
    expect(page.get_by_label("Total timesteps", exact=True)).to_have_value("512")
    page.get_by_text("Source", exact=True).click()
    expect(page.locator('[data-source="true"]')).to_contain_text("hello from the script")
    expect(page.get_by_text("out.sh")).to_have_count(0)
    expect(page.locator('[data-command="true"]')).to_contain_text("mosaic script scripts/aaa_first.sh ppo CartPole-v1")
    page.get_by_role("switch", name="GPU").click()
    expect(page.locator('[data-command="true"]')).to_contain_text("cuda=false")
    page.get_by_role("button", name="Run the script").click()
    run = site.client.wait_run(submitted(page, site).run_id, PATIENCE)
    assert run.mode == "script" and run.state == "COMPLETED", run.reason
    assert "hello from the script" in (Path(run.folder) / "logs" / "worker.stdout.log").read_text()
