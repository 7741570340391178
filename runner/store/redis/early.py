"""Answers that came before their questions go back to their doors when the question is asked.

They are in one hash: "#" how many, their bytes and the last number; ?<question> the numbers of its answers;
!<number> the door that it came through, and its message.
"""

from __future__ import annotations

from runner.store.redis.connection import Argument
from runner.store.redis.draft import Draft

EARLY = "early"

AT_ONCE = 100
"""Answers in one entry of a stream."""


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
