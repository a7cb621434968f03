"""The Train form in a browser: validate, refuse, submit, remember, edit and train again."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from web_site import PATIENCE, Site, wait_until

LONG = PATIENCE * 1000
expect.set_options(timeout=LONG)


def ready(page: Page, verb: str = "Start training") -> Page:
    """The page with its socket open: what is typed from here on is heard."""
    expect(page.get_by_role("button", name=verb)).to_be_visible()
    page.wait_for_function("() => window.socket?.connected === true", timeout=LONG)
    return page


def fill(page: Page, label: str, text: str) -> None:
    page.get_by_label(label, exact=True).fill(text)


def field(page: Page, name: str) -> Any:
    return page.locator(f'[data-field="{name}"]')


def output(page: Page, result: str) -> Any:
    box = page.locator(f'[data-output="true"][data-result="{result}"]')
    expect(box).to_be_visible()
    return box


def submitted(page: Page) -> str:
    page.wait_for_url(re.compile(r"/run/\w+"), timeout=LONG)
    return page.url.rpartition("/run/")[2].partition("?")[0]


def count(site: Site) -> int:
    return site.client.list_runs(page_size=1).total


def test_a_training_is_validated_submitted_and_followed(site: Site, open_page: Callable[..., Page]) -> None:
    page = ready(open_page("/train"))
    before = count(site)
    page.get_by_role("button", name="Validate only").click()
    expect(output(page, "ok")).to_contain_text("cleanrl_worker.algorithms.ppo")
    assert count(site) == before, "Validate only must not submit"
    expect(page.locator('[data-command="true"]')).to_contain_text("mosaic train ppo CartPole-v1")
    fill(page, "Seed or seeds", "5")
    expect(page.locator('[data-change="seeds"]')).to_contain_text("5")
    page.get_by_role("button", name="Start training").click()
    run = site.client.wait_run(submitted(page), PATIENCE)
    assert (run.state, run.algo, run.env_id, run.seed, run.step) == ("COMPLETED", "ppo", "CartPole-v1", 5, 2048)
    assert any(artifact.kind == "policy" for artifact in site.client.get_run(run.run_id).artifacts)


def test_a_bad_parameter_is_refused_at_its_field_and_nothing_typed_is_lost(
    site: Site, open_page: Callable[..., Page]
) -> None:
    page = ready(open_page("/train"))
    before = count(site)
    page.get_by_text(re.compile("^Hyper-parameters")).click()
    fill(page, "Gamma", "high")
    expect(field(page, "gamma")).to_contain_text("a number is needed, not 'high'")
    fill(page, "Gamma", "1.5")
    expect(field(page, "gamma")).to_contain_text("a number between 0 and 1 is needed")
    fill(page, "Gamma", "0.9")
    expect(field(page, "gamma")).not_to_contain_text("is needed")
    expect(page.locator('[data-change="gamma"]')).to_contain_text("0.9")
    page.get_by_text("Names, notes and limits").click()
    fill(page, "Run name", "kept name")
    fill(page, "Environment id", "Pendulum-v1")
    expect(page.locator('[data-change="env_id"]')).to_contain_text("Pendulum-v1")
    page.get_by_role("button", name="Start training").click()
    expect(output(page, "refused")).to_contain_text("discrete actions")
    expect(field(page, "env_id")).to_contain_text("takes continuous ones")
    assert page.url.endswith("/train") and count(site) == before
    expect(page.get_by_label("Run name", exact=True)).to_have_value("kept name")
    expect(page.get_by_label("Gamma", exact=True)).to_have_value("0.9")
    page.goto(site.base + "/policy")
    ready(page, "Start evaluation")
    page.goto(site.base + "/train")
    ready(page)
    expect(page.get_by_label("Environment id", exact=True)).to_have_value("Pendulum-v1")
    expect(page.locator('[data-change="run_name"]')).to_contain_text("kept name")
    expect(page.locator('[data-change="gamma"]')).to_contain_text("0.9")


def test_several_seeds_are_started_as_a_group(site: Site, open_page: Callable[..., Page]) -> None:
    page, name = ready(open_page("/train")), f"pair {os.urandom(4).hex()}"
    fill(page, "Seed or seeds", "many")
    expect(field(page, "seeds")).to_contain_text("takes numbers and ranges")
    fill(page, "Seed or seeds", "11-12")
    fill(page, "Total timesteps", "512")
    page.get_by_text("Names, notes and limits").click()
    fill(page, "Run name", name)
    expect(page.locator('[data-command="true"]')).to_contain_text("--seeds 11-12")
    expect(page.locator('[data-command="true"]')).to_contain_text(name)
    page.get_by_role("button", name="Start training").click()
    submitted(page)
    runs = wait_until(lambda: (found := site.client.list_runs(text=name).runs) and len(found) == 2 and found)
    payloads = [site.client.get_run(run.run_id).payload for run in runs]
    assert {payload["metadata"]["ui"]["group"] for payload in payloads} == {name}
    assert {run.seed for run in runs} == {11, 12}


def test_edit_and_train_fills_the_form_from_a_run(site: Site, open_page: Callable[..., Page], tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    config = {
        "algo": "dqn",
        "env_id": "Acrobot-v1",
        "total_timesteps": 300,
        "seed": 9,
        "extras": {"notes": "<b>look</b>", "telemetry": "off", "storage_url": url, "algo_params": {"gamma": 0.7}},
    }
    payload = {"run_name": "mother", "resources": {"memory_mb": 64}, "metadata": {"worker": {"config": config}}}
    run = site.client.submit_run(payload)
    page = ready(open_page(f"/train?from={run.run_id}"))
    expect(page.get_by_label("Environment id", exact=True)).to_have_value("Acrobot-v1")
    expect(page.get_by_label("Total timesteps", exact=True)).to_have_value("300")
    expect(page.locator('[data-change="gamma"]')).to_contain_text("0.7")
    expect(page.locator('[data-change="notes"]')).to_contain_text("<b>look</b>")
    expect(page.locator('[data-command="true"]')).to_contain_text("telemetry=off")
    expect(page.get_by_label("Storage", exact=True)).to_have_value(url)
    expect(page.get_by_label("Resources", exact=True)).to_have_value("memory_mb=64")
    fill(page, "Storage", "s4://lab/runs")
    expect(field(page, "storage_url")).to_contain_text("unknown scheme 's4'; file://, s3://")
    fill(page, "Storage", url)
    expect(field(page, "storage_url")).not_to_contain_text("unknown scheme")
    fill(page, "Resources", "memory_mb=64\ncpu=1")
    expect(field(page, "resources")).to_contain_text("did you mean 'cpus'?")
    fill(page, "Resources", "memory_mb=64\ncpus=1")
    expect(page.locator('[data-command="true"]')).to_contain_text("--resource cpus=1")
    page.get_by_role("button", name="Start training").click()
    again = site.client.get_run(submitted(page))
    assert again.run_id != run.run_id and (again.algo, again.seed, again.run_name) == ("dqn", 9, "mother")
    extras = again.payload["metadata"]["worker"]["config"]["extras"]
    assert extras["algo_params"]["gamma"] == 0.7 and extras["telemetry"] == "off" and extras["storage_url"] == url
    assert (again.payload["resources"]["memory_mb"], again.payload["resources"]["cpus"]) == (64, 1)
    expect(page.get_by_text(url, exact=True).first).to_be_visible()


def test_a_hostile_run_id_in_the_address_is_answered_in_words(open_page: Callable[..., Page]) -> None:
    page = open_page("/train?from=..%2F..%2Fetc%00%3Cscript%3E")
    expect(page.get_by_role("alert").first).to_contain_text("is refused")


def test_the_wandb_key_is_neither_stored_nor_shown_again(site: Site, open_page: Callable[..., Page]) -> None:
    page = ready(open_page("/train"))
    key = "0123456789abcdef" * 2 + "01234567"
    page.get_by_text("Recording: TensorBoard").click()
    page.get_by_role("switch", name="Weights & Biases").click()
    fill(page, "API key", key)
    expect(page.locator('[data-command="true"]')).to_contain_text("WANDB_API_KEY=… mosaic train")
    assert page.get_by_label("API key", exact=True).get_attribute("type") == "password"
    page.get_by_role("button", name="Validate only").click()
    output(page, "ok")
    page.get_by_role("switch", name="Dry run only").click()
    expect(page.locator('[data-command="true"]')).to_contain_text("--dry-run")
    page.get_by_role("button", name="Start training").click()
    run_id = submitted(page)
    site.client.wait_run(run_id, PATIENCE)
    for address in ("/train", f"/train?from={run_id}"):
        page.goto(site.base + address)
        ready(page)
        expect(page.locator('[data-change="track_wandb"]')).to_be_visible()
        assert page.get_by_label("API key", exact=True).input_value() == "" and key not in page.content()
    files = [path for path in site.home.rglob("*") if path.is_file()]
    assert files and not [path for path in [*files, site.log] if key.encode() in content(path)]


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # a file that was only there for a moment
        return b""


def test_dry_run_only_submits_a_run_that_only_checks_itself(site: Site, open_page: Callable[..., Page]) -> None:
    page = ready(open_page("/train"))
    page.get_by_role("switch", name="Dry run only").click()
    expect(page.locator('[data-command="true"]')).to_contain_text("--dry-run")
    page.get_by_role("button", name="Start training").click()
    run = site.client.wait_run(submitted(page), PATIENCE)
    worker = site.client.get_run(run.run_id).payload["metadata"]["worker"]
    assert worker["arguments"] == ["--dry-run", "--emit-summary"] and run.step == 0, json.dumps(worker)


def test_another_algorithm_brings_an_environment_that_fits_and_its_own_parameters(
    open_page: Callable[..., Page],
) -> None:
    page = ready(open_page("/train"))
    algo = page.get_by_label("Algorithm", exact=True)
    algo.fill("ppo_continuous")
    page.get_by_role("option", name="ppo_continuous_action", exact=True).click()
    expect(page.locator('[data-about="true"]')).to_contain_text("continuous actions")
    expect(page.get_by_label("Environment id", exact=True)).not_to_have_value("CartPole-v1")
    page.get_by_label("Search the catalog").fill("Pendulum")
    page.get_by_role("option", name="Pendulum-v1", exact=True).click()
    expect(page.get_by_label("Environment id", exact=True)).to_have_value("Pendulum-v1")
    expect(page.locator('[data-command="true"]')).to_contain_text("mosaic train ppo_continuous_action Pendulum-v1")
    algo.fill("my/own_script.py")
    algo.press("Enter")
    expect(page.locator('[data-about="true"]')).to_contain_text("of your own")
    expect(page.get_by_text(re.compile("^Hyper-parameters"))).to_have_count(0)


def test_an_address_names_the_environment_to_train_on(open_page: Callable[..., Page]) -> None:
    page = ready(open_page("/train?env=Pendulum-v1"))
    expect(page.get_by_label("Environment id", exact=True)).to_have_value("Pendulum-v1")
    expect(page.locator('[data-command="true"]')).to_contain_text("mosaic train ppo_continuous_action Pendulum-v1")


def test_a_phone_shows_the_whole_form(open_page: Callable[..., Page]) -> None:
    page = ready(open_page("/train", width=390, height=844))
    page.get_by_text(re.compile("^Hyper-parameters")).click()
    expect(page.get_by_label("Learning rate", exact=True)).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
