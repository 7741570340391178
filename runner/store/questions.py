"""How questions lie in Redis, both ways: as they were asked, what became of them, what time does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runner import codec, expiry, reminders
from runner.interrupts import Answer, Interrupt, InterruptStatus
from runner.ports import Token
from runner.store import told
from runner.store.layout import dump, load
from runner.store.receipts import by_visit

if TYPE_CHECKING:
    from runner.store.link import Argument

JSON = Any


def question(data: bytes, decided: bytes | None) -> Interrupt:
    """Read a question as it stands: as it was asked, and what became of it."""
    head, brace, text = data.partition(b"{")
    _, asked, _, *reminded = head.split()
    found = codec.decode(Interrupt, brace + text)
    found = replace(found, asked_at=int(asked), reminded=int(reminded[0]) if reminded else 0)
    if not decided:
        return found
    status, at, nonce, answer = decided.split(b" ", 3)
    given = load(answer) if answer else {}
    if status == b"withdrawn" and given:
        given = {"withdrawal": {**given, "attempt": int(nonce)}}
    return replace(found, status=InterruptStatus(status.decode()), answered_at=int(at), **given)


def answered(asked: Sequence[bytes], decided: Sequence[bytes | None]) -> list[Interrupt]:
    """Read the questions of which the node must learn, in the order of asking."""
    pairs = sorted(zip(asked, decided, strict=True), key=lambda pair: question_number(pair[0]))
    found = [question(*pair) for pair in pairs]
    return [each for each in found if each.is_decided]


def question_number(data: bytes) -> int:
    """Read the place of a question among all of its run."""
    return int(data.split(b" ", 1)[0])


def decision(answer: Answer) -> bytes:
    """Write what an answer changes of its question."""
    return dump(
        {
            "response": answer.response,
            "responder": answer.responder,
            "idempotency_key": answer.idempotency_key,
        }
    )


def grouped(answers: Sequence[Answer]) -> Iterator[Argument]:
    """Write answers as arguments of a script, those to one visit side by side."""
    for (run_id, node, visit), group in by_visit(answers).items():
        for each in group:
            said = dump(told.answer(each))
            yield from (run_id, node, visit, each.interrupt_id, decision(each), said)


def winner(decided: bytes | None) -> str:
    """Read the nonce of the request that answered a question; "" when none did."""
    return decided.split(b" ", 3)[2].decode() if decided else ""


def question_arguments(
    interrupts: Sequence[Interrupt], write: Callable[[Token, JSON], bytes], token: Token
) -> list[bytes | str | int]:
    """Write questions as arguments of a script: how many, then for each what parts/asked.lua says.

    `write` writes what may be large, for the run of `token`.
    """
    each_once = {asked.id: asked for asked in interrupts}
    arguments: list[bytes | str | int] = [len(each_once)]
    for asked in each_once.values():
        lifetime = 0 if asked.expires_in is None else max(1, round(asked.expires_in * 1000))
        listings = [f"n:{asked.name}", *(f"a:{person}" for person in dict.fromkeys(asked.assignees))]
        arguments += [asked.id, lifetime, codec.encode(asked), dump(listings), dump(told.question(asked))]
        arguments.append(_by_time(asked, lambda value: write(token, value)))
    return arguments


def sizes(
    interrupts: Sequence[Interrupt], write: Callable[[Token, JSON], bytes], token: Token
) -> dict[str, tuple[int, int]]:
    """Tell how many bytes are stored of each question, and of what time does to it; `write` as above."""
    return {
        asked.id: (len(codec.encode(asked)), len(_by_time(asked, lambda value: write(token, value))))
        for asked in {asked.id: asked for asked in interrupts}.values()
    }


def _by_time(asked: Interrupt, write: Callable[[JSON], bytes]) -> bytes:
    """Write what time does to a question in lines: reminders, how its node ends, and what that leaves.

    Nothing for a question that neither reminds nor ends its node.
    """
    reminds, target = reminders.written(asked).encode(), expiry.route(asked).encode()
    if target:
        return b"\n".join([reminds, b"route", target, write(expiry.output(asked))])
    if expiry.ends_node(asked):
        entry = expiry.entry(asked, "")
        return b"\n".join([reminds, b"fail", dump(entry), dump(told.error(entry))])
    return reminds and reminds + b"\n"
