"""One GUI with its daemon for the tests of a process."""

from collections.abc import Iterator

import pytest
from web_site import Site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.end_runs()
    site.stop()
