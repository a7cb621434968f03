"""The addresses of a run's page on the real GUI: signed in or not at all, contained, and in words when refused."""

import httpx
import pytest
from web_site import Site

from mosaic.contract.paths import RunPaths

ADDRESSES = (
    "/run/a",
    "/files/a/logs/cleanrl.stdout.log",
    "/files/a/config-a.json",
    "/metrics/a.csv",
    "/tensorboard/a/",
    "/tensorboard/a/data/plugin/scalars/tags",
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_is_shown_to_who_has_not_signed_in(site: Site, address: str) -> None:
    RunPaths("a", site.home).create()
    RunPaths("a", site.home).stdout_log.write_text("for members only\n")
    answer = httpx.get(site.base + address, timeout=60.0)
    assert answer.status_code == 401 and "members" not in answer.text


def test_who_has_signed_in_reads_files_and_is_told_what_there_is_not(site: Site) -> None:
    RunPaths("a", site.home).create()
    RunPaths("a", site.home).stdout_log.write_text("for members only\n")
    token = (site.home / "var" / "trainer" / "token").read_text().strip()
    with site.browser() as browser:
        assert browser.get("/files/a/logs/cleanrl.stdout.log").text == "for members only\n"
        for address in (
            "/files/a/../../token",
            "/files/a/%2e%2e/%2e%2e/token",
            "/files/a/%252e%252e/%252e%252e/token",
            "/files/a/..%5c..%5ctoken",
            "/files/a/%2fetc%2fpasswd",
            "/files/..%2f..%2fx/token",
            "/metrics/nobody.csv",
            "/metrics/a%0ab.csv",
            "/tensorboard/nobody/",
            "/tensorboard/a%0ab/",
        ):
            answer = browser.get(address)
            assert answer.status_code == 404 and token not in answer.text and "root:" not in answer.text, address
