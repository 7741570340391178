from __future__ import annotations

from contextlib import contextmanager

import pytest
from kombu import Connection
from kombu.asynchronous import Hub
from kombu.transport import redis as transport

from runner.celery.kombu_fixes import forget_old_connections, timers_of
from runner.settings import as_broker


@contextmanager
def registered(redis_url, hub):
    """The timers of a connection of a worker's event loop."""
    others = timers_of(hub)
    with Connection(as_broker(redis_url)) as connection:
        connection.register_with_event_loop(hub)
        yield timers_of(hub) - others


@pytest.fixture
def hub(monkeypatch):
    """An event loop; what the test changes in kombu is taken back."""
    plain = transport.Transport.register_with_event_loop
    monkeypatch.setattr(transport.Transport, "register_with_event_loop", plain)
    hub = Hub()
    yield hub
    hub.close()


def cancelled(timers) -> set[bool]:
    """Whether the timers of a connection are cancelled."""
    return {timer.canceled for timer in timers}


def test_a_new_connection_takes_the_place_of_the_one_before(redis_url, hub):
    """Of several connections one after the other only the last one's timers and callback are left."""
    forget_old_connections()
    forget_old_connections()
    with registered(redis_url, hub) as first:
        assert cancelled(first) == {False}
    with registered(redis_url, hub) as second:
        assert cancelled(first) == {True}
        assert cancelled(second) == {False}
        assert len(hub.on_tick) == 1


def test_kombu_alone_keeps_all(redis_url, hub):
    """Control: without it every connection's timers and callbacks stay."""
    with registered(redis_url, hub) as first, registered(redis_url, hub):
        assert cancelled(first) == {False}
        assert len(hub.on_tick) == 2
