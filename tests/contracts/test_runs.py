"""What every holder of runs promises, the registry and its client alike."""

import math
from typing import Any

import pytest

from mosaic.contract.errors import ConfigError, MoveError, UnknownRunError
from mosaic.contract.metrics import encode_resumed
from mosaic.trainer.states import ENDED, MOVES, State


def test_a_new_run_is_queued_and_known_by_its_id(home: Any) -> None:
    home.add("a", env_id="CartPole-v1", seed=0, total_timesteps=100, priority=2)
    run = home.verbs.get_run("a")
    assert (run.state, run.algo, run.env_id, run.seed, run.priority) == (State.INIT, "ppo", "CartPole-v1", 0, 2)
    assert run.queue_position == 0 and run.progress == 0.0 and not run.ended and run.payload == {"metadata": {}}


@pytest.mark.parametrize("verb", ["get_run", "cancel_run", "pause_run", "continue_run", "delete_run", "get_metrics"])
@pytest.mark.parametrize("run_id", ["unknown", "", "../../etc/passwd", "x" * 5000, "ä\x00b"])
def test_an_unknown_run_is_named_in_a_clear_error(home: Any, verb: str, run_id: str) -> None:
    with pytest.raises(UnknownRunError, match="is unknown to this daemon"):
        getattr(home.verbs, verb)(run_id)


def test_runs_are_listed_newest_first_in_pages(home: Any) -> None:
    for number in range(7):
        home.add(f"run-{number}")
    first = home.verbs.list_runs(page_size=3)
    second = home.verbs.list_runs(page_size=3, page=first.next_page)
    last = home.verbs.list_runs(page_size=3, page=second.next_page)
    assert [run.run_id for page in (first, second, last) for run in page.runs] == [f"run-{n}" for n in range(6, -1, -1)]
    assert (first.total, last.next_page) == (7, "")


def test_lists_are_filtered(home: Any) -> None:
    home.add("a", env_id="CartPole-v1")
    home.add("b", env_id="Acrobot-v1", mode="policy_eval", run_name="100%_sure")
    home.add("c", algo="dqn")
    home.verbs.cancel_run("c")

    def found(**filters: Any) -> list[str]:
        return sorted(run.run_id for run in home.verbs.list_runs(**filters).runs)

    assert found(states=[State.CANCELLED]) == ["c"] and found(states=["INIT", "CANCELLED"]) == ["a", "b", "c"]
    assert found(algo="dqn") == ["c"] and found(env_id="Acrobot-v1") == ["b"] and found(mode="policy_eval") == ["b"]
    assert found(text="cart") == ["a"] and found(text="100%_s") == ["b"] and found(text="%") == ["b"]


def test_the_seeds_of_a_group_are_found_together_and_by_their_agent(home: Any) -> None:
    home.add("a", group="night run", seed=1)
    home.add("b", group="night run", seed=2, agent_id="lab-7")
    home.add("c", group="#0123456789abcdef")
    assert [run.run_id for run in home.verbs.list_runs(group="night run").runs] == ["b", "a"]
    assert [run.run_id for run in home.verbs.list_runs(text="lab-7").runs] == ["b"]
    assert home.verbs.get_run("c").group == "#0123456789abcdef"


def test_a_group_is_found_with_all_that_lies_below_it_and_no_other(home: Any) -> None:
    for run_id, group in (("a", "sweep:x"), ("b", "sweep:x/trial 1"), ("c", "sweep:x0"), ("d", "sweep:xy/trial 1")):
        home.add(run_id, group=group)
    assert [run.run_id for run in home.verbs.list_runs(group="sweep:x").runs] == ["b", "a"]
    assert [run.run_id for run in home.verbs.list_runs(group="sweep:x/trial 1").runs] == ["b"]


def test_a_list_draws_the_returns_in_a_few_means_when_it_is_asked_to(home: Any) -> None:
    home.add("a")
    home.add("b")
    home.execute("a")
    home.append("a", rows=tuple({"step": n, "charts/episodic_return": float(n)} for n in range(100)))
    home.append("a", rows=({"step": 100, "charts/episodic_return": math.nan},))
    by_id = {run.run_id: run for run in home.verbs.list_runs(curve_points=4).runs}
    assert by_id["a"].curve == (12.0, 37.0, 62.0, 87.0) and by_id["b"].curve == ()
    assert home.verbs.list_runs().runs[-1].curve == ()
    assert len(home.verbs.list_runs(curve_points=10**6).runs[-1].curve) == 100


def test_averages_are_of_all_points_and_tell_the_highest(home: Any) -> None:
    home.add("a")
    home.execute("a")
    home.append("a", rows=tuple({"step": n, "x": float(n % 2) * 10} for n in range(5000)))
    home.append("a", rows=({"step": 5000, "x": math.inf},))
    (x,) = home.verbs.get_metrics("a", ["x"], max_points=5, average=True)
    assert x.highest == 10.0 and x.total == 5001 and x.steps[-1] == 5000
    assert all(abs(value - 5) < 0.1 for value in x.values)
    (whole,) = home.verbs.get_metrics("a", ["x"], max_points=5)
    assert whole.highest is None


def test_a_state_that_is_none_is_refused_with_the_nearest(home: Any) -> None:
    with pytest.raises(ConfigError, match=r"no state 'PAUSD'; did you mean 'PAUSED'\?; the states are INIT, "):
        home.verbs.list_runs(states=["PAUSD"])
    assert home.verbs.list_runs(states=["init"]).total == 0


def test_a_page_that_nobody_gave_is_refused(home: Any) -> None:
    with pytest.raises(ConfigError, match="next_page"):
        home.verbs.list_runs(page="'; DROP TABLE runs")


def test_the_queue_goes_by_priority_then_by_order(home: Any) -> None:
    home.add("a")
    home.add("b")
    home.add("c", priority=1)
    assert [home.verbs.get_run(run_id).queue_position for run_id in "abc"] == [1, 2, 0]
    assert [row["run_id"] for row in home.attempts.queued()] == ["c", "a", "b"]


def test_cancel_ends_a_queued_run_and_asks_a_live_one(home: Any) -> None:
    home.add("a")
    home.add("b")
    assert home.verbs.cancel_run("a").state == State.CANCELLED
    home.execute("b")
    assert home.verbs.cancel_run("b").asked == "cancel"
    with pytest.raises(MoveError, match="being cancelled"):
        home.verbs.pause_run("b")
    home.end("b")
    with pytest.raises(MoveError, match="cannot be cancelled; it has ended"):
        home.verbs.cancel_run("b")


@pytest.mark.parametrize("grace", [-1.0, math.inf, math.nan])
def test_a_grace_period_that_is_none_is_refused(home: Any, grace: float) -> None:
    home.add("a")
    with pytest.raises(ConfigError, match="grace_seconds"):
        home.verbs.cancel_run("a", grace)


def test_only_executing_runs_pause_and_only_paused_ones_continue(home: Any) -> None:
    home.add("a")
    for verb in (home.verbs.pause_run, home.verbs.continue_run):
        with pytest.raises(MoveError, match="run a is INIT; only a run that is"):
            verb("a")
    home.execute("a")
    assert home.verbs.continue_run("a").asked == ""
    assert home.verbs.pause_run("a").asked == "pause"
    home.append("a", ("paused", {"step": 1}))
    run = home.verbs.get_run("a")
    assert (run.state, run.asked) == (State.PAUSED, "")
    assert home.verbs.continue_run("a").asked == "continue"
    home.append("a", ("continued", {"step": 1}))
    assert home.verbs.get_run("a").state == State.EXECUTING


def test_delete_takes_ended_runs_only(home: Any) -> None:
    home.add("a")
    home.execute("a")
    with pytest.raises(MoveError, match="only an ended run can be deleted"):
        home.verbs.delete_run("a")
    home.append("a", rows=({"step": 1, "x": 1.0},))
    home.end("a")
    home.verbs.delete_run("a")
    assert home.verbs.list_runs().total == 0
    assert not home.registry.paths("a").folder.exists()
    with home.registry.database.read() as connection:
        for table in ("runs", "payloads", "series", "points", "artifacts"):
            assert connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] == 0


def test_headline_numbers_follow_the_rows(home: Any) -> None:
    home.add("a", total_timesteps=100)
    home.execute("a")
    episode = {"step": 50, "charts/episodic_return": 12.0, "charts/episodic_length": 7.0}
    home.append("a", rows=(episode, {"step": 60, "charts/SPS": 20.0}))
    run = home.verbs.get_run("a")
    assert (run.step, run.episodes, run.last_return, run.last_length, run.sps) == (60, 1, 12.0, 7.0, 20.0)
    assert run.progress == 0.6 and run.eta_seconds == 2.0
    assert run.last_values == {"charts/SPS": 20.0, "charts/episodic_length": 7.0, "charts/episodic_return": 12.0}


def test_the_return_is_the_newest_mean_that_the_run_logs_also_after_a_resumption(home: Any) -> None:
    home.add("a")
    home.execute("a")
    home.append("a", rows=({"step": 1, "charts/episodic_return": 9.0}, {"step": 2, "charts/mean_return": 4.0}))
    assert home.verbs.get_run("a").mean_return == 4.0
    home.append("a", rows=({"step": 5, "charts/mean_return": 7.0}, {"step": 6, "charts/episodic_return": 1.0}))
    assert home.verbs.list_runs().runs[0].mean_return == 7.0
    with home.registry.paths("a").metrics.open("ab") as file:
        file.write(encode_resumed(4))
    home.append("a")
    run = home.verbs.get_run("a")
    assert (run.mean_return, run.episodes, run.last_return) == (4.0, 1, 1.0)


def test_the_best_return_is_a_logged_mean_with_twenty_episodes_behind_it(home: Any) -> None:
    home.add("a")
    home.execute("a")
    rows = [{"step": n, "charts/episodic_return": 1.0} for n in range(1, 20)]
    home.append("a", rows=(*rows, {"step": 19, "charts/mean_return": 50.0}))
    (found,) = home.verbs.get_metrics("a", ["charts/mean_return"], max_points=10, average=True)
    assert found.highest is None
    later = ({"step": n, "charts/mean_return": value} for n, value in ((21, 3.0), (22, 8.0), (23, 5.0)))
    home.append("a", rows=({"step": 20, "charts/episodic_return": 1.0}, *later))
    (found,) = home.verbs.get_metrics("a", ["charts/mean_return"], max_points=10, average=True)
    assert found.highest == 8.0


def test_a_run_that_logs_no_mean_has_the_mean_of_its_last_hundred_episodes_that_count(home: Any) -> None:
    home.add("a")
    home.execute("a")
    assert home.verbs.get_run("a").mean_return is None
    home.append("a", rows=tuple({"step": n, "charts/episodic_return": float(n)} for n in range(1, 151)))
    assert home.verbs.get_run("a").mean_return == 100.5
    home.append("a", rows=({"step": 151, "charts/episodic_return": math.nan},))
    assert home.verbs.list_runs().runs[0].mean_return == 101.0
    with home.registry.paths("a").metrics.open("ab") as file:
        file.write(encode_resumed(2))
    home.append("a", rows=({"step": 3, "charts/episodic_return": 6.0},))
    run = home.verbs.get_run("a")
    assert (run.episodes, run.mean_return, run.last_return) == (3, 3.0, 6.0)


def test_a_resumption_tells_how_far_it_goes(home: Any) -> None:
    for run_id, mode in (("a", "resume_training"), ("b", "script")):
        home.add(run_id, mode=mode, total_timesteps=3000)
        home.execute(run_id)
        home.append(run_id, ("run_started", {"total_timesteps": 150}))
    assert home.verbs.get_run("a").total_timesteps == 150
    # Until the algorithm read it, there was a newer checkpoint.
    home.append("a", ("resumed", {"step": 100, "changed": {"total_timesteps": [3000, 250]}}))
    assert home.verbs.get_run("a").total_timesteps == 250
    assert home.verbs.get_run("b").total_timesteps == 3000  # a phase's end is not the script's


def test_checkpoints_that_made_room_are_not_told(home: Any) -> None:
    home.add("a")
    home.execute("a")
    kept = home.registry.paths("a").checkpoints / "20"
    kept.mkdir(parents=True)
    home.append("a", *(("checkpoint", {"step": n, "path": str(kept.with_name(str(n)))}) for n in (10, 20)))
    assert [one.path for one in home.verbs.get_run("a").artifacts] == ["checkpoints/20"]


def test_metrics_come_whole_by_key_downsampled_or_as_a_delta(home: Any) -> None:
    home.add("a")
    home.execute("a")
    home.append("a", rows=tuple({"step": n, "x": float(n), "y": 1.0} for n in range(1000)))
    (x,) = home.verbs.get_metrics("a", ["x"])
    assert x.values.tolist() == [float(n) for n in range(1000)] and x.steps.tolist() == list(range(1000))
    assert [series.key for series in home.verbs.get_metrics("a")] == ["x", "y"]
    (small,) = home.verbs.get_metrics("a", ["x"], max_points=50)
    assert len(small) <= 50 and small.total == 1000 and small.values[[0, -1]].tolist() == [0.0, 999.0]
    home.append("a", rows=({"step": 1000, "x": -1.0},))
    (delta,) = home.verbs.get_metrics("a", ["x"], since={"x": x.cursor})
    assert (delta.values.tolist(), delta.reset) == ([-1.0], False)
    (nothing,) = home.verbs.get_metrics("a", ["x"], since={"x": delta.cursor})
    assert len(nothing) == 0 and home.verbs.get_metrics("a", ["no such key"]) == []


def test_a_resumption_takes_points_back_and_tells_readers_so(home: Any) -> None:
    home.add("a")
    home.execute("a")
    home.append("a", rows=tuple({"step": n, "x": float(n)} for n in range(10)))
    (before,) = home.verbs.get_metrics("a", ["x"])
    with home.registry.paths("a").metrics.open("ab") as file:
        file.write(b'{"resumed_from": 4}\n{"step": 5, "time": 1.0, "x": -5.0}\n')
    home.relay.poll(home.attempts.live())
    (after,) = home.verbs.get_metrics("a", ["x"], since={"x": before.cursor})
    assert after.reset and after.values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, -5.0]
    assert home.verbs.get_run("a").step == 5


def test_not_a_number_and_infinities_are_points_like_others(home: Any) -> None:
    home.add("a")
    home.execute("a")
    home.append("a", rows=({"step": 1, "x": math.nan}, {"step": 2, "x": math.inf}))
    (x,) = home.verbs.get_metrics("a", ["x"])
    assert math.isnan(x.values[0]) and x.values[1] == math.inf
    home.append("a", rows=({"step": 3, "x": math.nan},))
    assert math.isnan(home.verbs.get_run("a").last_values["x"])


def test_events_are_read_by_cursor(home: Any) -> None:
    home.add("a")
    home.execute("a")
    home.append("a", *(("warning", {"message": f"w{n}"}) for n in range(500)))
    assert [event.seq for event in home.verbs.read_events("a")] == list(range(501))
    some = list(home.verbs.read_events("a", 100, 103))
    assert [event.payload["message"] for event in some] == ["w99", "w100", "w101"]
    assert list(home.verbs.read_events("a", 501)) == [] and list(home.verbs.read_events("a", 10, 10)) == []


def test_first_telemetry_means_executing_and_a_start_alone_does_not(home: Any) -> None:
    home.add("a")
    home.attempts.begin("a", [], [])
    assert home.verbs.get_run("a").state == State.HANDSHAKE
    home.append("a", ("warning", {"message": "early"}))
    assert home.verbs.get_run("a").state == State.HANDSHAKE
    home.append("a", ("run_started", {}), ("heartbeat", {"step": 0}))
    assert home.verbs.get_run("a").state == State.READY, "the relay registers on the worker's behalf"
    home.append("a", ("metrics", {"step": 1, "x": 2.0}))
    run = home.verbs.get_run("a")
    assert run.state == State.EXECUTING and run.warnings == ("early",) and run.registered


@pytest.mark.parametrize("present", [state for state in State if state != State.BROKEN])
@pytest.mark.parametrize("to", list(State))
def test_only_moves_of_the_table_happen(home: Any, present: State, to: State) -> None:
    home.add("a")
    with home.registry.database.write() as connection:
        connection.execute("UPDATE runs SET state = ?", (present,))
        row = home.registry.row(connection, "a")
        if to in MOVES[present]:
            home.registry.move(connection, row, to, "")
        else:
            with pytest.raises(MoveError, match=f"is {present} and cannot become {to}"):
                home.registry.move(connection, row, to, "")
    assert home.verbs.get_run("a").state == (to if to in MOVES[present] else present)


def test_nothing_follows_an_end() -> None:
    assert all(not MOVES[state] for state in ENDED)
