"""Absences and reassignments at the API and on the pages."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from runner.approvals import Action, Rule
from tests.graphs import single
from tests.server.conftest import Site
from tests.server.test_inbox import rows
from tests.server.test_pages import send

pytestmark = pytest.mark.full

RULE = Rule(eligible=["group:finance"], delegate="anyone", need=2)


def ask(ctx):
    return ctx.interrupt("pay", rule=RULE, action=Action("t", "function", "pay", {})).decision


@pytest.fixture
def desk(redis_url):
    """A site that asks two of finance, or ana alone."""
    alone = Rule(eligible=["ana"], delegate="anyone")
    graphs = {
        "till": lambda: single(ask),
        "ana": lambda: single(lambda ctx: ctx.interrupt("one", rule=alone).response),
        "plain": lambda: single(lambda ctx: ctx.interrupt("two", assignees=["ana"])),
    }
    return Site(redis_url, graphs)


def as_ana(desk):
    desk.as_role("approver", name="ana", groups=["finance", "audit"])


def as_ben(desk):
    desk.as_role("approver", name="ben")


def until():
    return round(time.time() * 1000) + 3_600_000


def test_who_is_away_is_seen_and_voted_for(desk):
    """At the API: the other one finds the question, votes, and no longer when the first is back."""
    (first,), (second,) = desk.start("till").interrupts(), desk.start("till").interrupts()
    as_ana(desk)
    me = desk.http.get("/v1/me").json()["principal"]
    as_ben(desk)
    other = desk.http.get("/v1/me").json()["principal"]
    assert rows(desk, "tab=mine") == []
    as_ana(desk)
    body = {"to": other, "until": until(), "only": ["group:finance"]}
    for bad in (5, "tomorrow", body["until"] + 0.5, "2100-01-01", str(body["until"])):
        refused = desk.http.put("/v1/absences/mine", json={**body, "until": bad})
        assert refused.status_code == 422
    assert desk.http.put("/v1/absences/mine", json=body).json()["until"] == body["until"]
    east = timezone(timedelta(hours=2))
    in_words = datetime.fromtimestamp(body["until"] / 1000, east).isoformat()
    begun = desk.http.put("/v1/absences/mine", json={**body, "until": in_words})
    assert begun.json()["until"] == body["until"]
    assert (begun.status_code, begun.json()["only"]) == (200, ["group:finance"])
    as_ben(desk)
    (listed,) = desk.http.get("/v1/absences").json()["items"]
    assert (listed["by"], listed["to"]) == (me, other)
    assert set(rows(desk, "tab=mine")) == {first.id, second.id}
    (away,) = desk.http.get(f"/v1/questions/{first.id}").json()["away"]
    assert away["to"] == other
    page = desk.page(f"/q/{first.id}")
    assert "ana is away until" in page
    voted = send(desk, f"/q/{first.id}", digest=first.digest, decision="approve")
    assert "1 of 2" in voted.text
    assert "ben may vote in the place of ana" in desk.http.get(f"/q/{first.id}").text
    assert desk.http.delete("/v1/absences/mine").status_code == 404
    as_ana(desk)
    assert desk.http.delete("/v1/absences/mine").status_code == 204
    as_ben(desk)
    late = send(desk, f"/q/{second.id}", digest=second.digest, decision="approve")
    assert late.status_code == 409


def test_a_loan_ends_with_a_day_on_the_page(desk):
    """The day is optional; a day that isn't one, or is past, is refused and nobody gets the vote."""
    first, second = (desk.start("ana").interrupts()[0] for _ in range(2))
    tomorrow = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 86_400))
    as_ana(desk)
    for day in ("soon", "2020-01-01", "2999-01-01"):
        assert send(desk, f"/q/{first.id}/delegate", to="ben", until=day).status_code in {
            409,
            422,
        }
    assert send(desk, f"/q/{first.id}/delegate", to="ben", until=tomorrow).status_code == 303
    assert send(desk, f"/q/{second.id}/delegate", to="ben", until="").status_code == 303
    texts = [desk.page(f"/q/{item.id}") for item in (first, second)]
    assert ["in the place of ana until" in text for text in texts] == [True, False]
    desk.as_role("operator", "viewer", name="ops")
    form = {"to": "eva", "reason": "ana is ill"}
    path = f"/q/{second.id}/reassign"
    assert send(desk, path, **form, until="2020-01-01").status_code in {409, 422}
    assert send(desk, path, **form, until=tomorrow).status_code == 303
    assert "until" in desk.page(f"/q/{second.id}")


def test_the_last_day_is_one_of_the_readers(desk):
    """The forms send the zone of the browser; without one, and with UTC, the day ends at midnight UTC."""
    as_ana(desk)
    day = (datetime.now(UTC) + timedelta(3)).date()
    midnight = datetime.combine(day + timedelta(1), datetime.min.time(), UTC)
    for zone, hours in {"": 0, "UTC": 0, "Etc/GMT-14": -14, "Etc/GMT+12": 12}.items():
        ends_at = round((midnight + timedelta(hours=hours)).timestamp() * 1000)
        form = {"to": "ben", "until": str(day), "zone": zone}
        assert send(desk, "/absences/begin", **form).status_code == 303
        assert [away.until for away in desk.client.absences()] == [ends_at]
        (question,) = desk.start("ana").interrupts()
        assert send(desk, f"/q/{question.id}/delegate", **form).status_code == 303
        (end,) = desk.client.engine.store.standings([question.id])[0].ends.values()
        assert end == ends_at
    assert send(desk, "/absences/begin", **{**form, "zone": "Moon"}).status_code == 422
    page = desk.page("/absences")
    assert "Until the end of (<span data-zone>UTC</span>)" in page
    assert 'type="hidden" name="zone"' in page


def test_an_absence_begins_and_ends_on_its_page(desk):
    """With a day and one's groups; only one's own can be ended."""
    as_ana(desk)
    assert "Nobody is away" in desk.page("/absences")
    form = {"to": "ben", "until": "2999-01-01", "only": "group:audit"}
    assert send(desk, "/absences/begin", **form).status_code == 422  # more than a year
    form["until"] = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 86_400))
    assert send(desk, "/absences/begin", **{**form, "until": "soon"}).status_code == 422
    assert send(desk, "/absences/begin", **form).status_code == 303
    page = desk.page("/absences")
    assert ("group:audit" in page, "I am back" in page) == (True, True)
    as_ben(desk)
    assert "I am back" not in desk.page("/absences")
    as_ana(desk)
    assert send(desk, "/absences/end").status_code == 303
    assert "Nobody is away" in desk.page("/absences")


def test_an_operator_reassigns_at_the_api_and_on_the_page(desk):
    """One with a rule, and one without; who only decides may not."""
    (ruled,), (plain,) = desk.start("ana").interrupts(), desk.start("plain").interrupts()
    as_ben(desk)
    path, body = f"/v1/questions/{ruled.id}:reassign", {"to": "eva", "reason": "ana has left"}
    assert desk.http.post(path, json=body).status_code == 403
    assert "Let somebody else decide" not in desk.page(f"/q/{ruled.id}")
    desk.as_role("operator", "viewer", name="ops")
    assert desk.http.post(path, json={**body, "reason": " "}).status_code == 422
    assert desk.http.post(path, json=body).json()["status"] == "accepted"
    assert "Let somebody else decide" in desk.page(f"/q/{plain.id}")
    assert send(desk, f"/q/{plain.id}/reassign", to="eva", reason="left").status_code == 303
    desk.work()
    (again,) = desk.client.run(plain.run_id).interrupts()
    assert again.assignees == ["eva"]
