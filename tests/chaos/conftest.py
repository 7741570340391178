"""Faults of real processes; every test here has the mark `chaos`, one of each kind also `sample`."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.embedded import embedded_store
from tests.chaos.nursery import Nursery
from tests.tasks.workers import Databases

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Keep this folder's tests out of the quick and the slow suite: they have commands of their own."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.chaos)


@pytest.fixture(scope="session")
def databases(tmp_path_factory):
    """Give sites on one server of this folder's own."""
    with embedded_store() as store:
        yield Databases(store.url, tmp_path_factory)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    """Fork the workers of a module from one process, and end them with it."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery
