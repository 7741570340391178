"""Where a store is when its URL names Sentinels: `sentinel://host:port,host:port/service?db=0`.

Sentinels tell which server is the primary now. kombu writes the same in another form, which is made
here too. Takes and returns text; fails with UsageError, which never shows a password.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from runner.errors import UsageError

SENTINEL_PORT = 26379
FORM = "sentinel://host:26379,host:26379/service?db=0"


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Several Sentinels, the service that they watch, and how to get in; user and password as in the URL."""

    hosts: tuple[tuple[str, int], ...]
    service: str
    database: int = 0
    login: str = ""
    sentinel_username: str | None = None
    sentinel_password: str | None = None

    @property
    def username(self) -> str | None:
        """Who logs in at the servers."""
        return unquote(self.login.partition(":")[0]) or None

    @property
    def password(self) -> str | None:
        """The servers' password."""
        return unquote(self.login.partition(":")[2]) or None

    @property
    def broker_url(self) -> str:
        """The same as kombu reads it; the service is an option of its transport."""
        login = f"{self.login}@" if self.login else ""
        return ";".join(f"sentinel://{login}{host}:{port}/{self.database}" for host, port in self.hosts)

    @property
    def place(self) -> str:
        """Name the service without its password."""
        return f"{','.join(f'{host}:{port}' for host, port in self.hosts)}/{self.service}"


def sentinels(url: str) -> Sentinels | None:
    """Read a URL; None for one that names no Sentinels.

    Raises:
        UsageError: it does, but not as it must.
    """
    if not url.startswith("sentinel://"):
        return None
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    query = dict(parse_qsl(parts.query))
    try:
        found = Sentinels(
            hosts=tuple(_host(each) for each in hosts.split(",")),
            service=parts.path.strip("/"),
            database=int(query.pop("db", "0")),
            login=login,
            sentinel_username=query.pop("sentinel_username", None),
            sentinel_password=query.pop("sentinel_password", None),
        )
    except ValueError as error:
        raise _unreadable(str(error)) from error
    if not found.service or query:
        raise _unreadable(f"it has {', '.join(query)}" if query else "it names no service")
    return found


def _host(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host if colon else port):
        raise ValueError("a host has no name")
    return (host, int(port)) if colon else (port, SENTINEL_PORT)


def _unreadable(why: str) -> UsageError:
    return UsageError(
        f"the address of the Sentinels can't be read ({why}), so nothing was done. Write it as {FORM}, with "
        "`user:password@` in front for the servers, and sentinel_username= and sentinel_password= behind for "
        "the Sentinels."
    )
