"""Signed votes beside an exported audit: verified with the public decision keys alone, without a store.

Entries have digests and no payloads. So a file that should also prove who signed each vote has a
line of `votes` after its proofs: each signed message with the action that its question shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from runner.approvals import ballots, digests
from runner.approvals.ballots import SKEW, response_of
from runner.approvals.proofs import (
    ProofRefused,
    VerificationKeys,
    signature_count,
    verify,
)
from runner.errors import UnstorableError
from runner.records.codec import JSON, JSONMapping

if TYPE_CHECKING:
    from runner.store.shared import SharedStore

Entry = JSONMapping


class BrokenLine(Exception):
    """The file isn't an unchanged export; raised and caught where a file is verified."""

    def __init__(self, text: str, line: int = 0) -> None:
        """Set the message; `line` counts from 1, 0 names no line."""
        super().__init__(text)
        self.line = line


def is_signed(entry: Entry) -> bool:
    """Return whether an entry is about a signed vote."""
    decision = entry.get("outcome", {}).get("decision", "withdrawn")
    return (
        entry.get("type") == "voted"
        and "kid" in entry.get("auth", {})
        and decision != "withdrawn"
    )


def signed_votes(store: SharedStore, question_ids: Iterable[str]) -> Iterator[JSON]:
    """Read the signed votes of questions whose runs are still in the store."""
    names = list(dict.fromkeys(question_ids))
    for name, question in zip(names, store.interrupts(names) if names else (), strict=True):
        for vote in store.votes(name):
            if question is not None and "proof" in vote["body"]:
                yield {"action": question.action, "body": vote["body"]}


def verify_votes(
    entries: Iterable[tuple[int, Entry]],
    votes: Iterable[JSONMapping],
    keys: VerificationKeys,
) -> tuple[int, int, str]:
    """Verify the votes of entries, which come with their line numbers.

    Return how many hold, how many are missing, and which passkey has counted backwards, "" for
    none.

    Raises:
        BrokenLine: a vote differs from its entry.
    """
    by_signature = {
        (vote["body"]["interrupt_id"], vote["body"]["proof"]["jti"]): vote for vote in votes
    }
    entries = list(entries)
    gone = {
        (entry["question"], entry["actor"], entry["prev_vote"])
        for _, entry in entries
        if entry.get("type") == "voted" and entry["outcome"].get("decision") == "withdrawn"
    }
    counts = dict[str, int]()
    valid = 0
    missing = 0
    copied = ""
    for line, entry in entries:
        if not is_signed(entry):
            continue
        if (entry["question"], entry["actor"], entry["outcome"].get("vote")) in gone:
            continue
        vote = by_signature.get((entry["question"], entry["auth"].get("jti")))
        if vote is None:
            missing += 1
            continue
        problem = _problem(entry, vote, keys)
        if problem:
            raise BrokenLine(f"line {line}: the vote of {entry['actor']} {problem}", line)
        kid = entry["auth"]["kid"]
        count = signature_count(vote["body"]["proof"])
        if count <= counts.get(kid, -1) and max(count, counts[kid]):
            copied = kid
        counts[kid] = count
        valid += 1
    return valid, missing, copied


def _problem(entry: Entry, vote: JSONMapping, keys: VerificationKeys) -> str:
    """Say how a signed vote differs from its entry; "" if it agrees."""
    body = vote["body"]
    action = vote["action"]
    try:
        proof = verify(body, keys, now=None)
        effect = ballots.effect(
            body["interrupt_id"], action, body["decision"], response_of(body)
        )
        action_digest = "" if action is None else digests.digest("action", action)
    except (ProofRefused, UnstorableError) as error:
        return f"has no proof that holds: {error}"
    named = entry.get("digests", {})
    auth = entry["auth"]
    stated = {
        "actor": (entry["actor"], proof.voter.principal.key),
        "key": (auth["kid"], proof.kid),
        "level": (auth["level"], proof.voter.level),
        "question": (named.get("question"), body.get("digest")),
        "decision": (entry["outcome"]["decision"], body["decision"]),
        "action": (named.get("action", ""), action_digest),
        "effect": (named.get("effect", ""), effect),
    }
    differences = [name for name, (ours, theirs) in stated.items() if ours != theirs]
    if not proof.issued - SKEW <= entry["at"] / 1000 <= proof.expires + SKEW:
        differences.append("time")
    return f"was signed with another {', '.join(differences)}" if differences else ""
