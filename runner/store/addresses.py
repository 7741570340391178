"""Addresses of stores on several servers: Sentinels, a cluster, or partitions.

    sentinel://host:port,host:port/service?db=0     Sentinels, which name the primary; sentinels:// for TLS
    redis+cluster://host:port,host:port             some of the servers that share the keys

kombu writes Sentinels in another form, which this module also makes; kombu doesn't know clusters. The
functions take and return text, and raise UsageError, which never shows a password. Several URLs, separated by
commas, are the servers of partitions, in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from runner.errors import UsageError
from runner.immutable import immutable

SENTINEL_PORT = 26379

CLUSTER_PORT = 6379

CLUSTERS = {"redis+cluster": False, "rediss+cluster": True}
"""Schemes, and whether they mean TLS."""

SENTINELS = {"sentinel": False, "sentinels": True}
"""Like CLUSTERS, for Sentinels and the servers that they watch."""

TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
"""Options of a TLS URL, as redis-py and kombu name them."""

FORM = "sentinel://host:26379,host:26379/service?db=0"

ANOTHER = re.compile(r",(?=[a-z+]+://)")
"""Separator of two URLs; a comma also separates the hosts of one URL."""

ALTERNATIVE = re.compile(r";(?=[a-z+]+://)")
"""Separator of brokers between which kombu fails over."""

ONE_SERVER = frozenset({"redis", "rediss", "valkey", "valkeys", "unix"})
"""Schemes that redis-py and kombu both read, each in a different way."""

ENCODED = (
    "each of # / ? @ ; [ ] in its user or password must be percent-encoded: "
    "%23 %2F %3F %40 %3B %5B %5D"
)

NAMESPACE = "runner"
"""The first part of every key and queue, unless RUNNER_NAMESPACE changes it."""

CLIENTS: dict[str, Callable[..., Any]] = {}
"""Clients for URLs that redis-py can't read, by scheme, such as a fake server in tests."""

MOST_PARTITIONS = 100
"""The limit on partitions: a run's id names its partition in two digits."""


@immutable
class PartitionAddress:
    """The URL of a partition's server, and the partition's number."""

    url: str
    number: int

    @property
    def partition(self) -> str:
        """The partition's name in keys."""
        return f"p{self.number:02d}"


def partition_addresses(urls: str, partitions: int = 1) -> tuple[PartitionAddress, ...]:
    """Return the partitions' addresses: one on each of several servers, or all on a single server."""
    servers = ANOTHER.split(urls)
    servers = servers * partitions if len(servers) == 1 else servers
    return tuple(PartitionAddress(url, number) for number, url in enumerate(servers))


@immutable
class Hosts:
    """Several hosts and their login, with user and password as in the URL."""

    hosts: tuple[tuple[str, int], ...]
    login: str

    @property
    def username(self) -> str | None:
        return unquote(self.login.partition(":")[0]) or None

    @property
    def password(self) -> str | None:
        return unquote(self.login.partition(":")[2]) or None

    @property
    def named(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


@immutable
class Cluster(Hosts):
    """Some servers of a cluster."""

    tls: bool = False

    @property
    def place(self) -> str:
        """Name the cluster without its password."""
        return f"the cluster {self.named}"

    @property
    def broker_url(self) -> str:
        """The URL in kombu's form; our transport takes all hosts as an option."""
        login = f"{self.login}@" if self.login else ""
        host, port = self.hosts[0]
        return f"rediscluster://{login}{host}:{port}/0"


@immutable
class Sentinels(Hosts):
    """Several Sentinels and the service that they watch; the login is for the service's servers.

    `tls` has the TLS options for both; it is empty without TLS.
    """

    service: str
    database: int = 0
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    tls: Mapping[str, str] = field(default_factory=dict)

    @property
    def login_of_sentinels(self) -> dict[str, Any]:
        """The options with which a client logs in to a Sentinel."""
        login = {"username": self.sentinel_username, "password": self.sentinel_password}
        return {**login, "ssl": bool(self.tls), **self.tls}

    @property
    def broker_url(self) -> str:
        """The URL in kombu's form; kombu's transport takes the service as an option."""
        login = f"{self.login}@" if self.login else ""
        return ";".join(
            f"sentinel://{login}{host}:{port}/{self.database}" for host, port in self.hosts
        )

    @property
    def place(self) -> str:
        """Name the service without its password."""
        return f"{self.named}/{self.service}"


def canonical(url: str) -> str:
    """Return an address that redis-py and kombu read alike: login in front, and only TLS options.

    Raises:
        ValueError: they would read it differently, or one can't read it; the message shows no password.
    """
    url = url.strip()
    scheme, _, address = url.partition("://")
    login, at, server = address.rpartition("@")
    if "#" in address or not set("/?@;[]").isdisjoint(login):
        raise ValueError(ENCODED)
    try:
        urlsplit(f"//{server.partition(',')[0]}").port  # noqa: B018 - it raises
    except ValueError:
        raise ValueError("it has no host and port that can be read") from None
    if scheme not in ONE_SERVER:
        return url
    host, _, options = server.partition("?")
    query = dict(parse_qsl(options, keep_blank_values=True))
    host, path = (host, "") if scheme == "unix" else host.partition("/")[::2]
    database = query.pop("db", path.strip("/") or "0")
    if not database.isdecimal():
        raise ValueError("its database is not a number")
    if scheme == "unix" and {"username", "password"} & query.keys():
        names = (quote(query.pop(name, ""), safe="") for name in ("username", "password"))
        login = ":".join(names)
        at = "@"
    allowed = TLS_OPTIONS if scheme in {"rediss", "valkeys"} else ()
    if unknown := ", ".join(query.keys() - set(allowed)):
        raise ValueError(f"it has the option {unknown}, which store and broker don't both know")
    if scheme == "unix":
        return f"{scheme}://{login}{at}{host}?db={database}"
    if "ssl_cert_reqs" in query:
        query["ssl_cert_reqs"] = query["ssl_cert_reqs"].removeprefix("CERT_").lower()
    tls = f"?{urlencode(query, safe='/')}" if query else ""
    return f"{scheme}://{login}{at}{host}/{database}{tls}"


def sentinels(url: str) -> Sentinels | None:
    """Read a URL; return None if it doesn't name Sentinels.

    Raises:
        UsageError: it names Sentinels, but can't be read.
    """
    scheme = url.partition("://")[0]
    if scheme not in SENTINELS:
        return None
    url_parts = urlsplit(url)
    query = dict(parse_qsl(url_parts.query))
    tls = {}
    if SENTINELS[scheme]:
        given = {name: query.pop(name) for name in TLS_OPTIONS if name in query}
        tls = {"ssl_cert_reqs": "required", **given}  # by default, kombu verifies nothing
    try:
        address = Sentinels(
            *_hosts(url_parts.netloc, SENTINEL_PORT),
            service=url_parts.path.strip("/"),
            database=int(query.pop("db", "0")),
            sentinel_username=query.pop("sentinel_username", None),
            sentinel_password=query.pop("sentinel_password", None),
            tls=tls,
        )
    except ValueError as error:
        raise _unreadable("Sentinels", str(error)) from error
    if not address.service or query:
        raise _unreadable(
            "Sentinels", f"it has {', '.join(query)}" if query else "it names no service"
        )
    return address


def cluster(url: str) -> Cluster | None:
    """Read a URL; return None if it doesn't name a cluster.

    Raises:
        UsageError: it names a cluster, but can't be read.
    """
    url_parts = urlsplit(url)
    if url_parts.scheme not in CLUSTERS:
        return None
    if url_parts.query or url_parts.path.strip("/") not in {"", "0"}:
        raise _unreadable("cluster", "a cluster has one database and no options")
    try:
        return Cluster(*_hosts(url_parts.netloc, CLUSTER_PORT), tls=CLUSTERS[url_parts.scheme])
    except ValueError as error:
        raise _unreadable("cluster", str(error)) from error


def _hosts(text: str, port: int) -> tuple[tuple[tuple[str, int], ...], str]:
    login, _, hosts = text.rpartition("@")
    return tuple(_host(host, port) for host in hosts.split(",")), login


def _host(text: str, default: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host if colon else port):
        raise ValueError("a host has no name")
    if colon and not port.isdecimal():
        raise ValueError("a port is not a number")
    return (host, int(port)) if colon else (port, default)


def _unreadable(server_kind: str, why: str) -> UsageError:
    return UsageError(
        f"the address of the {server_kind} can't be read ({why}), so nothing was done. Write {FORM}, "
        "followed by sentinel_username= and sentinel_password= for the Sentinels (sentinels:// for TLS, with "
        f"{', '.join(TLS_OPTIONS)}), or redis+cluster://host:6379,"
        "host:6379; `user:password@` before the hosts is for the servers."
    )


def without_password(urls: str) -> str:
    """Return one or several URLs with each password replaced by ***."""
    return ",".join(map(_without_password, ANOTHER.split(urls)))


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is not None:
        user = parts.username or ""
        host = parts.netloc.rpartition("@")[2]
        parts = parts._replace(netloc=f"{user}:***@{host}")
    query = [
        (name, "***" if "password" in name else value) for name, value in parse_qsl(parts.query)
    ]
    safe = parts._replace(query=urlencode(query, safe="*/")).geturl()
    # urlsplit drops the empty host of unix:///path.
    return safe if "://" in safe else safe.replace(":", "://", 1)
