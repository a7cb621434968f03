"""Pages of a home with a run that cannot be read: they open, and show it with the reason."""

import sqlite3
from typing import Any

from web_site import Site, wait_until

from mosaic.trainer.states import State
from mosaic.web.layout import STATES


def test_every_state_has_an_icon_a_colour_and_a_word() -> None:
    assert set(STATES) == set(State)


def test_a_broken_run_is_on_the_list_and_has_a_page_and_the_others_keep_theirs(site: Site) -> None:
    runs: list[Any] = []
    for seed in (1, 2):
        run = site.client.train("ppo", "CartPole-v1", seed=seed, total_timesteps=100)
        runs.append(run.run_id)
        wait_until(lambda run=run: run.refresh().ended)
    good, bad = runs
    with sqlite3.connect(site.home / "var/trainer/mosaic.db") as connection:
        connection.execute("UPDATE runs SET created_at = 1e300, seed = 1.5 WHERE run_id = ?", (bad,))
    with site.browser() as browser:
        for address in ("/runs", "/runs?state=BROKEN", f"/run/{bad}", f"/run/{bad}?tab=metrics", "/system"):
            answer = browser.get(address)
            assert answer.status_code == 200, (address, answer.text[:500])
        assert bad in browser.get("/runs?state=BROKEN").text and good not in browser.get("/runs?state=BROKEN").text
        assert good in browser.get("/runs?state=ended").text
        page = browser.get(f"/run/{bad}").text
        assert "seed: a whole number from" in page and "not 1.5 (and 1 more)" in page and "broken" in page
        assert browser.get(f"/run/{good}").status_code == 200
    site.client.delete_run(bad)
