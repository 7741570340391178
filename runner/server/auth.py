"""Authentication backends; `create_app(auth=...)` takes one of them, or your own callable."""

from __future__ import annotations

import getpass
import hashlib
import hmac
import ipaddress
import logging
import math
import secrets
import threading
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from runner.approvals.rules import LOGIN, SERVICE, Principal
from runner.errors import UsageError
from runner.immutable import immutable
from runner.operations.api_keys import ApiKey, read_keys
from runner.records.codec import JSONObject
from runner.server.access import GRANTS, OPEN, Person, split_role
from runner.server.parameters import QueryText
from runner.server.problems import Problem, prefix

log = logging.getLogger(__name__)

UNIX = "unix"
"""The name of a socket file among networks: its clients have no address."""

NOTED_EVERY = 60.0
"""Seconds after which the use of an API key is written to the store again."""

PREFIX = "rk_"
"""Prefix of an API key, so that secret scanners find a published key."""


class Local:
    """A login with all roles, by the token that the server logs at its start: for development on one machine.

    A browser exchanges the token for a cookie at `/login?token=...`, a program sends it as
    `Authorization: Bearer`. Without a `secret` it is new at each start. It works on the loopback
    interface only; requests with a proxy's headers, or to another host name (see DNS rebinding),
    are refused.
    """

    login_path = "/login"

    NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})

    PROXIES = (
        "forwarded",
        "via",
        "x-real-ip",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "cf-connecting-ip",
    )
    """Headers that proxies set; a browser on this machine sends none of them."""

    def __init__(self, name: str = "", secret: str = "") -> None:
        """`name` is the person who decides; by default the user of this process."""
        self._person = Person(Principal(name or getpass.getuser()), frozenset(GRANTS))
        self.token = token_of(secret or secrets.token_hex(32))
        self.router = APIRouter(include_in_schema=False, dependencies=[Depends(OPEN)])
        self.router.add_api_route("/login", self._login, methods=["GET"])
        self.router.add_api_route("/logout", self._logout, methods=["POST"])

    def __call__(self, request: Request) -> Person:
        """Return the person, for a request from this machine with the token or its cookie.

        Raises:
            Problem: it has neither, or comes from elsewhere.
        """
        self._check_machine(request)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        by_program = scheme.lower() == "bearer" and same(token, self.token)
        if by_program or same(request.cookies.get(_cookie(request), ""), hash_of(self.token)):
            return self._person
        raise Problem(
            401,
            "Open the address that the server logged at its start, which has a token; "
            "a program sends that as `Authorization: Bearer TOKEN`.",
        )

    def _check_machine(self, request: Request) -> None:
        host = request.url.hostname or ""
        client = request.client.host if request.client else "127.0.0.1"
        proxied_by = next((name for name in self.PROXIES if name in request.headers), None)
        if proxied_by:
            raise Problem(
                403,
                f"The request came through a proxy (it has the header {proxied_by}), and no proxy is "
                "configured: start the server with `--auth proxy --trusted NETWORK`, which name it, or with "
                "another login.",
            )
        if host not in self.NAMES or not is_loopback(client):
            raise Problem(
                403,
                "This server is for its own machine only; set another `auth` to serve others, too.",
            )

    def _login(
        self,
        request: Request,
        token: QueryText = "",
        next: QueryText = "/",  # noqa: A002 - its name
    ) -> Response:
        self._check_machine(request)
        if not same(token, self.token):
            raise Problem(
                403,
                "Open the address that the server logged at its start: this one lacks its token.",
            )
        response = RedirectResponse(prefix(request) + local_path(next), 303)
        response.set_cookie(_cookie(request), hash_of(token), httponly=True, samesite="lax")
        return response

    def _logout(self, request: Request) -> Response:
        response = RedirectResponse(f"{prefix(request)}/", 303)
        response.delete_cookie(_cookie(request), httponly=True, samesite="lax")
        return response


def token_of(secret: str) -> str:
    """Derive the token of `Local` from a secret."""
    return hmac.new(secret.encode(), b"local login", hashlib.sha256).hexdigest()


def _cookie(request: Request) -> str:
    return f"runner-login-{request.url.port or 80}"  # a browser sends a cookie to all ports of a host


def local_path(path: str) -> str:
    """Return a path of this server; the first page if the path leads elsewhere."""
    safe = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return quote(path, safe="/?=&%+:,.-_~") if safe else "/"


def is_loopback(host: str) -> bool:
    """Return whether an address is this machine's; a socket file has the address ""."""
    address = _address(host)
    return host in {"", "localhost"} if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an address; an IPv4 address that an IPv6 socket writes as ::ffff:10.1.2.3 is read as IPv4."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@immutable
class ProxyHeaders:
    """The person that a proxy in front names, which has checked the login.

    `user` and `groups` are names of headers, `groups` with comma-separated values; names are UTF-8.
    Headers count only from `trusted` networks ("unix" trusts a socket file), and with a `secret`
    only if the header `secret_header` has it. `issuer` vouches for the names.

    `default_roles` are every person's, `role_of` maps each group to its members' roles. `roles` names a
    header of roles, only for a proxy that deletes it from clients' requests, which most do not. With
    `casefold`, names that differ only in case, or in the width of letters, are one, as in LDAP (RFC 4518).
    """

    user: str = "x-forwarded-user"
    groups: str = "x-forwarded-groups"
    roles: str = ""
    trusted: Collection[str] = ("127.0.0.0/8", "::1/128")
    issuer: str = ""
    default_roles: Collection[str] = ()
    role_of: Mapping[str, Collection[str]] = field(default_factory=dict)
    casefold: bool = False
    secret: str = ""
    secret_header: str = "x-proxy-secret"  # noqa: S105 - a name

    def __post_init__(self) -> None:
        """Check the networks.

        Raises:
            UsageError: one of them isn't a network.
        """
        for network in self.trusted:
            try:
                _ = network == UNIX or ipaddress.ip_network(network)
            except ValueError as error:
                raise UsageError(
                    f"trusted has {network!r}, which is not a network such as 10.0.0.0/8, nor {UNIX!r}."
                ) from error

    def __call__(self, request: Request) -> Person | None:
        """Return the person that the headers name.

        Raises:
            Problem: the headers can't be the proxy's, or one is there twice.
        """
        name = _header(request, self.user)
        if not name:
            return None
        if not self._is_trusted(request.client.host if request.client else ""):
            raise Problem(
                403,
                "The headers of a login come from an address that is not trusted; name the proxy's "
                "address with `--trusted`.",
            )
        if self.secret and not same(_header(request, self.secret_header), self.secret):
            raise Problem(
                403, f"The headers of a login come without the secret in {self.secret_header}."
            )
        groups = frozenset(_listed(_header(request, self.groups)))
        roles = {
            *self.default_roles,
            *(_listed(_header(request, self.roles)) if self.roles else ()),
        }
        for group in groups & self.role_of.keys():
            roles |= {*self.role_of[group]}
        if self.casefold:
            name = unicodedata.normalize("NFKC", name).casefold()
        return Person(Principal(name, self.issuer), frozenset(roles), groups, level=LOGIN)

    def _is_trusted(self, host: str) -> bool:
        address = _address(host)
        if address is None:
            return not host and UNIX in self.trusted
        return any(
            address in ipaddress.ip_network(network)
            for network in self.trusted
            if network != UNIX
        )


def _header(request: Request, name: str) -> str:
    """Return a header that a proxy sets, or "" if it is missing.

    Raises:
        Problem: there are two, one of them sent by the client, or it is not UTF-8.
    """
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise Problem(
            400, f"The header {name} is there twice; the proxy must delete what clients send."
        )
    try:
        return "".join(values).encode("latin-1").decode()
    except UnicodeDecodeError:
        raise Problem(400, f"The header {name} is not UTF-8.") from None


def _listed(text: str) -> Iterable[str]:
    return (item.strip() for item in text.split(",") if item.strip())


class ApiKeys:
    """The login of programs, by keys in the header `Authorization: Bearer rk_...`.

    The file has a JSON list with an object for each key: `hash` (of `new_key`), `name`, `roles`, `groups`,
    and `expires`, the ISO 8601 time at which the key ends. It is read again when it has changed. `then`
    identifies the callers without a key: people.
    """

    def __init__(
        self,
        path: str | Path,
        then: Callable[[Request], Any] | None = None,
        issuer: str = "api-key",
    ) -> None:
        """Read the keys.

        Raises:
            UsageError: the file can't be read.
        """
        self.path = Path(path)
        self._then = then
        self._issuer = issuer
        # This object has the routes of the login, such as `OIDC`, too.
        for name in ("router", "login_path"):
            if hasattr(then, name):
                setattr(self, name, getattr(then, name))
        self._version: tuple[int, ...] = ()
        self._people: dict[str, tuple[Person, float]] = {}
        self._noted: dict[str, float] = {}
        self._read()

    def __call__(self, request: Request) -> Any:
        """Return the program whose key the request has."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.startswith(PREFIX):
            return self._then(request) if self._then else None
        try:
            self._read()
        except UsageError as error:  # keys read earlier may have been revoked since
            log.error("api_keys.unread: %s No key counts until it can be read.", error)  # noqa: TRY400 - says all
            raise Problem(
                503,
                "The API keys can't be read; nothing was done.",
                headers={"Retry-After": "5"},
            ) from error
        key_hash = hash_of(key)
        person, expires_at = self._people.get(key_hash, (None, 0.0))
        if person is None:
            raise Problem(401, "The API key is not known, or was revoked.")
        if time.time() >= expires_at:
            raise Problem(401, "The API key has expired; ask for a new one.")
        if time.monotonic() >= self._noted.get(key_hash, 0.0):
            self._noted[key_hash] = time.monotonic() + NOTED_EVERY
            note_use = request.app.state.services.note_key_use
            threading.Thread(target=note_use, args=(key_hash,), daemon=True).start()
        return person

    def _read(self) -> None:
        try:
            file = self.path.stat()
        except OSError as error:
            raise UsageError(
                f"the API keys in {self.path} can't be read: {error!r}."
            ) from error
        version = file.st_mtime_ns, file.st_size, file.st_ino
        if version != self._version:
            self._people = {
                key.hash: (self._person(key), key.expires_at / 1000 or math.inf)
                for key in read_keys(self.path)
            }
            self._version = version

    def _person(self, key: ApiKey) -> Person:
        principal = Principal(key.name, self._issuer, "service", key.name)
        return Person(principal, frozenset(key.roles), frozenset(key.groups), level=SERVICE)


def new_key(
    name: str, roles: Iterable[str], days: float | None = None
) -> tuple[str, JSONObject]:
    """Make an API key: the key itself, which is stored nowhere, and its entry in the file.

    It expires after `days`; without them, it is valid until its entry is removed.

    Raises:
        UsageError: a role is not one of this server's.
    """
    for role in roles:
        split_role(role)
    key = PREFIX + secrets.token_urlsafe(32)
    entry = {
        "name": name,
        "hash": hash_of(key),
        "roles": sorted(roles),
        "groups": [],
    }
    if days is None:
        return key, entry
    expires = datetime.fromtimestamp(time.time() + days * 86_400, UTC)
    return key, entry | {"expires": expires.isoformat(timespec="seconds")}


def hash_of(key: str) -> str:
    """Hash an API key. It has 256 random bits, so no slow hash is needed."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def same(text: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(text.encode(), expected.encode())
