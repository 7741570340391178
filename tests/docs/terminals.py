"""Terminals as a reader has them: shells on pseudo-terminals, typed into and read line by line.

The blocks of the language `terminal` in a page are typed in: what follows `$`, and `^C` as itself. Their
other lines must come, and more may, such as a log. Their order may be another one, for branches of a run
go at the same time. What is never twice the same, ids, times and addresses, may be any; but what a page
shows twice must be the same twice.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

from tests.docs.blocks import read

PROMPT = "the shell is ready> "
SIZE = struct.pack("HHHH", 45, 110, 0, 0)
PATIENCE = 90
"""Seconds: a busy machine needs long for the tests of a project."""

UP = re.compile(r"\x1b\[\d*A")
OTHER_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")

NAMED = re.compile(
    r"\b0[0-9a-z]{27}(?:\.\w+\.\d+\.[0-9a-f]{16})?(?![\w])|(?:unix|http)://[^\s']+"
)
"""Ids and addresses: those of the page are exchanged for the real ones."""
PASSING = re.compile(
    r"(?:\d{4}-)?\d\d-\d\d \d\d:\d\d(?::\d\d)?|\d+ (?:days|h|min) \d+ (?:h|min|s)|\d+(?:\.\d+)? ?m?s\b"
)
"""Times, which may be any."""

TREE = re.compile(r"^[│├└─ ]+")
"""Where a line hangs in a drawn run; another one may be the last branch."""


class Terminal:
    """One shell."""

    def __init__(self, folder, environment):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, SIZE)
        name = os.ttyname(slave)
        # Opened by the first process of a session, it becomes what Ctrl-C is typed into.
        bash = (
            f"exec env 'PS1={PROMPT}' bash --norc --noprofile --noediting -i <>{name} >&0 2>&1"
        )
        self._shell = subprocess.Popen(
            ["bash", "-c", bash],
            cwd=folder,
            env={**environment, "TERM": "xterm", "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        self._slave, self._read = slave, b""
        self.type("stty -echo")

    @property
    def output(self):
        """What came since the last line was typed; a picture drawn over another one follows it."""
        text = UP.sub("\n", self._read.decode(errors="replace"))
        return OTHER_ESCAPES.sub("", text)

    def type(self, line):
        """Type a line when the shell is ready for it, or Ctrl-C at once."""
        if line == "^C":
            os.write(self._master, b"\x03")
            return
        self._until(lambda: self.output.endswith(PROMPT), "the prompt")
        self._read = b""
        os.write(self._master, f"{line}\n".encode())

    def expect(self, patterns):
        """Wait until a line for each of these has come, and return the lines."""
        found = []

        def came():
            lines = [TREE.sub(" ", line).strip() for line in self.output.split("\n")]
            came = [
                next((line for line in lines if re.fullmatch(each, line)), None)
                for each in patterns
            ]
            found[:] = [line for line in came if line is not None]
            return len(found) == len(patterns)

        self._until(came, f"these lines: {patterns}")
        return found

    def _until(self, holds, what):
        ends = time.monotonic() + PATIENCE
        while not holds():
            ready, _, _ = select.select(
                [self._master], [], [], max(0.0, ends - time.monotonic())
            )
            if not ready:
                raise AssertionError(
                    f"waited {PATIENCE} s in vain for {what}; there was:\n{self.output}"
                )
            self._read += os.read(self._master, 65_536)

    def close(self):
        """End the shell; what still runs in it is hung up on."""
        self._shell.kill()
        self._shell.wait(60)
        os.close(self._slave)
        os.close(self._master)


def replay(page, folder, environment):
    """Type a page's terminal blocks in, each terminal in a shell of its own; return what was typed."""
    terminals = {}
    real = {}
    typed = []
    try:
        for block in (block for block in read(page) if block.language == "terminal"):
            name = block.options.strip()
            if name not in terminals:
                terminals[name] = Terminal(folder, environment)
            typed += _replay(block, terminals[name], real)
    finally:
        for terminal in terminals.values():
            terminal.close()
    return typed


def _replay(block, terminal, real):
    """Type the lines of one block; what is named in the page for the first time is found in what comes."""
    typed = []
    for part in re.split(r"^(?=\$ |\^C$)", block.text, flags=re.MULTILINE)[1:]:
        line, *shown = part.rstrip("\n").split("\n")
        typed.append(NAMED.sub(lambda name: real[name[0]], line.removeprefix("$ ")))
        terminal.type(typed[-1])
        for wanted, seen in zip(
            shown, terminal.expect([_pattern(each, real) for each in shown]), strict=True
        ):
            real.update(zip(NAMED.findall(wanted), NAMED.findall(seen), strict=True))
    return typed


def _pattern(line, real):
    """Write a line of the page as a regular expression; how wide a column is depends on the times in it."""
    parts = []
    for word in re.split(f"({NAMED.pattern}|{PASSING.pattern})", TREE.sub(" ", line).strip()):
        if NAMED.fullmatch(word):
            parts.append(re.escape(real[word]) if word in real else NAMED.pattern)
        elif PASSING.fullmatch(word):
            parts.append(PASSING.pattern)
        else:
            parts.append(re.sub(r"(?:\\ )+", r"\\s+", re.escape(word)))
    return "".join(f"(?:{part})" for part in parts)
