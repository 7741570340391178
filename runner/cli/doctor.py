"""`runner doctor`: is everything as it should be, and if not, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.exits import Exit
from runner.cli.session import Session, pass_session, shared

if TYPE_CHECKING:
    from runner.cli.facts import Check, Facts
    from runner.settings import Settings

CONNECT = 3.0
"""Seconds that a broker may take to take a connection."""


@click.command()
@shared
@pass_session
def doctor(session: Session) -> int:
    """Check store, broker, workers and settings, and say what to mend.

    Each line is PASS, WARN or FAIL, what was looked at, what was found and how to mend it. Without a terminal
    the cells are separated by tabs.

    \b
    Exit codes: 0 nothing is wrong or only worth a warning; 1 something failed; 7 the store can't be
    reached.
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    from runner.cli.checks import examine
    from runner.cli.facts import FAIL, PASS, Check

    store = Check(PASS, "store", place(session.settings.redis_url))
    checks = [store, *examine(read_facts(session.settings))]
    if session.output.as_json:
        session.output.data({"checks": [_document(check) for check in checks]})
    else:
        rows = [(check.word, check.name, check.found, check.fix) for check in checks]
        session.output.table(("", "WHAT", "FOUND", "FIX"), rows, "")
    return Exit.RUN_FAILED if any(check.word == FAIL for check in checks) else Exit.DONE


def _document(check: Check) -> dict[str, str]:
    return {"result": check.word.lower(), "name": check.name, "found": check.found, "fix": check.fix}


def read_facts(settings: Settings) -> Facts:
    """Ask everybody.

    Raises:
        StoreError: the store can't be reached.
    """
    from runner.cli.facts import Facts
    from runner.cli.origins import unknown
    from runner.cli.watch import wall_clock
    from runner.store import open_store
    from runner.store.letters import Letters
    from runner.store.roster import Roster
    from runner.store.vitals import vitals

    url = settings.redis_url
    return Facts(
        vitals=vitals(url),
        clock=wall_clock(),
        workers=Roster(url).all(),
        graphs=open_store(url).graphs(),
        letters=Letters(url).count(),
        sweep_interval=settings.sweep_interval,
        broker="" if settings.broker_is_store else trouble(settings.broker),
        broker_is_store=settings.broker_is_store,
        unguarded=_unguarded(url),
        unknown=unknown(),
        durability=settings.durability,
        sizes={name: getattr(settings, f"max_{name}") for name in ("result", "state", "run")},
    )


def trouble(broker_url: str) -> str:
    """Say why a broker can't be reached, or return ""."""
    import socket
    from urllib.parse import urlsplit

    parts = urlsplit(broker_url)
    port = parts.port or (5672 if parts.scheme.startswith("amqp") else 6379)
    try:
        if parts.scheme.endswith("+socket"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(CONNECT)
                probe.connect(parts.path)
        else:
            socket.create_connection((parts.hostname or "localhost", port), CONNECT).close()
    except OSError as error:
        return f"{place(broker_url)} can't be reached ({error})"
    return ""


def place(url: str) -> str:
    """Write a URL without its password."""
    from urllib.parse import parse_qsl, urlencode, urlsplit

    parts = urlsplit(url)
    if parts.password is not None:
        user, host = parts.username or "", parts.netloc.rpartition("@")[2]
        parts = parts._replace(netloc=f"{user}:***@{host}")
    query = [(name, "***" if "password" in name else value) for name, value in parse_qsl(parts.query)]
    shown = parts._replace(query=urlencode(query, safe="*/")).geturl()
    return shown if "://" in shown else shown.replace(":", "://", 1)


def _unguarded(url: str) -> bool:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    near = parts.scheme == "unix" or parts.hostname in {None, "localhost", "127.0.0.1", "::1"}
    return not near and parts.password is None
