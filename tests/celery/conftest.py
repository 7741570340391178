"""Sites with real workers; booting one costs seconds, so tests share them where they can."""

from __future__ import annotations

import pytest

from tests.celery.sites import databases, empty_site
from tests.rabbitmq import channel, rabbit

__all__ = ["channel", "databases", "empty_site", "rabbit"]

POOLS = ("threads", "prefork", "solo", "async")


@pytest.fixture(scope="session")
def sites(request, databases):
    """One site for each pool of the session's tests; their workers boot side by side."""
    specs = (getattr(item, "callspec", None) for item in request.session.items)
    asked = {spec.params.get("site") for spec in specs if spec}
    sites = {pool: next(databases) for pool in POOLS if pool == "threads" or pool in asked}
    for pool, site in sites.items():
        site.add(pool, slots=1 if pool == "solo" else 2)
    yield sites
    for site in sites.values():
        site.end()


@pytest.fixture(
    params=["threads", *(pytest.param(pool, marks=pytest.mark.full) for pool in POOLS[1:])]
)
def site(request, sites):
    """A site with one worker; the test runs once on each pool."""
    sites[request.param].workers[0].wait_ready()
    return sites[request.param]


@pytest.fixture
def threads(sites):
    """The site with a worker of threads."""
    sites["threads"].workers[0].wait_ready()
    return sites["threads"]
