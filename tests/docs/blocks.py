"""Reading and running the code blocks of a Markdown page, top to bottom, as its reader would.

Python blocks share one namespace. A block with `file=NAME` is saved instead. Of a console block the
lines after `$` are run by a shell, and their output must be the other lines, in which `…` stands for
anything. Blocks in other languages are read by people only.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the rest of the fence's line, its text and its first line's number."""

    language: str
    options: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The file that the block is to be saved as, or an empty text."""
        found = re.search(r"file=(\S+)", self.options)
        return found[1] if found else ""


def read(page: Path) -> list[Block]:
    """List the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [Block(*found.groups(), text.count("\n", 0, found.start()) + 2) for found in FENCE.finditer(text)]


def run(page: Path, folder: Path, environment: Mapping[str, str], saved: Callable[[Path], None]) -> None:
    """Run a page's blocks in a folder; `saved` is told of each file that a block wrote."""
    reader = sys.modules["__page__"] = ModuleType("__page__")  # classes look their module up by its name
    for block in read(page):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
            saved(folder / block.file)
        elif block.language == "python":
            # Padded, so that a traceback shows the line of the page.
            exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), vars(reader))  # noqa: S102 - our own page
        elif block.language == "console":
            _console(block, folder, environment)


def _console(block: Block, folder: Path, environment: Mapping[str, str]) -> None:
    lines = block.text.splitlines()
    script = "\n".join(line[2:] for line in lines if line.startswith("$ "))
    expected = [line for line in lines if not line.startswith("$ ")]
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )

    printed = done.stdout.splitlines()
    assert len(printed) >= len(expected), f"line {block.line}: {done.stdout}\n{done.stderr}"
    for wanted, seen in zip(expected, printed, strict=False):
        pattern = ".*".join(re.escape(part) for part in wanted.split("…"))
        assert re.fullmatch(pattern, seen), f"line {block.line}: expected {wanted!r}, got {seen!r}"
