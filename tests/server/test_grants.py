"""Grants at the API and on the pages: made from a question, listed, voted for and revoked."""

from __future__ import annotations

import pytest

from runner import Agent, GraphBuilder, tool
from runner.approvals import Rule
from runner.approvals.rules import Grants
from runner.testing import ScriptedModel
from tests.agent.visits import use
from tests.server.conftest import Site
from tests.server.test_pages import send

pytestmark = pytest.mark.full

PAID: list[int] = []

ALLOWED = Grants({"properties": {"amount": {"maximum": 500}}}, uses=10, sums={"amount": 2_000})


@tool(approval=Rule(eligible=["group:finance"], need=2, grants=ALLOWED))
def refund(order: str, amount: int) -> str:
    """Pay a refund."""
    PAID.append(amount)
    return f"paid {amount}"


def till():
    call = use("refund", "t0")
    call["toolUse"]["input"] = {"order": "secret order", "amount": 120}
    builder = GraphBuilder()
    builder.add_node(Agent("clerk", ScriptedModel([[call], "done"]), [refund]), "pay")
    return builder.build()


@pytest.fixture
def desk(redis_url):
    """A site whose clerk refunds, and people of finance."""
    PAID.clear()
    return Site(redis_url, {"till": till, "other": till})


def finance(desk, name):
    desk.as_role("approver", name=name, groups=["finance"])


def asked(desk, graph="till"):
    return desk.start(graph, "go").interrupts()[0]


def bounds(amount):
    return {"bounds": {"properties": {"amount": {"maximum": amount}}}, "sums": {"amount": 900}}


def add(desk, question, etag=None, **body):
    return desk.http.post(
        f"/v1/questions/{question.id}/grants",
        json=body,
        headers={"If-Match": f'"{etag or question.digest}"'},
    )


def test_roles_of_a_graph_see_and_change_its_grants_alone(desk):
    """Whoever has roles for another graph neither sees, votes for, nor revokes it."""
    question = asked(desk)
    finance(desk, "ana")
    add(desk, question, **bounds(200))
    (view,) = desk.http.get("/v1/grants").json()["items"]
    desk.as_role("approver:other", name="eva", groups=["finance"])
    assert desk.http.get("/v1/grants").json()["items"] == []
    assert view["id"] not in desk.http.get("/grants", headers={"accept": "*/*"}).text
    path = f"/v1/grants/{view['id']}"
    assert desk.http.post(f"{path}:revoke", json={"reason": "x"}).status_code == 403
    headers = {"If-Match": view["digest"]}
    assert desk.http.post(f"{path}/votes", json={}, headers=headers).status_code == 403
    mine = asked(desk, "other")
    assert add(desk, mine, **bounds(5), graphs=["other", "till"]).status_code == 403
    desk.as_role("viewer:till", name="vic")
    (seen,) = desk.http.get("/v1/grants").json()["items"]
    assert (seen["bounds"], seen["sums"], seen["tool"]) == (None, {}, "refund")


def test_a_grant_is_made_approved_and_revoked_on_the_pages(desk):
    """Without JavaScript, from the question's page."""
    question = asked(desk)
    finance(desk, "ana")
    shown = desk.http.get(f"/q/{question.id}").text
    assert "the next ones like this, up to" in shown
    wide = {"max.amount": "0.1000000000000000001", "uses": "2", "days": "1"}
    refused = send(desk, f"/grants/for/{question.id}", digest=question.digest, **wide)
    assert (refused.status_code, "at most 15 digits" in refused.text) == (422, True)
    typed = desk.http.post(
        f"/v1/questions/{question.id}/votes",
        content='{"decision": "edit", "response": {"amount": 0.1000000000000000001}}',
        headers={"If-Match": f'"{question.digest}"', "Content-Type": "application/json"},
    )
    assert (typed.status_code, "more digits" in typed.text) == (400, True)
    made = send(
        desk,
        f"/grants/for/{question.id}",
        digest=question.digest,
        **{
            "max.amount": "150",
            "sum.amount": "1000",
            "only.order": "1",
            "uses": "2",
            "days": "1",
        },
    )
    assert made.status_code == 303, made.text
    (view,) = desk.client.grants()
    assert view.bounds == {
        "properties": {"amount": {"maximum": 150}, "order": {"const": "secret order"}}
    }
    assert (view.uses, view.sums, view.state) == (2, {"amount": 1000}, "waits")
    finance(desk, "ben")
    send(desk, f"/grants/{view.id}/approve", digest=view.digest)
    assert desk.client.grants()[0].state == "valid"
    send(desk, f"/grants/{view.id}/revoke", reason="enough")
    page = desk.http.get("/grants").text
    assert "revoked" in page
    assert "enough" in page
