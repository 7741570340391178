"""Ended runs in packed form: the data that only readers of the whole run need is one compressed text.

A sweep packs runs that ended a minute ago: the text becomes the only entry of the run's list of events, and
its hash keeps the fields that listings, expiry and budgets read. A request that changes a packed run unpacks
it first; a reader unpacks it in memory. Runs with runs inside, and runs inside others, stay unpacked: each
writes events of the other.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from runner.errors import CorruptDocument
from runner.store.encoding import OF, OUTERMOST, dump, is_packed, load
from runner.store.redis.connection import Argument, mapping_of
from runner.store.redis.keys import run_key

AGE_MS = 60_000
"""The time after its end at which a run may be packed: before that its followers read it most."""

AT_ONCE = 50
"""Ended runs that one request examines."""

MARK = b"\0z"
"""The beginning of a packed text in this form; no event begins with it."""

USUAL = (
    b'"response":"decision":"approved":"effect":"edit":"comment":"amount":"currency":"kind":"agent","usage":{'
    b'"messages":"error":"type":"message":"attempts":"role":"user","content":[{"text":"toolUse":{"toolUseId":'
    b'"input":"rule":{"stages":[{"eligible":["group:"votes":"action":{"tool":"arguments":"expires_in":'
    b'"on_expire":"response_schema":{"type":"object","properties":{"type":"string"},{"type":"boolean"},'
    b'"required":["digest":"sha256:{"assignees":["@example.com"],"name":"reason":{"d:answered 1795 {'
    b'"response":true,"responder":null,"idempotency_key":null}waiting 1 1 failed 1 {"questions":["q:[1,'
    b'"t:k:m:i:x:a.1o:n:completed 1 1  0 1 "ms":0}'
    b"\n0\n\n\nexecuting\ninterrupteda\n1795g\n1795r\n1795q\n1795w\n1795b\n1795e\n1795c\n1795s\n1795\n1\n\n\n1"
    b"\n0\n\n\ncompleted"
)
"""Texts that most runs contain, as a compression dictionary: a change to it needs another mark."""


def _stays(name: bytes) -> bool:
    """Return whether a field stays in the hash, because listings, expiry, budgets or peeks read it."""
    return name not in {b"task", b"state"} and (b":" not in name or name.startswith(b"b:"))


def pack(call: Callable[..., list[Any]]) -> int:
    """Pack the next runs that ended some time ago; return how many were examined."""
    _, looked_at, *runs = call("packable", AT_ONCE, AGE_MS)
    arguments: list[Argument] = []
    for key, pairs, events in runs:
        fields: dict[bytes, bytes] = mapping_of(pairs)
        packed = {name: value for name, value in fields.items() if not _stays(name)}
        packed[b"of"] = fields[b"of"]
        head = {name: value for name, value in fields.items() if _stays(name)}
        head[b"of"] = OF.replace(fields[b"of"], "parent", OUTERMOST[1])
        check = hashlib.sha1(b"\n".join((*fields.values(), *events)), usedforsecurity=False)
        arguments += (key, len(fields), *fields, check.hexdigest())
        arguments += (len(head), *(text for pair in head.items() for text in pair))
        arguments.append(_text(packed, events))
    if arguments:
        call("pack", *arguments)
    return int(looked_at)


def _text(fields: dict[bytes, bytes], events: Sequence[bytes]) -> bytes:
    texts = [text for pair in fields.items() for text in pair]
    lengths = dump([[len(text) for text in texts], [len(event) for event in events]])
    compressor = zlib.compressobj(9, zdict=USUAL)
    return MARK + compressor.compress(b"".join((*texts, *events, lengths))) + compressor.flush()


def read(text: bytes) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Read the fields and events of a packed run; return none if the text is an event.

    Raises:
        CorruptDocument: the text is damaged.
    """
    if not text.startswith(MARK):
        return {}, []
    try:
        data = zlib.decompressobj(zdict=USUAL).decompress(text[len(MARK) :])
        numbers = load(data[data.rindex(b"[[") :])
    except (zlib.error, ValueError) as error:
        raise CorruptDocument(
            f"a packed run can't be read ({error}); it was left untouched. Restore it, or remove the run."
        ) from error
    texts, start = [], 0
    for length in (*numbers[0], *numbers[1]):
        texts.append(data[start : start + length])
        start += length
    names = texts[: len(numbers[0]) : 2]
    values = texts[1 : len(numbers[0]) : 2]
    return dict(zip(names, values, strict=True)), texts[len(numbers[0]) :]


def fields_of(run_id: str, text: bytes | None, of: bytes | None) -> dict[bytes, bytes]:
    """Return the packed fields of a run, by its first event and its field `of`; none if it isn't packed.

    Raises:
        CorruptDocument: the text is damaged or gone; reading again would never end.
    """
    fields, _ = read(text or b"")
    if of and is_packed(of) and not fields:
        raise CorruptDocument(
            f"the text of the packed run {run_id} is gone; nothing was changed. Restore it, or "
            "remove the run."
        )
    return fields


def unpack(call: Callable[..., list[Any]], run_id: str) -> None:
    """Restore the fields and events of a packed run, unless another process has already.

    Raises:
        CorruptDocument: the text is damaged or gone.
    """
    key = run_key(run_id)
    text, of = call("look", 3, "LINDEX", f"{key}:e", 0, 3, "HGET", key, "of")[1:3]
    fields = fields_of(run_id, text, of)
    if fields:
        _, events = read(text)
        pairs = [part for pair in fields.items() for part in pair]
        call("unpack", key, text, len(events), *reversed(events), *pairs)
