"""Reading and running the code blocks of a Markdown page, top to bottom, as its reader would.

Python blocks share one namespace. A block with `file=NAME` is saved instead, before anything runs, and
after the blocks of that file that come before it. One with `app=NAME` says which Celery app serves
them, and one with `needs=MODULE` is left out where that is not installed. Of a console block the
lines after `$` are run by a shell, and their output must be the other lines, in which `…` stands for
anything. Blocks in other languages are read by people only.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
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
    def file(self):
        """The file that the block is to be saved as, or an empty text."""
        return self._option("file")

    @property
    def app(self):
        """The Celery app in that file that the worker is to have, or an empty text."""
        return self._option("app")

    @property
    def left_to_the_page(self):
        """Whether only the page's own blocks use the file."""
        return self._option("worker") == "no"

    @property
    def is_runnable(self):
        """Whether what the block needs is installed: `needs=MODULE,MODULE` names it."""
        return all(map(is_installed, filter(None, self._option("needs").split(","))))

    def _option(self, name):
        found = re.search(rf"{name}=(\S+)", self.options)
        return found[1] if found else ""


def is_installed(module):
    """Whether a module can be imported; of `a.b` also where there is no `a`."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def read(page):
    """List the blocks of a page, but for those that need what is not installed."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(*each.groups(), text.count("\n", 0, each.start()) + 2)
        for each in FENCE.finditer(text)
    ]
    return [block for block in found if block.is_runnable]


def save(page, folder):
    """Write a page's files; return the names of their modules and that of the Celery app, if it has one.

    A block with `worker=no` is a file that the page's worker does not have.
    """
    names = {}
    for block in read(page):
        if block.file:
            names.setdefault(block.file, []).append(block.text)
    for name, parts in names.items():
        (folder / name).write_text("\n\n".join(parts), encoding="utf-8")
    app = "".join(block.app for block in read(page))
    apart = {block.file for block in read(page) if block.left_to_the_page}
    return [Path(name).stem for name in names if name not in apart], app


def run(page, folder, environment):
    """Run a page's other blocks in a folder."""
    # Classes look their module up by its name.
    reader = sys.modules["__page__"] = ModuleType("__page__")
    for block in read(page):
        if block.language == "python" and not block.file:
            # Padded, so that a traceback shows the line of the page.
            exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), vars(reader))  # noqa: S102 - our own page
        elif block.language == "console":
            _console(block, folder, environment)


def _console(block, folder, environment):
    lines = block.text.splitlines()
    script = "\n".join(line[2:] for line in lines if line.startswith("$ "))
    expected = [line for line in lines if not line.startswith("$ ")]
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    printed = done.stdout.splitlines()
    assert len(printed) >= len(expected), f"line {block.line}: {done.stdout}\n{done.stderr}"
    for wanted, seen in zip(expected, printed, strict=False):
        pattern = ".*".join(re.escape(part) for part in wanted.split("…"))
        assert re.fullmatch(pattern, seen), (
            f"line {block.line}: expected {wanted!r}, got {seen!r}"
        )
