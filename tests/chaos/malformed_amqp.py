"""Messages of AMQP with something wrong in them: each way once, or drawn at random."""

from __future__ import annotations

import random
from collections.abc import Iterator

import amqp

ODD = [
    None,
    True,
    0,
    -1,
    2**40,
    1.5,
    "",
    "x",
    "\x00",
    "a.b.1.1",
    [],
    [[]],
    {},
    {"a": None},
    [None] * 5,
]
ODD += ["0001-01-01T00:00:00+14:00", "9" * 5000]
KINDS = [
    "application/x-python-serialize",
    "application/x-yaml",
    "application/data",
    "text/plain",
    "",
    None,
]
ENCODINGS = ["nonsense", "utf-16", "binary", "ascii", "", None]
PACKED = ["zlib", "bzip2", "nonsense", 5, [1], None]
NODE = "[[],{},{}]"
BODIES = [
    "",
    "{",
    "5",
    "null",
    "[]",
    "[1]",
    "[[],{}]",
    "[[1],{},{}]",
    '[[],{"x":1},{}]',
    "[[],{},5]",
    b"\xff\xfe",
]
BODIES += [
    '{"task":"x"}',
    '{"task":["x"],"id":1}',
    '[[],{"__type__":"datetime"},{}]',
    "[" * 50_000,
]
BODIES += [
    '[[],{},{"\\ud800":1}]',
    '{"task":"\\ud800"}',
    '{"task":"runner.node","id":"\\ud800","args":5}',
]
BODIES += ['[[],{},{"callbacks":5,"errbacks":7,"chord":3,"chain":9}]']
HEADERS: dict[str, object] = {
    "lang": "py",
    "task": "runner.node",
    "id": "0none.a.1.1",
    "shadow": "none/a",
    "argsrepr": "()",
    "kwargsrepr": "{}",
    "root_id": None,
    "parent_id": None,
    "retries": 0,
    "eta": None,
    "expires": None,
    "group": None,
    "timelimit": [None, None],
}


def message(
    body: str | bytes = NODE,
    kind: str | None = "application/json",
    encoding: str | None = "utf-8",
    headers: dict[str, object] | None = HEADERS,
    **more: str,
) -> amqp.Message:
    """Make a message, as it should be but for what is given."""
    properties = {
        "content_type": kind,
        "content_encoding": encoding,
        "application_headers": headers,
        **more,
    }
    raw = (
        body.encode() if isinstance(body, str) else body
    )  # else the client encodes it as is said
    return amqp.Message(
        raw, **{name: value for name, value in properties.items() if value is not None}
    )


def corpus() -> Iterator[amqp.Message]:
    """Each way of being wrong, once."""
    yield from (message("gAR9lC4=", kind=kind) for kind in KINDS)
    yield from (message(b"\xff[[],{},{}]", encoding=encoding) for encoding in ENCODINGS)
    yield from (message(headers={**HEADERS, "compression": packed}) for packed in PACKED)
    for name in HEADERS:
        yield message(
            headers={other: value for other, value in HEADERS.items() if other != name}
        )
        yield from (message(headers={**HEADERS, name: odd}) for odd in ODD)
    yield message(headers=None)
    for body in BODIES:
        yield message(body)
        yield message(body, headers={})


def fuzzed(rng: random.Random) -> amqp.Message:
    """A message with several things wrong in it."""
    headers = {
        **HEADERS,
        **{rng.choice([*HEADERS, "compression"]): rng.choice(ODD) for _ in range(3)},
    }
    kind = rng.choice(["application/json"] * 4 + KINDS)
    body = rng.choice([*BODIES, NODE, NODE, rng.randbytes(rng.randrange(60))])
    return message(
        body, kind, rng.choice(["utf-8"] * 4 + ENCODINGS), rng.choice([headers] * 9 + [None])
    )
