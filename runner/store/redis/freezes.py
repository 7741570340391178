"""Freezes in a transaction, each with a notice and an audit entry in the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from runner.approvals.freezes import Freeze
from runner.audit import entries as audit_entries
from runner.records import codec
from runner.store.encoding import dump
from runner.store.interface import Reply
from runner.store.redis import ledger
from runner.store.redis.transaction.sets import WriteSet

FROZEN = "frozen"

KEPT_NOTICES = 100_000


def freeze(write_set: WriteSet, scope: str, reason: str, by: str) -> Reply:
    text = write_set.read(FROZEN, scope)
    if text is not None:
        current = codec.decode(Freeze, text)
        same = (current.reason, current.by) == (reason, by)  # a repeat, after a lost reply
        return Reply("frozen" if same else "already")
    write_set.put(
        FROZEN, scope, dump(asdict(Freeze(scope, reason, by, write_set.read_set.now)))
    )
    _note(write_set, "frozen", scope, reason, by)
    return Reply("frozen")


def thaw(write_set: WriteSet, scope: str, reason: str, by: str) -> Reply:
    if write_set.read(FROZEN, scope) is None:
        return Reply("unknown")
    write_set.drop(FROZEN, scope)
    _note(write_set, "thawed", scope, reason, by)
    return Reply("thawed")


def read(fields: Sequence[bytes]) -> dict[str, Freeze]:
    """Read all freezes, by scope."""
    freezes = [codec.decode(Freeze, text) for text in fields[1::2]]
    return {freeze.scope: freeze for freeze in freezes}


def _note(write_set: WriteSet, kind: str, scope: str, reason: str, by: str) -> None:
    now = write_set.read_set.now
    about = ("node", "", "visit", 0, "detail", scope, "at", now)
    body = ("withdrawal", dump({"reason": reason, "by": by}))
    write_set.command(
        *("XADD", "notices", "MAXLEN", "~", KEPT_NOTICES, "*"),
        *(
            "id",
            f"{kind}:{scope}:{now}",
            "kind",
            f"effects.{kind}",
            "run_id",
            "",
            *about,
            *body,
        ),
    )
    if write_set.settings.audit != "off":
        ledger.append(write_set, audit_entries.of_change(kind, scope, reason, by, now))
