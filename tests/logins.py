from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


def address_in(log: Path | str) -> str:
    """Return the address with the token that a server has logged; "" while there is none."""
    text = log if isinstance(log, str) else log.read_text()
    found = re.search(r"http://\S+/login\?token=\w+", text)
    return found[0] if found else ""


@contextmanager
def logged_in(address: str) -> Iterator[httpx.Client]:
    """Open an address with a token, and give a client that has its cookie, as a browser does."""
    base = httpx.URL(address).join("/")
    with httpx.Client(base_url=base, follow_redirects=True, timeout=60) as http:
        http.get(address, headers={"Accept": "text/html"}).raise_for_status()
        yield http
