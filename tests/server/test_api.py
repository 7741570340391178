from __future__ import annotations

import asyncio
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import quote, urlsplit

import httpx
import pytest
import redis

from runner import Limit
from runner.approvals.rules import Principal
from runner.audit.files import own_key
from runner.audit.sealing import Sealing, sealing_policy
from runner.operations.doctor import examine, read_facts
from runner.operations.jobs import begin, carry_on
from runner.records.size_limits import MAX_RESULT
from runner.server import create_app
from runner.server.access import GRANTS, Person
from runner.server.app import MARGIN
from runner.server.browser import OF_UNKNOWN
from runner.settings import Settings
from tests.contract.store.manual_worker import shape
from tests.ports import free_port
from tests.server.conftest import Served
from tests.waiting import wait_until


def test_a_run_is_started_and_shown(site):
    """A start answers with the id, under which the run is shown with its nodes."""
    started = site.http.post(
        "/v1/runs", json={"graph": "echo", "task": {"order": 7}, "tags": {"team": "a"}}
    )
    site.work()

    assert started.status_code == 201
    assert started.headers["location"] == f"/v1/runs/{started.json()['run_id']}"
    run = site.http.get(f"/v1/runs/{started.json()['run_id']}").json()
    assert (run["status"], run["task"], run["tags"]) == (
        "completed",
        {"order": 7},
        {"team": "a"},
    )
    assert [(node["id"], node["output"]) for node in run["nodes"]] == [
        ("echo", {"task": {"order": 7}})
    ]


def test_a_repeated_start_returns_the_same_run(site):
    """A key stands for one request: the same one again gets its run, another one is refused."""
    key = {"Idempotency-Key": "k1"}
    body = {"graph": "echo", "task": 1}

    first, again = (site.http.post("/v1/runs", json=body, headers=key).json() for _ in range(2))
    others = [
        site.http.post("/v1/runs", json={**body, **change}, headers=key)
        for change in ({"task": 2}, {"tags": {"a": "b"}}, {"invocation_state": {"a": 1}})
    ]

    assert first["run_id"] == again["run_id"]
    assert [(other.status_code, other.json()["run_id"]) for other in others] == [
        (422, first["run_id"])
    ] * 3


@pytest.mark.slow
def test_a_client_waits_for_the_output(site, served):
    """The answer comes when only people can go on, or with the output at the end; control: time is over."""
    run = site.client.start("approval", 7)
    address = f"{served.url}/v1/runs/{run.id}"

    assert httpx.get(address, params={"wait": 0.2}).json()["status"] == "executing"
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(httpx.get, address, params={"wait": 60}, timeout=60)
        watched = site.app.state.services.hub._watched
        wait_until(lambda: run.id in watched, "the request waits")
        site.work()
        assert asked.result(50).json()["status"] == "interrupted"
        site.client.respond(run.interrupts()[0].id, {"ok": True})
        ended = threads.submit(httpx.get, address, params={"wait": 60}, timeout=60)
        wait_until(lambda: run.id in watched, "the request waits")
        site.work()
        document = ended.result(50).json()
    assert (document["status"], document["output"]) == ("completed", {"task": 7})
    assert httpx.get(f"{served.url}/v1/runs/none", params={"wait": 1}).status_code == 404
    site.as_role("viewer")
    assert httpx.get(address).json()["output"] is None


def test_a_key_of_somebody_else_starts_nothing(site):
    """Another requester, or another person for whom it is, is 422: rules exclude them from deciding."""
    body, headers = {"graph": "echo"}, {"Idempotency-Key": "of ana"}
    statuses = [site.http.post("/v1/runs", json=body, headers=headers).status_code] * 2
    other = {**body, "on_behalf_of": ["cora"]}
    statuses.append(site.http.post("/v1/runs", json=other, headers=headers).status_code)
    site.as_role("operator", name="ben")
    statuses.append(site.http.post("/v1/runs", json=body, headers=headers).status_code)

    assert statuses == [201, 201, 422, 422]
    assert len(site.client.runs()) == 1


def test_a_list_continues_with_its_cursor(site):
    """Pages together have every run once, newest first."""
    ids = [site.start("echo", number).id for number in range(5)]

    first = site.http.get("/v1/runs", params={"limit": 3}).json()
    second = site.http.get("/v1/runs", params={"limit": 3, "cursor": first["next"]}).json()

    assert [run["run_id"] for run in first["items"] + second["items"]] == ids[::-1]
    assert second["next"] is None


@pytest.mark.full
def test_runs_are_filtered(site):
    """Status, graph and tags cut the list."""
    failed = site.start("broken", tags={"team": "a"}).id
    site.start("echo", tags={"team": "b"})

    def listed(**params):
        return [
            run["run_id"] for run in site.http.get("/v1/runs", params=params).json()["items"]
        ]

    assert (
        listed(status="failed")
        == listed(graph="broken")
        == listed(tag="team=a")
        == listed(text="A")
        == [failed]
    )
    assert listed(tag="team=c") == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("get", "/v1/runs/0none", None, 404),
        ("post", "/v1/runs", {"graph": "nowhere"}, 404),
        ("post", "/v1/runs", {"graph": ""}, 422),
        ("post", "/v1/runs", {"graph": "echo", "colour": 1}, 422),
        ("get", "/v1/runs?cursor=!", None, 400),
        ("get", "/v1/graphs?cursor=!", None, 400),
        ("get", "/v1/runs?limit=0", None, 422),
        ("get", "/v1/runs?tag=a", None, 422),
        ("get", "/v1/questions/00none.a.1.b", None, 404),
        ("get", "/v1/dead/nothing", None, 422),
        ("post", "/v1/runs/0none:cancel", {}, 404),
        ("get", "/v1/nothing", None, 404),
    ],
)
def test_a_refused_request_gets_a_problem_document(site, method, path, body, status):
    """Whatever is wrong, the answer is RFC 9457: its media type, the status again, and words."""
    reply = site.http.request(method, path, json=body)

    assert (reply.status_code, reply.headers["content-type"]) == (
        status,
        "application/problem+json",
    )
    assert reply.json()["status"] == status
    assert reply.json()["detail"]


@pytest.mark.full
def test_no_door_is_open_unless_it_is_named(site):
    """A server has the routes of its API alone; controls: a route of these, and the tests of each door."""
    paths = ("/mcp", "/agui/echo", "/doors/slack", "/doors/mail", "/v1/runs:batch")
    found = [site.http.post(path, json={}).status_code != 404 for path in paths]

    assert found == [False, False, False, False, True]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b'{"graph": ', 400),
        ("application/json", b'{"graph": "echo", "graph": "other"}', 400),
        ("application/json", '{"graph": "echo"}'.encode("utf-16"), 400),
        ("application/json", '{"graph": "echo"}'.encode("utf-16-le"), 400),
        ("application/json", '{"graph": "echo"}'.encode("utf-8-sig"), 400),
        (
            "application/json",
            b'{"graph": "echo", "task": %s1%s}' % (b"[" * 250, b"]" * 250),
            400,
        ),
        ("application/merge-patch+json", b'{"graph": "echo"}', 415),
        ("APPLICATION/JSON ; charset=utf-8", b'{"graph": "echo"}', 201),
    ],
)
def test_a_body_is_json(site, kind, body, status):
    """In UTF-8, each key once, not nested too deep: otherwise 400; the control is a type in other letters."""
    reply = site.http.post("/v1/runs", content=body, headers={"Content-Type": kind})

    assert reply.status_code == status
    assert len(site.client.runs()) == (status == 201)


@pytest.mark.full
def test_a_method_that_is_not_allowed_says_which_are(site):
    """`Allow` has each method that the description has for the address."""
    for path, operations in site.app.openapi()["paths"].items():
        reply = site.http.patch(re.sub("{.*?}", "x", path))
        methods = {method.upper() for method in operations}

        assert (reply.status_code, methods - {*reply.headers["allow"].split(", ")}) == (
            405,
            set(),
        )


def test_events_go_on_from_a_position(site):
    """A page of events ends in the position from which the next one goes on."""
    run = site.start("echo")

    first = site.http.get(f"/v1/runs/{run.id}/events", params={"limit": 2}).json()
    rest = site.http.get(f"/v1/runs/{run.id}/events", params={"after": first["next"]}).json()

    kinds = [event["kind"] for event in first["items"] + rest["items"]]
    assert (kinds[0], kinds[-1], rest["next"]) == ("run.started", "run.ended", None)


@pytest.mark.full
def test_people_change_runs(site):
    """Cancel, retry, fork, again and remove do what the commands of these names do."""
    waiting, failed = site.start("approval").id, site.start("broken").id

    assert (
        site.http.post(f"/v1/runs/{waiting}:cancel", json={"reason": "no"}).json()["status"]
        == "cancelled"
    )
    assert site.http.post(f"/v1/runs/{waiting}:cancel").status_code == 409
    assert site.http.post(f"/v1/runs/{failed}:retry").json()["nodes"] == ["fail"]
    site.work()
    forked = site.http.post(f"/v1/runs/{failed}:fork", json={"node": "fail", "input": 1})
    again = site.http.post(f"/v1/runs/{waiting}:again", json={"task": 2})
    assert (forked.status_code, again.status_code) == (201, 201)
    assert site.http.delete(f"/v1/runs/{waiting}").status_code == 204
    assert site.http.get(f"/v1/runs/{waiting}").status_code == 404


@pytest.mark.full
def test_operators_hold_release_and_skip_nodes(site):
    """The run says who holds a node; a skip ends it; what can't be held is a conflict or unknown."""
    run = site.start("approval").id
    (node,) = [question.node_id for question in site.client.run(run).interrupts()]
    path = f"/v1/runs/{run}"

    held = site.http.post(f"{path}:hold", json={"node": node, "reason": "an audit"})
    again = site.http.post(f"{path}:hold", json={"node": node})

    assert (held.status_code, again.status_code, held.json()["run_id"]) == (200, 200, run)
    assert f"{node} is held by ana since" in site.http.get(path).json()["reason"]
    assert site.http.post(f"{path}:release", json={"node": node}).status_code == 200
    assert not site.http.get(path).json()["reason"]
    skip = {"node": node, "output": {"ok": True}}
    assert site.http.post(f"{path}:skip", json={"node": node}).status_code == 422
    assert site.http.post(f"{path}:hold", json=skip).status_code == 422
    assert site.http.post(f"{path}:skip", json=skip).status_code == 200
    site.work()
    (state,) = [each for each in site.http.get(path).json()["nodes"] if each["id"] == node]
    assert (state["output"], state["skipped"]) == ({"ok": True}, "human:|ana")
    assert site.http.post(f"{path}:hold", json={"node": node}).status_code == 409
    assert site.http.post(f"{path}:hold", json={"node": "x"}).status_code == 404
    assert site.http.post(f"{path}:explode", json={"node": node}).status_code == 422


@pytest.mark.full
def test_a_batch_says_first_what_it_would_do(site):
    """Without `dry_run: false` nothing is changed; a job then has a result for each run, which says who."""
    ids = {site.start("approval").id for _ in range(3)}
    batch = {"action": "cancel", "filter": {"graph": "approval"}, "reason": "no"}

    dry = site.http.post("/v1/runs:batch", json=batch).json()
    before = {run.run_id for run in site.client.runs("interrupted")}
    begun = site.http.post("/v1/runs:batch", json={**batch, "dry_run": False})
    job = site.http.get(begun.headers["location"]).json()

    assert {item["run_id"] for item in dry["items"]} == before == ids
    assert {site.client.run(name).result().reason for name in ids} == {"cancelled by ana: no"}
    assert (begun.status_code, job["job_id"], job["done"]) == (202, begun.json()["job_id"], 3)
    assert {(item["run_id"], item["result"]) for item in job["items"]} == {
        (name, "cancelled") for name in ids
    }
    stream = site.http.get(
        begun.headers["location"], headers={"Accept": "text/event-stream"}
    ).text
    assert [line for line in stream.splitlines() if "event" in line] == [
        "event: snapshot",
        "event: ended",
    ]
    assert (
        site.http.post("/v1/runs:batch", json={"action": "cancel", "filter": {}}).status_code
        == 422
    )
    assert site.http.get("/v1/jobs/none").status_code == 404


@pytest.mark.full
@pytest.mark.parametrize("value", [0, "no", "off", "f", "false", None])
def test_only_false_ends_a_dry_run(site, value):
    """What merely resembles it is refused, and no job begins; the control is false itself."""
    run = site.start("approval")
    body = {"action": "cancel", "filter": {"run_ids": [run.id]}, "dry_run": value}

    assert site.http.post("/v1/runs:batch", json=body).status_code == 422
    assert str(run.status) == "interrupted"
    assert site.http.post("/v1/runs:batch", json={**body, "dry_run": False}).status_code == 202


def test_a_sweep_carries_on_a_job_that_its_process_has_left(site):
    """A few runs at a time; what was done is not done again, and a job that is gone is forgotten."""
    jobs, engine = site.app.state.services.jobs, site.client.engine
    ids = ["0none", *(site.start("approval").id for _ in range(3))]
    job_id = begin(jobs, "cancel", "an incident", "ana", ids).job_id
    carry_on(engine, jobs, job_id, 2)
    engine.fire = {"job": lambda name: carry_on(engine, jobs, name, 1)}

    first = jobs.get(job_id)
    wait_until(lambda: engine.sweep() and jobs.get(job_id).ended_at, "sweeps have done the job")
    carry_on(engine, jobs, job_id)

    assert (len(first.results), first.ended_at) == (2, 0)
    results = jobs.get(job_id).results
    assert ("no run" in results.pop("0none"), results) == (
        True,
        dict.fromkeys(ids[1:], "cancelled"),
    )
    jobs.leave("gone")
    engine.sweep()
    assert engine.sweep() == 0


@pytest.mark.full
def test_a_question_has_an_etag_for_votes_and_for_readers(site):
    """It begins with the digest, which a vote repeats; a reader gets 304 until something is added."""
    run = site.start("refund", requester="ben")
    (question,) = run.interrupts()
    path = f"/v1/questions/{question.id}"
    shown = site.http.get(path)
    etag = shown.headers["etag"]
    known = {"If-None-Match": etag}
    again = site.http.get(path, headers=known)
    site.as_role("approver", name="cora", groups=["finance"])
    seen = site.http.get(path).headers["etag"]
    said = site.http.post(f"{path}:comment", json={"comment": "who is it for?"})

    assert etag.startswith(f'"{shown.json()["digest"]}.')
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert said.status_code == 200
    assert seen == etag
    assert site.http.get(path, headers=known).status_code == 200
    vote = {"decision": "reject", "comment": "no"}
    assert (
        site.http.post(f"{path}/votes", json=vote, headers={"If-Match": etag}).status_code
        == 200
    )


def test_a_graph_is_drawn(site):
    """A graph of this program is an SVG; one that only the store knows is not there."""
    assert "<svg" in site.http.get("/v1/graphs/approval.svg").text
    assert {graph["name"] for graph in site.http.get("/v1/graphs").json()["items"]} >= {
        "approval",
        "echo",
    }
    assert site.http.get("/v1/graphs/other.svg").status_code == 404


@pytest.mark.full
def test_without_a_store_nothing_but_health_answers(site, caplog):
    """Probes and people learn that it is away, and when to try again; only the log says why."""
    from runner.server import create_app
    from runner.settings import Settings

    app = create_app(
        Settings(redis_url="redis://127.0.0.1:1/0"), auth=lambda request: site.person
    )
    http = type(site.http)(app, raise_server_exceptions=False)

    assert http.get("/healthz").status_code == 200
    for path in (
        "/readyz",
        "/v1/runs",
        "/v1/questions",
        "/v1/events",
        "/v1/jobs/x",
        "/metrics",
    ):
        caplog.clear()
        reply = http.get(path)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5"), path
        assert not {"Traceback", "127.0.0.1"} & set(reply.text.replace(":", " ").split())
        assert "request.unavailable: The store at 127.0.0.1:1/0 could not be" in caplog.text, (
            path
        )


def test_a_probe_of_nobody_costs_the_store_one_short_command(site):
    """It says only that the store answers, and reads no list; control: a listing of graphs does."""
    site.as_role()
    with redis.Redis.from_url(site.settings.redis_url) as raw:

        def reads_graphs(path):
            raw.config_resetstat()
            reply = site.http.get(path)
            return "cmdstat_hgetall" in raw.info("commandstats"), reply

        is_read, ready = reads_graphs("/readyz")
        assert (is_read, ready.json()) == (False, {"status": "ok"})
        site.as_role("viewer")
        assert reads_graphs("/v1/graphs")[0]


@pytest.mark.slow
def test_health_waits_for_no_store():
    """Its probe answers while every thread waits for a store that says nothing; another route does not."""
    with ExitStack() as stack:
        silent = socket.create_server(("127.0.0.1", 0), backlog=256)
        stored = Settings(redis_url=f"redis://127.0.0.1:{silent.getsockname()[1]}")
        app = create_app(stored, auth=lambda _: Person(Principal("ana"), frozenset(GRANTS)))
        served = stack.enter_context(Served(app, free_port()))
        stack.enter_context(silent)
        where = urlsplit(served.url)
        for _ in range(60):
            client = stack.enter_context(socket.create_connection((where.hostname, where.port)))
            client.sendall(b"POST /v1/runs/x:retry HTTP/1.1\r\nHost: localhost\r\n\r\n")

        def waits():
            try:
                return not httpx.get(f"{served.url}/openapi.json", timeout=0.5)
            except httpx.ReadTimeout:
                return True

        wait_until(waits, "all threads wait")  # for about five seconds
        assert httpx.get(f"{served.url}/healthz", timeout=2).status_code == 200


@pytest.mark.full
def test_monitors_may_ask_with_head(site):
    """Health and each page answer HEAD as GET."""
    for path in ("/healthz", "/", "/inbox", "/runs", "/graphs/echo", "/static/page.js"):
        assert site.http.head(path, headers={"Accept": "text/html"}).status_code == 200, path
    assert site.http.head("/v1/runs").status_code == 405


@pytest.mark.full
def test_a_key_with_any_text_is_paused(site):
    """Line breaks, slashes and quotes of a tag's value stay as they are in the path; control: a plain one."""
    limit = Limit("model", concurrency=1, by="tag:tenant")
    site.client.engine.store.publish([shape("a", name="limited", limits={"a": [limit]})])
    for value in ("plain", "two\nlines", "a\r\n/../?'\"", ":pause"):
        key = f"model:tag:tenant:{value}"
        path = f"/v1/limits/{quote(key, safe='')}"
        paused = site.http.post(f"{path}:pause", json={"seconds": None}).json()
        assert [pause["key"] for pause in paused["setting"]["pauses"]] == [key]
        assert site.http.post(f"{path}:resume", json={}).json()["setting"] is None


@pytest.mark.full
def test_a_schedule_is_made_paused_filled_and_removed(site):
    """The routes do what the commands of these names do; a schedule that makes no sense is refused."""
    body = {"id": "nightly", "graph": "echo", "cron": "0 3 * * *", "timezone": "Europe/Rome"}

    assert site.http.post("/v1/schedules", json=body).status_code == 201
    assert site.http.post("/v1/schedules", json=body).status_code == 409
    assert (
        site.http.post("/v1/schedules", json={**body, "id": "x", "cron": "daily"}).status_code
        == 422
    )
    assert site.http.post("/v1/schedules/nightly:pause").json()["paused"] is True
    assert site.http.post("/v1/schedules/nightly:resume").json()["paused"] is False
    span = {"first": "2026-01-01T00:00:00Z", "last": "2026-01-03T00:00:00Z"}
    filled = site.http.post("/v1/schedules/nightly:backfill", json=span).json()["items"]
    assert len(filled) == 2
    assert site.http.get("/v1/runs", params={"tag": "schedule=nightly"}).json()["items"]
    assert site.http.delete("/v1/schedules/nightly").status_code == 204
    assert site.http.get("/v1/schedules/nightly").status_code == 404


@pytest.mark.full
@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
        ("0001-01-01T00:00:00", "2026-01-01T00:00:00"),
        ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"),
    ],
)
def test_a_range_that_can_not_be_filled_is_refused(site, first, last):
    """One with times to come, which would have no run then, before 1970, or the wrong way round."""
    site.http.post("/v1/schedules", json={"id": "yearly", "graph": "echo", "cron": "0 3 1 1 *"})

    refused = site.http.post(
        "/v1/schedules/yearly:backfill", json={"first": first, "last": last}
    )

    assert (refused.status_code, list(site.client.runs())) == (422, [])


@pytest.mark.full
def test_a_time_without_a_zone_is_of_utc(site, monkeypatch):
    """Wherever the server stands; and runs are listed since any time that can be written."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    site.http.post("/v1/schedules", json={"id": "daily", "graph": "echo", "cron": "0 3 * * *"})
    span = {"first": "2026-01-01T00:00:00", "last": "2026-01-01T03:00:00"}
    filled = site.http.post("/v1/schedules/daily:backfill", json=span).json()["items"]
    monkeypatch.undo()
    time.tzset()

    assert len(filled) == 1
    for since in ("0001-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "1970-01-01T00:00:00Z"):
        assert len(site.http.get("/v1/runs", params={"since": since}).json()["items"]) == 1
    assert (
        site.http.get("/v1/runs", params={"since": "9999-12-31T23:59:59"}).json()["items"] == []
    )


@pytest.mark.full
def test_effects_are_frozen_and_thawed(site):
    """By an admin, with a reason; every page says so, and the start page has the switch."""
    body = {"kind": "graph", "name": "echo", "reason": "an incident"}

    assert site.http.post("/v1/freezes", json={**body, "reason": ""}).status_code == 422
    misspelt = {**body, "name": "ecko"}
    assert "echo" in site.http.post("/v1/freezes", json=misspelt).json()["detail"]
    assert site.http.get("/v1/freezes").json()["items"] == []
    assert site.http.post("/v1/freezes", json={**misspelt, "force": True}).status_code == 201
    assert (
        site.http.post("/v1/freezes:thaw", json={**misspelt, "reason": "over"}).status_code
        == 200
    )
    assert site.http.post("/v1/freezes", json=body).json() == {"scope": "graph:echo"}
    assert site.http.post("/v1/freezes", json={**body, "reason": "another"}).status_code == 409
    assert [item["scope"] for item in site.http.get("/v1/freezes").json()["items"]] == [
        "graph:echo"
    ]
    assert "an incident" in site.page("/")
    assert (
        site.http.post("/v1/freezes:thaw", json={**body, "reason": "over"}).status_code == 200
    )
    assert site.http.get("/v1/freezes").json()["items"] == []
    site.as_role("operator")
    assert site.http.post("/v1/freezes", json=body).status_code == 403


@pytest.fixture
def signed(site, tmp_path):
    """A run with an audit that a worker has signed, and the server's settings with that key."""
    key = tmp_path / "audit.json"
    own_key(key, "runner")
    run = site.start("refund", requester="cora")
    settings = Settings(redis_url=site.settings.redis_url, audit_key=str(key))
    (log,) = site.app.state.services.store.audit_logs
    Sealing(log, sealing_policy(settings)).run_once(sign_now=True)
    return run, settings


@pytest.mark.full
def test_the_audit_is_verified_by_the_server_s_own_key(site, signed):
    """Without one nothing is said to hold: the key in the store is whoever's who can write there."""
    run, settings = signed

    assert site.http.get(f"/v1/audit/{run.id}").json()["result"] == "unverified"
    site.app.state.services.settings = settings
    shown = site.http.get(f"/v1/audit/{run.id}").json()
    (head,) = site.http.get("/v1/audit").json()["items"]
    assert (head["partition"], head["signed"]) == (0, head["size"])
    assert (shown["result"], bool(shown["items"])) == ("holds", True)


@pytest.mark.full
def test_looking_at_the_audit_signs_nothing(site, signed):
    """A GET writes nothing, also where the key is at hand; the control signs, and so the head differs."""
    run, site.app.state.services.settings = signed
    (log,) = site.app.state.services.store.audit_logs
    site.start("refund", requester="cora")
    before = log.head().note

    for path in (
        f"/v1/audit/{run.id}",
        f"/v1/audit/{run.id}/export",
        f"/runs/{run.id}?tab=audit",
    ):
        assert site.http.get(path).status_code == 200
    assert log.head().note == before
    Sealing(log, sealing_policy(site.app.state.services.settings)).run_once(sign_now=True)
    assert log.head().note != before


@pytest.mark.full
@pytest.mark.parametrize("whole", [True, False], ids=["of a stated length", "in chunks"])
def test_a_huge_body_is_refused(site, whole):
    """Before it is in memory; the control, below the limit, is started."""
    most = site.settings.max_result + MARGIN

    def post(size):
        body = b'{"graph": "echo", "task": "' + b"x" * size + b'"}'
        content = body if whole else iter([body[:1000], body[1000:]])
        return site.http.post(
            "/v1/runs", content=content, headers={"Content-Type": "application/json"}
        )

    assert post(most).status_code == 413
    assert not site.client.runs()
    assert post(1_000).status_code == 201


@pytest.mark.parametrize(("known", "most"), [(False, OF_UNKNOWN), (True, MAX_RESULT + MARGIN)])
def test_little_is_read_of_who_is_not_known(site, known, most):
    """A body that does not end is refused soon; the control, of somebody known, when it is too large."""
    site.person = site.person if known else None
    chunk, reads, statuses = b"x" * 10_000, [], []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/runs",
        "query_string": b"",
        "headers": [],
    }

    async def receive():
        reads.append(chunk)
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(message):
        statuses.append(message.get("status"))

    asyncio.run(
        site.app({**scope, "headers": [(b"content-type", b"application/json")]}, receive, send)
    )

    assert statuses[0] == (413 if known else 401)
    assert 0 <= len(reads) * len(chunk) - most <= len(chunk)


@pytest.mark.full
@pytest.mark.parametrize("lengths", [1, 2])
def test_a_request_has_one_length(served, lengths):
    """With Content-Length and Transfer-Encoding the connection is closed; control: with one it goes on."""
    also = "Content-Length: 99\r\n" if lengths == 2 else ""
    head = (
        f"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\n{also}Transfer-Encoding: chunked\r\n\r\n"
    )
    second = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(
        ("127.0.0.1", urlsplit(served.url).port), timeout=20
    ) as client:
        client.sendall(f"{head}0\r\n\r\n{second}".encode())
        answer = b"".join(iter(lambda: client.recv(65_536), b"")).decode()

    statuses = re.findall(r"HTTP/1.1 (\d+)", answer)
    assert statuses == (["400"] if lengths == 2 else ["422", "200"])


def test_a_run_without_signed_entries_has_no_audit(site):
    """It says what is missing; a run that is not there is not found."""
    run = site.start("approval")

    assert site.http.get(f"/v1/audit/{run.id}").json()["result"] == "unsigned"
    assert site.http.get("/v1/audit/0none").status_code == 404


@pytest.mark.full
def test_a_webhook_is_made_rotated_paused_and_removed(site):
    """Only the answers that make a secret have it; deliveries are listed, and sent again."""
    http = site.http
    made = http.post(
        "/v1/webhooks", json={"url": "http://127.0.0.1:1/hooks", "events": ["run.ended"]}
    )
    hook = made.json()["id"]
    path = f"/v1/webhooks/{hook}"
    rotated = http.post(f"{path}:rotate").json()["secret"]

    assert (made.status_code, made.json()["secret"][:6], rotated[:6]) == (
        201,
        "whsec_",
        "whsec_",
    )
    assert rotated != made.json()["secret"]
    assert [item["secret"] for item in http.get("/v1/webhooks").json()["items"]] == [""]
    assert http.post(f"{path}:pause").json()["paused"] is True
    assert http.post(f"{path}:resume").json()["paused"] is False
    assert http.get(f"{path}/deliveries").json() == {"items": [], "next": None}
    assert http.post(f"{path}/deliveries/msg_none:redeliver").status_code == 404
    assert http.delete(path).status_code == 204
    assert http.get(path).status_code == http.get(f"{path}/deliveries").status_code == 404

    site.add_webhook("chat")
    (item,) = http.get("/v1/webhooks/chat/deliveries").json()["items"]
    assert (item["status"], item["kind"], item["due_at"]) == ("waiting", "run.ended", None)
    assert http.post("/v1/webhooks/chat/deliveries/msg_1:redeliver").json()["due_at"]
    assert http.get("/v1/webhooks/chat/deliveries?cursor=x").status_code == 400


@pytest.mark.full
@pytest.mark.parametrize(
    "body",
    [
        {"url": "http://hooks.example.com/"},
        {"url": "https://10.0.0.1/"},
        {"url": "https://[::ffff:169.254.169.254]/"},
        {"url": "http://127.0.0.1:1/", "events": ["run.begun"]},
        {"url": "http://127.0.0.1:1/", "signature": "v2"},
    ],
)
def test_a_webhook_that_may_not_be_reached_is_refused(site, body):
    """Inside addresses, plain http, events that nobody sends: 422, and nothing is stored."""
    assert site.http.post("/v1/webhooks", json=body).status_code == 422
    assert site.http.get("/v1/webhooks").json()["items"] == []


@pytest.mark.full
def test_only_admins_see_webhooks(site):
    """Where notices go is in them, and their payloads."""
    site.as_role("viewer", "reader", "approver", "operator")

    assert site.http.get("/v1/webhooks").status_code == 403
    assert site.http.get("/webhooks").status_code == 403
    assert "Webhooks" not in site.http.get("/").text


@pytest.mark.full
def test_the_doctor_compares_the_clock_of_each_server(site):
    """A process is listed while it runs, and one with a wrong clock is named, and by how much."""
    processes = site.app.state.services.server_processes
    far = {"name": "server-1@far", "pid": 1, "started": 1}
    processes.enter(far, processes.now() - 90_000)

    def clocks():
        checks = examine(read_facts(site.settings))
        return next(check.detail for check in checks if check.name == "clocks")

    with Served(site.app, free_port()):
        wait_until(lambda: len(processes.all()) == 2, "the server is listed")
        assert re.search(r"server-1@far by 1 min [345]\d s", clocks())
    wait_until(lambda: len(processes.all()) == 1, "the server has left")
    processes.leave(far)
    assert "far" not in clocks()
