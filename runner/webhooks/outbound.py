"""Requests to addresses that people have entered: none can reach the inside of the sender's network.

A URL is https. Each request resolves its name again, requires every address to be on the public
Internet, and connects to a checked address, so a name that leads elsewhere a moment later changes
nothing. No redirect is followed. RUNNER_WEBHOOK_ALLOW names further networks that may be reached,
also by plain http.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from urllib.parse import SplitResult, urlsplit

from runner.errors import UsageError
from runner.immutable import immutable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

TIMEOUT = 10.0
"""Seconds for a whole request, without the name's lookup, which has the system's limits."""

READ = 65_536
"""Maximum number of bytes read from an answer; they are discarded."""

DETAIL = 500
"""Maximum number of characters of a failure's description."""

NAT64 = ipaddress.ip_network("64:ff9b::/96")

UNICAST = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is assigned for the public Internet."""

SPECIAL = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3
2001::/23 2001:db8::/32 2002::/16 3fff::/20
"""
"""IANA's special-purpose registries, with multicast; Python's `is_global` varies with its version."""

PRIVATE = [ipaddress.ip_network(network) for network in SPECIAL.split()]


@immutable
class Answer:
    """The status of an answer; 0 without an answer, and `problem` says why."""

    code: int
    problem: str = ""


def check(url: str, allow: Sequence[str]) -> list[str]:
    """Return the addresses to which a URL leads now.

    Raises:
        UsageError: one of them may not be reached.
    """
    parts = urlsplit(url)
    networks = [ipaddress.ip_network(network) for network in allow]
    resolved = _resolve(str(parts.hostname), _port(parts))
    foreign = [
        address
        for address in map(_inner, resolved)
        if not any(address in network for network in networks)
    ]
    if foreign and parts.scheme != "https":
        raise UsageError(f"the address {url!r:.200} needs https.")
    if not all(map(_is_public, foreign)):
        raise UsageError(
            f"the address {url!r:.200} leads into a private network that RUNNER_WEBHOOK_ALLOW does not name."
        )
    return [str(address) for address in resolved]


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _resolve(host: str, port: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the name {host!r:.200} can't be resolved ({error}).") from error
    return list(dict.fromkeys(ipaddress.ip_address(place[0]) for *_, place in found))


def _inner(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, if any."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_public(address: Address) -> bool:
    return (address.version == 4 or address in UNICAST) and not any(
        address in network for network in PRIVATE
    )


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def post(url: str, body: bytes, headers: Mapping[str, str], allow: Sequence[str]) -> Answer:
    """Send a body to a URL; a failure is returned, never raised."""
    try:
        addresses = check(url, allow)
        with _connected(addresses, _port(urlsplit(url))) as opened:
            return _exchange(urlsplit(url), opened, body, headers)
    except UsageError as error:
        return Answer(0, str(error))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(0, f"{type(error).__name__}: {error}"[:DETAIL])


@contextmanager
def _connected(addresses: Sequence[str], port: int) -> Iterator[socket.socket]:
    """Connect to the first address that answers, and cut the connection when the time is over."""
    ends = time.monotonic() + TIMEOUT
    # A socket's timeout is per read: a server that sends a byte now and then would hold us for ever.
    with _connect(addresses, port, ends) as opened, opened.dup() as other:
        deadline = threading.Timer(max(0, ends - time.monotonic()), _cut, [other])
        deadline.daemon = True
        deadline.start()
        try:
            yield opened
        except (OSError, http.client.HTTPException):
            if time.monotonic() < ends:
                raise
        finally:
            deadline.cancel()
    # A cut connection may fail in any way, and a cut answer may look complete.
    if time.monotonic() >= ends:
        raise TimeoutError(f"no whole answer within {TIMEOUT:g} s")


def _connect(addresses: Sequence[str], port: int, ends: float) -> socket.socket:
    for address in addresses[:-1]:
        with suppress(OSError):
            return socket.create_connection((address, port), max(0.1, ends - time.monotonic()))
    return socket.create_connection((addresses[-1], port), max(0.1, ends - time.monotonic()))


def _cut(opened: socket.socket) -> None:
    with suppress(OSError):  # it may have ended meanwhile
        opened.shutdown(socket.SHUT_RDWR)


def _exchange(
    parts: SplitResult, opened: socket.socket, body: bytes, headers: Mapping[str, str]
) -> Answer:
    is_tls = parts.scheme == "https"
    host = str(parts.hostname)
    with _tls().wrap_socket(opened, server_hostname=host) if is_tls else opened as stream:
        connection = http.client.HTTPConnection(host)
        connection.sock = stream
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        fixed = {
            "Host": parts.netloc,
            "User-Agent": "celery-graph-runner",
            "Connection": "close",
        }
        connection.request(
            "POST", path, body, {**fixed, "Content-Type": "application/json", **headers}
        )
        reply = connection.getresponse()
        reply.read(READ)
        if 200 <= reply.status < 300:
            return Answer(reply.status)
        return Answer(reply.status, f"answered {reply.status} {reply.reason}"[:DETAIL])
