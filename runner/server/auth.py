"""Ways to tell who calls; `create_app(auth=...)` takes one of them, or a callable of your own."""

from __future__ import annotations

import getpass
import hashlib
import hmac
import ipaddress
import json
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Request

from runner.errors import UsageError
from runner.records.approvals import Principal
from runner.server.access import GRANTS, Person
from runner.server.problems import Problem

log = logging.getLogger(__name__)

PREFIX = "rk_"
"""How an API key begins, so that scanners of secrets find one that was published."""


class Local:
    """Everybody on this machine, with all roles: for development. It serves the loopback interface only.

    `runner server` refuses to listen elsewhere with it; a request that comes through a proxy, or by another
    name than that of the loopback interface (see DNS rebinding), is refused, too.
    """

    NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})

    def __init__(self, name: str = "") -> None:
        """`name` is who decides; without it the user of this process."""
        self._person = Person(Principal(name or getpass.getuser()), frozenset(GRANTS))

    def __call__(self, request: Request) -> Person:
        """Return the user of this process, for a request of this machine."""
        host = request.url.hostname or ""
        client = request.client.host if request.client else "127.0.0.1"
        proxied = any(name in request.headers for name in ("forwarded", "x-forwarded-for"))
        if host not in self.NAMES or proxied or not is_loopback(client):
            raise Problem(
                403, "This server is for its own machine only; set another `auth` to serve others, too."
            )
        return self._person


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine; a socket file has none."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in {"", "localhost"}


@dataclass(frozen=True, slots=True)
class ProxyHeaders:
    """Who a proxy in front says, which has checked the login.

    `user`, `groups` and `roles` are names of headers, the latter two with commas between their values;
    `default_roles` has everybody. Headers count only from `trusted` networks, for anybody else could write
    them. `issuer` is who vouches for the names.
    """

    user: str = "x-forwarded-user"
    groups: str = "x-forwarded-groups"
    roles: str = "x-forwarded-roles"
    trusted: Collection[str] = ("127.0.0.0/8", "::1/128")
    issuer: str = ""
    default_roles: Collection[str] = ()

    def __post_init__(self) -> None:
        """Check the networks.

        Raises:
            UsageError: one is none.
        """
        for network in self.trusted:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise UsageError(
                    f"trusted has {network!r}, which is no network such as 10.0.0.0/8."
                ) from error

    def __call__(self, request: Request) -> Person | None:
        """Return who the headers name."""
        name = request.headers.get(self.user, "")
        if not name:
            return None
        if not self._is_trusted(request.client.host if request.client else ""):
            raise Problem(403, "The headers of a login come from an address that is not trusted.")
        roles = {*self.default_roles, *_listed(request.headers.get(self.roles, ""))}
        groups = frozenset(_listed(request.headers.get(self.groups, "")))
        return Person(Principal(name, self.issuer), frozenset(roles), groups)

    def _is_trusted(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in ipaddress.ip_network(network) for network in self.trusted)


def _listed(text: str) -> Iterable[str]:
    return (part.strip() for part in text.split(",") if part.strip())


class ApiKeys:
    """Programs, by keys in the header `Authorization: Bearer rk_...`.

    The file has a JSON list, an object for each key: `hash` (of `new_key`), `name`, `roles`, `groups`. It is
    read again when it has changed. `then` is asked about requests without a key: people.
    """

    def __init__(
        self, path: str | Path, then: Callable[[Request], Any] | None = None, issuer: str = "api-key"
    ) -> None:
        """Read the keys.

        Raises:
            UsageError: the file can't be read.
        """
        self._path, self._then, self._issuer = Path(path), then, issuer
        self._changed = 0.0
        self._people: dict[str, Person] = {}
        self._read()

    def __call__(self, request: Request) -> Any:
        """Return the program whose key the request has."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.startswith(PREFIX):
            return self._then(request) if self._then else None
        try:
            self._read()
        except UsageError as error:
            log.error("api_keys.unread: %s Those that were read last count.", error)  # noqa: TRY400 - says all
        person = self._people.get(hash_of(key))
        if person is None:
            raise Problem(401, "The API key is not known, or was revoked.")
        return person

    def _read(self) -> None:
        try:
            changed = self._path.stat().st_mtime
            if changed == self._changed:
                return
            entries = json.loads(self._path.read_text(encoding="utf-8"))
            self._people = {entry["hash"]: self._person(entry) for entry in entries}
            self._changed = changed
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"the API keys in {self._path} can't be read: {error!r}. `runner server new-key` writes them."
            ) from error

    def _person(self, entry: Mapping[str, Any]) -> Person:
        principal = Principal(entry["name"], self._issuer, "service", entry["name"])
        return Person(principal, frozenset(entry["roles"]), frozenset(entry.get("groups", ())))


def new_key(name: str, roles: Iterable[str], groups: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    """Make an API key: the key itself, which is stored nowhere, and its entry in the file.

    Raises:
        UsageError: a role is not one of this server's.
    """
    unknown = sorted(set(roles) - GRANTS.keys())
    if unknown:
        raise UsageError(f"{unknown[0]!r} is no role; the roles are {', '.join(GRANTS)}.")
    key = PREFIX + secrets.token_urlsafe(32)
    return key, {"name": name, "hash": hash_of(key), "roles": sorted(roles), "groups": sorted(groups)}


def hash_of(key: str) -> str:
    """Hash an API key. It has 256 random bits, so no slow hash is needed."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def same(one: str, other: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())
