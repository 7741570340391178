"""The page of a run in a real browser: its graph, the node beside it, and what people do to it."""

from __future__ import annotations

import pytest

from runner import GraphBuilder
from tests.graphs import wired
from tests.ports import free_port
from tests.server.conftest import GRAPHS, Served, Site, ask, echo

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

STEPS = 12


def chain():
    nodes = {f"step_{number}": ask if number in (4, 9) else echo for number in range(STEPS)}
    return wired(
        nodes, *(f"step_{number} step_{number + 1}" for number in range(STEPS - 1))
    ).build()


def outer():
    inner = wired({"draft": echo, "sign": ask}, "draft sign").build()
    builder = GraphBuilder()
    builder.add_node(echo, "look_up")
    builder.add_node(inner, "contract")
    builder.add_edge("look_up", "contract")
    return builder.build()


@pytest.fixture
def site(redis_url):
    """An application with a long graph and one that has a graph inside."""
    return Site(redis_url, {**GRAPHS, "chain": chain, "outer": outer})


def answer(site, run):
    (question,) = run.interrupts()
    site.client.respond(question.id, {"ok": True})
    site.work()


def is_seen(tab, node):
    """Whether a node is inside the visible part of the graph."""
    return tab.evaluate(
        """(name) => {
          const node = document.querySelector(`[data-node="${name}"]`).getBoundingClientRect();
          const graph = document.querySelector(".graph").getBoundingClientRect();
          return node.left >= graph.left && node.right <= graph.right;
        }""",
        node,
    )


def test_the_graph_follows_what_goes_on(site, tab):
    """With the switch on, the node that runs or waits is in view, also after the next one has begun."""
    run = site.start("chain")
    tab.emulate_media(reduced_motion="reduce")
    tab.set_viewport_size({"width": 700, "height": 800})
    tab.goto(f"/runs/{run.id}")
    assert [is_seen(tab, f"step_{number}") for number in (4, 9)] == [True, False]

    tab.check("#follow")
    answer(site, run)
    tab.wait_for_selector("[data-node=step_9][data-state=waiting]")

    assert is_seen(tab, "step_9")
    assert not is_seen(tab, "step_4")
    assert tab.is_checked("#follow")
    assert tab.problems == []


def test_a_long_graph_fits_and_leads_to_what_waits(site, served, browser):
    """Two links, and with JavaScript it begins there; while people answer the graph keeps its size."""
    run = site.start("chain")
    size = {"width": 500, "height": 800}
    plain, live = (
        browser.new_page(base_url=served.url, java_script_enabled=scripts, viewport=size)
        for scripts in (False, True)
    )
    for page in (plain, live):
        page.goto(f"/runs/{run.id}")
        assert is_seen(page, "step_4") == (page is live)
        page.click("text=Go to what waits")
        assert is_seen(page, "step_4")
        page.click("text=Fit to width")
        page.wait_for_selector(".graph.fits")
        assert [is_seen(page, f"step_{number}") for number in (0, STEPS - 1)] == [True, True]
    answer(site, run)
    live.wait_for_selector("[data-node=step_9][data-state=waiting]")

    assert live.query_selector(".graph.fits")
    assert live.get_attribute("text=Go to what waits", "href") == "#at-step_9"
    live.click("text=Full size")
    live.wait_for_selector(".graph:not(.fits)")
    assert not is_seen(live, "step_11")
    plain.close()
    live.close()


@pytest.mark.parametrize("scripts", [True, False])
def test_tabs_of_a_run(site, served, browser, scripts):
    """Links to one section at a time, by the keyboard too; with JavaScript the open one stays current."""
    run = site.start("approval", {"order": 7})
    page = browser.new_page(base_url=served.url, java_script_enabled=scripts)
    page.goto(f"/runs/{run.id}")
    page.evaluate("window.same = true")

    def tab():
        headings = page.locator("#beside .wide h2").all_inner_texts()
        return page.inner_text("#tabs [aria-current=page]"), headings

    assert tab() == ("Graph", ["Graph"])
    for name in ("Nodes and time", "Task", "Audit", "Events"):
        page.focus(f"#tabs >> text={name}")
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#tabs [aria-current=page] >> text={name}")
        assert tab() == (name, [name])
    assert page.locator("#timeline li").count() > 4
    answer(site, run)
    if scripts:
        page.wait_for_selector("#timeline >> text=run.ended")
        assert page.evaluate("window.same")
    page.go_back()
    page.wait_for_selector("[data-audit=unsigned]")
    assert tab() == ("Audit", ["Audit"])
    page.close()


def test_without_the_switch_the_graph_stays_where_it_was_moved(site, tab):
    """What happens is drawn in place; neither the position nor the focus is lost."""
    run = site.start("chain")
    tab.set_viewport_size({"width": 700, "height": 800})
    tab.goto(f"/runs/{run.id}")
    tab.evaluate("document.querySelector('.graph').scrollTo(300, 0)")
    tab.focus("[data-node=step_2] > a")

    answer(site, run)
    tab.wait_for_selector("[data-node=step_9][data-state=waiting]", state="attached")

    assert tab.evaluate("document.querySelector('.graph').scrollLeft") > 0
    assert (
        tab.evaluate("document.activeElement.closest('[data-node]').dataset.node") == "step_2"
    )


def test_a_node_opens_beside_the_graph(site, tab):
    """A click shows it without loading the page again, it stays current, and Back closes it."""
    run = site.start("approval")
    tab.goto(f"/runs/{run.id}")
    tab.evaluate("window.same = true")

    tab.click("[data-node=approve] > a")
    tab.wait_for_selector("#node [data-state=waiting]")
    assert tab.evaluate("document.activeElement.id") == "node"
    answer(site, run)
    tab.wait_for_selector("#node [data-state=completed]")
    tab.go_back()
    tab.wait_for_selector("#node", state="detached")

    assert tab.evaluate("window.same")
    assert tab.problems == []


def test_a_run_with_a_graph_inside_is_accessible(site, browser):
    """Axe has nothing to say about a wide page with everything open."""
    from axe_playwright_python.sync_playwright import Axe

    run = site.start("outer")
    with Served(site.app, free_port()) as served:
        context = browser.new_context(base_url=served.url, color_scheme="dark", bypass_csp=True)
        page = context.new_page()
        page.goto(f"/runs/{run.id}?node=contract%2Fsign#node")
        page.evaluate(
            "document.querySelectorAll('details').forEach((item) => { item.open = true; })"
        )
        violations = Axe().run(page).response["violations"]
        context.close()

    assert violations == []
