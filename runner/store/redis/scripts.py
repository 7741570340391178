"""The Lua scripts, each assembled from its file and the parts that it includes.

A line `-- include: name` in a script or part stands for `lua/parts/<name>.lua`, once per script;
for `'@node(...)'` and its like see `RecordForm` in store/encoding.py.
Scripts are called by their hash; a server that has forgotten a script is sent the text again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from runner.immutable import immutable
from runner.store.encoding import FORMS
from runner.store.redis.connection import Argument, RedisConnection
from runner.store.redis.durability import Durability

INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)

FORM = re.compile(r"'@(\w+)\((.*?)\)'")

ROOM = files("runner.store") / "lua"


LOOK = "look"
"""The script that only reads for a request; another script then applies it."""

NOTHING_DONE = frozenset({b"changed", b"other"})
"""Replies of scripts that wrote nothing: the request is then made in another way."""


@immutable
class Script:
    """One assembled script; `sha` is the name by which a server knows it."""

    name: str
    text: bytes
    sha: str


@lru_cache(maxsize=256)
def script(name: str, constants: str = "") -> Script:
    """Assemble a script: constants, its parts, each after the parts it includes, and its own text."""
    pieces: dict[str, str] = {}
    _collect(f"{name}.lua", pieces)
    text = (constants + "\n".join(_code(piece) for piece in pieces.values())).encode()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


def _collect(file: str, pieces: dict[str, str]) -> None:
    source = ROOM.joinpath(*file.split("/")).read_text(encoding="utf-8")
    for part in INCLUDE.findall(source):
        if f"parts/{part}.lua" not in pieces:
            _collect(f"parts/{part}.lua", pieces)
    pieces[file] = source


def _code(source: str) -> str:
    lines = (line.strip() for line in source.splitlines())
    code = "\n".join(line for line in lines if line and not line.startswith("--"))
    return FORM.sub(lambda named: f"'{FORMS[named[1]].pattern(named[2])}'", code)


def run_on(
    connection: RedisConnection,
    name: str,
    keys: Sequence[str],
    *arguments: Argument,
    then: Callable[[Any, Any], None] | None = None,
    constants: str = "",
) -> list[Any]:
    """Run a script on keys of one server and return its reply; `then` as in RedisConnection.call.

    `constants` is Lua code to put first.

    Raises:
        StoreError: the store could not be reached or refused; then nothing has changed.
    """
    source = script(name, constants)
    words = (len(keys), *keys, *arguments)
    reply: list[Any]
    try:
        reply = connection.call("EVALSHA", source.sha, *words, then=then)
    except NoScriptError:
        reply = connection.call("EVAL", source.text, *words, then=then)
    return reply


@dataclass
class Scripts:
    """Calls scripts for one partition; its prefix is the only key of every script."""

    _redis: RedisConnection
    _prefix: str
    _durability: Durability | None = None

    def run(
        self, name: str, *arguments: Argument, verb: str = "", constants: str = ""
    ) -> list[Any]:
        """Run a script for the request `verb`, by default named like the script, and return its reply.

        `constants` is Lua code to put first.

        Raises:
            StoreError: the store could not be reached or refused; then nothing has changed.
            NotDurable: it was written, but isn't as safe as required.
        """
        then = self._confirmation(verb or name) if self._durability and name != LOOK else None
        return run_on(
            self._redis, name, (self._prefix,), *arguments, then=then, constants=constants
        )

    def confirm(self, name: str) -> None:
        """Wait until earlier writes are as safe as after a script, for a repeat that has nothing to write.

        Raises:
            NotDurable: they aren't.
        """
        then = self._confirmation(name)
        if then is not None:
            self._redis.call("PING", then=then)

    def _confirmation(self, name: str) -> Callable[[Any, Any], None] | None:
        durability = self._durability
        if durability is None or not durability.covers(name):
            return None
        durability.prepare(self._redis)

        def confirm(connection: Any, reply: Any) -> None:
            if not (isinstance(reply, list) and reply[0] in NOTHING_DONE):
                durability.confirm(connection, name)

        return confirm
