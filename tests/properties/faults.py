"""Faults to plant where no model machine looks, each with the test that must find it.

They stand in the transaction and the fast path of Redis, in votes, in their judgement, and around Celery.
"""

from __future__ import annotations

from tests.properties.mutations import Mutation

REDIS = "store/redis/"

FAULTS = (
    # -- the transaction and the fast path -----------------------------------------------------------
    Mutation(
        REDIS,
        'if answer[0] != b"changed":',
        "if True:",
        "a refused write is taken for a written one",
        test="tests/contract/test_changed_meanwhile.py",
    ),
    Mutation(
        REDIS,
        'self.expected.setdefault(key, {})[name] = value or b""',
        "pass",
        "a field that must not change is not compared",
        test="tests/contract/test_changed_meanwhile.py",
    ),
    Mutation(
        REDIS,
        'self.patterns[key, ""] = "." if is_there else "^$"',
        "pass",
        "a key that is presumed is not compared",
        test="tests/contract/test_archivable_runs.py",
    ),
    Mutation(
        REDIS,
        "self.write_set.bounded_roots.add(run.record.root)",
        "pass",
        "a run grows beyond its bound",
        test="tests/contract/test_run_sizes.py",
    ),
    Mutation(
        REDIS,
        "write_set.timers[member] = write_set.read_set.now",
        "pass",
        "without a template of doorbells a node waits for its lease",
        test="tests/contract/test_redis_store.py::test_without_a_template_the_next_sweep_rings",
    ),
    Mutation(
        REDIS,
        'self.write_set.patterns[name, ""] = "^$"',
        "pass",
        "two starts at once with one idempotency key begin two runs",
        test="tests/contract/test_stores.py::TestRedisStore::test_an_idempotency_key_starts_one_run",
    ),
    Mutation(
        REDIS,
        "in answer.decode().split(",
        'in "".split(',
        "a node that is offered a place of a limit is not rung",
        test="tests/contract/test_stores.py::TestRedisStore::test_a_place_goes_to_the_one_that_waits_longest",
    ),
    Mutation(
        REDIS,
        "if record.path and not kind.startswith(OF_RUNS):",
        "if record.path:",
        "a run shows the starts and ends of the runs inside it as its own",
        test="tests/contract/test_stores.py::TestRedisStore::test_the_events_of_a_child_are_among_those_of_its_root",
    ),
    Mutation(
        REDIS,
        "self.deadline = min(self.deadline or time, time)",
        "pass",
        "a write after the moment until which it is allowed",
        test="tests/contract/test_changed_meanwhile.py",
    ),
    Mutation(
        REDIS,
        "settlement.session or settlement.reads or settlement.insist",
        "settlement.session or settlement.insist",
        "the fast path does not compare what conditions have read",
        test="tests/contract/test_stores.py::TestRedisStore::test_conditions_that_read_what_changed_are_asked_again",
    ),
    Mutation(
        REDIS,
        'if edges[edge.position : edge.position + 1] == b"1":',
        "if edges:",
        "the output of a dead edge is an input",
        test="tests/contract/test_stores.py::TestRedisStore::test_inputs_come_in_the_order_of_the_edges",
    ),
    Mutation(
        REDIS,
        "grows = VISIT_BYTES + len(output) + len(entry)",
        "grows = VISIT_BYTES",
        "results do not count as bytes of their run",
        test="tests/contract/test_run_sizes.py",
    ),
    Mutation(
        "approvals/voting.py",
        "        or late(operation, question, now)\n",
        "",
        "an operation changes a question that was answered",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_decided_question_is_left_alone",
    ),
    Mutation(
        "approvals/voting.py",
        "        or ballots.spent(ballot, voter_record, now)\n",
        "",
        "one signature votes twice",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_signature_counts_once",
    ),
    Mutation(
        "approvals/voting.py",
        "spent[standing.lent[key]] = count.tally.round",
        "pass",
        "who has delegated takes that back and votes, too",
        test="tests/contract/test_stores.py::TestMemoryStore::test_one_may_vote_in_the_place_of_another",
    ),
    Mutation(
        "approvals/voting.py",
        "case.key} and standing.claimed_until > case.now:",
        "case.key}:",
        "a claim never lapses",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_claim_shows_who_works_on_it",
    ),
    Mutation(
        "approvals/voting.py",
        'if to is None or rule.delegate == "none" or case.key in lent:',
        'if to is None or rule.delegate == "none":',
        "a delegated vote is delegated again",
        test="tests/contract/test_stores.py::TestMemoryStore::test_one_may_vote_in_the_place_of_another",
    ),
    Mutation(
        "approvals/voting.py",
        'if voter_record["stage"] != tally.stage or built_on:',
        "if built_on:",
        "a vote of an earlier stage is taken back",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_vote_that_others_have_built_on_stays",
    ),
    Mutation(
        "approvals/voting.py",
        "unit.drop_timer(TimerKind.ESCALATE, run.record.run_id, answer.interrupt_id)",
        "pass",
        "a decided question still escalates",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_decided_question_is_left_alone",
    ),
    # -- votes, counted ------------------------------------------------------------------------------
    Mutation(
        "approvals/rules.py",
        "if voted_in == tally.round and not resets:",
        "if voted_in is not None and not resets:",
        "who voted before an edit has no vote after it",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_signature_counts_once",
    ),
    Mutation(
        "approvals/rules.py",
        "weight = 0 if stage != tally.stage and barred(rule, voter, facts, stage) else 1",
        "weight = 1",
        "an edit counts for one who may not vote in the first stage",
        test="tests/contract/test_stores.py::TestMemoryStore::test_an_edit_goes_back_to_the_first_stage",
    ),
    Mutation(
        "approvals/rules.py",
        "supported = vote.effect in {facts.original, tally.settled, *tally.effects}",
        "supported = vote.effect in {facts.original, *tally.effects}",
        "an approval of what an earlier stage has settled is an edit",
        test="tests/contract/test_stores.py::TestMemoryStore::test_an_edit_goes_back_to_the_first_stage",
    ),
    Mutation(
        "approvals/rules.py",
        'if tally.settled not in {"", vote.effect}:',
        "if False:",
        "a later stage approves another value than the one before",
        test="tests/records/test_approvals.py",
    ),
    Mutation(
        "approvals/rules.py",
        'ends = step.need if step.veto == "majority" else step.veto',
        "ends = step.veto if isinstance(step.veto, int) else step.need",
        "rejections end a question whose rule has no veto",
        test="tests/records/test_approvals.py",
    ),
    # -- votes, judged by the worker -----------------------------------------------------------------
    Mutation(
        "approvals/judgement.py",
        "        seen_jtis.add(proof.jti)\n",
        "",
        "one signature counts twice",
        test="tests/records/test_judgement.py",
    ),
    Mutation(
        "approvals/judgement.py",
        "if proof.issued < edit_time:",
        "if False:",
        "a vote that an edit has voided counts",
        test="tests/records/test_judgement.py",
    ),
    Mutation(
        "approvals/judgement.py",
        'if question.answered_at != last_vote["at"]:',
        "if False:",
        "the time of a decision can be forged",
        test="tests/records/test_judgement.py",
    ),
    Mutation(
        "approvals/judgement.py",
        "if evidence.root[PARTITION:] != run_name(body):",
        "if False:",
        "the signed start of another run names the requester",
        test="tests/records/test_judgement.py",
    ),
    Mutation(
        "approvals/judgement.py",
        "if rounds.get(lender) == round_ or (lent_round == round_ and by != key):",
        "if rounds.get(lender) == round_:",
        "two people vote in the place of one",
        test="tests/records/test_judgement.py",
    ),
    Mutation(
        "approvals/judgement.py",
        'or replies[-1] != "accepted" or set(replies[:-1]) - {"counted"}:',
        'or replies[-1] != "accepted":',
        "a refused vote stands among those that count",
        test="tests/records/test_judgement.py",
    ),
    Mutation(
        "approvals/judgement.py",
        "now > question.answered_at + rule.use_within * 1000",
        "now > question.answered_at + rule.use_within * 1_000_000",
        "a decision does not become too old",
        test="tests/records/test_judgement.py",
    ),
    # -- Celery --------------------------------------------------------------------------------------
    Mutation(
        "celery/inline_continuation.py",
        "        self.acknowledged |= starts_next  # the next one does it, or the last of the sequence\n",
        "",
        "a delivery is acknowledged while the row that it began goes on",
        test="tests/celery/test_stay.py::test_a_row_has_eight_nodes",
    ),
    Mutation(
        "celery/inline_continuation.py",
        "BUDGET: (remaining - 1, until),",
        "BUDGET: (remaining, until),",
        "a row of nodes on one slot never ends",
        test="tests/celery/test_stay.py::test_a_row_has_eight_nodes",
    ),
    Mutation(
        "celery/inline_continuation.py",
        "return claim if claim is not None and claim.record.nonce == nonce else None",
        "return claim",
        "a claim that was returned runs with the next doorbell",
        test="tests/celery/test_stay.py::test_a_claim_that_was_returned_serves_no_later_doorbell",
    ),
)
