"""Grants in a transaction, stored in the first partition, and their uses.

`grants` has each grant with its votes; `grant:<id>` counts its uses: `used`, `sum:<name>` by argument, and
`key:<idempotency key>` of each use's effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from decimal import Decimal

from runner.approvals.grants import KEPT_MS, GrantRecord
from runner.audit import entries as audit_entries
from runner.errors import CorruptDocument
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject
from runner.store.encoding import dump
from runner.store.interface import Reply
from runner.store.redis import ledger
from runner.store.redis.connection import pairs
from runner.store.redis.transaction.sets import WriteSet
from runner.store.requests import ChangeGrant, UseGrant

log = logging.getLogger(__name__)

GRANTS = "grants"


def uses_key(grant_id: str) -> str:
    """Name the hash of a grant's uses."""
    return f"grant:{grant_id}"


def change(write_set: WriteSet, request: ChangeGrant) -> Reply:
    """Store the result of changing a grant: "changed" or "same"."""
    stored = write_set.read(GRANTS, request.grant_id)
    record = codec.decode(GrantRecord, stored) if stored else None
    record_now = request.change(record)
    if record_now is None or record_now == record:
        return Reply("same")
    write_set.put(GRANTS, request.grant_id, dump(_document(record_now)))
    for name in request.drop:
        write_set.drop(GRANTS, name)
    _note(write_set, request.event, record_now, {"reason": request.reason}, request.by)
    return Reply("changed")


def use(write_set: WriteSet, request: UseGrant) -> Reply:
    """Count one use: "used" (also a repeat), "spent", or "over" if the grant no longer applies."""
    stored = write_set.read(GRANTS, request.grant_id)
    key = uses_key(request.grant_id)
    record = codec.decode(GrantRecord, stored) if stored else None
    now = write_set.read_set.now
    if (
        record is None
        or record.revoked is not None
        or now > record.grant.until
        or record.grant.digest() != request.digest
    ):
        return Reply("over")
    if write_set.read(key, f"key:{request.key}") is not None:
        return Reply("used")
    used = int(write_set.read(key, "used") or 0) + 1
    sums = {
        name: Decimal((write_set.read(key, f"sum:{name}") or b"0").decode()) + Decimal(amount)
        for name, amount in request.amounts.items()
    }
    if not record.grant.allows(used, sums):
        return Reply("spent")
    write_set.put(key, "used", str(used))
    for name, total in sums.items():
        write_set.put(key, f"sum:{name}", str(total))
    write_set.put(key, f"key:{request.key}", "1")
    write_set.command("PEXPIREAT", key, record.grant.until + KEPT_MS)
    about: JSONObject = {
        "run": request.about_run,
        "node": request.node,
        "key": request.key,
        "used": used,
        "effect": request.effect,
    }
    _note(write_set, "grant.used", record, about)
    return Reply("used")


def read(
    fields: Sequence[bytes], uses: Callable[[str], Mapping[bytes, bytes]]
) -> dict[str, GrantRecord]:
    """Read all grants by id, skipping damaged ones; `uses` reads the hash of one grant's uses."""
    records = {}
    for name, text in pairs(fields):
        try:
            record = codec.decode(GrantRecord, text)
        except CorruptDocument as error:
            log.warning("grant.damaged: %r allows nothing: %s", name, error)
            continue
        counted = {name.decode(): text.decode() for name, text in uses(record.grant.id).items()}
        records[record.grant.id] = replace(
            record,
            used=int(counted.get("used", 0)),
            summed={name[4:]: total for name, total in counted.items() if name[:4] == "sum:"},
            used_for=frozenset(name[4:] for name in counted if name[:4] == "key:"),
        )
    return records


def _document(record: GrantRecord) -> JSONObject:
    document = asdict(record)
    for name in ("used", "summed", "used_for"):
        del document[name]
    return document


def _note(
    write_set: WriteSet,
    type_: str,
    record: GrantRecord,
    about: JSONMapping,
    by: str = "",
) -> None:
    if write_set.settings.audit != "off":
        now = write_set.read_set.now
        ledger.append(write_set, audit_entries.of_grant(type_, record.grant, by, about, now))
