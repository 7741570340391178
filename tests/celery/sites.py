"""Fixtures that give sites for workers: `workers.py` is imported by workers, too, and they need no pytest."""

from __future__ import annotations

import pytest

from runner.testing.plugin import private_store
from tests.celery.workers import Databases


@pytest.fixture(scope="session")
def databases(tmp_path_factory):
    """Give sites on one server for the session."""
    with private_store() as store:
        yield Databases(store.url, tmp_path_factory)


@pytest.fixture
def empty_site(databases):
    """A site of the test's own, without workers."""
    site = next(databases)
    yield site
    site.end()
