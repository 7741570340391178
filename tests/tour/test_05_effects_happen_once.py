"""A node starts again after an answer, an error or a crash. `once` keeps its effects from happening again."""

from __future__ import annotations

from runner import GraphBuilder, RetryPolicy


def test_an_effect_before_a_question():
    """What `once` has done is remembered: the second start gets the first result back."""
    payments = []

    def pay(ctx):
        receipt = ctx.once(
            "pay", lambda: payments.append(ctx.task) or f"receipt {len(payments)}"
        )
        ctx.interrupt("print it?")
        return receipt

    builder = GraphBuilder()
    builder.add_node(pay)
    graph = builder.build()
    question = graph(120).interrupts[0]
    result = graph([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])

    assert result.results["pay"].output == "receipt 1"
    assert payments == [120]


def test_a_failing_node_is_tried_again():
    """A retry policy says how often and for which errors; what was done once stays done."""
    payments = []

    def pay(ctx):
        ctx.once("pay", lambda: payments.append(ctx.task))
        if ctx.attempt < 3:
            raise TimeoutError("the printer is slow")
        return f"printed at attempt {ctx.attempt}"

    builder = GraphBuilder()
    builder.add_node(
        pay, retry=RetryPolicy(max_attempts=3, backoff=0.001, retry_on=TimeoutError)
    )
    result = builder.build()(120)

    assert result.results["pay"].output == "printed at attempt 3"
    assert payments == [120]


def test_a_key_for_services_that_know_what_once_means():
    """Every start of one visit has the same key: give it to a service, and it will not do a thing twice."""
    keys = set()

    def pay(ctx):
        keys.add(ctx.idempotency_key)
        return ctx.interrupt("sure?")

    builder = GraphBuilder()
    builder.add_node(pay)
    graph = builder.build()
    question = graph(120).interrupts[0]
    graph([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])

    assert len(keys) == 1
