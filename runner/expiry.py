"""What becomes of a node when nobody answers its question in time: see docs/decisions/0032-expiry.md.

Where the question says "fail" or {"route": node}, the node ends without running again; everything that
this leaves behind is worked out here, from the question alone. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from runner import codec, failures, schemas
from runner.errors import InterruptExpired, UsageError

if TYPE_CHECKING:
    from runner.interrupts import Interrupt

JSON = Any

WORDS = ("reject", "fail")

LONGEST = 36_525 * 86_400
"""Seconds that a question waits at most: a hundred years."""


def check_lifetime(expires_in: object, field: str) -> None:
    """Check how long a question waits, in seconds; None: for ever.

    Raises:
        UsageError: it is no such time.
    """
    if expires_in is None:
        return
    counts = isinstance(expires_in, (int, float)) and not isinstance(expires_in, bool)
    if not counts or not 0.001 <= expires_in <= LONGEST:  # type: ignore[operator] # it is a number
        raise UsageError(
            f"{field}: expires_in must be more than 0 seconds (0.001 and more), and at most a hundred years, "
            f"not {expires_in!r:.80}; leave it out, and the question waits for ever."
        )


def checked(given: object, schema: dict[str, JSON] | None, routes: Sequence[str], field: str) -> JSON:
    """Check what a question says of its expiry; `routes` are the nodes that it may name.

    Raises:
        UsageError: it is nothing that is known, the answer does not fit the schema, or no edge for
            this case leads to the node.
    """
    if given is None or given in WORDS:
        return given
    form = next(iter(given)) if isinstance(given, Mapping) and len(given) == 1 else ""
    if not isinstance(given, Mapping) or form not in {"response", "route"} or given[form] is None:
        raise UsageError(
            f'{field} must be "reject", "fail", {{"response": value}} or {{"route": node}}, not {given!r}.'
        )
    packed = codec.pack(given, field)
    if form == "route":
        _check_route(given[form], routes, field)
        return packed
    reason = schemas.mismatch(schema, codec.plain(given[form])) if schema else ""
    if reason:
        raise UsageError(f"{field} can't be used: {reason}.")
    return packed


def _check_route(target: object, routes: Sequence[str], field: str) -> None:
    if target not in routes:
        known = f"they lead to {sorted(set(routes))}" if routes else "it has none"
        raise UsageError(
            f"{field} names the node {target!r}, to which only an edge of the node that asks can lead, one "
            f"that was added with on_expire=True; {known}."
        )


def ends_node(asked: Interrupt) -> bool:
    """Tell whether the node ends with the question's time, without running again."""
    return asked.on_expire == "fail" or bool(route(asked))


def route(asked: Interrupt) -> str:
    """Name the node to which an expired question leads; "" where it does not."""
    return str(asked.on_expire["route"]) if _has(asked, "route") else ""


def default(asked: Interrupt) -> Sequence[JSON]:
    """Return the answer that holds when nobody answers, packed, in a list; an empty one without it."""
    return [asked.on_expire["response"]] if _has(asked, "response") else []


def _has(asked: Interrupt, form: str) -> bool:
    return isinstance(asked.on_expire, Mapping) and form in asked.on_expire


def error(asked: Interrupt) -> InterruptExpired:
    """Make the error of a question that nobody has answered."""
    waited = f"nobody answered {asked.name!r} within {asked.expires_in or 0:g} s"
    if asked.on_expire == "fail":
        return InterruptExpired(f'{waited}, and on_expire="fail" lets its node fail for that.')
    return InterruptExpired(f"{waited}, so it counts as rejected.")


def entry(asked: Interrupt, edges: str) -> dict[str, JSON]:
    """Give the entry of a node that ended with its question: its error, or the edges that it took."""
    if route(asked):
        return {"v": 1, "ms": 0, "edges": edges, "expired": asked.id}
    return {"v": 1, "ms": 0, "error": asdict(failures.record(error(asked)))}


def output(asked: Interrupt) -> JSON:
    """Give the output of a node whose question led elsewhere: what was asked, for the node that is next."""
    told = {"interrupt_id": asked.id, "name": asked.name, "reason": asked.reason}
    return {"expired": {**told, "assignees": list(asked.assignees)}}
