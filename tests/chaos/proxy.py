"""A wire that fails on demand: it stands between programs and a server on loopback.

Each fault is what `mode` says for whatever comes next; `cut_replies_to` is for single requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading

RST = struct.pack("ii", 1, 0)
"""SO_LINGER: a socket closed with this sends a reset and no goodbye."""


class Proxy:
    """Passes bytes between a loopback port and a server. Faults hold until `heal`.

    - `refuse()`: every connection is reset, and so are new ones.
    - `stall()`: nothing that is sent arrives, and nobody is told; connections opened now never recover.
    - `delay(seconds)`: every chunk comes so much later, both ways.
    - `dribble()`: every byte travels alone.
    - `to`: the server's port; a new one holds for new connections, like a name that leads elsewhere.
    - `cut_replies_to(text, times)`: requests that hold this text arrive; their replies do not. The same
      request again has its reply, unless `repeats` counts as well. `cut` has the requests of which the
      replies were cut off.
    """

    def __init__(self, port: int) -> None:
        self.to, self._loop = port, asyncio.new_event_loop()
        self._open: set[_Wire] = set()
        self.mode, self.seconds = "pass", 0.0
        self._text, self._times, self._repeats, self._seen = b"", 0, False, set()
        self.cut: list[bytes] = []
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="proxy", daemon=True
        )
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def refuse(self) -> None:
        self.mode = "refuse"
        self.reset()

    def stall(self) -> None:
        self.mode = "stall"
        for wire in list(self._open):
            wire.dead = True

    def delay(self, seconds: float) -> None:
        self.mode, self.seconds = "delay", seconds

    def dribble(self) -> None:
        self.mode = "dribble"

    def heal(self) -> None:
        """Let everything new pass; what was cut or stalled stays so."""
        self.mode, self._times = "pass", 0

    def reset(self) -> None:
        """Cut every connection, once."""
        self._call(self._reset())

    def cut_replies_to(self, text: bytes, times: int = 1, *, repeats: bool = False) -> None:
        self._text, self._times, self._repeats, self._seen = text, times, repeats, set()

    def end(self) -> None:
        self.reset()
        self._server.close()
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _stop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _reset(self) -> None:
        for wire in list(self._open):
            wire.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            _reset(writer)
            return
        wire = _Wire(writer, forth, dead=self.mode == "stall")
        self._open.add(wire)
        if self.mode == "refuse":
            wire.reset()
        try:
            await asyncio.gather(
                self._pump(wire, reader, forth, True), self._pump(wire, back, writer, False)
            )
        finally:
            wire.reset()
            self._open.discard(wire)

    async def _pump(self, wire: _Wire, reader, writer, outward: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                if wire.dead:
                    continue
                if outward:
                    wire.cut = wire.cut or (chunk if self._cuts(chunk) else b"")
                elif wire.cut:
                    self.cut.append(wire.cut)
                    break
                await self._pass(chunk, writer)
        wire.reset()

    def _cuts(self, chunk: bytes) -> bool:
        """Tell whether the reply to this request is to be cut off."""
        if (
            self._times < 1
            or self._text not in chunk
            or (chunk in self._seen and not self._repeats)
        ):
            return False
        self._times -= 1
        self._seen.add(chunk)
        return True

    async def _pass(self, chunk: bytes, writer: asyncio.StreamWriter) -> None:
        if self.mode == "delay":
            await asyncio.sleep(self.seconds)
        pieces = (bytes([byte]) for byte in chunk) if self.mode == "dribble" else (chunk,)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if self.mode == "dribble":
                await asyncio.sleep(0)


class _Wire:
    """One connection, both halves of it."""

    def __init__(
        self, near: asyncio.StreamWriter, far: asyncio.StreamWriter, *, dead: bool
    ) -> None:
        self._ends, self.dead, self.cut = (near, far), dead, b""
        for end in self._ends:
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reset(self) -> None:
        for end in self._ends:
            _reset(end)


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
    writer.transport.abort()
