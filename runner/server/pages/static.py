"""The style sheet, the script and the icon, by names that change with their content."""

from __future__ import annotations

import mimetypes

from fastapi import APIRouter, Depends, Response

from runner.server.access import OPEN
from runner.server.pages.rendering import STATIC
from runner.server.problems import Problem

router = APIRouter(include_in_schema=False)

YEAR = 31_536_000


@router.get("/static/{name}", dependencies=[Depends(OPEN)])
def static(name: str) -> Response:
    """Return a file; a browser keeps it for a year."""
    if name not in STATIC:
        raise Problem(404, f"There is no file {name!r:.80}.")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"cache-control": f"public, max-age={YEAR}, immutable"}
    return Response(STATIC[name], media_type=kind, headers=headers)
