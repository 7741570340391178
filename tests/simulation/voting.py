"""People who decide by rules: they vote, edit, reject, take back, delegate; and what that must come to.

What votes come to is said here once more, in other words than the library's: see `outcome`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from runner.approvals import Principal, Rule, ballots
from runner.approvals.rules import Voter, selector
from runner.approvals.votes import apply_operation
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision, Interrupt, InterruptStatus, Receipt
from tests.simulation.watch import must

SHOWN = {"amount": 10}
AMOUNTS = ({"amount": 5}, {"amount": 7})

RULES = (
    Rule(eligible=["group:finance"], need=2),
    Rule(need=3, veto=2, edit="keeps", weights={"user:dan": 2}),
    Rule(stages=[Rule(eligible=["group:finance"]), Rule(eligible=["group:board"], need=2)]),
    Rule(eligible=["group:finance", "group:helpers"], need=2, veto=2, delegate="anyone"),
    Rule(
        eligible=["group:board"], need=2, veto="majority", escalate=[(20, ["anyone"])], undo=5
    ),
)

GROUPS = {"ana": ("finance",), "ben": ("finance", "board"), "cleo": ("board",), "dan": ()}
"""Those who may come at any time; at the end come as many others as are needed, of every group."""

EVERY = ("finance", "board", "helpers")

CHOICES = (
    ("approve", None),
    ("approve", None),
    ("approve", AMOUNTS[0]),
    ("edit", AMOUNTS[0]),
    ("edit", AMOUNTS[1]),
    ("reject", None),
)
OPERATIONS = (
    "withdraw_vote",
    "withdraw_vote",
    "delegate",
    "delegate",
    "claim",
    "release",
    "comment",
)


def voter_of(name: str) -> Voter:
    return Voter(Principal(name), frozenset(GROUPS.get(name, EVERY)))


class Voters:
    """What people do to the questions with a rule in a world; each word of a history is a method."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._known: dict[str, Interrupt] = {}
        self._sent: set[tuple[str, str, str]] = set()

    def asked(self) -> list[Interrupt]:
        """List the open questions with a rule, as a person sees them."""
        asked = [question for question in self._world.asked() if question.rule]
        self._known |= {question.id: question for question in asked}
        return sorted(asked, key=lambda question: question.id)

    def do_vote(self, number: int) -> bool:
        """Somebody votes, who may or may not, once or again."""
        asked = self.asked()
        if asked:
            decision, args = CHOICES[number // 4 % len(CHOICES)]
            question, name = asked[number % len(asked)], list(GROUPS)[number % 4]
            self._vote(question, name, decision, args, off=number % 11 == 0)
        return bool(asked)

    def do_late_vote(self, number: int) -> bool:
        """Somebody votes on a question that was asked at any time before."""
        self.asked()
        known = list(self._known.values())
        if known:
            self._vote(known[number % len(known)], list(GROUPS)[number % 4], "approve", None)
        return bool(known)

    def do_operation(self, number: int) -> bool:
        """Somebody takes a vote back, delegates, claims, releases or comments."""
        asked = self.asked()
        if not asked:
            return False
        question, kind = asked[number % len(asked)], OPERATIONS[number // 4 % len(OPERATIONS)]
        by, to = list(GROUPS)[number % 4], list(GROUPS)[number // 28 % 4]
        body = {
            "interrupt_id": question.id,
            "operation": kind,
            "by": by,
            "to": to,
            "ttl": 60,
            "comment": "so",
        }
        key = f"d{len(self._world.requests)}"

        def act(process: Any) -> Receipt:
            return apply_operation(process.engine, body, voter_of(by), key)

        self._send(kind, act)
        return True

    def settle(self) -> bool:
        """Have somebody who has not voted yet approve what the votes on each open question are for."""
        asked = self.asked()
        for question in asked:
            (standing,) = self._world.store.standings([question.id])
            wanted = [
                args for args in AMOUNTS if effect_of(question, args) == standing.tally.settled
            ]
            self._vote(
                question, f"p{len(self._world.requests)}", "approve", next(iter(wanted), None)
            )
        return bool(asked)

    def _vote(
        self,
        question: Interrupt,
        name: str,
        decision: str,
        args: dict[str, int] | None,
        *,
        off: bool = False,
    ) -> None:
        key, voter = f"v{len(self._world.requests)}", voter_of(name)
        digest = "sha256:of something else" if off else question.digest
        sent = Voter(voter.principal, voter.groups)
        vote = Decision(question.id, args, None, key, digest, decision, voter=sent)
        if not off:
            effect = "" if decision == "reject" else effect_of(question, args)
            self._sent.add((question.id, voter.principal.key, effect))
        self._send(f"vote {key}", lambda process: apply_decisions(process.engine, [vote]))

    def _send(self, name: str, do: Any) -> None:
        self._world._send(self._world._ask(name, do))

    # -- what must hold ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare votes, decisions and effects (I3, I4)."""
        questions = [
            question for _, run in self._world.runs() for question in run.questions.values()
        ]
        ruled = [question for question in questions if question.rule]
        for question in ruled:
            self._counted(question)
        for where, paid in self._world.ledger.paid.items():
            must(
                len(paid) == 1,
                "I4",
                f"{where} has paid under several keys, or several amounts: {paid}",
            )
            ((key, amount),) = paid
            used = [
                question for question in ruled if place_of(question) == where and question.used
            ]
            must(
                len(used) == 1, "I4", f"{where} has paid by {len(used)} decisions that are used"
            )
            right = used[0].effect == effect_of(used[0], {"amount": amount})
            must(
                right and used[0].used["key"] == key,
                "I4",
                f"{where} has paid {amount} by {used[0]}",
            )

    def _counted(self, question: Interrupt) -> None:
        rule, votes = Rule.thawed(question.rule or {}), self._world.store.votes(question.id)
        for vote in votes:
            sent = (question.id, vote["by"], vote["effect"]) in self._sent
            must(sent, "I4", f"nobody has sent this vote: {vote}")
            must(may(rule, question, vote), "I4", f"who may not vote was counted: {vote}")
        people = Counter(vote["by"] for vote in standing(rule, votes) if vote["weight"])
        must(max(people.values(), default=1) == 1, "I3", f"somebody counts twice: {people}")
        decision, effect, left = outcome(rule, votes)
        if effect:
            decision = "approve" if effect == effect_of(question, None) else "edit"
        (stored,) = self._world.store.standings([question.id])
        settled = stored.pending.answer if stored.pending else question
        decided = question.status is InterruptStatus.ANSWERED or settled is not question
        stands = (settled.decision, settled.effect) if decided else ("", "")
        must(
            (decision, effect) == stands and not left,
            "I4",
            f"{question} was decided otherwise than by its votes, which come to {decision}: {votes}",
        )


def place_of(question: Interrupt) -> tuple[str, str, int]:
    return question.run_id, question.node_id, question.visit


def effect_of(question: Interrupt, args: Mapping[str, int] | None) -> str:
    shown = args is None or args == SHOWN
    return ballots.effect_of(question, "approve", True if shown else dict(args or {}))


def may(rule: Rule, question: Interrupt, vote: Mapping[str, Any]) -> bool:
    """Tell whether somebody may vote by the selector that counted, when it did."""
    form, name = vote["selector"], vote["by"].removeprefix("human:|")
    late = (
        question.expires_in is not None
        and vote["at"] >= question.asked_at + question.expires_in * 1000
    )
    if late or form == "delegated":
        return not late and rule.delegate == "anyone"
    entries = {selector(entry) for step in (rule, *rule.stages) for entry in step.eligible}
    for at, (_, more) in zip(question.escalates_at, rule.escalate, strict=True):
        entries |= set(more) if vote["at"] >= at else set()
    return form in entries & voter_of(name).selectors


def standing(rule: Rule, votes: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """List the votes that no later edit has voided."""
    edits = [place for place, vote in enumerate(votes) if vote["decision"] == "edit"]
    return votes[edits[-1] :] if edits and rule.edit == "resets" else votes


def outcome(rule: Rule, votes: Sequence[Mapping[str, Any]]) -> tuple[str, str, int]:
    """Say what votes come to: decision, effect, and how many were counted after that."""
    left = list(standing(rule, votes))
    vote: Mapping[str, Any] = {}
    for step in rule.stages or (rule,):
        veto = step.need if step.veto == "majority" else step.veto
        wanted, against = Counter[str](), 0
        while max(wanted.values(), default=0) < step.need:
            if not left:
                return "", "", 0
            vote = left.pop(0)
            if vote["decision"] != "reject":
                wanted[vote["effect"]] += vote["weight"]
                continue
            against += vote["weight"]
            if veto is not None and against >= veto:
                return "reject", "", len(left)
    return vote["decision"], vote["effect"], len(left)
