"""Sites with real workers; booting one costs seconds, so tests share them where they can."""

from __future__ import annotations

import pytest
import redis

from runner.embedded import embedded_store
from tests.tasks.workers import Site

POOLS = ("threads", "prefork", "solo")
COUNT = 16  # databases of a server


class Databases:
    """Gives out sites, each with a database and a folder of its own; an ended site's is used again."""

    def __init__(self, url, folders) -> None:
        self._url, self._folders, self._given = url, folders, []

    def __next__(self) -> Site:
        taken = {site.number for site in self._given if not site.ended}
        number = min(set(range(COUNT)) - taken)
        url = self._url.replace("db=0", f"db={number}")
        with redis.Redis.from_url(url) as client:
            client.flushdb()
        self._given.append(Site(url, self._folders.mktemp(f"site{number}-"), number))
        return self._given[-1]


@pytest.fixture(scope="session")
def databases(store_server, tmp_path_factory):
    """Give sites on one server for the session."""
    with embedded_store() as store:
        yield Databases(store.url, tmp_path_factory)


@pytest.fixture(scope="session")
def sites(databases):
    """One site for each pool; their workers boot side by side."""
    found = {pool: next(databases) for pool in POOLS}
    for pool, site in found.items():
        site.add(pool, slots=1 if pool == "solo" else 2)
    yield found
    for site in found.values():
        site.end()


@pytest.fixture(params=POOLS)
def site(request, sites):
    """A site with one worker; the test runs once on each pool."""
    sites[request.param].workers[0].wait_ready()
    return sites[request.param]


@pytest.fixture
def threads(sites):
    """The site with a worker of threads."""
    sites["threads"].workers[0].wait_ready()
    return sites["threads"]


@pytest.fixture
def empty_site(databases):
    """A site of the test's own, without workers."""
    site = next(databases)
    yield site
    site.end()
