"""The clerk's model: a script, so that the example needs no account, or a real one.

`REFUNDS_MODEL=module:factory` names a function without arguments that returns a model: any object
with the `stream` method of a Strands model.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from runner.testing import ScriptedModel


def model() -> Any:
    """Return the model that REFUNDS_MODEL names, or the script."""
    named = os.environ.get("REFUNDS_MODEL")
    if not named:
        return ScriptedModel([look_up, ask_or_pay, pay_or_report, report])
    module, _, factory = named.partition(":")
    return getattr(importlib.import_module(module), factory)()


def look_up(messages: list[Any]) -> dict[str, Any]:
    """First look up the order."""
    return call("look_up", order(messages))


def ask_or_pay(messages: list[Any]) -> list[dict[str, Any]]:
    """Ask every desk that must agree, all at once; pay if none must."""
    price = json.loads(results(messages)[0])
    asks = [call(f"ask_{desk}", price["order"]) for desk in price["must_agree"]]
    return asks or [call("refund", price["order"])]


def pay_or_report(messages: list[Any]) -> Any:
    """Try to pay after the desks have answered; the tool decides."""
    return (
        report(messages)
        if results(messages)[0].startswith("paid")
        else call("refund", order(messages))
    )


def report(messages: list[Any]) -> str:
    """Report the outcome."""
    return f"Your refund of order {order(messages)} was {results(messages)[0]}."


def call(name: str, number: str) -> dict[str, Any]:
    """Return a tool call."""
    return {"toolUse": {"name": name, "input": {"order": number}}}


def order(messages: list[Any]) -> str:
    """Find the order in the prompt: its last word."""
    words: list[str] = messages[0]["content"][0]["text"].split()
    return words[-1]


def results(messages: list[Any]) -> list[str]:
    """Read what the last tools returned."""
    parts = (block["toolResult"]["content"][0] for block in messages[-1]["content"])
    return [part["text"] if "text" in part else json.dumps(part["json"]) for part in parts]
