"""What people do to runs that have ended or wait, and other systems for nodes, in the Redis store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from runner.graph import Topology
from runner.interrupts import address_of
from runner.migrating import Migration
from runner.ports import Fork, Reply, Token
from runner.run import Rewrite
from runner.store import moving, rewriting
from runner.store.blobs import Blobs
from runner.store.layout import dump
from runner.store.reader import Reader
from runner.store.shapes import topology_of

JSON = Any


class RedisControl:
    """The part of the Redis store that lets runs go on with other records, or by other systems' work."""

    _blobs: Blobs
    _reader: Reader
    _reply: Callable[..., Reply]

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        found = self._reader.shape(fingerprint)
        return topology_of(graph_id, fingerprint, found) if found else None

    def told(self, run_id: str, end: int) -> Reply:
        return self._reply("told", run_id, end)

    def release(self, run_id: str, nodes: Sequence[str]) -> Reply:
        return self._reply("release", run_id, *nodes)

    def documents(self, run_id: str) -> dict[str, JSON]:
        return self._reader.documents(run_id)

    def migrate(self, runs: Sequence[Migration], nonce: str) -> Reply:
        return self._reply(
            "migrate", nonce, *(part for each in runs for part in moving.arguments(each, self._blobs.put))
        )

    def rewrite(self, runs: Sequence[Rewrite], nonce: str) -> Reply:
        return self._reply("rewrite", nonce, *(part for each in runs for part in rewriting.arguments(each)))

    def fork(self, fork: Fork) -> Reply:
        reply = self._reply("fork", *rewriting.fork_arguments(fork))
        return replace(reply, run_id=fork.start.run_id) if reply.word == "forked" else reply

    def withdraw(self, interrupt_id: str, reason: str, *, reask: bool) -> Reply:
        address = address_of(interrupt_id)
        if address is None:
            return Reply("unknown")
        given = dump({"reason": reason, "reask": reask})
        where = (address.run_id, address.node_id, address.visit, interrupt_id)
        return self._reply("withdraw", *where, given, "1" if reask else "0")

    def remove(self, run_id: str) -> Reply:
        return self._reply("remove", run_id)

    def leave(self, token: Token) -> Reply:
        return self._reply("leave", token.run_id, token.node, token.visit, token.fence)

    def hand(self, token: Token, reference: str) -> Reply:
        return self._reply("hand", token.run_id, token.node, token.visit, token.fence, reference)

    def sent(self, token: Token, reference: str, timeout_ms: int) -> Reply:
        at = (token.run_id, token.node, token.visit, token.fence)
        return self._reply("sent", *at, reference, timeout_ms)

    def report(self, run_id: str, node: str, visit: int, reference: str, outcome: JSON) -> Reply:
        data = self._blobs.put(run_id, dump(outcome))
        return self._reply("report", run_id, node, visit, reference, data)
