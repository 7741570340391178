"""The page: a form for every open question, and below the outcome of the others."""

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
<input type="hidden" name="id" value="{id}"><input type="hidden" name="digest" value="{digest}">
<label>Answer, as JSON<textarea name="response" rows="3">{suggestion}</textarea></label>
<label>Your name <input name="responder" required></label> <button>Send</button></form>"""


def page(questions: Iterable[Mapping[str, Any]], done: Mapping[str, Any]) -> str:
    """Render the page; text from agents and users is escaped, and all its characters are visible."""
    forms = "".join(_form(question) for question in questions) or "<p>No open questions.</p>"
    # Reloading the page would discard an answer that is being typed.
    refresh = "" if "<form" in forms else '<meta http-equiv="refresh" content="5">'
    items = [
        f"<li><code>{_shown(key)}</code> {_shown(_outcome(receipt))}</li>"
        for key, receipt in done.items()
    ]
    return PAGE.format(refresh=refresh, questions=forms, done="".join(items[-20:]))


def _form(question: Mapping[str, Any]) -> str:
    return FORM.format(
        name=_shown(question["name"]),
        node=_shown(question["node"]),
        run=_shown(question["run_id"]),
        reason=_shown(json.dumps(question["reason"], indent=2, ensure_ascii=False)),
        id=escape(question["id"]),
        digest=escape(question["digest"]),
        suggestion=escape(json.dumps(_suggestion(question["response_schema"]))),
    )


def _shown(text: str) -> str:
    """Escape text for HTML, and write control, direction and zero-width characters as escapes.

    A text with U+202E, for example, would be read from right to left, and an amount as another one.
    """
    visible = "".join(
        char
        if char.isprintable() or char == "\n"
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
    return escape(visible)


def _suggestion(schema: Mapping[str, Any] | None) -> Any:
    """Return an initial answer: the first choice of every field that has choices."""
    if schema is None:
        return "yes"
    fields = schema.get("properties", {})
    return {
        name: field.get("enum", [field.get("default", "")])[0] for name, field in fields.items()
    }


def _outcome(receipt: Mapping[str, Any]) -> str:
    return f"{receipt['status']} {receipt.get('detail') or ''}"
