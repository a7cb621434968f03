"""Lines of docs/results.md: scores, published figures, verdicts."""

from pathlib import Path
from typing import Any

import pytest
from report import RESULTS
from rows import campaign, page, published
from rows.campaign import Places
from rows.published import Figure

DOCS = RESULTS.parents[1] / "docs"


def document(scores: list[float], **other: Any) -> dict[str, Any]:
    seeds = {str(seed): {"score": score, "episodes": 100} for seed, score in enumerate(scores, 1)}
    return {
        **{"key": "ppo__CartPole-v1", "algo": "ppo", "env_id": "CartPole-v1", "label": "", "flags": {}},
        **{"steps": 500_000, "end": 500_000, "wanted": [1, 2, 3], "seeds": seeds, "seconds": 95.0, "kwh": None},
        **{"steps_per_second": 15_000.0, "commits": ["0123456789abcdef-changed"], "machines": ["2 × CPU"]},
        "measured": 1_700_000_000.0,
        **other,
    }


def cells(one: dict[str, Any]) -> dict[str, Any]:
    return page.line(one, Path("docs/img/x.svg"), {})


def test_a_line_compares_the_seeds_with_the_published_figure() -> None:
    found = cells(document([500.0, 499.0, 500.0]))
    assert found["verdict"] == "reached" and found["published"] == "490.0 ± 6.1 (CleanRL docs, 3 seeds)"
    assert found["IQM"] == "499.7" and found["95 % interval"] == "499.0 to 500.0" and found["seeds"] == "3"
    assert found["wall-clock"] == "1 min 35 s" and found["kWh"] == "" and found["commit"] == "012345678-changed"


def test_a_line_marks_missing_seeds_fewer_steps_and_other_versions() -> None:
    other = {"algo": "sac_continuous_action", "env_id": "HalfCheetah-v5", "steps": 1_000_000, "end": 220_000}
    found = cells(document([7000.0, 7100.0], **other, kwh=0.25))
    assert found["seeds"] == "2 of 3" and found["steps"] == "220,000 of 1,000,000" and found["kWh"] == "0.250"
    assert found["verdict"] == "not reached, at 22 %" and "HalfCheetah-v4, 1,000,000 steps" in found["published"]


def test_a_figure_published_for_that_step_is_preferred() -> None:
    assert published.find("sac_atari", "PongNoFrameskip-v4", 100_000).mean == -20.21  # type: ignore[union-attr]
    assert published.find("sac_atari", "PongNoFrameskip-v4", 4_900_000).mean == 19.24  # type: ignore[union-attr]


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_published_figure_no_better_than_random_play_gives_no_verdict(algo: str) -> None:
    found = cells(document([-110.0, -112.0, -111.0], algo=algo, env_id="MountainCar-v0"))
    assert found["verdict"] == "– (published: no better than random play)"


def test_without_a_figure_or_with_one_seed_nothing_is_decided() -> None:
    assert cells(document([1.0, 2.0], env_id="Nowhere-v0"))["verdict"] == "–"
    assert cells(document([500.0]))["verdict"] == "undecided" and cells(document([]))["verdict"] == "–"


def test_every_figure_has_a_source_and_every_task_one_spelling() -> None:
    known = published._document()
    assert all(figure["source"] in known["sources"] for figure in known["figures"])
    assert all(published.find(figure["algo"], figure["env_id"]) for figure in known["figures"])
    assert published.task_of("ALE/Pong-v5") == published.task_of("PongNoFrameskip-v4") == "Pong"
    assert Figure(1.0, None, "x", 1, "y", random=1.0).beats_random is False


def test_a_row_that_is_queued_again_is_marked(tmp_path: Path) -> None:
    curve = {"steps": [1, 2], "seeds": [[None, 1.0], [0.5, 1.0]]}
    text = page.write(
        [document([500.0], curve=curve)], tmp_path / "r.md", {"ppo__CartPole-v1": "it changed"}
    ).read_text()
    assert "| undecided; to be measured again: it changed |" in text
    assert (tmp_path / "img/results-ppo__CartPole-v1.svg").exists()


def test_the_page_is_what_the_bundles_say_now(tmp_path: Path) -> None:
    places = Places(RESULTS.parent / "queue.json", tmp_path, RESULTS, tmp_path / "results.md", "")
    written = campaign.report(places).read_text()
    assert written == (DOCS / "results.md").read_text(), "run: python benchmarks/campaign.py report"
