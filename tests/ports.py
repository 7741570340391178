"""Free ports for servers that can't choose one by themselves."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

# Below the ports that a system takes for outgoing connections, which would come between the choice and the
# server's start. A server of a Redis Cluster listens 10,000 above its port, too.
PORTS = range(10_000, 20_000)
LOCKS = Path(tempfile.gettempdir()) / f"runner-test-ports-{os.getuid()}"
_taken = []


def free_port() -> int:
    """Return a loopback port that no other test process of this machine gets while this one lives."""
    LOCKS.mkdir(exist_ok=True)
    for _ in PORTS:
        port = random.SystemRandom().choice(PORTS)
        lock = (LOCKS / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            lock.close()
            continue
        _taken.append(lock)
        return port
    raise AssertionError(f"no port of {PORTS} is free")
