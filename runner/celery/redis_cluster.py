"""Redis Cluster as the broker: all queues are in one hash slot, whose server each connection looks up.

kombu's commands name several queues at a time, so one server must have them all; kombu's
single-server transport does the rest. A connection that is redirected to another server counts as
lost, and the next connection finds that server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from kombu.transport import redis

from runner.celery.kombu_fixes import SafeChannel
from runner.store.addresses import Cluster
from runner.store.redis.connection import MOVED, Servers

TIMEOUTS = {"socket_timeout": 5, "socket_connect_timeout": 5}


@lru_cache
def servers_of(
    hosts: tuple[tuple[str, int], ...], username: str | None, password: str | None, *, tls: bool
) -> Servers:
    """Return the servers of a cluster, which the connections of a process share."""
    login = {"username": username, "password": password}
    return Servers(Cluster(hosts, "", tls=tls), {**login, **TIMEOUTS})


def connected_to(kind: Any, servers: Servers, key: str) -> Any:
    """Make a class of connections to whichever server has a key."""

    class ClusterConnection(kind):
        """Looks up its server at each connect."""

        def _connect(self) -> Any:
            self.host, self.port = servers.address(key)
            try:
                return super()._connect()
            except (OSError, redis.redis.RedisError):
                servers.forget()
                raise

        def read_response(self, *args: Any, **options: Any) -> Any:
            """Read a reply; if refused because another server has the slot, connect there."""
            try:
                return super().read_response(*args, **options)
            except MOVED as error:
                servers.forget()
                self.disconnect()
                raise redis.redis.ConnectionError(str(error)) from error

    return ClusterConnection


shared_connection = lru_cache(connected_to)


class ClusterChannel(SafeChannel):
    """A channel that connects to the server that has the queues."""

    hosts: Sequence[tuple[str, int]]
    from_transport_options = (*SafeChannel.from_transport_options, "hosts")

    def _connparams(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        params = super()._connparams(asynchronous)
        make = connected_to if asynchronous else shared_connection
        conninfo = self.connection.client
        hosts = tuple(map(tuple, self.hosts))
        servers = servers_of(hosts, conninfo.userid, conninfo.password, tls=bool(conninfo.ssl))
        params["connection_class"] = make(
            params["connection_class"], servers, self.global_keyprefix
        )
        return params

    @cached_property
    def _unused(self) -> set[str]:
        return {f"{self.global_keyprefix}{key}" for key in super()._unused}


class ClusterTransport(redis.Transport):
    """kombu's transport for one Redis server, used with the servers of a cluster."""

    Channel = ClusterChannel
