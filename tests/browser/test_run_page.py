"""A run's page in a real browser: the picture moves, curves grow, and what is said of the run is true."""

import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from web_site import PATIENCE, Site, wait_until

from mosaic.contract.paths import RunPaths
from mosaic.trainer.rpc.client import Run, State

HOSTILE = '<img src=x onerror="window.hacked=1">{{ 1 }}</script><script>window.hacked=1</script>'

expect.set_options(timeout=PATIENCE * 1000)


def submit(site: Site, steps: int, **extras: Any) -> str:
    """Told to stop, it saves at once instead of training on to the next checkpoint."""
    extras = {"algo_params": {"checkpoint_every": 0}, **extras}
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": steps, "seed": 1, "extras": extras}
    return site.client.submit_run({"metadata": {"worker": {"config": config}}}).run_id


def picture(page: Page) -> str:
    return str(page.evaluate("document.querySelector('.mosaic-lane canvas').toDataURL()"))


def points(page: Page) -> int:
    """How many points the first chart of the page has."""
    script = """() => {
      const element = document.querySelector('.nicegui-echart');
      const chart = element && getElement(Number(element.id.slice(1))).chart;
      return chart ? chart.getOption().series[0].data.length : 0;
    }"""
    return int(page.evaluate(script))


def is_watched(site: Site, run_id: str) -> bool:
    from mosaic.contract.frames import FastLaneReader

    with FastLaneReader.open(RunPaths(run_id, site.home).fastlane) as reader:
        return reader.status().watched


def test_a_run_is_watched_as_it_learns_paused_continued_and_cancelled(
    site: Site, open_page: Callable[..., Page]
) -> None:
    run_id = submit(site, 500_000_000)  # more than any machine gets done while it is looked at
    page = open_page(f"/run/{run_id}")
    expect(page.get_by_text("Fast lane: connected", exact=True)).to_be_visible()
    first = picture(page)
    wait_until(lambda: picture(page) != first, what="another picture")
    wait_until(lambda: points(page) > 1, what="a curve")
    few = points(page)
    wait_until(lambda: points(page) > few, what="more points")
    expect(page.locator("[data-state=EXECUTING]")).to_be_visible()
    expect(page.get_by_text(re.compile(r"of 500,000,000 steps · \d+ %"))).to_be_visible()
    cancel = page.get_by_role("button", name="Cancel").element_handle()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("[data-state=PAUSED]")).to_be_visible()
    assert cancel.evaluate("button => button.isConnected"), "a button made anew under a finger loses the press"
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("[data-state=EXECUTING]")).to_be_visible()
    page.get_by_role("tab", name="Config").click()
    expect(page.get_by_text("Differs from the defaults")).to_be_visible()
    wait_until(lambda: not is_watched(site, run_id), what="frames to stop with the tab")
    page.get_by_role("tab", name="Live").click()
    expect(page.get_by_text("Fast lane: connected", exact=True)).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator("[data-state=CANCELLED]")).to_be_visible()
    expect(page.get_by_text("Fast lane: ended with the run")).to_be_visible()
    assert site.client.get_run(run_id).state == State.CANCELLED


def test_cartpole_is_trained_from_the_form_to_its_end_as_the_picture_moves_and_the_curve_grows(
    site: Site, open_page: Callable[..., Page]
) -> None:
    page = open_page("/train")
    page.wait_for_function("() => window.socket?.connected === true")
    page.get_by_label("Total timesteps", exact=True).fill("122880")
    expect(page.locator('[data-change="total_timesteps"]')).to_contain_text("122880")
    page.get_by_role("button", name="Start training").click()
    page.wait_for_url(re.compile(r"/run/\w+"))
    run_id = page.url.rpartition("/run/")[2].partition("?")[0]
    expect(page.get_by_text("Fast lane: connected", exact=True)).to_be_visible()
    first = picture(page)
    wait_until(lambda: picture(page) != first, what="another picture")
    wait_until(lambda: points(page) > 1, what="a curve")
    few = points(page)
    wait_until(lambda: points(page) > few, what="more points")
    expect(page.locator("[data-state=COMPLETED]")).to_be_visible()
    expect(page.get_by_text("122,880 of 122,880 steps")).to_be_visible()
    run = site.client.get_run(run_id)
    assert (run.state, run.algo, run.env_id, run.step) == (State.COMPLETED, "ppo", "CartPole-v1", 122_880)


def test_frames_rest_while_the_window_is_hidden_and_fill_the_screen_when_asked(
    site: Site, open_page: Callable[..., Page]
) -> None:
    run_id = submit(site, 50_000_000)
    page = open_page(f"/run/{run_id}")
    expect(page.get_by_text("Fast lane: connected", exact=True)).to_be_visible()
    page.get_by_role("button", name="Full screen").click()
    wait_until(lambda: page.evaluate("document.fullscreenElement?.className") == "mosaic-lane", what="the full screen")
    page.evaluate("document.exitFullscreen()")
    # a headless browser hides no window: the page is told what it would be told
    hide = "Object.defineProperty(document, 'hidden', { configurable: true, get: () => %s });"
    change = "document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(hide % "true" + change)
    expect(page.get_by_text("Fast lane: resting while this window is hidden")).to_be_visible()
    wait_until(lambda: not is_watched(site, run_id), what="frames to stop with the window")
    page.evaluate(hide % "false" + change)
    expect(page.get_by_text("Fast lane: connected", exact=True)).to_be_visible()
    site.client.cancel_run(run_id, 0.0)
    expect(page.locator("[data-state=CANCELLED]")).to_be_visible()


def test_tabs_that_are_turned_in_haste_are_never_mixed(trained: Run, open_page: Callable[..., Page]) -> None:
    page = open_page(f"/run/{trained.run_id}?tab=metrics")
    page.wait_for_function("() => window.socket?.connected === true")
    for name in ("Notes", "Logs", "Metrics", "Files", "Notes", "Config"):
        page.get_by_role("tab", name=name).click(no_wait_after=True)
    expect(page.get_by_text("The whole config")).to_be_visible()
    for part in ("textarea", "[role=log]", ".nicegui-echart", "video"):
        expect(page.locator(part)).to_have_count(0)


def test_curves_are_smoothed_zoomed_and_downloaded(site: Site, trained: Run, open_page: Callable[..., Page]) -> None:
    page = open_page(f"/run/{trained.run_id}?tab=metrics")
    expect(page.get_by_text("charts/episodic_return", exact=True)).to_be_visible()
    wait_until(lambda: points(page) > 1, what="a curve")
    lines = "getElement(Number(document.querySelector('.nicegui-echart').id.slice(1))).chart.getOption()"
    assert page.evaluate(f"{lines}.series.length") == 2, "the raw line and the smooth one"
    slider = page.get_by_role("slider", name="Smoothing").locator("[tabindex='0']")
    for _ in range(10):
        slider.press("PageDown")
    wait_until(lambda: page.evaluate(f"{lines}.series.length") == 1, what="the smooth line to go")
    page.get_by_role("switch", name="Log scale").click()
    wait_until(lambda: page.evaluate(f"{lines}.yAxis[0].type") == "log", what="a log scale")
    page.get_by_role("button", name="by time").click()
    wait_until(lambda: page.evaluate(f"{lines}.series[0].data[0][0]") < 3600, what="seconds from the start")
    page.get_by_label("Find a metric").fill("value_loss")
    expect(page.get_by_text("charts/episodic_return", exact=True)).to_have_count(0)
    expect(page.get_by_text("losses/value_loss", exact=True)).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the chart of losses/value_loss as PNG").click()
    assert download.value.suggested_filename == "losses_value_loss.png"
    with page.expect_download() as download:
        page.get_by_role("link", name="Download all curves as CSV").click()
    text = download.value.path().read_text()
    assert text.startswith("metric,step,time,value") and "losses/value_loss,1024," in text


def test_every_tab_shows_what_the_run_left_and_runs_nothing_of_it(
    site: Site, trained: Run, open_page: Callable[..., Page], hostile: str
) -> None:
    folder = RunPaths(trained.run_id, site.home).checkpoints
    for pin in folder.glob("*/pinned"):  # of an earlier try
        pin.unlink()
    page = open_page(f"/run/{trained.run_id}?tab=logs")
    expect(page.get_by_role("heading", name=hostile)).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text("1,024 (100 %)")
    page.get_by_label("Search").fill("no such words")
    expect(page.get_by_text("0 lines match")).to_be_visible()
    page.get_by_role("tab", name="Events").click()
    expect(page.get_by_role("cell", name="run_completed")).to_be_visible()
    page.get_by_role("tab", name="Config").click()
    expect(page.get_by_role("cell", name="num_envs")).to_be_visible()
    expect(page.get_by_role("link", name=f"config-{trained.run_id}.json")).to_be_visible()
    made_by = page.locator("[data-provenance]")
    for part in ("cleanrl_worker.algorithms.ppo --env-id=CartPole-v1", "SHA-256", "CPython", "torch 2."):
        expect(made_by).to_contain_text(part)
    expect(page.get_by_role("link", name="provenance.json")).to_be_visible()
    page.get_by_role("tab", name="W&B").click()
    expect(page.get_by_text("not tracked")).to_be_visible()
    page.get_by_role("tab", name="Files").click()
    evaluate = page.get_by_role("link", name="Evaluate").last
    assert "/policy?policy=var%2Ftrainer%2Fruns%2F" in str(evaluate.get_attribute("href"))
    page.get_by_role("switch", name=re.compile("Pin the checkpoint")).click()
    wait_until(lambda: list(folder.glob("*/pinned")), what="a pin")
    film = page.locator("video").first
    film.evaluate("film => { film.muted = true; film.play(); }")
    wait_until(lambda: film.evaluate("film => film.currentTime") > 0, what="the video to play")
    assert page.evaluate("window.hacked") is None


def test_tensorboard_opens_behind_our_sign_in(trained: Run, open_page: Callable[..., Page]) -> None:
    page = open_page(f"/run/{trained.run_id}?tab=tensorboard")
    expect(page.frame_locator("iframe[title=TensorBoard]").get_by_text("charts/SPS").first).to_be_visible()


def test_what_only_the_store_has_is_fetched_from_the_files_tab(
    site: Site, trained: Run, open_page: Callable[..., Page]
) -> None:
    paths = RunPaths(trained.run_id, site.home)
    kept = []
    for folder in (paths.checkpoints, paths.policies):
        kept.append(shutil.copytree(folder, site.home.parent / folder.name, dirs_exist_ok=True))
        shutil.rmtree(folder)
    try:
        _fetch_from_the_files_tab(site, trained, open_page)
        assert list(paths.policies.rglob("*.cleanrl_model"))
    finally:  # other tests use this run, too
        for folder in kept:
            shutil.copytree(folder, paths.folder / folder.name, dirs_exist_ok=True)


def test_files_that_are_here_wait_for_no_store_and_one_that_is_away_can_be_asked_again(
    site: Site, trained: Run, open_page: Callable[..., Page]
) -> None:
    store, gone = site.home.parent / "store", site.home.parent / "store.gone"
    page = open_page(f"/run/{trained.run_id}?tab=files")
    expect(page.get_by_text(re.compile("^A copy is kept in file.*, up to date"))).to_be_visible()
    store.rename(gone)
    store.write_text("in the way")
    try:
        page.get_by_role("button", name="Look again").click()
        again = page.get_by_role("button", name="Ask the storage again")
        expect(again).to_be_visible()
        expect(page.get_by_role("link", name="Resume").first).to_be_visible()
    finally:  # other tests use this run, too
        store.unlink()
        gone.rename(store)
    again.click()
    expect(again).to_have_count(0)
    expect(page.get_by_text(re.compile("^A copy is kept in file.*, up to date"))).to_be_visible()


def _fetch_from_the_files_tab(site: Site, trained: Run, open_page: Callable[..., Page]) -> None:
    page = open_page(f"/run/{trained.run_id}?tab=files")
    expect(page.get_by_text(f"A copy is kept in file://{site.home.parent}/store, up to date")).to_be_visible()
    expect(page.get_by_text(re.compile(r"of its items \(.*\) are only there"))).to_be_visible()
    evaluate = str(page.get_by_role("link", name="Evaluate").last.get_attribute("href"))
    page.get_by_role("button", name="Fetch and resume").first.click()
    expect(page.get_by_text("ppo on CartPole-v1, seed 1, at step 1,024")).to_be_visible()
    page = open_page(evaluate)
    expect(page.get_by_text(re.compile(r"^As ppo.*\.json tells"))).to_be_visible()


def test_a_run_that_was_tracked_offline_says_how_to_upload_it(site: Site, open_page: Callable[..., Page]) -> None:
    pytest.importorskip("wandb", reason="tracking needs the extra wandb")
    run_id = submit(site, 512, track_wandb=True)
    assert site.client.wait_run(run_id, 4 * PATIENCE).state == State.COMPLETED
    page = open_page(f"/run/{run_id}?tab=wandb")
    expect(page.get_by_text("Tracked offline, on this machine")).to_be_visible()
    folder = RunPaths(run_id, site.home).folder
    expect(page.get_by_text(re.compile(f"^wandb sync {re.escape(str(folder))}/wandb/offline-run-"))).to_be_visible()


def test_notes_are_shared_and_a_deleted_run_says_so(site: Site, open_page: Callable[..., Page]) -> None:
    run_id = site.client.train("tiny", "CartPole-v1", seed=1, total_timesteps=3).wait(4 * PATIENCE).run_id
    assert site.client.get_run(run_id).state == State.COMPLETED
    one, other = (open_page(f"/run/{run_id}?tab=notes") for _ in range(2))
    one.get_by_label("Notes").fill(f"see this {HOSTILE}")
    one.get_by_role("button", name="Save").click()
    expect(one.get_by_text(re.compile("^saved"))).to_be_visible()
    expect(other.get_by_label("Notes")).to_have_value(f"see this {HOSTILE}")
    one.get_by_role("button", name="Delete").click()
    one.get_by_role("dialog").get_by_role("button", name="Delete").click()
    for page in (one, other):
        expect(page.get_by_text("This run was deleted")).to_be_visible()
        expect(page.get_by_text("deleted", exact=True)).to_be_visible()
        assert page.evaluate("window.hacked") is None


def test_a_failed_run_says_what_it_said_last(site: Site, open_page: Callable[..., Page]) -> None:
    script = site.home / "broken.py"
    script.write_text("print('begun')\nraise RuntimeError('the table has no row for left')\n")
    config = {"algo": str(script), "env_id": "CartPole-v1", "total_timesteps": 100}
    run = site.client.wait_run(site.client.submit_run(config).run_id, 4 * PATIENCE)
    assert run.state == State.FAILED
    page = open_page(f"/run/{run.run_id}", width=390, height=844)
    expect(page.get_by_role("status").filter(has_text="RuntimeError: the table has no row for left")).to_be_visible()
    expect(page.get_by_text("What it said last:")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "nothing sticks out on a phone"


def test_an_evaluation_is_labelled_and_its_latest_batch_shown(
    site: Site, trained: Run, open_page: Callable[..., Page]
) -> None:
    policy = next(RunPaths(trained.run_id, site.home).policies.glob("*/ppo.cleanrl_model"))
    extras = {"mode": "policy_eval", "policy_path": str(policy), "eval_batch_size": 2, "eval_repeat": True}
    run_id = site.client.submit_run({"extras": extras}).run_id
    page = open_page(f"/run/{run_id}")
    line = page.get_by_text(re.compile(r"^eval batch \d+ \| episodes=2 avg=[\d.]+ min=[\d.]+ max=[\d.]+$"))
    expect(line).to_be_visible()
    expect(page.get_by_text("(Eval)", exact=True)).to_be_visible()
    expect(page.get_by_text(re.compile(r"episodes, batch [\d,]+ of 2 episodes each"))).to_be_visible()
    site.client.cancel_run(run_id, 30.0)
    expect(page.locator("[data-state=COMPLETED], [data-state=CANCELLED]")).to_be_visible()
    log = (site.home / "var" / "logs" / "gym_gui.log").read_text()
    assert f"ui.run_subscribed run={run_id}" in log and "ui.fastlane.eval_summary_update" in log


def test_an_address_that_names_no_run_is_answered_in_words(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page("/run/01JZZZZZZZZZZZZZZZZZZZZZZZ")
    expect(page.get_by_role("alert")).to_contain_text("unknown")
    page.goto(f"{site.base}/run/{'x' * 300}")
    expect(page.get_by_role("alert")).to_contain_text("refused")
