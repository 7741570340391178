"""Roles of one graph: what they let somebody do in its runs, and in no others."""

from __future__ import annotations

import itertools
import json
import re
from typing import get_args

import httpx
import pytest
from fastapi import APIRouter

from runner.approvals import Action, Rule
from runner.server import streams
from runner.server.access import Lists
from runner.server.app import permission_of, routes
from tests.graphs import wired
from tests.server.conftest import GRAPHS, Site, ask, put_grant
from tests.server.test_access import filled, stored
from tests.server.test_streams import SSE, opened

pytestmark = pytest.mark.full

ROLES = ("viewer", "reader", "approver", "operator")

BY_NAME = ("{run_id}", "{question_id}", "{grant_id}", "{graph}")

BY_FILTER = {
    *("/v1/runs", "/v1/questions", "/v1/events", "/v1/limits/queued", "/v1/grants"),
    *("/runs", "/inbox", "/grants"),
}

BY_BODY = {"/v1/runs", "/v1/runs:batch", "/v1/questions:vote", "/inbox/together"}

MIXED = {
    *("/v1/me", "/v1/graphs", "/graphs", "/passkeys", "/inbox/views"),
    *("/v1/absences", "/v1/absences/mine", "/absences", "/absences/begin", "/absences/end"),
}

OPEN = {"/healthz", "/readyz", "/openapi.json", "/static/{name}"}


@pytest.fixture
def site(redis_url):
    """A site with a graph that asks inside another one, and a grant for `approval`."""
    inner = wired({"ask": ask}).build()
    graphs = {"outer": lambda: wired({"inner": inner}).build(), "inner": lambda: inner}
    site = Site(redis_url, GRAPHS | graphs)
    put_grant(site, "g1", "approval")
    return site


def limited(site, graph, roles=ROLES):
    """Log somebody in who has roles of one graph only."""
    site.as_role(*(f"{role}:{graph}" for role in roles))


def sent(site, route, method, run):
    """Send a request to a route, about a run wherever the route takes one; return the reply."""
    graph = site.client.engine.store.peek(run.id).graph_id
    question, *_ = (event.detail for event in run.events() if event.kind == "interrupt.asked")
    path = route.path.replace("{run_id}", run.id).replace("{question_id}", question)
    path = filled(path.replace("{graph}", graph).replace("{grant_id}", "g1"))
    options = {"headers": {}, "follow_redirects": False}
    if method in {"GET", "HEAD"}:
        options["params"] = {"graph": graph, "q": question}
        if path == "/v1/events":
            options["params"]["after"] = "x"  # refused when it may be opened
    elif path.startswith("/v1"):
        options["json"] = {
            "/v1/runs": {
                "graph": graph,
                "tags": 1,
            },  # malformed, which is seen behind permissions
            "/v1/runs:batch": {"action": "cancel", "filter": {"graph": graph}},
            "/v1/questions:vote": {"decision": "approve", "digests": {question: "0"}},
        }.get(path, {})
    else:
        token = site.app.state.form_tokens.issue(site.person)
        options["data"] = {"form_token": token, "q": question}
        options["headers"]["Origin"] = "https://runner.example"
    return site.http.request(method, path, **options)


def walked(site, run):
    """Return the reply of each route by its path and method."""
    return {
        (route.path, method): sent(site, route, method, run)
        for route in routes()
        for method in sorted(route.methods)
    }


def of_a_graph(path, method):
    """Say if a request may be about one graph."""
    listed = path in BY_FILTER if method in {"GET", "HEAD"} else path in BY_BODY
    return listed or path == "/inbox/together" or any(name in path for name in BY_NAME)


@pytest.mark.slow
def test_roles_of_another_graph_do_nothing(site):
    """On a walk over all routes each is refused, nothing of the run is shown, and nothing changes."""
    run = site.start("approval", {"secret": "task"})
    limited(site, "echo")

    before = stored(site)
    for (path, method), reply in walked(site, run).items():
        assert reply.status_code == 403 or path in MIXED | OPEN, (path, method, reply.text)
        assert path in OPEN or not re.search(f"secret|unpunctual|{run.id}", reply.text), (
            path,
            method,
        )
    assert stored(site) == before


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_a_role_of_a_graph_grants_no_more_than_the_role(site, role):
    """Each route that a role opens for all graphs it opens for its own, and none besides."""
    run = site.start("approval")
    limited(site, "approval", [role])
    own = {key: reply.status_code for key, reply in walked(site, run).items()}
    run = site.start("approval")
    site.as_role(role)
    for (path, method), reply in walked(site, run).items():
        expected = reply.status_code == 403 or not (
            of_a_graph(path, method) or path in MIXED | OPEN
        )
        assert (own[path, method] == 403) is expected, (path, method)


SECRET = "planted hunter2"
"""It is in all that a run, its question and its people say."""

LISTS = get_args(Lists)[1].dependency
"""The permission of listings, which take the graph from the query."""

ACCEPT = ("text/html", "application/json", "*/*")

QUERIES = (
    "",
    "graph=",
    "tab=all",
    "tab=mine",
    "tab=done",
    "graph=payroll&graph=echo",
    "graph=echo&graph=payroll",
    "graph=payroll",
    "graph=payroll&graph=",
    "status=decided",
    "run={run}",
    "text=planted",
)
"""Queries of listings; none leads to what the graph of another has."""


def pay(ctx):
    rule = Rule(eligible=["ana", "ben"], need=2, title="Pay {to}")
    action = Action("runner", "function", "pay", {"to": SECRET})
    return ctx.interrupt(SECRET, reason=SECRET, rule=rule, action=action).decision


def lose(ctx):
    raise ValueError(SECRET)


def forgetful(services):
    """A door whose listing does not look at the graph of the request."""
    router = APIRouter()

    def leak(person: Lists):
        return {"items": [run.tags for run in services.client.runs()]}

    router.add_api_route("/v1/leak", leak, methods=["GET"])
    return router


class Secrets:
    """Runs of graphs that are nothing to do with who may see `echo`."""

    def __init__(self, url, *doors):
        payroll = wired({"pay": pay}).build()
        graphs = {"payroll": lambda: payroll, "lost": lambda: wired({"lose": lose}).build()}
        names = [f"{__name__}:{door.__name__}" for door in doors]
        self.site = site = Site(url, GRAPHS | graphs, names)
        self.routes = [*routes(), *routes([door(site.app.state.services) for door in doors])]
        self.own = site.start("echo", "ours", tags={"note": "ours"})
        self.run = site.start("payroll", SECRET, tags={"note": SECRET}, requester="eve")
        (question,) = self.run.interrupts()
        self.question = question.id
        put_grant(site, "g1", "payroll", {"to": {"const": SECRET}})
        site.client.vote(question.id, "approve", by="ana", comment=SECRET)
        (decided,) = site.start("payroll", SECRET).interrupts()
        for who in ("ana", "ben"):
            site.client.vote(decided.id, "approve", by=who, digest=decided.digest)
        site.work()
        site.start("lost", SECRET)

    def leaks(self, roles):
        """Look at every route; return those that show something of the other graphs."""
        names = f"hunter2|payroll|{self.run.id}"
        found = set()
        for route in self.routes:
            if route.path in OPEN or "GET" not in route.methods:
                continue
            lists = permission_of(route) is LISTS
            for path, queries in self.addresses(route.path, QUERIES if lists else [""]):
                for query, role, accept in itertools.product(queries, roles, ACCEPT):
                    self.site.as_role(role)
                    address = f"{path}?{query.format(run=self.run.id)}"
                    reply = self.site.http.get(address, headers={"Accept": accept})
                    # A page repeats the filters of its address.
                    text = (
                        reply.text.replace(self.run.id, "") if "run=" in query else reply.text
                    )
                    if reply.status_code == 200 and re.search(names, text):
                        found.add((route.path, query, role, accept))
        return found

    def addresses(self, path, queries):
        """Return the addresses of a route, about our run and about theirs, with the queries to try."""
        if path == "/v1/events":
            return [(path, ["after=x"])]  # a stream, which has a test of its own
        if not any(name in path for name in BY_NAME):
            return [(filled(path), queries)]
        pairs = ((self.own.id, "none", "echo"), (self.run.id, self.question, "payroll"))
        return [
            (
                filled(
                    path.replace("{run_id}", run)
                    .replace("{question_id}", question)
                    .replace("{graph}", graph)
                ),
                [""],
            )
            for run, question, graph in pairs
        ]


@pytest.mark.slow
def test_no_route_shows_another_graph(redis_url):
    """Every route, by each role of one graph and every kind of reader, shows nothing of the others."""
    assert Secrets(redis_url).leaks([f"{role}:echo" for role in ROLES]) == set()


@pytest.mark.slow
def test_a_route_that_forgets_the_graph_is_found(redis_url):
    """The controls: a listing that ignores it leaks, and who may see all graphs sees the secret."""
    secrets = Secrets(redis_url, forgetful)
    assert {path for path, *_ in secrets.leaks(["viewer:echo"])} == {"/v1/leak"}
    assert {path for path, *_ in secrets.leaks(["reader"])} >= {
        *("/inbox", "/runs", "/v1/runs"),
        *("/grants", "/v1/grants"),
    }


def test_listings_are_of_a_graph(site):
    """With roles of one graph all lists are of it, a page opens at it; of several one must be named."""
    approval, other = site.start("approval"), site.start("inner")
    limited(site, "approval")

    for path in ("/v1/questions", "/v1/runs"):
        items = site.http.get(path).json()["items"]
        assert [item["run_id"] for item in items] == [approval.id]
    assert site.http.get(f"/v1/questions?run={other.id}").json()["items"] == []
    site.as_role("viewer:approval", "viewer:inner")
    refused = site.http.get("/v1/questions")
    assert (refused.status_code, "approval" in refused.json()["detail"]) == (403, True)
    limited(site, "approval")
    listed = site.http.get("/v1/questions?graph=approval").json()["items"]
    assert [item["run_id"] for item in listed] == [approval.id]
    page = {"Accept": "text/html"}
    begun = site.http.get("/", headers=page, follow_redirects=False)
    assert begun.headers["location"] == "/inbox"
    inbox = site.http.get("/inbox?tab=all", headers=page)
    assert dict(inbox.url.params) == {"tab": "all", "graph": "approval"}
    assert re.search(r"All\D*\b1\b", inbox.text)
    assert other.id not in inbox.text
    assert [item["name"] for item in site.http.get("/v1/graphs").json()["items"]] == [
        "approval"
    ]
    assert "inner" not in site.http.get("/graphs", headers=page).text


def test_roles_of_a_graph_add_to_the_others(site):
    """A viewer of all reads the payloads of the graph of which they are a reader, and of no other."""
    run, other = site.start("approval", "secret"), site.start("inner", "secret")
    site.as_role("viewer", "reader:approval")

    assert "secret" in site.http.get(f"/v1/runs/{run.id}").text
    hidden = site.http.get(f"/v1/runs/{other.id}")
    assert (hidden.status_code, "secret" in hidden.text) == (200, False)
    assert len(site.http.get("/v1/questions").json()["items"]) == 2
    assert "unpunctual" not in site.http.get("/v1/questions").text
    assert "unpunctual" in site.http.get("/v1/questions?graph=approval").text


def test_a_run_inside_a_graph_is_of_the_outer_one(site):
    """Its question is decided with the role of the outermost graph; that of the inner one is another."""
    (question,) = site.start("outer").interrupts()
    path = f"/v1/questions/{question.id}"
    limited(site, "inner")
    assert site.http.get(path).status_code == 403
    assert site.http.get("/v1/questions?graph=inner").json()["items"] == []
    limited(site, "outer")
    etag = site.http.get(path).headers["etag"]
    vote = {"decision": "respond", "response": {"ok": True}}
    voted = site.http.post(f"{path}/votes", json=vote, headers={"If-Match": etag})
    assert voted.json()["status"] == "accepted"


def test_a_batch_is_of_one_graph(site):
    """It says what it would do to runs of that graph; runs that are named may be any, so it is refused."""
    run, other = site.start("approval"), site.start("inner")
    limited(site, "approval")

    def batch(**names):
        return site.http.post("/v1/runs:batch", json={"action": "cancel", "filter": names})

    assert [item["run_id"] for item in batch(graph="approval").json()["items"]] == [run.id]
    assert batch(graph="approval", run_ids=[other.id]).status_code == 403
    assert batch(status="interrupted").status_code == 403


def test_questions_of_two_graphs_are_not_decided_together(site):
    """One of another graph among them is enough for a refusal; control: those of the graph are looked at."""
    ours = [site.start("inner").interrupts()[0] for _ in range(2)]
    theirs = site.start("approval").interrupts()[0]
    limited(site, "inner")

    def vote(*questions):
        digests = {question.id: question.digest for question in questions}
        return site.http.post(
            "/v1/questions:vote", json={"decision": "reject", "digests": digests}
        )

    assert vote(ours[0], theirs).status_code == 403
    assert vote(*ours).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["approval", "echo"])
def test_a_stream_of_a_graph_goes_on(site, served, monkeypatch, graph):
    """For who has a role of it, also behind the check of the login; for others none begins."""
    monkeypatch.setattr(streams, "COMMENT", 0.02)
    run = site.start("approval")
    limited(site, graph)
    paths = (
        f"/v1/runs/{run.id}/events",
        f"/v1/events?run={run.id}",
        "/v1/events?graph=approval",
    )
    for path in paths:
        with (
            httpx.Client(base_url=served.url, timeout=20) as http,
            http.stream("GET", path, headers=SSE) as reply,
        ):
            assert (reply.status_code == 200) is (graph == "approval")
            if graph == "approval":
                lines = reply.iter_lines()
                assert sum(next(lines).startswith(":") for _ in range(30)) > 5
    for path in ("/v1/events?graph=approval", "/v1/events") if graph == "approval" else ():
        with opened(served, path) as read:
            assert json.dumps(next(read)[2]).count(run.id)
            site.start("inner")
            second = site.start("approval")
            assert next(read)[2]["run_id"] == second.id
