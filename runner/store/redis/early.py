"""Answers that came before their questions go back to their doors when the question is asked.

They are in one hash: "#" how many, their bytes and the last number; ?<question> the numbers of its answers;
!<number> the door that it came through, and its message.
"""

from __future__ import annotations

from runner.records.interrupts import SEPARATOR
from runner.store.redis.connection import Argument
from runner.store.redis.draft import Draft
from runner.store.redis.keys import run_key

EARLY = "early"

MOST, MOST_BYTES = 1_000, 65_536_000
"""Answers that wait for their questions at most, and their bytes together."""

AT_ONCE = 100
"""Answers in one entry of a stream."""


def keep(draft: Draft, interrupt_id: str, door: str, message: bytes, lifetime_ms: int) -> str:
    """Keep an answer: "kept", "asked" if there is such a question by now, "crowded" if no more are kept."""
    run_id, _, name = interrupt_id.partition(SEPARATOR)
    if draft.get(run_key(run_id), f"i:{name}") is not None:
        return "asked"
    numbers = f"?{interrupt_id}"
    draft.reads.want(EARLY, ("#", numbers))
    count, size, last = map(int, (draft.get(EARLY, "#") or b"0 0 0").split())
    value = f"{door} ".encode() + message
    if count >= MOST or size + len(value) > MOST_BYTES:
        return "crowded"
    others = (draft.get(EARLY, numbers) or b"").decode().split()
    draft.put(EARLY, "#", f"{count + 1} {size + len(value)} {last + 1}")
    draft.put(EARLY, numbers, " ".join([*others, str(last + 1)]))
    draft.put(EARLY, f"!{last + 1}", value)
    draft.timer(f"early|{run_id}|{last + 1} {interrupt_id}", draft.reads.now + lifetime_ms)
    return "kept"


def hand(draft: Draft, run_id: str, interrupt_id: str, only: str = "") -> None:
    """Hand the answers to a question back, in the order in which they came: all, or only one."""
    numbers = (draft.get(EARLY, f"?{interrupt_id}") or b"").decode().split()
    if not numbers:
        return
    rest = [number for number in numbers if only and number != only]
    handed = [number for number in numbers if number not in rest]
    draft.reads.want(EARLY, ["#", *(f"!{number}" for number in handed)])
    count, size, last = map(int, (draft.get(EARLY, "#") or b"0 0 0").split())
    doors: dict[str, list[Argument]] = {}
    for number in handed:
        value = draft.get(EARLY, f"!{number}") or b""
        door, _, message = value.partition(b" ")
        draft.drop(EARLY, f"!{number}")
        draft.timer(f"early|{run_id}|{number} {interrupt_id}", None)
        count, size = count - 1, size - len(value)
        doors.setdefault(door.decode(), []).extend((number, message))
    for name, messages in doors.items():
        for first in range(0, len(messages), 2 * AT_ONCE):
            draft.command("XADD", f"{EARLY}:{name}", "*", *messages[first : first + 2 * AT_ONCE])
    if count == 0:
        draft.command("DEL", EARLY)
        return
    draft.put(EARLY, "#", f"{count} {size} {last}")
    if rest:
        draft.put(EARLY, f"?{interrupt_id}", " ".join(rest))
    else:
        draft.drop(EARLY, f"?{interrupt_id}")
