"""The login of the server in containers: HTTP Basic, with one password that allows everything.

It suits your own machine only. Replace it with an identity provider or a proxy, which know people.
"""

from __future__ import annotations

import base64
import hmac
import os

from fastapi import Request

from runner.approvals import Principal
from runner.server import Person
from runner.server.access import GRANTS
from runner.server.problems import Problem


def login(request: Request) -> Person:
    """Return the person that the browser names, if the password is SERVER_PASSWORD.

    Raises:
        Problem: it is not, or none is set; the browser then asks for it.
    """
    scheme, _, sent = request.headers.get("authorization", "").partition(" ")
    try:
        name, _, password = base64.b64decode(sent, validate=True).decode().partition(":")
    except ValueError:
        name = password = ""
    right = os.environ.get("SERVER_PASSWORD", "")
    same = hmac.compare_digest(password.encode(), right.encode())
    if scheme.lower() != "basic" or not (name and right and same):
        raise Problem(
            401,
            "Log in with your name and the password.",
            headers={"WWW-Authenticate": "Basic"},
        )
    return Person(Principal(name), frozenset(GRANTS))
