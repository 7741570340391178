from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from runner.server import slots
from tests.waiting import wait_until

pytestmark = pytest.mark.full

THREADS = 40
"""Threads in which a process serves requests."""


@pytest.fixture
def blocked(site, served):
    """Ask for so many pages that don't end before the test does; list those that are worked on."""
    ends, pages, find = threading.Event(), [], site.registry.find

    def plan(graph):
        if graph == "echo":
            pages.append(graph)
            ends.wait(60)
        return find(graph)

    site.app.state.services.plan = plan
    with ExitStack() as stack:
        limits = httpx.Limits(max_connections=2 * THREADS)
        http = stack.enter_context(httpx.Client(base_url=served.url, timeout=60, limits=limits))
        threads = stack.enter_context(ThreadPoolExecutor(2 * THREADS))
        stack.callback(ends.set)

        def ask(number):
            for _ in range(number):
                threads.submit(http.get, "/graphs/echo", headers={"Accept": "text/html"})
            return pages

        yield ask


def waiting(site):
    layer = site.app.middleware_stack
    while not isinstance(layer, slots.Slots):
        layer = getattr(layer, "app", None) or layer._app
    return sum(gate.waiting for gates in layer._gates.values() for gate in gates.values())


def vote(site, served, timeout=20):
    question = site.start("refund", requester="cora").interrupts()[0]
    reply = httpx.post(
        f"{served.url}/v1/questions/{question.id}/votes",
        json={"decision": "approve"},
        headers={"If-Match": f'"{question.digest}"'},
        timeout=timeout,
    )
    return reply.json()["status"]


def test_votes_and_probes_wait_for_no_page(site, served, blocked):
    """While every slot of pages is taken and more pages wait, a vote counts and both probes answer."""
    site.as_role("approver", groups=["finance"])
    pages, served_at_once = blocked(THREADS + 10), slots.SLOTS["read"]
    wait_until(lambda: waiting(site) == THREADS + 10 - served_at_once, "the others wait")
    wait_until(lambda: len(pages) == served_at_once, "those with a slot are in their threads")

    assert vote(site, served) == "counted"
    for path in ("/healthz", "/readyz"):
        assert httpx.get(served.url + path, timeout=20).status_code == 200


def shown(site, served, timeout=20):
    question = site.start("refund", requester="cora").interrupts()[0]
    path, html = f"{served.url}/q/{question.id}", {"Accept": "text/html"}
    return httpx.get(path, headers=html, timeout=timeout).status_code


def test_a_question_waits_for_no_list(site, served, blocked):
    """While every slot of lists is taken and more wait, a question is shown, its style sheet, too."""
    pages = blocked(slots.SLOTS["read"] + 10)
    wait_until(lambda: waiting(site) == 10, "the others wait")
    wait_until(
        lambda: len(pages) == slots.SLOTS["read"], "those with a slot are in their threads"
    )

    assert shown(site, served) == 200
    assert httpx.get(served.url + "/static/none.css", timeout=20).status_code == 404


@pytest.mark.slow
def test_a_question_among_the_lists_waits_for_them(site, served, blocked, monkeypatch):
    """The control of the test above: in the slots of lists it is not shown."""
    monkeypatch.setattr(slots, "QUESTIONS", ())
    pages = blocked(slots.SLOTS["read"])
    wait_until(lambda: len(pages) == slots.SLOTS["read"], "all are in their threads")

    with pytest.raises(httpx.ReadTimeout):
        shown(site, served, timeout=1)


@pytest.mark.slow
def test_without_slots_votes_wait_for_pages(site, served, blocked, monkeypatch):
    """The control of the test above: pages without a bound take all threads."""
    monkeypatch.setitem(slots.SLOTS, "read", 1_000)
    site.as_role("approver", groups=["finance"])
    pages = blocked(THREADS + 10)
    wait_until(lambda: len(pages) == THREADS, "pages have all threads")

    with pytest.raises(httpx.ReadTimeout):
        vote(site, served, timeout=1)


def test_a_page_that_would_wait_too_long_is_refused(site, served, blocked, monkeypatch):
    """It gets 503 and when to come again; those that waited before are served."""
    monkeypatch.setattr(slots, "MOST_WAITING", 3)
    blocked(slots.SLOTS["read"] + 3)
    wait_until(lambda: waiting(site) == 3, "three wait")

    reply = httpx.get(f"{served.url}/v1/runs")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
    assert reply.headers["content-security-policy"]


def test_a_stream_takes_no_slot(site, served):
    """A page is shown beside more streams than there are slots."""
    run = site.start("approval")
    with ExitStack() as stack:
        http = stack.enter_context(httpx.Client(base_url=served.url, timeout=20))
        for _ in range(slots.SLOTS["read"] + 1):
            path, headers = f"/v1/runs/{run.id}/events", {"Accept": "text/event-stream"}
            reply = stack.enter_context(http.stream("GET", path, headers=headers))
            next(reply.iter_lines())

        assert http.get("/inbox", headers={"Accept": "text/html"}).status_code == 200
