"""Texts and flat forms in Slack's Block Kit, and people's input in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.records.codec import JSONMapping, JSONObject, without_none

MOST_SHOWN = 3000
MOST_INPUT = 3000
MOST_LABEL = 2000
MOST_CHOICES = 100
MOST_CHOICE = 75
MOST_CONFIRM = 300
MOST_FACTS = 10
"""Slack's limits: characters of texts, inputs and labels; choices in a menu, and characters of each;
characters of a confirmation; fields of a section."""

ESCAPES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
"""The characters with which Slack marks links and mentions; each becomes at most five."""


def escaped(text: str, most: int | None = None) -> str:
    """Escape a text, first cutting it so that the result has at most `most` characters."""
    return text[: most and most // 5].translate(ESCAPES)


def plain(text: str, most: int | None = None) -> JSONObject:
    """Make a text without formatting, links or mentions."""
    return {"type": "plain_text", "text": escaped(text, most), "emoji": False}


def button(action_id: str, label: str, **more: Any) -> JSONObject:
    """Make a button with a `value` or the `url` of a page."""
    return {"type": "button", "action_id": action_id, "text": plain(label), **more}


def approval(title: str) -> JSONObject:
    """Make the options of a button that approves: it stands out, and asks for confirmation."""
    ask = {"title": plain("Approve?"), "text": plain(title, MOST_CONFIRM)}
    answers = {"confirm": plain("Approve"), "deny": plain("Cancel")}
    return {"style": "primary", "confirm": {**ask, **answers}}


def facts(values: Mapping[str, str]) -> JSONObject:
    """Make the fields of a section; {} if Slack can't show all of them."""
    texts = [f"{name}\n{value}" for name, value in values.items()]
    is_fit = 0 < len(texts) <= MOST_FACTS and max(map(len, map(escaped, texts))) <= MOST_LABEL
    return {"fields": [*map(plain, texts)]} if is_fit else {}


def fits(form: JSONMapping) -> bool:
    """Return whether Slack can show all of a form."""
    return len(form["properties"]) < MOST_CHOICES and all(
        len(escaped(_label(name, field))) <= MOST_LABEL
        and len(escaped(field.get("description", ""))) <= MOST_LABEL
        and field.get("minLength", 0) <= MOST_INPUT
        and len(choices := _choices(field) or ()) <= MOST_CHOICES
        and all(0 < len(escaped(choice)) <= MOST_CHOICE for choice in choices)
        for name, field in form["properties"].items()
    )


def inputs(form: JSONMapping) -> Iterator[JSONObject]:
    """Make each field's input; its block id is its number."""
    for number, (name, field) in enumerate(form["properties"].items()):
        hint = {"hint": plain(field["description"])} if field.get("description") else {}
        yield {
            "type": "input",
            "block_id": str(number),
            "label": plain(_label(name, field)),
            "optional": name not in form["required"],
            "element": {"action_id": "input", **_element(field)},
            **hint,
        }


def content_of(form: JSONMapping, state: JSONMapping) -> JSONObject:
    """Read the values entered into a form's inputs, leaving out empty ones.

    Raises:
        ValueError, LookupError or TypeError: an input has a value that its field can't have.
    """
    content = {
        name: _value(field, state.get(str(number), {}).get("input", {}))
        for number, (name, field) in enumerate(form["properties"].items())
    }
    return without_none(content)


def _label(name: str, field: JSONMapping) -> str:
    return field.get("title") or name


def _choices(field: JSONMapping) -> Sequence[str] | None:
    """Return the texts of a menu field; None for any other field."""
    if field["type"] == "boolean":
        return ("Yes", "No")
    choices: Sequence[str] | None = field.get("items", field).get("enum")
    return choices


def _element(field: JSONMapping) -> JSONObject:
    choices = _choices(field)
    if choices is not None:
        options = [
            {"text": plain(choice), "value": str(number)}
            for number, choice in enumerate(choices)
        ]
        kind = "multi_static_select" if field["type"] == "array" else "static_select"
        return {"type": kind, "options": options}
    if field["type"] in {"integer", "number"}:
        return {"type": "number_input", "is_decimal_allowed": field["type"] == "number"}
    most = min(field.get("maxLength", MOST_INPUT), MOST_INPUT)
    return {"type": "plain_text_input", "multiline": "format" not in field, "max_length": most}


def _value(field: JSONMapping, entered: JSONMapping) -> Any:
    choices = _choices(field)
    kind = field["type"]
    if choices is None:
        text = entered.get("value")
        return {"integer": int, "number": float}.get(kind, str)(text) if text else None
    options = entered.get("selected_options") or [entered.get("selected_option")]
    values = [choices[int(option["value"])] for option in options if option]
    if kind == "array":
        return values or None
    return (values[0] == "Yes" if kind == "boolean" else values[0]) if values else None
