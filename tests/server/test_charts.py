"""The charts of Home and of a graph's page, and the samples that they are drawn from."""

from __future__ import annotations

import json
import re

import pytest

from runner.store.redis.history import SPANS
from runner.store.redis.keys import Keys
from runner.store.redis.measurements import increments
from tests.ports import free_port
from tests.server.conftest import Served

KEYS = Keys()


def sampled(site, span="hour", graphs=("", "approval")):
    """Fill a span: each minute two runs and six nodes, one failed, and a question decided after 90 s."""
    history, now = site.app.state.services.history, site.app.state.services.workers.now()
    seconds, intervals = SPANS[span]
    for number in range(intervals + 10):
        sample = {
            "at": now - 1000 * seconds * (intervals + 9 - number),
            "started": 2 * number,
            "completed": 5 * number,
            "failed": number,
            "waiting": 7,
            "open": 3,
            "decided": number,
            "deciding": 90 * number,
            "begun": 6 * number,
            "queued": 3 * number,
        }
        history.add(span, dict.fromkeys(graphs, sample))


@pytest.mark.full
def test_home_and_a_graph_show_the_last_hour(site):
    """Charts, each with its number in words, and every number in a table; the day is one link away."""
    sampled(site)
    for path in ("/", "/graphs/approval"):
        text = site.http.get(path).text
        labels = re.findall(r'<svg viewBox="0 0 240 42"[^>]* aria-label="([^"]*)"', text)

        expected = [
            "Runs started: 120, at most 2 in one interval",
            "Nodes completed: 300, at most 5 in one interval",
            "Nodes failed: 60, at most 1 in one interval",
            "Nodes waiting for a worker: 7, at most 7 in one interval",
            "Time to start: 500 ms, at most 500 ms in one interval",
            "Open questions: 3, at most 3 in one interval",
            "Questions decided: 60, at most 1 in one interval",
            "Time to decide: 1 min 30 s, at most 1 min 30 s in one interval",
        ]
        is_home = path == "/"  # decisions are counted for all graphs together
        assert labels == (expected if is_home else expected[:6])
        assert text.count("500 ms</td>") == SPANS["hour"][1]
        assert text.count("1 min 30 s</td>") == is_home * SPANS["hour"][1]
        assert site.http.get(f"{path}?span=day").text.count("A worker takes a sample") == 1


@pytest.mark.full
def test_a_chart_has_a_gap_while_no_worker_took_samples(site):
    """Nothing is drawn for that time; control: bars before and after it."""
    history, now = site.app.state.services.history, site.app.state.services.workers.now()
    for minutes in (30, 29, 2, 1):
        history.add("hour", {"": {"at": now - 60_000 * minutes, "open": 3}})
    bars = re.findall(
        r"<figcaption>Open questions.*?</svg>", site.http.get("/").text, re.DOTALL
    )[0].count("<rect")

    assert bars == 2


@pytest.mark.full
def test_a_sample_has_the_numbers_of_prometheus(site, redis_url):
    """It is taken once a minute, of all graphs and of each, and counts the runs that began since the last."""
    services = site.app.state.services
    services.take_sample()
    site.start("approval")
    services.store.measure(
        increments("runner_node_seconds", 2.0, graph="approval", outcome="completed")
    )
    services.take_sample()
    (first,) = services.history.read("hour")
    client = services.workers._redis
    old = {**first, "at": first["at"] - 60_000}
    for graph in ("", "approval"):
        client.call("LSET", f"{KEYS.history}:hour:{graph}", 0, json.dumps(old))
    services.take_sample()
    _, of_all = services.history.read("hour")
    _, of_graph = services.history.read("hour", "approval")
    numbers = site.http.get("/metrics").text

    assert len(services.history.read("day")) == 1
    assert of_all == {"at": of_all["at"], "started": 1, "completed": 1, "open": 1, "waiting": 0}
    assert of_graph == of_all
    assert 'runner_runs_started_total{graph="approval"} 1\n' in numbers
    assert 'runner_questions_open{graph="approval"} 1\n' in numbers


def test_samples_of_a_graph_stay_small(site):
    """Both spans take less than 100 KB for each graph, however long they are taken, and expire."""
    for span in SPANS:
        sampled(site, span)
    client = site.app.state.services.workers._redis
    keys = [f"{KEYS.history}:{span}:approval" for span in SPANS]

    assert sum(client.call("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys) < 100_000
    assert [client.call("LLEN", key) for key in keys] == [n + 1 for _, n in SPANS.values()]
    assert all(0 < client.call("TTL", key) <= 86_400 for key in keys)


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_pages_with_charts_are_accessible(site, browser, scheme, width):
    """Axe has nothing to say, also with the table open, and no page is wider than its window."""
    from axe_playwright_python.sync_playwright import Axe

    sampled(site)
    with Served(site.app, free_port()) as served:
        context = browser.new_context(
            base_url=served.url,
            color_scheme=scheme,
            bypass_csp=True,
            viewport={"width": width, "height": 900},
        )
        page = context.new_page()
        for path in ("/", "/graphs/approval"):
            page.goto(path)
            page.evaluate(
                "document.querySelectorAll('details').forEach((item) => { item.open = true; })"
            )

            assert Axe().run(page).response["violations"] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        context.close()
