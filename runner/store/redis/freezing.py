"""Freezes in a draft: what is frozen, with a notice and an entry of the audit in the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from runner.approvals.freezes import Freeze
from runner.audit import entries as audit_entries
from runner.records import codec
from runner.store.encoding import dump
from runner.store.interface import Reply
from runner.store.redis import auditing
from runner.store.redis.draft import Draft

FROZEN = "frozen"

KEPT_NOTICES = 100_000


def freeze(draft: Draft, scope: str, reason: str, by: str) -> Reply:
    if draft.get(FROZEN, scope) is not None:
        stored = codec.decode(Freeze, draft.peek(FROZEN, scope) or b"")
        same = (stored.reason, stored.by) == (reason, by)  # a repeat, after a lost reply
        return Reply("frozen" if same else "already")
    now = draft.reads.now
    draft.put(FROZEN, scope, dump(asdict(Freeze(scope, reason, by, now))))
    _note(draft, "frozen", scope, reason, by)
    return Reply("frozen")


def thaw(draft: Draft, scope: str, reason: str, by: str) -> Reply:
    if draft.get(FROZEN, scope) is None:
        return Reply("unknown")
    draft.drop(FROZEN, scope)
    _note(draft, "thawed", scope, reason, by)
    return Reply("thawed")


def read(fields: Sequence[bytes]) -> dict[str, Freeze]:
    """Read all that is frozen, by its scope."""
    freezes = [codec.decode(Freeze, text) for text in fields[1::2]]
    return {freeze.scope: freeze for freeze in freezes}


def _note(draft: Draft, kind: str, scope: str, reason: str, by: str) -> None:
    now = draft.reads.now
    about = ("node", "", "visit", 0, "detail", scope, "at", now)
    body = ("question", "", "withdrawal", dump({"reason": reason, "by": by}), "reminded", 0)
    draft.command(
        *("XADD", "notices", "MAXLEN", "~", KEPT_NOTICES, "*"),
        *("id", f"{kind}:{scope}:{now}", "kind", f"effects.{kind}", "run_id", "", *about, *body),
    )
    if draft.settings.audit != "off":
        auditing.append(draft, audit_entries.of_freeze(kind, scope, reason, by, now))
