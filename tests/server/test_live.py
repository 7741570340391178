"""Live pages: each part that may change has its place on the page from the start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.server import pages
from tests.graphs import wired
from tests.server.conftest import GRAPHS, Site

HTML = {"Accept": "text/html"}

TEMPLATES = Path(pages.__file__).parents[1] / "templates"

PART = re.compile(r"<\w+ [^>]*\bdata-(?:part|rows)\b[^>]*>")
"""An element that `page.js` reads again."""

LIVE = re.compile(r"block live %}\s*data-")


def parts_in(text):
    """Return the ids of the parts in a template, or on a page."""
    return {re.search(r'\bid="([\w-]+)"', tag)[1] for tag in PART.findall(text)}


def live_templates():
    """Return the templates of live pages, each with its parts."""
    texts = {path.stem: path.read_text() for path in TEMPLATES.glob("*.html")}
    return {name: parts_in(text) for name, text in texts.items() if LIVE.search(text)}


def without_parts(redis_url):
    """Return the page of each live template as it is while it has next to nothing to show."""
    bare = Site(redis_url, {**GRAPHS, "empty": lambda: wired({"a": lambda ctx: 1}).build()})
    bare.as_role("viewer")
    run = bare.start("empty")
    (question,) = bare.start("approval").interrupts()
    bare.client.run(question.run_id).cancel("over")
    paths = {
        "question": f"/q/{question.id}?tab=all",
        "run": f"/runs/{run.id}?tab=task",
        "inbox": "/inbox",
        "home": "/",
        "runs": "/runs?graph=none",
        "graph": "/graphs/broken",
        "workers": "/workers",
        "limits": "/limits",
        "grants": "/grants",
        "absences": "/absences",
        "schedules": "/schedules",
        "deliveries": f"/webhooks/{bare.add_webhook('hook').id}",
    }
    shown = {}
    for name, path in paths.items():
        if name == "deliveries":
            bare.as_role("admin")
        reply = bare.http.get(path, headers=HTML)
        assert reply.status_code == 200, path
        shown[name] = reply.text
    return shown


@pytest.mark.full
def test_every_part_of_every_live_page_has_its_place(redis_url):
    """Also while it has nothing to show: the script replaces what is there, and adds nothing."""
    shown, templates = without_parts(redis_url), live_templates()

    assert shown.keys() == templates.keys()
    assert all(templates.values())
    missing = {name: parts - parts_in(shown[name]) for name, parts in templates.items()}
    assert {name: parts for name, parts in missing.items() if parts} == {}
    for name, text in shown.items():  # what is empty is not seen, as the style sheet says
        assert not re.search(r"<section[^>]*data-part[^>]*>\s+</section>", text), name
    # The control: a part that is there on some condition only.
    some = templates["question"] | parts_in('<p id="some" class="x" data-part>{{ some }}</p>')
    assert some - parts_in(shown["question"]) == {"some"}
