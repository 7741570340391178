"""The Lua scripts: each transition is one, put together from its file and the parts it includes.

A line `-- include: name` in a script or part stands for `lua/parts/name.lua`, once per script.
Scripts are called by their hash; a server that has forgotten them is given the text again.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from runner.store.link import Argument, Link

INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
ROOM = files("runner.store") / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    """One script, whole; `sha` is the name that a server knows it by."""

    name: str
    text: bytes
    sha: str


def names() -> list[str]:
    """Name every script."""
    return sorted(file.name.removesuffix(".lua") for file in ROOM.iterdir() if file.name.endswith(".lua"))


@cache
def script(name: str) -> Script:
    """Put a script together: its parts first, each after what it includes itself."""
    pieces: dict[str, str] = {}
    _collect(f"{name}.lua", pieces)
    text = "\n".join(_code(piece) for piece in pieces.values()).encode()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


def _collect(file: str, pieces: dict[str, str]) -> None:
    source = ROOM.joinpath(*file.split("/")).read_text(encoding="utf-8")
    for part in INCLUDE.findall(source):
        if f"parts/{part}.lua" not in pieces:
            _collect(f"parts/{part}.lua", pieces)
    pieces[file] = source


def _code(source: str) -> str:
    lines = (line.strip() for line in source.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


class Scripts:
    """Calls scripts for one partition, over one link."""

    def __init__(self, link: Link, prefix: str) -> None:
        """`prefix` is the partition's, the one key of every script."""
        self._link, self._prefix = link, prefix

    def run(self, name: str, *arguments: Argument) -> list[Any]:
        """Run a script and return its words.

        Raises:
            StoreError: the store could not be reached or refused; then nothing has changed.
        """
        found = script(name)
        words: list[Any]
        try:
            words = self._link.call("EVALSHA", found.sha, "1", self._prefix, *arguments)
        except NoScriptError:
            words = self._link.call("EVAL", found.text, "1", self._prefix, *arguments)
        return words
