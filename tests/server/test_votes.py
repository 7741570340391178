from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runner.approvals.keys import KeySet
from runner.errors import StoreError
from runner.server.problems import problem_of
from runner.settings import Settings
from runner.store.redis.measurements import spending
from tests.server.test_pages import send

pytestmark = pytest.mark.full


@pytest.fixture
def asked(site):
    """A refund that two of finance approve, but not cora, who started it."""
    site.as_role("operator", name="cora")
    run_id = site.http.post("/v1/runs", json={"graph": "refund"}).json()["run_id"]
    site.work()
    return site.client.run(run_id).interrupts()[0]


def finance(site, name):
    site.as_role("approver", name=name, groups=["finance"])


def vote(site, question, decision="approve", etag=None, **body):
    headers = {"If-Match": f'"{etag or question.digest}"'}
    return site.http.post(
        f"/v1/questions/{question.id}/votes",
        json={"decision": decision, **body},
        headers=headers,
    )


def test_two_of_finance_decide(site, asked):
    """The first vote is counted, the second decides; the run goes on with what was approved."""
    finance(site, "ana")
    first = vote(site, asked)
    finance(site, "ben")
    second = vote(site, asked, comment="looks right")
    site.work()

    assert (first.json()["status"], first.json()["have"], first.json()["need"]) == (
        "counted",
        1,
        2,
    )
    assert second.json()["status"] == "accepted"
    assert site.output(asked.run_id, "refund") == ["approve", True]
    shown = site.http.get(f"/v1/questions/{asked.id}").json()
    assert [(one["by"], one["comment"]) for one in shown["votes"]] == [
        ("human:|ana", ""),
        ("human:|ben", "looks right"),
    ]


def test_only_what_has_the_digest_is_shown_as_voted_for(site, asked):
    """Who changes a stored vote shows the next approver nothing, and no vote can be for it."""
    finance(site, "ben")
    vote(site, asked, "edit", response={"order": 7, "amount": 12})
    change_votes(site, asked, b'"amount":12', b'"amount":99')
    finance(site, "ana")
    _, edited = site.http.get(f"/v1/questions/{asked.id}").json()["variants"]

    assert edited["response"] is None
    assert vote(site, asked, variant=edited["effect"]).status_code == 422


def change_votes(site, question, old, new):
    """Replace something in all that Redis has of a question's votes."""
    redis = site.client.engine.store.connection.client
    for key in redis.keys(f"*{question.run_id}*"):
        if redis.type(key) == b"hash":
            for field, value in redis.hgetall(key).items():
                if old in value:
                    redis.hset(key, field, value.replace(old, new))


def test_votes_are_counted_by_decision(site, asked):
    """One that is refused is not; Prometheus reads all of it, also a label with a line end and quotes."""
    site.client.engine.store.measure(
        spending("tokens", 1_234_567, 'the "whole"\nshop, größer \\')
    )
    for name in ("ana", "zoe"):
        finance(site, name) if name == "ana" else site.as_role("approver", name=name)
        vote(site, asked)
    site.as_role("viewer")

    families = {
        part.name: part
        for part in text_string_to_metric_families(site.http.get("/metrics").text)
    }

    (counted,), (spent,) = families["runner_votes"].samples, families["runner_spent"].samples
    assert (counted.labels, counted.value) == ({"decision": "approve"}, 1)
    assert (spent.labels["graph"], spent.value) == ('the "whole"\nshop, größer \\', 1_234_567)


def test_a_vote_names_what_was_shown(site, asked):
    """Without the digest, or with another one, nothing is counted."""
    finance(site, "ana")
    path = f"/v1/questions/{asked.id}/votes"

    assert site.http.post(path, json={"decision": "approve"}).status_code == 428
    assert vote(site, asked, etag="*").status_code == 412
    assert vote(site, asked, etag="sha256:other").status_code == 412
    assert site.http.get(f"/v1/questions/{asked.id}").json()["votes"] == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"decision": "respond", "response": {"ok": "maybe"}}, "/body/response/ok"),
        ({"decision": "respond", "response": {}}, "/body/response"),
        ({"decision": "approve"}, "/body/decision"),
        ({"decision": "perhaps"}, "/body/decision"),
    ],
)
def test_what_is_wrong_with_an_answer_is_pointed_at(site, body, pointer):
    """In the body as it was sent; nothing is counted."""
    question = site.start("approval").interrupts()[0]

    reply = vote(site, question, **body)

    assert (reply.status_code, [error["pointer"] for error in reply.json()["errors"]]) == (
        422,
        [pointer],
    )
    assert site.client.interrupt(question.id).is_open


@pytest.mark.parametrize("graph", ["refund", "approval"])
def test_a_key_stands_for_one_vote(site, graph):
    """The same vote again gets its receipt again, another one under its key is refused."""
    question = site.start(graph, requester="cora").interrupts()[0]
    finance(site, "ana")
    headers = {"If-Match": f'"{question.digest}"', "Idempotency-Key": "k"}
    body = (
        {"decision": "respond", "response": {"ok": True}}
        if graph == "approval"
        else {"decision": "approve"}
    )
    other = (
        {**body, "response": {"ok": False}} if graph == "approval" else {"decision": "reject"}
    )

    def post(body):
        return site.http.post(f"/v1/questions/{question.id}/votes", json=body, headers=headers)

    first, again, another = post(body), post(body), post(other)

    assert (first.status_code, again.json(), another.status_code) == (200, first.json(), 422)


def test_a_vote_that_is_late_is_gone(site, asked):
    """Whoever comes behind the decision gets 410, and learns who decided."""
    for name in ("ana", "ben"):
        finance(site, name)
        vote(site, asked)
    finance(site, "eve")

    late = vote(site, asked)

    assert late.status_code == 410
    assert "ben" in late.json()["detail"]


class Away:
    """A directory that can't be asked."""

    def groups(self, principal):
        raise OSError("ldap.internal refused the connection")

    roles = groups


AWAY = Away()


def test_a_directory_that_is_away_is_named(site, asked, caplog):
    """The vote is 503, and may come again; the error is in the log alone. Control: an outage of the store."""
    finance(site, "ana")
    site.client.engine.directory = f"{__name__}:AWAY"
    refused = vote(site, asked)
    page = send(site, f"/q/{asked.id}", decision="reject", comment="no", digest=asked.digest)
    site.client.engine.directory = ""

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    for text in (refused.json()["detail"], page.text):
        assert "The directory could not say which groups a person is in" in text
        assert "store" not in text.lower()
        assert "ldap" not in text
    assert "ldap.internal" in caplog.text
    assert vote(site, asked).json()["status"] == "counted"
    assert "The store could not be reached" in problem_of(StoreError("redis.internal")).detail


def test_a_question_is_claimed_commented_and_delegated(site, asked):
    """As the rule allows; a vote can be taken back while the question is open."""
    finance(site, "ana")

    def post(action, **body):
        return site.http.post(f"/v1/questions/{asked.id}:{action}", json=body)

    assert post("claim", ttl=60).json()["status"] == "accepted"
    assert site.http.get(f"/v1/questions/{asked.id}").json()["claim"] == "human:|ana"
    assert post("comment", comment="why so much?").json()["status"] == "accepted"
    assert post("delegate", to="ben").status_code == 403
    assert post("release").json()["status"] == "accepted"
    vote(site, asked)
    assert (
        site.http.delete(f"/v1/questions/{asked.id}/votes").json()["status"] == "withdrawn_vote"
    )
    assert site.http.get(f"/v1/questions/{asked.id}").json()["have"] == 0
    page = site.page(f"/q/{asked.id}")
    assert "why so much?" in page
    comment = site.http.get(f"/v1/questions/{asked.id}").json()["comments"][0]
    assert (comment["by"], comment["comment"]) == ("human:|ana", "why so much?")
    site.as_role("viewer")
    assert site.http.get(f"/v1/questions/{asked.id}").json()["comments"] == []
    site.as_role("approver", name="zoe")
    assert post("claim", ttl=60).status_code == 403


def test_alike_questions_are_decided_together(site):
    """Each has its own receipt; a digest that is missing or other questions among them stop it at once."""
    site.as_role("operator", name="cora")
    questions = [site.start("refund", requester="cora").interrupts()[0] for _ in range(3)]
    other = site.start("approval").interrupts()[0]
    finance(site, "ana")
    digests = {question.id: question.digest for question in questions}

    mixed = site.http.post(
        "/v1/questions:vote",
        json={"decision": "approve", "digests": {**digests, other.id: other.digest}},
    )
    for wrong in (
        {"decision": "approve", "response": {"amount": 1}},
        {"decision": "reject", "response": False},
        {"decision": "respond", "response": {"amount": 1}},
    ):
        refused = site.http.post("/v1/questions:vote", json={**wrong, "digests": digests})
        assert (refused.status_code, "items" in refused.json()) == (422, False), wrong
        assert [site.client.engine.store.votes(name) for name in digests] == [[]] * 3
    told = site.http.post(
        "/v1/questions:vote", json={"decision": "approve", "digests": digests}
    ).json()["items"]

    assert mixed.status_code == 422
    assert [item["status"] for item in told] == ["counted"] * 3


def test_the_server_signs_what_it_has_checked(redis_url, tmp_path, monkeypatch):
    """With a key a login counts at level 2; without it, or by an API key, it does not."""
    from runner.approvals import Auth, Rule
    from tests.graphs import wired
    from tests.server.conftest import Site

    public, private = tmp_path / "public.json", tmp_path / "private.json"
    KeySet(public).make("door", private, level=2)
    monkeypatch.setenv("RUNNER_DECISION_KEYS", str(public))

    def ask(ctx):
        return ctx.interrupt(
            "pay", rule=Rule(eligible=["group:finance"], auth=Auth(level=2))
        ).decision

    site = Site(redis_url, {"pay": lambda: wired({"ask": ask}).build()})
    run = site.start("pay")
    finance(site, "ana")
    claim = f"/v1/questions/{run.interrupts()[0].id}:claim"
    unsigned = vote(site, run.interrupts()[0])
    assert site.http.post(claim, json={"ttl": 60}).status_code == 403
    site.app.state.services.settings = Settings(redis_url=redis_url, signing_key=str(private))
    assert site.http.post(claim, json={"ttl": 60}).status_code == 200
    site.as_role("approver", name="ana", groups=["finance"], level=1)
    by_api_key = vote(site, run.interrupts()[0])
    finance(site, "ana")
    signed = vote(site, run.interrupts()[0])
    site.work()

    assert unsigned.status_code == by_api_key.status_code == 403
    assert signed.json()["status"] == "accepted"
    assert run.result().results["ask"].output == "approve"


def test_who_makes_a_run_from_another_does_not_decide_it(site, asked):
    """The server names who is logged in; a service says for whom it starts a run."""
    site.as_role("operator", name="dan")
    forked = site.http.post(f"/v1/runs/{asked.run_id}:fork", json={"node": "refund"}).json()[
        "run_id"
    ]
    body = {"graph": "refund", "on_behalf_of": ["ben"]}
    started = site.http.post("/v1/runs", json=body).json()["run_id"]
    again = site.http.post(f"/v1/runs/{started}:again").json()["run_id"]
    site.work()

    for run_id, people in (
        (forked, ["dan", "cora"]),
        (started, ["dan", "ben"]),
        (again, ["dan", "ben"]),
    ):
        shown = site.http.get(f"/v1/runs/{run_id}").json()
        assert [shown["requester"], *shown["on_behalf_of"]] == [
            f"human:|{name}" for name in people
        ]
        for name in people:
            finance(site, name)
            assert vote(site, site.client.run(run_id).interrupts()[0]).status_code == 403
        site.as_role("operator", name="dan")
    assert "for <b>cora</b>" in site.page(f"/runs/{forked}")
