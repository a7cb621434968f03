"""The rows of the table of runs."""

from dataclasses import replace
from typing import Any

from mosaic.trainer.rpc.client import Run, State
from mosaic.web import run_rows

STATES = {state: ("icon", "#000", state.value.lower()) for state in State}


def run(run_id: str = "a", state: State = State.EXECUTING, **more: Any) -> Run:
    told = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1000, "created_at": 100.0, **more}
    return Run(run_id, state, **told)


def test_a_row_tells_all_that_a_table_shows() -> None:
    one = run(step=250, seed=3, mean_return=21.53, sps=1234.6, eta_seconds=90.0, gpus=(1,), agent_id="x", worker_id="w")
    row = run_rows.row_of(one, STATES, 160.0)
    assert (row["progress"], row["fraction"], row["eta"]) == ("25 % of 1,000", 0.25, "2 min left")
    assert (row["return"], row["sps"], row["age"], row["gpu"], row["seed"]) == ("21.53", "1,235", "1 min ago", "1", "3")
    assert (row["agent"], row["worker"], row["mode"], row["href"]) == ("x", "w", "train", "/run/a")
    assert run_rows.row_of(run(asked="cancel"), STATES, 0)["word"] == "executing, cancel asked"


def test_a_stalled_run_is_marked_beside_its_state_with_how_long_and_no_remaining_time() -> None:
    stalled = run(step=5, stalled=True, stalled_since=100.0, sps=0.0)
    row = run_rows.row_of(stalled, STATES, 175.0)
    assert (row["word"], row["sps"], row["eta"]) == ("executing, STALLED 1 min", "0", "")
    assert row["colour"] == run_rows.STALLED_COLOUR != STATES[State.EXECUTING][1]
    seeds = [replace(stalled, group="g"), run("b", group="g")]
    rows = run_rows.rows_of(seeds, STATES, 175.0, by_group=True, opened=[])
    assert rows[0]["word"] == "2 executing, 1 STALLED"


def test_progress_is_neither_full_before_the_end_nor_empty_after_the_start() -> None:
    assert run_rows.progress_of(run(step=999))[1] == "99 % of 1,000"
    assert run_rows.progress_of(run(step=1))[1] == "1 % of 1,000"
    assert run_rows.progress_of(run(step=1000))[1] == "100 % of 1,000"
    assert run_rows.progress_of(run(step=0))[1] == "0 % of 1,000"


def test_a_repeating_evaluation_counts_within_its_batch_and_without_an_end_there_is_no_bar() -> None:
    assert run_rows.progress_of(run(mode="policy_eval", total_timesteps=50, step=112)) == (0.24, "batch 3: 12 of 50")
    assert run_rows.progress_of(run(total_timesteps=0, step=12)) == (None, "12 steps")
    assert run_rows.progress_of(run(state=State.INIT, queue_position=2)) == (None, "2 before it")


def test_seeds_of_one_group_fold_into_a_row_that_opens() -> None:
    runs = [run(f"r{n}", group="#1", seed=n, mean_return=float(n), curve=(0.0, float(n))) for n in (1, 2, 3)]
    runs.append(run("alone", group="#2"))
    rows = run_rows.rows_of(runs, STATES, 0, by_group=True, opened=())
    assert [row["id"] for row in rows] == ["group:#1", "alone"]
    assert (rows[0]["seed"], rows[0]["return"], rows[0]["word"]) == ("1–3", "2", "3 executing")
    assert rows[0]["members"] == ["r1", "r2", "r3"] and rows[0]["spark"]
    opened = run_rows.rows_of(runs, STATES, 0, by_group=True, opened=("#1",))
    assert [row["id"] for row in opened] == ["group:#1", "r1", "r2", "r3", "alone"]
    assert len(run_rows.rows_of(runs, STATES, 0, by_group=False, opened=())) == 4


def test_sparklines_stay_in_their_box_whatever_the_values() -> None:
    for curve in ((1.0, 2.0, float("nan"), -5.0), (7.0, 7.0), (1e300, -1e300)):
        for point in run_rows.sparkline(curve).split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= run_rows.SPARK_WIDTH and 0 <= y <= run_rows.SPARK_HEIGHT
    assert run_rows.sparkline((1.0,)) == run_rows.sparkline(()) == ""
    assert run_rows.mean_curve([(0.0, 2.0), (2.0, 2.0, 4.0), ()]) == [1.0, 1.0, 3.0]


def test_seeds_are_told_as_a_range_or_a_few() -> None:
    assert run_rows.seeds_told([1, 2, 3]) == "1–3" and run_rows.seeds_told([1, 5]) == "1, 5"
    assert run_rows.seeds_told([1, 3, 5, 7, 9]) == "1, 3, 5, 7 …" and run_rows.seeds_told([]) == "–"


def test_a_script_that_runs_shows_its_phase_beside_its_steps() -> None:
    one = run(mode="script", state=State.EXECUTING, step=250, total_timesteps=1000, reason="phase 2 of 3")
    assert run_rows.progress_of(one)[1] == "25 % of 1,000 · phase 2 of 3"
