"""Faults to plant where no model machine looks, each with the test that must find it.

They stand in the transaction and the fast path of Redis, in votes, in their judgement, and around Celery.
`python -m tests.properties.faults` lists them with those of `mutations.py`.
"""

from __future__ import annotations

import sys

from tests.properties.mutations import MUTATIONS, Mutation

REDIS = "store/redis/"

SLACK, OF_SLACK = "doors/slack.py", "tests/doors/test_slack.py::"
MAIL, OF_MAIL = "doors/mail.py", "tests/doors/test_mail.py::"

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
        "elif read_set.looks == 1 and not read_set.is_speculative:",
        "elif not read_set.is_speculative:",
        "what was read at two moments refuses a request",
        test="tests/contract/test_changed_meanwhile.py",
    ),
    Mutation(
        REDIS,
        "return key in self.fields and name in self.fields[key]",
        "return self.fields.get(key, {}).get(name) is not None",
        "a field that is deleted is added to",
        test="tests/contract/test_stores.py::TestRedisStore::test_a_join_counts_its_other_edges_when_a_node_is_retried",
    ),
    Mutation(
        REDIS,
        "            if previous != value:\n                write_set.read(self.key, name)\n",
        "            if previous != value:\n",
        "an end that is only guessed is counted as the first",
        test="tests/contract/test_redis_store.py::test_a_run_that_ends_again_is_rung_for_its_second_end",
    ),
    Mutation(
        REDIS,
        "if claim_read.is_child or run.graph is not claim_read.graph:",
        'if claim_read.is_child or run.head["on_end"] or run.graph is not claim_read.graph:',
        "the end of a run with a callback costs a look",
        test="tests/contract/test_counts.py::test_the_end_of_a_run_is_one_request",
    ),
    Mutation(
        REDIS,
        "        if completes:",
        "        if True:",
        "the fast path completes a visit that has failed",
        test="tests/contract/test_stores.py::TestRedisStore::test_a_node_that_completed_in_one_run_fails_in_another",
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
        "self._offer_slots(answer[0].split(",
        'self._offer_slots(b"".split(',
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
        'if edges[edge.position : edge.position + 1] == "1":',
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
        "        or too_late(submission, question, now)\n",
        "",
        "an operation changes a question that was answered",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_decided_question_is_left_alone",
    ),
    Mutation(
        "approvals/voting.py",
        "        or ballots.refuse_reused(submission, voter_record, now)\n",
        "",
        "one signature votes twice",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_signature_counts_once",
    ),
    Mutation(
        "approvals/ballots.py",
        "if count > last or count == last == 0:",
        "if count >= last:",
        "a copy of a passkey signs",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_passkey_that_does_not_count_on_is_refused",
    ),
    Mutation(
        "approvals/voting.py",
        "spent[lent[key]] = count.tally.round",
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
        'if pending is None and (voter_record["stage"] != tally.stage or built_on):',
        "if pending is None and built_on:",
        "a vote of an earlier stage is taken back",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_vote_that_others_have_built_on_stays",
    ),
    Mutation(
        "approvals/voting.py",
        "transaction.drop_timer(TimerKind.ESCALATE, run_id, name)",
        "pass",
        "a decided question still escalates",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_decided_question_is_left_alone",
    ),
    Mutation(
        "approvals/voting.py",
        "transaction.drop_timer(TimerKind.DECIDE, run.record.run_id, name)",
        "pass",
        "a decision that was taken back leaves its timer",
        test="tests/contract/test_stores.py::TestMemoryStore::test_who_decided_takes_it_back",
    ),
    Mutation(
        "store/apply_transition.py",
        "expires_in=None), pending.answer, pending.nonce, pending.at",
        "expires_in=None), pending.answer, pending.nonce, pending.until",
        "a decision has the time of its timer, not that of the vote",
        test="tests/contract/test_stores.py::TestMemoryStore::test_a_decision_waits_for_its_undo",
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
    Mutation(
        "approvals/rules.py",
        "return key == other_key or (sub == other_sub and not (iss and other_iss))",
        "return key == other_key",
        "who is excluded by a name alone decides by a login of that name",
        test="tests/records/test_approvals.py",
    ),
    Mutation(
        "approvals/ballots.py",
        'escalated=escalated(question, min(now, proof["exp"] * 1000) if proof else now),',
        "escalated=escalated(question, now),",
        "a door takes a vote by an escalation that came after the signature's end",
        test="tests/operations/test_receipts_of_votes.py",
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
        "approvals/ballots.py",
        'return "it was signed before the edit that voided it" if issued < edited_at else ""',
        'return ""',
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
        'if last != "accepted" or set(before) - {"counted"}:',
        'if last != "accepted":',
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
        "        state.task_reserved(self)\n",
        "        state.task_reserved(self)\n        self.acknowledge()\n",
        "a delivery is acknowledged while the row that it began goes on",
        test="tests/celery/test_stay.py::test_a_row_has_eight_nodes",
    ),
    Mutation(
        "celery/inline_continuation.py",
        "BUDGET: (remaining - 1, *others),",
        "BUDGET: (remaining, *others),",
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
    Mutation(
        "celery/heartbeat.py",
        "        self.engine.leave(take_unused(pool_ended=True))\n",
        "",
        "what a stopping worker has claimed last is not returned",
        test="tests/celery/test_stay.py::test_a_node_that_a_closing_pool_ignores_is_returned",
    ),
    Mutation(
        "celery/inline_continuation.py",
        "_unused_claims.extend(_unstarted_claims.items())",
        "pass",
        "a claim that a closing pool ignores is not returned",
        test="tests/celery/test_stay.py::test_a_node_that_a_closing_pool_ignores_is_returned",
    ),
    Mutation(
        "celery/doorbells.py",
        "is_redis(producer.connection.as_uri()) else 9 - bell.priority",
        "is_redis(producer.connection.as_uri()) else bell.priority",
        "priorities are the other way round on RabbitMQ",
        test="tests/celery/test_doorbells.py::"
        "test_the_first_priority_is_the_highest_where_the_broker_is_no_redis",
    ),
    Mutation(
        "celery/engines.py",
        'not (cluster(settings.first_url) or options.get("global_keyprefix"))',
        "not cluster(settings.first_url)",
        "doorbells are pushed to queues that kombu names otherwise",
        test="tests/celery/test_doorbells.py::test_queues_whose_names_kombu_changes_are_published_to",
    ),
    Mutation(
        "celery/kombu_fixes.py",
        "if self._is_busy and now - self._all_named_at < NAME_ALL_EVERY:",
        "if self._is_busy:",
        "a busy worker never finds messages of another priority",
        test="tests/celery/test_channel.py",
    ),
    Mutation(
        "celery/kombu_fixes.py",
        "            timer.cancel()\n",
        "            pass\n",
        "the timers of each lost connection stay",
        test="tests/celery/test_reconnects.py",
    ),
    # -- what operators set of limits ----------------------------------------------------------------
    Mutation(
        "limits/setting.py",
        "for each in self.pauses if each.key in (key, self.id)]",
        "for each in self.pauses if each.key == key]",
        "a paused limit starts what has a key",
        test="tests/contract/test_stores.py::TestRedisStore::test_one_key_is_paused_alone",
    ),
    Mutation(
        "limits/setting.py",
        "mine and (held or mine)",
        "mine",
        "each graph counts by its own number",
        test="tests/limits/test_control.py::test_of_two_declarations_the_newest_loses",
    ),
    Mutation(
        "store/lua/parts/offers.lua",
        "slots > 0 and slots or concurrency",
        "slots > 0 and concurrency or concurrency",
        "free slots are offered by the code where another number is set",
        test="tests/contract/test_stores.py::TestRedisStore::test_a_number_that_is_set_wins_until_it_is_reset",
    ),
    Mutation(
        "store/lua/parts/offers.lua",
        "if empty or redis.call('EXISTS', QUEUE .. key) == 0 then",
        "if empty then",
        "a key is listed for which nothing waits",
        test="tests/limits/test_control.py::test_no_key_is_listed_for_which_nothing_waits",
    ),
    Mutation(
        REDIS,
        'if reply.word == "relaxed":',
        "if False:",
        "nodes of a limit that goes on are rung minutes later",
        test="tests/contract/test_stores.py::TestRedisStore::test_slots_that_are_added_are_taken",
    ),
    # -- turns of keys -------------------------------------------------------------------------------
    Mutation(
        "store/lua/parts/fairness.lua",
        "passes, redis.call('HGET', state, '=' .. key), key)",
        "passes, 0, key)",
        "one key has all turns",
        test="tests/properties/test_fairness.py",
    ),
    Mutation(
        "store/lua/parts/fairness.lua",
        "NX', redis.call('HGET', state, 'time') or 0, key)",
        "NX', 0, key)",
        "a key that was idle gets what it left unused",
        test="tests/properties/test_fairness.py",
    ),
    Mutation(
        "store/lua/parts/fairness.lua",
        "elseif is_ready(unpack(bell, 1, 4)) then",
        "elseif true or is_ready(unpack(bell, 1, 4)) then",
        "runs that are gone take turns",
        test="tests/contract/test_stores.py::TestRedisStore::test_runs_that_are_gone_take_no_turns",
    ),
    Mutation(
        "store/lua/parts/fairness.lua",
        "elseif redis.call('ZSCORE', FAIR .. 'w:' .. lane, task_of(bell)) then",
        "elseif false then",
        "a lost doorbell waits for another turn",
        test="tests/contract/test_stores.py::TestRedisStore::test_a_lost_doorbell_has_no_second_turn",
    ),
    Mutation(
        "scheduler/lifecycle.py",
        "shares = shape.limits or topology.fairness",
        "shares = shape.limits",
        "a worker that settles claims the next node out of turn",
        test="tests/contract/test_stores.py::TestRedisStore::test_what_a_settle_makes_ready_waits_for_its_turn",
    ),
    Mutation(
        "execution/engine.py",
        "self.do(PassOver(run_id, node, visit, attempt, record.fingerprint))",
        "pass",
        "a frozen graph closes the window of others",
        test="tests/execution/test_freezes.py::test_a_frozen_graph_keeps_no_other_of_its_queue_waiting",
    ),
    Mutation(
        "store/lua/parts/fairness.lua",
        "if is_ready(oldest:",
        "if true or is_ready(oldest:",
        "a claim whose arrival failed closes a window",
        test="tests/contract/test_redis_store.py::test_a_worker_that_dies_within_its_claim_closes_no_window",
    ),
    # -- the Slack door -------------------------------------------------------------------------------
    Mutation(
        SLACK,
        "if not self._is_signed(body, timestamp, signature):",
        "if False:",
        "a request that Slack has not signed counts",
        test=f"{OF_SLACK}test_clicks_that_are_not_ours_have_no_effect",
    ),
    Mutation(
        SLACK,
        "{payload.team.id, payload.user.team_id or team} != {team}:",
        "{payload.user.team_id or team} != {team}:",
        "a click of another workspace counts",
        test=f"{OF_SLACK}test_clicks_that_are_not_ours_have_no_effect",
    ),
    Mutation(
        SLACK,
        "{payload.team.id, payload.user.team_id or team} != {team}:",
        "{payload.team.id} != {team}:",
        "a click by a person of another workspace counts",
        test=f"{OF_SLACK}test_clicks_that_are_not_ours_have_no_effect",
    ),
    Mutation(
        SLACK,
        "if not same(mac, self._mac(text)):",
        "if not text:",
        "a button of another installation counts",
        test=f"{OF_SLACK}test_clicks_that_are_not_ours_have_no_effect",
    ),
    Mutation(
        SLACK,
        "if intent.digest != question.digest:",
        "if False:",
        "a button of a question that has changed opens a form",
        test=f"{OF_SLACK}test_clicks_that_are_not_ours_have_no_effect",
    ),
    Mutation(
        SLACK,
        "if intent.action not in _actions(question):",
        "if False:",
        "a question for its page is decided in Slack",
        test=f"{OF_SLACK}test_a_question_for_its_page_has_no_other_button",
    ),
    Mutation(
        "doors/questions.py",
        "if not scoped.may(permission):",
        "if False:",
        "a person decides without the role",
        test=f"{OF_SLACK}test_who_may_not_decide_hears_why",
    ),
    Mutation(
        SLACK,
        'or account.get("deleted")',
        "",
        "an account that was deactivated decides",
        test=f"{OF_SLACK}test_who_may_not_decide_hears_why",
    ),
    Mutation(
        SLACK,
        'if is_confirmed else ""',
        "",
        "an address that no one has confirmed names a person",
        test=f"{OF_SLACK}test_who_may_not_decide_hears_why",
    ),
    Mutation(
        SLACK,
        "idempotency_key=key)",
        "idempotency_key=None)",
        "a replayed click votes again after an edit",
        test=f"{OF_SLACK}test_a_replayed_click_counts_once",
    ),
    # -- the mail door --------------------------------------------------------------------------------
    Mutation(
        MAIL,
        'if not same(mac, mac_of(self._settings, "mail", text)):',
        "if not text:",
        "a link of another installation counts",
        test=f"{OF_MAIL}test_each_check_stops_nothing_else",
    ),
    Mutation(
        MAIL,
        "if time.time() * 1000 > link.expires_at:",
        "if not link.expires_at:",
        "a link that is over counts",
        test=f"{OF_MAIL}test_each_check_stops_nothing_else",
    ),
    Mutation(
        MAIL,
        "if link.digest != question.digest or flat_forms.form(question) is None:",
        "if flat_forms.form(question) is None:",
        "a link to a question that has changed counts",
        test=f"{OF_MAIL}test_each_check_stops_nothing_else",
    ),
    Mutation(
        MAIL,
        "if hash_of(link.address) in self._read(link.question).used:",
        "if False:",
        "a link whose vote was taken back is open again",
        test=f"{OF_MAIL}test_a_link_decides_once",
    ),
    Mutation(
        MAIL,
        "if voter in mailed.used:",
        "if False:",
        "a link decides twice in a race",
        test=f"{OF_MAIL}test_a_link_counts_once_in_a_race",
    ),
    Mutation(
        "doors/questions.py",
        'person = permit(person, "decide", services.graph_of(question.id))',
        "pass",
        "a person is asked, and decides, without the role",
        test=f"{OF_MAIL}test_who_may_not_decide_has_no_link",
    ),
    Mutation(
        MAIL,
        "if mark + person in stored.sent or (mark and person not in stored.sent):",
        "if False:",
        "each notice of a question sends its messages again",
        test=f"{OF_MAIL}test_a_person_gets_one_message",
    ),
    Mutation(
        MAIL,
        "if not _is_address(address):",
        "if False:",
        "an address adds receivers",
        test=f"{OF_MAIL}test_an_address_adds_no_receiver",
    ),
    Mutation(
        MAIL,
        'scope["query_string"] = b""',
        "pass",
        "the log of requests has links that decide",
        test=f"{OF_MAIL}test_the_log_has_no_links",
    ),
    Mutation(
        "records/asking.py",
        "if isinstance(schema, type) else",
        "if False else",
        "an answer that the model refuses fails the node",
        test="tests/execution/test_refused_answers.py",
    ),
    Mutation(
        "scheduler/lifecycle.py",
        "via=((node, visit), *todo.via)",
        "via=(*todo.via, (node, visit))",
        "what completed first is undone first",
        test="tests/execution/test_undo.py",
    ),
    Mutation(
        "scheduler/changes.py",
        "bool(changes.run.stopping) and not node.startswith(UNDO)",
        "bool(changes.run.stopping)",
        "a stop cancels the undos, too",
        test="tests/execution/test_undo.py",
    ),
    Mutation(
        REDIS,
        "if topology.loops or record.via:",
        "if topology.loops:",
        "an undo gets the output only if its node's first edge was taken",
        test="tests/execution/test_undo.py",
    ),
    Mutation(
        "server/access.py",
        "            _name_graph(request, candidates[0])\n",
        "",
        "a list shows all graphs to who has roles of one",
        test="tests/server/test_graph_roles.py::test_no_route_shows_another_graph",
    ),
)


def table() -> str:
    """List all planted faults: where each is, what goes wrong, and which file of tests finds it."""
    rows = [("where", "planted fault", "found by"), ("---", "---", "---")]
    for fault in (*MUTATIONS, *FAULTS):
        found_by = (
            fault.test.partition("::")[0] or f"tests/properties/fast_slice.py, {fault.slice}"
        )
        rows.append((f"runner/{fault.file}", fault.breaks, found_by))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.stdout.write(table())
