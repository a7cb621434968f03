"""The terminal's view of a run, fed with events."""

import io
import math
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from mosaic import console as view
from mosaic.contract.events import Event


def progress(**values: Any) -> view.TerminalProgress:
    given = {"run_id": "R1", "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1000, "folder": "var/x"}
    return view.TerminalProgress(**{**given, **values})


def events(*kinds: tuple[str, dict[str, Any]], start: float = 100.0) -> Iterator[Event]:
    for seq, (kind, payload) in enumerate(kinds):
        yield Event(kind, "R1", seq, start + seq, payload)


def episodes(count: int, value: float, every: int = 1) -> list[tuple[str, dict[str, Any]]]:
    return [("episode", {"step": (i + 1) * every, "return": value, "length": every}) for i in range(count)]


TRAINED = [
    ("run_started", {"seed": 7, "algo": "ppo"}),
    *episodes(120, 480.0, every=5),
    ("metrics", {"step": 600, "charts/SPS": 1200, "losses/value_loss": 0.25, "losses/entropy": "NaN"}),
    ("run_completed", {"manifest": {"summary": {}}}),
]


def test_events_add_up_to_step_speed_returns_and_losses() -> None:
    run = progress()
    for event in events(*TRAINED):
        run.apply(event)
    assert (run.status, run.step, run.episodes, run.seed, run.steps_per_second) == ("completed", 600, 120, 7, 1200)
    assert run.returns.value == 480.0
    assert run.losses["value_loss"] == 0.25 and math.isnan(run.losses["entropy"])
    assert run.seconds == 122.0


def test_the_return_is_the_mean_that_the_run_logs() -> None:
    run = progress(reward_threshold=475.0)
    for event in events(*episodes(120, 500.0), ("metrics", {"step": 600, "charts/mean_return": 410.0})):
        run.apply(event)
    assert run.returns.value == 410.0 and not run.solved
    assert "return 410" in view.status_line(run) and "return 410 (" in view.summary_line(run)


def test_a_run_that_logs_no_mean_has_the_mean_of_its_last_hundred_episodes() -> None:
    run = progress()
    for event in events(*episodes(100, 0.0), *episodes(100, 10.0)):
        run.apply(event)
    assert run.returns.value == 10.0


def test_solved_needs_a_threshold_and_a_hundred_episodes() -> None:
    short, long, unknown = progress(reward_threshold=475.0), progress(reward_threshold=475.0), progress()
    for event in events(*episodes(99, 500.0)):
        short.apply(event)
    for event in events(*episodes(100, 475.0)):
        long.apply(event)
        unknown.apply(event)
    assert (short.solved, long.solved, unknown.solved) == (False, True, False)
    assert "(the threshold is 475)" in view.summary_line(short)
    assert "(solved: the threshold is 475)" in view.summary_line(long)
    assert "solved" not in view.summary_line(unknown)


def test_heartbeat_moves_the_step_but_never_back() -> None:
    run = progress()
    for event in events(("heartbeat", {"step": 500}), ("episode", {"step": 400, "return": 1.0}), ("heartbeat", {})):
        run.apply(event)
    assert run.step == 500


def test_summary_names_seed_return_steps_seconds_speed_and_folder() -> None:
    run = progress()
    for event in events(*TRAINED):
        run.apply(event)
    assert view.summary_line(run) == ("completed (seed 7): return 480 · 600 steps in 122.0 s · 1,200 steps/s · var/x")


def test_summary_of_a_run_in_which_no_episode_ended_says_so() -> None:
    assert "no episode ended" in view.summary_line(progress(status="completed"))


def test_pipe_gets_a_plain_line_every_two_seconds_and_each_warning_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000))
    monkeypatch.setattr(view.time, "monotonic", lambda: next(now) / 2)
    out = io.StringIO()
    kinds = [("warning", {"message": "no key: W&B runs offline"}), *episodes(20, 1.0, every=10)]
    view.follow(events(*kinds), progress(), Console(file=out, width=40))
    lines = out.getvalue().splitlines()
    assert lines.count("warning: no key: W&B runs offline") == 1
    assert 2 <= len(lines) < 20
    assert lines[1].startswith("10 of 1,000 steps (1%)") and "\x1b" not in out.getvalue()


def test_terminal_gets_a_live_view_with_bar_plot_losses_and_notice() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    run = progress(notice="Stopping: asked the run to end.")
    view.follow(events(*TRAINED), run, console)
    shown = out.getvalue()
    for part in ("ppo on CartPole-v1 · seed 7", "600 of 1,000 steps", "1,200 steps/s", "value_loss 0.25", "Stopping:"):
        assert part in shown
    assert "█" in shown or "▁" in shown


@pytest.mark.parametrize("width", [20, 40, 76, 200])
def test_live_view_fits_terminals_of_any_width(width: int) -> None:
    run = progress()
    for event in events(*TRAINED):
        run.apply(event)
    out = io.StringIO()
    Console(file=out, width=width).print(view.render(run))
    assert all(len(line) <= width for line in out.getvalue().splitlines())


def test_title_shows_brackets_in_names_as_they_are() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(view.render(progress(env_id="my[red]:Env[/bold]-v0")))
    assert "my[red]:Env[/bold]-v0" in out.getvalue()


def test_plot_spans_from_lowest_to_highest_value() -> None:
    rows = view.plot([0.0, 0.5, 1.0], height=2)
    assert rows == [" ▁█", "▁██"]
    assert view.plot([3.0, 3.0], height=1) == ["▁▁"]
    assert view.plot([-200.0, -100.0], height=1) == ["▁█"]


def test_curve_stays_bounded_however_long_the_run() -> None:
    curve = view.TerminalCurve()
    for step in range(0, 100_000, 7):
        curve.add(step, float(step))
    assert len(curve.sums) <= curve.BINS
    values = curve.values(50)
    assert len(values) == 50 and values == sorted(values) and values[0] < 3_000 and values[-1] > 97_000


def test_curve_skips_returns_that_are_not_finite() -> None:
    curve = view.TerminalCurve()
    curve.add(1, math.nan)
    assert curve.values(10) == []


def test_curve_repeats_its_last_value_where_no_episode_ended() -> None:
    curve = view.TerminalCurve()
    curve.add(0, 1.0)
    curve.add(200, 5.0)
    assert curve.values(20) == [1.0] * 19 + [5.0]


def test_failed_run_shows_reason_hint_and_stderr() -> None:
    run = progress()
    failure = {"exit_code": 1, "hint": "use a smaller num_envs", "stderr_tail": ["Traceback", "MemoryError"]}
    for event in events(("run_failed", failure)):
        run.apply(event)
    run.settle("failed", "exit code 1")
    assert view.failure_lines(run) == [
        "failed: the algorithm ended with exit code 1",
        "  hint: use a smaller num_envs",
        "  the last lines of its stderr:",
        "    Traceback",
        "    MemoryError",
        "  its files: var/x",
    ]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"signal": "SIGKILL", "exit_code": None}, "failed: the algorithm died of SIGKILL"),
        ({"error": "cannot write /x: No space left on device"}, "failed: cannot write /x: No space left on device"),
    ],
)
def test_failure_names_the_signal_or_the_workers_own_trouble(payload: dict[str, Any], reason: str) -> None:
    run = progress()
    for event in events(("run_failed", payload)):
        run.apply(event)
    assert view.failure_lines(run)[0] == reason


def test_worker_that_vanishes_fails_for_the_reason_that_the_registry_gives() -> None:
    run = progress(step=10)
    run.settle("failed", "SIGKILL")
    assert view.failure_lines(run) == ["failed: SIGKILL", "  its files: var/x"]


def test_the_registry_has_the_last_word_on_how_a_run_ended() -> None:
    run = progress(step=1234)
    for event in events(("run_failed", {"signal": "SIGTERM", "exit_code": 143})):
        run.apply(event)
    run.settle("cancelled", "cancelled")
    assert view.failure_lines(run) == ["cancelled at step 1,234; what it wrote is in var/x"]


def test_a_second_attempt_forgets_how_the_first_ended_and_where_it_stood() -> None:
    run = progress()
    kinds = [("run_failed", {"exit_code": 1}), ("run_started", {"seed": 1}), ("resumed", {"step": 400})]
    for event in events(("heartbeat", {"step": 700}), *kinds):
        run.apply(event)
    assert (run.status, run.failure, run.step) == ("starting", {}, 400)


def test_an_evaluation_counts_episodes_and_sums_up_all_of_them() -> None:
    run = progress(unit="episodes", total_timesteps=120, reward_threshold=475.0)
    for event in events(*episodes(120, 480.0), ("run_completed", {"mean_return": 400.0})):
        run.apply(event)
    assert view.status_line(run).startswith("120 of 120 episodes (100%) · return 480")
    assert view.summary_line(run) == "completed: mean return of 120 episodes 400 · 120 episodes in 120.0 s · var/x"


def test_a_script_shows_its_phase_and_keeps_its_own_end() -> None:
    run = progress(total_timesteps=600)
    out = Console(file=io.StringIO(), width=100)
    first = {"number": 1, "status": "started", "env_id": "CartPole-v1", "total_timesteps": 300}
    second = {"number": 2, "status": "started", "env_id": "Acrobot-v1", "total_timesteps": 700}
    resumed = {"step": 300, "changed": {"total_timesteps": [300, 500]}}
    told = [("phase", first), *episodes(2, 9.0), ("phase", {**first, "status": "ended", "outcome": "completed"})]
    view.follow(events(*told, ("phase", second), ("resumed", resumed)), run, out)
    assert (run.phase, run.env_id, run.total_timesteps, run.returns.value) == ("phase 2", "Acrobot-v1", 700, None)
    text = out.file.getvalue()
    assert "phase 1 on CartPole-v1: completed" in text and "phase 2 on Acrobot-v1: started" in text


def test_a_run_without_a_known_end_shows_how_far_it_is() -> None:
    run = progress(total_timesteps=0)
    for event in events(*episodes(2, 1.0, every=10)):
        run.apply(event)
    assert view.status_line(run).startswith("20 steps · 2 episodes")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (475.0, "475"), (493.27, "493.3"), (0.0123, "0.0123"), (-86.44, "-86.44"), (12345.6, "12346"),
        (1e-7, "1.00e-07"), (2.5e9, "2.50e+09"), (math.nan, "nan"), (-math.inf, "-inf"), (None, "–"), (100.0, "100"),
    ],
)  # fmt: skip
def test_numbers_are_written_for_people(value: float | None, text: str) -> None:
    assert view.short(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (0.2, "0:01"), (61, "1:01"), (3600, "1:00:00")])
def test_time_left_reads_like_a_clock(seconds: float, text: str) -> None:
    assert view.clock(seconds) == text


def test_a_script_that_declares_its_phases_shows_which_one_runs() -> None:
    run = progress(total_timesteps=600)
    out = Console(file=io.StringIO(), width=100)
    started = {"number": 2, "phases": 3, "status": "started", "env_id": "CartPole-v1"}
    view.follow(events(("phase", started), *episodes(1, 9.0)), run, out)
    assert "phase 2 of 3 on CartPole-v1: started" in out.file.getvalue() and "· phase 2 of 3" in view.status_line(run)
