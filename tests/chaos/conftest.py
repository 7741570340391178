"""Faults of real processes; every test here has the mark `chaos`, one of each kind also `sample`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.celery.sites import databases, empty_site
from tests.chaos.fork_server import ForkServer
from tests.postgres import postgres
from tests.rabbitmq import channel, rabbit

__all__ = ["channel", "databases", "empty_site", "postgres", "rabbit"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Keep this folder's tests out of the quick and the slow suite: they have commands of their own."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.chaos)


@pytest.fixture
def site(empty_site):
    """A site of the test's own, without workers, unless the module has another."""
    return empty_site


@pytest.fixture(scope="module")
def chosen(request):
    """Tell of the parameters of a module's tests which are to run: what nobody looks at need not happen."""

    def among(name, every):
        mine = [item for item in request.session.items if item.path == request.path]
        taken = [item.callspec.params.get(name) for item in mine if hasattr(item, "callspec")]
        return [value for value in every if value in taken]

    return among


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory):
    """Fork the workers of a module from one process, and end them with it."""
    with ForkServer(tmp_path_factory.mktemp("fork_server")) as fork_server:
        yield fork_server
