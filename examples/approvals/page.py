"""The page: every open question with a form, and below what became of the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
{refresh}<title>Approvals</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }}
form, li {{ border: 1px solid #8888; border-radius: 8px; padding: 1rem; margin: 1rem 0 }}
pre, textarea {{ width: 100%; box-sizing: border-box; white-space: pre-wrap; font: 14px/1.5 monospace }}
ul {{ padding: 0; list-style: none }} code {{ overflow-wrap: anywhere }}
</style>
<h1>Approvals</h1>{questions}<h2>Done</h2><ul>{done}</ul></html>"""

FORM = """<form method="post" action="/answer">
<strong>{name}</strong> asked by {node} of run <code>{run}</code>
<pre>{reason}</pre>
<input type="hidden" name="id" value="{id}">
<label>Answer, as JSON<textarea name="response" rows="3">{suggestion}</textarea></label>
<label>Your name <input name="responder" required></label> <button>Send</button></form>"""


def page(questions: Iterable[Mapping[str, Any]], done: Mapping[str, Any]) -> str:
    """Write the page; what agents and users wrote is escaped."""
    forms = "".join(_form(question) for question in questions) or "<p>Nothing waits for a person.</p>"
    # A page that reloads would take away what somebody is typing.
    refresh = "" if "<form" in forms else '<meta http-equiv="refresh" content="5">'
    items = [f"<li><code>{escape(key)}</code> {escape(_word(told))}</li>" for key, told in done.items()]
    return PAGE.format(refresh=refresh, questions=forms, done="".join(items[-20:]))


def _form(question: Mapping[str, Any]) -> str:
    return FORM.format(
        name=escape(question["name"]),
        node=escape(question["node_id"]),
        run=escape(question["run_id"]),
        reason=escape(json.dumps(question["reason"], indent=2, ensure_ascii=False)),
        id=escape(question["id"]),
        suggestion=escape(json.dumps(_suggestion(question["response_schema"]))),
    )


def _suggestion(schema: Mapping[str, Any] | None) -> Any:
    """An answer to begin with: the first choice of every field that has choices."""
    if schema is None:
        return "yes"
    fields = schema.get("properties", {})
    return {name: each.get("enum", [each.get("default", "")])[0] for name, each in fields.items()}


def _word(told: Mapping[str, Any]) -> str:
    return f"{told['status']} {told.get('detail') or ''}"
