"""A chat page with the client of AG-UI, on the server of its agents."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse

from runner.server.access import Seen

PACKAGES = Path(__file__).parents[3] / "build/agui-client/node_modules"

POLICY = (
    "default-src 'self'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'"
)
"""The script and the style are in the page; zod tries what it may evaluate."""


def router(services):
    """Return the page, and the modules of the client."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/chat")
    def page(_: Seen):
        text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"content-security-policy": POLICY})

    @routes.get("/npm/{name:path}")
    def module(name: str, _: Seen):
        path = PACKAGES / name
        # Modules of rxjs name files without their ending.
        candidates = (path, path.with_name(f"{path.name}.js"), path / "index.js")
        found = next(each for each in candidates if each.is_file())
        return FileResponse(found, media_type="text/javascript")

    return routes
