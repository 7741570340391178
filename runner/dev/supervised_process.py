"""A child process that can't outlive this one, even if this one is killed with SIGKILL.

A small shell is the child's parent and reads a pipe whose other end only this process holds: when
this process ends, however hard, the read ends too, and the shell ends the child. PDEATHSIG is not
used: it is Linux only and fires when the *thread* that forked ends. POSIX only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# The child is ended with SIGKILL, which also ends a frozen one. A line on the pipe means: keep the folder.
# Only the child keeps descriptor 3 open, so its end shows there.
SHELL = """
folder=$1 log=$2
shift 2
"$@" </dev/null 3>&1 >>"$log" 2>&1 &
echo $!
exec >/dev/null
read -r word
kill -KILL $!
wait $!
[ -n "$word" ] || [ -z "$folder" ] || rm -rf "$folder"
"""

KILLED_WITHIN = 10.0  # seconds; a killed process is gone as soon as the kernel gets round to it


class SupervisedProcess:
    """A running child process, and two pipes by which each process notices the other's end.

    Args:
        command: the child's program and arguments.
        log: the file that gets the child's output.
        folder: removed if this process ends without having called `end`.
        lock: a descriptor passed to the child, which holds it exactly as long as it lives.
        environment: variables added to our own; a command line would show them to every user.
    """

    def __init__(
        self,
        command: list[str],
        *,
        log: Path,
        folder: Path | None = None,
        lock: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        locks = [] if lock is None else [lock]
        for_shell, self._line = os.pipe()
        self._sign, for_child = os.pipe()
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SHELL, "guard", str(folder or ""), str(log), *command],
            stdin=for_shell,
            stdout=for_child,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends us, and only then the child
            pass_fds=locks,
            env={**os.environ, **(environment or {})},
        )
        for descriptor in (for_shell, for_child, *locks):
            os.close(descriptor)
        self.pid = int(os.read(self._sign, 32))
        _processes.add(self)

    def alive(self, seconds: float = 0) -> bool:
        """Return whether the child still lives after up to `seconds`; a reused pid can't mislead it."""
        return self._sign >= 0 and not select.select([self._sign], [], [], seconds)[0]

    def kill(self) -> None:
        """End the child with SIGKILL and return when it is gone."""
        if self._line >= 0:
            os.kill(
                self.pid, signal.SIGKILL
            )  # surely the child's: the shell has not reaped it yet
            self.alive(KILLED_WITHIN)

    def end(self) -> bool:
        """End child and shell and keep the folder; False in a forked child, which owns neither."""
        if self._line < 0:
            return False
        with suppress(BrokenPipeError):
            os.write(self._line, b"keep\n")
        if self._shell.wait() != 0 and self.alive():
            os.kill(self.pid, signal.SIGKILL)  # the shell was killed
        self._close()
        return True

    def _close(self) -> None:
        for pipe in (self._line, self._sign):
            os.close(pipe)
        self._line = self._sign = -1
        _processes.discard(self)


_processes: weakref.WeakSet[SupervisedProcess] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """Close the pipes in a forked child, which would otherwise keep the process alive after its owner."""
    for process in list(_processes):
        process._close()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_leave_to_the_parent)
