"""Rendering of pages: the templates, the functions they may call, and text that hides nothing."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nh3
from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from runner.approvals.rule_text import instead, who
from runner.approvals.rules import plain_name
from runner.operations.decided import VERBS
from runner.records import json_form
from runner.records.shown_text import shown
from runner.server.access import Person
from runner.server.browser import TOKEN
from runner.server.forms import json_text
from runner.server.pages.amounts import amount_of, sums_of, written
from runner.server.pages.files import file_of
from runner.server.problems import Problem, prefix

FOLDER = Path(__file__).parent.parent
STATIC = {
    path.name: path.read_bytes()
    for path in sorted((FOLDER / "static").iterdir())
    if path.is_file()
}
HASHES = {name: hashlib.sha256(content).hexdigest()[:12] for name, content in STATIC.items()}

TAGS = set("p em strong code pre ul ol li blockquote h1 h2 h3 h4 hr br".split())  # noqa: SIM905 - in one line
"""Elements that agents' text may have; no links, since people follow them, and no images, since they load."""

MARKDOWN = (
    MarkdownIt("commonmark", {"html": False})
    .enable("table")
    .disable(["image", "link", "autolink"])
)

STATES = {
    state: sign
    for sign, states in {
        "✓": "completed accepted alive active delivered answered",
        "✕": "failed rejected gone hangs",
        "?": "waiting interrupted open",
        "!": "needs_migration held stopping paused",
        "▶": "running executing",
        "↻": "retrying",
        "○": "ready pending",
        "-": "skipped cancelled expired withdrawn",
    }.items()
    for state in states.split()
}
"""A sign for each state beside its word and its colour."""


WORDS = {"needs_migration": "held", "interrupted": "waits for people"}
"""States that have another name on pages than in the API."""


def in_words(state: str) -> str:
    """Return the name of a state on pages."""
    return WORDS.get(str(state), str(state).replace("_", " "))


def visible(value: Any) -> Any:
    """Write invisible characters as escapes, in everything that a page shows.

    The value of a control comes back with its form, so it stays unchanged: templates write it with `|e`.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return shown(value)


def coded(text: str) -> Markup:
    """Return a text of this program with the parts between backticks as code."""
    fragments = [escape(visible(fragment)) for fragment in text.split("`")]
    return Markup("").join(  # escaped above
        Markup("<code>{}</code>").format(fragment) if number % 2 else fragment
        for number, fragment in enumerate(fragments)
    )


def markdown(text: str) -> Markup:
    """Return an agent's text as HTML without anything that acts or loads."""
    # Escape after Markdown has read character references: &#x202e; becomes visible like the character.
    return Markup(visible(nh3.clean(MARKDOWN.render(text), tags=TAGS, attributes={})))  # noqa: S704 - cleaned


def moment(milliseconds: int | None) -> Markup:
    """Return a time as words, with the exact one beside it."""
    if not milliseconds:
        return Markup("-")
    words = ago(milliseconds, round(time.time() * 1000))
    # These are digits and words of this module, which need no escaping.
    return Markup(f"{_exact(milliseconds // 1000)}{words}</time>")  # noqa: S704 - as above


@lru_cache(2_000)
def _exact(seconds: int) -> str:
    exact = datetime.fromtimestamp(seconds, UTC)
    return f'<time datetime="{exact.isoformat()}" title="{exact:%Y-%m-%d %H:%M:%S} UTC">'


def clock(milliseconds: int, dated: bool = True) -> Markup:  # noqa: FBT001, FBT002 - of a filter
    """Return the time of day in UTC, if `dated` with another day's date; a script shows local time."""
    exact = datetime.fromtimestamp(milliseconds / 1000, UTC)
    title = f"{exact:%Y-%m-%d %H:%M:%S} UTC"
    is_short = not dated or milliseconds // 86_400_000 == time.time() // 86_400
    shown = title[11:] if is_short else title
    return Markup(  # noqa: S704 - digits and letters
        f'<time datetime="{exact.isoformat(timespec="milliseconds")}" title="{title}" '
        f'data-clock="{dated:d}">{shown}</time>'
    )


def ago(milliseconds: int, now: int) -> str:
    """Return how long ago, or in how long, a time is."""
    distance = abs(now - milliseconds)
    if distance < 10_000:
        return "just now" if milliseconds <= now else "in a moment"
    duration = humanize(distance)
    return f"{duration} ago" if milliseconds < now else f"in {duration}"


def humanize(milliseconds: float) -> str:
    """Return a duration in its largest unit: 3 hours."""
    seconds = milliseconds / 1000
    for name, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            number = round(seconds / length)
            return f"{number} {name}{'s' if number > 1 else ''}"
    return f"{int(seconds)} seconds"


def span(milliseconds: float) -> str:
    """Return a duration for a table: 240 ms, 1.2 s, 3 min 05 s."""
    return json_form.span(milliseconds) if milliseconds < 3_600_000 else humanize(milliseconds)


TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=select_autoescape(default=True),
    undefined=StrictUndefined,
    finalize=visible,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    function.__name__: function
    for function in (
        *(amount_of, clock, coded, file_of, humanize, in_words, instead, json_text, markdown),
        *(moment, plain_name, json_form.pretty, span, sums_of, who, written),
    )
}
TEMPLATES.globals |= {
    "sign": lambda state: STATES.get(str(state), "·"),
    "token_name": TOKEN,
    "verbs": VERBS,
}
# A row shows only the values that the macro is called with, so equal ones are rendered once.
TEMPLATES.globals["question_row"] = lru_cache(2_000)(
    TEMPLATES.get_template("rows.html").module.__dict__["question_row"]
)


def page(
    request: Request, name: str, person: Person | None, status: int = 200, **values: Any
) -> HTMLResponse:
    """Render a template as a page."""
    base = prefix(request)
    text = TEMPLATES.get_template(name).render(
        person=person,
        here=request.url.path.removeprefix(base) or "/",
        url=lambda path, name="", rest="": base + path + quote(name, "@:[]") + rest,
        static=lambda file: f"{base}/static/{file}?v={HASHES[file]}",
        query=request.query_params,
        can_log_out=hasattr(request.app.state.auth, "login_path"),
        form_token=request.app.state.form_tokens.issue(person),
        title_of_site=request.app.title,
        **values,
    )
    return HTMLResponse(text, status)


def back(request: Request, path: str) -> RedirectResponse:
    """Redirect the browser to a page after its form was applied."""
    return RedirectResponse(prefix(request) + path, 303)


def error_page(request: Request, problem: Problem) -> HTMLResponse:
    """Show why a page can't be shown, and a way out."""
    return page(
        request,
        "error.html",
        getattr(request.state, "person", None),
        problem.status,
        problem=problem,
    )
