"""Absences in a transaction: the people who are away and their substitutes, stored in the first partition."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict

from runner.approvals.absences import Absence
from runner.audit import entries
from runner.errors import CorruptDocument
from runner.records import codec
from runner.store.encoding import dump
from runner.store.interface import Reply
from runner.store.redis import ledger
from runner.store.redis.connection import pairs
from runner.store.redis.transaction.sets import WriteSet
from runner.store.requests import ChangeAbsence

log = logging.getLogger(__name__)

ABSENCES = "absences"


def change(write_set: WriteSet, request: ChangeAbsence) -> Reply:
    """Store or remove an absence."""
    absence = request.absence
    if absence is not None:
        write_set.put(ABSENCES, request.who, dump(asdict(absence)))
    elif write_set.read(ABSENCES, request.who) is None:
        return Reply("unknown")
    else:
        write_set.drop(ABSENCES, request.who)
    if write_set.settings.audit != "off":
        entry = entries.of_absence(request.who, absence, request.by, write_set.read_set.now)
        ledger.append(write_set, entry)
    return Reply("changed")


def read(fields: Sequence[bytes]) -> dict[str, Absence]:
    """Read all absences by the absent person; skip damaged ones."""
    absences_by_person = {}
    for name, text in pairs(fields):
        try:
            absence = codec.decode(Absence, text)
        except CorruptDocument as error:
            log.warning("absence.damaged: %r lends no vote: %s", name, error)
            continue
        absences_by_person[absence.by] = absence
    return absences_by_person
