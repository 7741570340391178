"""Answers that came before their questions, and go back to their doors when the question is asked.

They are in one hash: "#" has their count, their bytes and the last number; ?<question> the numbers of its
answers; !<number> the door that an answer came through, and its message.
"""

from __future__ import annotations

from runner.records.interrupts import SEPARATOR
from runner.store.interface import ReplyWord
from runner.store.redis.connection import Argument
from runner.store.redis.keys import run_key
from runner.store.redis.transaction.sets import WriteSet

EARLY = "early"

MOST, MOST_BYTES = 1_000, 65_536_000
"""The most answers that wait for their questions, and the most bytes of all of them."""

AT_ONCE = 100
"""The most answers in one entry of a stream."""


def keep(
    write_set: WriteSet, interrupt_id: str, door: str, message: bytes, lifetime_ms: int
) -> ReplyWord:
    """Keep an answer: "kept", "asked" if the question was asked by now, "crowded" if no more fit."""
    run_id, _, name = interrupt_id.partition(SEPARATOR)
    if write_set.read(run_key(run_id), f"i:{name}") is not None:
        return "asked"
    numbers = f"?{interrupt_id}"
    write_set.read_set.want(EARLY, ("#", numbers))
    count, size, last_number = map(int, (write_set.read(EARLY, "#") or b"0 0 0").split())
    value = f"{door} ".encode() + message
    if count >= MOST or size + len(value) > MOST_BYTES:
        return "crowded"
    earlier_numbers = (write_set.read(EARLY, numbers) or b"").decode().split()
    write_set.put(EARLY, "#", f"{count + 1} {size + len(value)} {last_number + 1}")
    write_set.put(EARLY, numbers, " ".join([*earlier_numbers, str(last_number + 1)]))
    write_set.put(EARLY, f"!{last_number + 1}", value)
    due = write_set.read_set.now + lifetime_ms
    write_set.timers[f"early|{run_id}|{last_number + 1} {interrupt_id}"] = due
    return "kept"


def hand_back(write_set: WriteSet, run_id: str, interrupt_id: str, only: str = "") -> None:
    """Hand back a question's answers, in the order of their arrival: all, or only one."""
    numbers = (write_set.read(EARLY, f"?{interrupt_id}") or b"").decode().split()
    if not numbers:
        return
    remaining = [number for number in numbers if only and number != only]
    returning = [number for number in numbers if number not in remaining]
    write_set.read_set.want(EARLY, ["#", *(f"!{number}" for number in returning)])
    count, size, last_number = map(int, (write_set.read(EARLY, "#") or b"0 0 0").split())
    doors: dict[str, list[Argument]] = {}
    for number in returning:
        value = write_set.read(EARLY, f"!{number}") or b""
        door, _, message = value.partition(b" ")
        write_set.drop(EARLY, f"!{number}")
        write_set.timers[f"early|{run_id}|{number} {interrupt_id}"] = None
        count = count - 1
        size = size - len(value)
        doors.setdefault(door.decode(), []).extend((number, message))
    for name, messages in doors.items():
        for start in range(0, len(messages), 2 * AT_ONCE):
            write_set.command(
                "XADD", f"{EARLY}:{name}", "*", *messages[start : start + 2 * AT_ONCE]
            )
    if count == 0:
        write_set.command("DEL", EARLY)
        return
    write_set.put(EARLY, "#", f"{count} {size} {last_number}")
    if remaining:
        write_set.put(EARLY, f"?{interrupt_id}", " ".join(remaining))
    else:
        write_set.drop(EARLY, f"?{interrupt_id}")
