"""Faults of real processes; every test here has the mark `chaos`, one of each kind also `sample`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.embedded import embedded_store
from tests.chaos.nursery import Nursery
from tests.rabbitmq import find_program, rabbitmq
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
def chosen(request):
    """Tell of the parameters of a module's tests which are to run: what nobody looks at need not happen."""

    def among(name, every):
        mine = [item for item in request.session.items if item.path == request.path]
        taken = [item.callspec.params.get(name) for item in mine if hasattr(item, "callspec")]
        return [each for each in every if each in taken]

    return among


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    """Fork the workers of a module from one process, and end them with it."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory):
    """One RabbitMQ; without the program the tests are skipped, and on CI they fail."""
    if find_program() is None:
        missing = "there is no RabbitMQ to test with; install one (apt install rabbitmq-server)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with rabbitmq(tmp_path_factory.mktemp("rabbit")) as server:
        yield server
