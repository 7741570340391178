"""The page of a run with a large map: counts by state, all failed items, and their retry in one act."""

from __future__ import annotations

import re

import pytest

from runner import GraphBuilder
from runner.operations.recovery import retry
from tests.server.conftest import Site, ask

ITEMS = 250
BROKEN = {"now": True}


def half(ctx):
    if BROKEN["now"] and ctx.task % 2:
        raise ValueError(f"letter {ctx.task} is out of paper")
    return ctx.task


def many(on_error):
    builder = GraphBuilder().set_failure_policy("continue")
    builder.add_map(half, "letters", over=lambda ctx: list(range(ITEMS)), on_error=on_error)
    builder.add_node(ask, "ask")
    return builder.build()


@pytest.fixture
def site(redis_url):
    BROKEN["now"] = True
    graphs = {f"many_{name}": lambda name=name: many(name) for name in ("continue", "fail")}
    return Site(redis_url, graphs)


def names(text):
    """The items that a page's drawer lists."""
    items = text[text.index('<ul class="items">') :]
    return re.findall(r">letters\[(\d+)\]</a>", items[: items.index("</ul>")])


@pytest.mark.full
def test_a_large_map_is_counted_by_state_and_its_items_have_pages(site):
    """The failed ones come first, each with its error; a run that waits isn't said to have failed."""
    run = site.start("many_continue")
    path = f"/runs/{run.id}"
    nodes = site.http.get(f"{path}?tab=nodes").text
    pages = [site.http.get(f"{path}?node=letters&from={start}").text for start in (0, 100, 200)]

    assert "125 completed, 125 failed" in nodes
    assert "Failed so far; the run goes on" in nodes
    assert 'data-result="rejected"' not in nodes
    assert "125 of 250 items; the first: ValueError: letter 1 is out of paper" in nodes
    listed = [name for text in pages for name in names(text)]
    assert len(listed) == len(set(listed)) == ITEMS
    assert all(int(name) % 2 for name in listed[:125])
    assert "letter 3 is out of paper" in pages[0]
    assert "&amp;from=100#node" in pages[0]
    assert "Previous items" in pages[2]
    assert "Next items" not in pages[2]


@pytest.mark.full
def test_all_failed_items_are_retried_in_one_act(site):
    """One button after the run has failed; control: no button while it goes on."""
    run = site.start("many_fail")
    going_on = site.http.get(f"/runs/{run.id}").text
    (question,) = run.interrupts()
    site.client.respond(question.id, {"ok": True})
    site.work()
    failed = site.http.get(f"/runs/{run.id}").text
    BROKEN["now"] = False
    retry(site.client.engine, run.id)
    site.work()

    assert "Retry all that failed" not in going_on
    assert "Retry all that failed" in failed
    assert 'data-result="rejected"' in failed
    assert run.status == "completed"
    assert run.result().results["letters"].output == list(range(ITEMS))


def test_a_running_map_is_shown_as_running(site):
    """Not as waiting, while items are ready or run; control: when only a question is left it waits."""
    run = site.client.start("many_continue", None)
    for _ in range(3):
        bell = site.bells.popleft()
        site.client.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
    text = site.http.get(f"/runs/{run.id}").text

    assert re.search(r'data-node="letters"[^>]*data-state="running"', text)
    assert re.search(r'data-node="ask"[^>]*data-state="(waiting|ready)"', text)
