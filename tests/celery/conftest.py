"""Sites with real workers; booting one costs seconds, so tests share them where they can."""

from __future__ import annotations

import pytest

from tests.celery.sites import databases, empty_site
from tests.rabbitmq import channel, rabbit

__all__ = ["channel", "databases", "empty_site", "rabbit"]

POOLS = ("threads", "prefork", "solo")


@pytest.fixture(scope="session")
def sites(databases):
    """One site for each pool; their workers boot side by side."""
    sites = {pool: next(databases) for pool in POOLS}
    for pool, site in sites.items():
        site.add(pool, slots=1 if pool == "solo" else 2)
    yield sites
    for site in sites.values():
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
