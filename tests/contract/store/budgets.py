"""The contract of budgets: sums of what agents spend, and bounds that are never passed."""

from __future__ import annotations

import threading

import pytest

from runner.records.budgets import Spending, Sum, Tagged
from runner.store.requests import CloseRaise, OpenRaise, ParkVisit, SpendBudget, WakeVisit
from tests.contract.store.manual_worker import rung, shape

DAY = 86_400_000

ANA = Tagged("customer", "ana", DAY)


def spend(store, run_id, nonce, amounts, bounds=None, *, of=None):
    """Add to a sum; return what is refused for its bound."""
    spending = Spending("a", nonce, amounts, bounds or {})
    return store.do(SpendBudget(run_id, of, spending))


class BudgetContract:
    """Sums of runs and tags."""

    @pytest.mark.routed
    def test_what_is_spent_adds_up_in_the_outermost_run(self, worker, store):
        """A run inside another adds to the other's sum; the sums of other runs are their own."""
        parent, token = worker.begin("a", tags={"customer": "ana"})
        child = worker.start(shape("x", name="inner"), parent=token)
        other = worker.start("a")
        spend(store, parent, "1", {"tokens": 5, "cost": 2**40})
        spend(store, child, "2", {"tokens": 7})

        assert store.spent(parent) == store.spent(child)
        assert store.spent(parent) == {"tokens": Sum(12), "cost": Sum(2**40)}
        assert (store.spent(other), store.tags(child)) == ({}, {"customer": "ana"})

    @pytest.mark.scripts
    def test_a_bound_is_reached_and_not_passed(self, worker, store):
        """What would go over a bound is refused whole; without an amount it is reached by the sum."""
        run_id = worker.start("a")
        bounds = {"tokens": 10, "model_calls": 2}
        replies = [
            spend(store, run_id, str(number), {"model_calls": 1}, bounds) for number in range(3)
        ]
        assert replies == ["", "", "model_calls"]
        spend(store, run_id, "reply", {"tokens": 11})

        assert spend(store, run_id, "next", {"tool_calls": 1}, {"tokens": 10}) == "tokens"
        assert store.spent(run_id) == {"tokens": Sum(11, 10), "model_calls": Sum(2, 2)}

    def test_a_repeated_request_counts_once(self, worker, store):
        """The reply may have been lost: the same nonce changes nothing and gets the same reply."""
        run_id = worker.start("a")
        first = Spending("a", "1", {"model_calls": 1}, {"model_calls": 1})
        second = Spending("a", "2", {"model_calls": 1}, {"model_calls": 1})

        assert [store.do(SpendBudget(run_id, None, first)) for _ in range(2)] == ["", ""]
        assert [store.do(SpendBudget(run_id, None, second)) for _ in range(2)] == [
            "model_calls",
            "model_calls",
        ]
        assert store.spent(run_id) == {"model_calls": Sum(1, 1)}

    def test_a_question_raises_a_bound_once(self, worker, store):
        """However often the answer of a person is used; what two questions add up to is the new bound."""
        run_id = worker.start("a")
        for number, question in enumerate(["q1", "q1", "q2"]):
            spending = Spending(
                "a",
                str(number),
                {"tokens": 1},
                {"tokens": 1},
                {f"{run_id}.a.1.{question}": ("tokens", 1)},
            )
            assert store.do(SpendBudget(run_id, None, spending)) == ""

        assert store.spent(run_id) == {"tokens": Sum(3, 1, 2)}
        assert spend(store, run_id, "4", {"tokens": 1}, {"tokens": 1}) == "tokens"

    @pytest.mark.routed
    def test_a_tag_has_one_sum_in_each_window(self, worker, store):
        """All runs with the same value add to it, and it begins at nothing in the next window."""
        first, second = (worker.start("a", tags={"customer": "ana"}) for _ in range(2))
        for number, run_id in enumerate((first, second)):
            spend(store, run_id, str(number), {"tokens": 3}, of=ANA)
        assert store.spent(first, ANA) == store.spent(second, ANA) == {"tokens": Sum(6)}
        assert (store.spent(first), store.spent(first, Tagged("customer", "ben", DAY))) == (
            {},
            {},
        )
        worker.clock.advance(DAY / 1000)

        assert store.spent(first, ANA) == {}

    @pytest.mark.routed
    @pytest.mark.parametrize("tagged", [None, ANA])
    def test_one_visit_asks_to_raise_a_sum(self, worker, store, tagged):
        """Others wait for it, each once, until it closes; another counter has a question of its own."""
        run_id = worker.start("a")

        def opened(visit: str, counter: str = "tokens", instead_of: str = "") -> str:
            return store.do(OpenRaise(run_id, tagged, counter, visit, instead_of))

        def closed(visit: str, refusal: str = "") -> list[str]:
            return store.do(CloseRaise(run_id, tagged, "tokens", visit, refusal))

        assert [opened(visit) for visit in "abacab"] == ["", "a", "", "a", "", "a"]
        assert (opened("b", "cost"), opened("c", instead_of="b")) == ("", "a")
        assert (closed("b"), closed("a"), closed("a")) == ([], ["b", "c"], [])
        assert (opened("b"), opened("c"), opened("d", instead_of="b")) == ("", "b", "")
        assert (closed("d", "no more"), opened("a"), opened("c")) == (["c"], "", "!no more")
        assert store.spent(run_id, tagged) == {}

    @pytest.mark.routed
    def test_a_visit_awaits_the_answer_to_a_question_of_another_node(self, worker, store):
        """It waits with its run, and goes on when it is woken, also before it waits, or after minutes."""
        run_id = worker.start("a b")
        tokens = {node: worker.token(run_id, node) for node in "ab"}

        def wait(node: str) -> str:
            return store.do(ParkVisit(tokens[node], [], None, awaits=f"{run_id} 1 other")).word

        assert store.do(WakeVisit(run_id, "b", 1)).word == "woken"
        assert (wait("a"), wait("b")) == ("waiting", "ready")
        worker.settle(worker.token(run_id, "b"))
        assert worker.statuses(run_id) == "interrupted: a waiting, b completed"
        assert store.do(WakeVisit(run_id, "a", 2)).word == "stale"
        assert rung(store.do(WakeVisit(run_id, "a", 1))) == ["a.1.1"]
        tokens["a"] = worker.token(run_id, "a")
        assert (wait("a"), worker.sweep(after=200), worker.sweep(after=200)) == (
            "waiting",
            [],
            ["a.1.1"],
        )
        assert store.do(WakeVisit(run_id, "a", 1)).word == "stale"

    @pytest.mark.routed
    def test_what_spends_of_an_unknown_run_is_not_counted(self, store):
        """A run that was removed does not come back as a sum."""
        assert spend(store, "0gone", "1", {"tokens": 1}, {"tokens": 1}) == ""
        assert store.do(OpenRaise("0gone", None, "tokens", "0gone 1 a")) == ""
        assert (store.spent("0gone"), store.tags("0gone"), store.peek("0gone")) == (
            {},
            {},
            None,
        )

    @pytest.mark.routed
    def test_many_workers_never_pass_a_bound(self, worker, store):
        """Calls that are reserved at the same moment on many threads are as many as the bound allows."""
        run_id = worker.start("a")
        threads, calls, bound = 8, 10, 33
        replies: list[str] = []
        ready = threading.Barrier(threads)

        def work(who: int) -> None:
            ready.wait(30)
            for number in range(calls):
                spending = Spending(
                    f"n{who}", str(number), {"model_calls": 1}, {"model_calls": bound}
                )
                replies.append(store.do(SpendBudget(run_id, None, spending)))

        workers = [threading.Thread(target=work, args=(who,)) for who in range(threads)]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join(30)

        assert replies.count("") == store.spent(run_id)["model_calls"].spent == bound
