from __future__ import annotations

import asyncio
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
import redis
from anyio import to_thread

from runner.server import streams
from tests.waiting import wait_until

pytestmark = pytest.mark.full

SSE = {"Accept": "text/event-stream"}


def stream(served, run_id, **headers):
    return opened(served, f"/v1/runs/{run_id}/events", **headers)


@contextmanager
def opened(served, path, **headers):
    """Open a stream, and give its frames as (kind, position, data)."""
    with (
        httpx.Client(base_url=served.url, timeout=20) as http,
        http.stream("GET", path, headers={**SSE, **headers}) as reply,
    ):
        yield frames(reply.iter_lines())


def frames(lines):
    fields = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
            fields = {}


def test_a_stream_begins_with_the_run_and_goes_on(site, served):
    """Whoever opens it knows all that is known, and then hears what happens."""
    run = site.start("approval")
    with stream(served, run.id) as read:
        kind, position, document = next(read)
        assert (kind, document["status"]) == ("snapshot", "interrupted")

        question = run.interrupts()[0]
        site.client.respond(question.id, {"ok": True}, responder="ben")
        site.work()

        events = [next(read)]
        while events[-1][0] != "run.ended":
            events.append(next(read))
    assert events[0][0] == "interrupt.answered"
    numbers = [int(position) for _, position, _ in events]
    assert numbers == list(range(int(position) + 1, numbers[-1] + 1))


def test_a_client_that_comes_back_goes_on(site, served):
    """`Last-Event-ID` gets exactly what came since, and no snapshot."""
    run = site.start("echo")
    positions = [event.position for event in run.events()]

    with stream(served, run.id, **{"Last-Event-ID": positions[1]}) as read:
        assert [next(read)[1] for _ in positions[2:]] == positions[2:]


def test_a_gap_is_said_and_bridged(site, served):
    """Where the events in between have expired, the client learns that, and gets the run anew."""
    run = site.start("echo")
    with redis.Redis.from_url(site.settings.redis_url) as raw:
        (key,) = raw.keys(f"*{run.id}:e")
        raw.ltrim(key, 2, -1)

    # 99 is a position that a lost server had given.
    for position in ("1", "99"):
        with stream(served, run.id, **{"Last-Event-ID": position}) as read:
            assert [next(read)[0] for _ in range(2)] == ["reset", "snapshot"]


def test_a_viewer_s_stream_has_no_payloads(site, served):
    """What a role may not read it does not hear either."""
    run = site.start("approval", "secret")
    site.as_role("viewer")

    with stream(served, run.id) as read:
        _, _, document = next(read)
    assert "secret" not in json.dumps(document)


def test_a_person_has_a_few_streams_at_a_time(site, served):
    """Also where they open more at once; a closed one counts no longer."""
    run = site.start("approval")
    with (
        httpx.Client(base_url=served.url, timeout=20) as http,
        ThreadPoolExecutor(9) as threads,
    ):
        request = http.build_request("GET", f"/v1/runs/{run.id}/events", headers=SSE)
        replies = list(threads.map(lambda _: http.send(request, stream=True), range(9)))
        assert sorted(reply.status_code for reply in replies) == [200] * 6 + [429] * 3
        for reply in replies:
            reply.close()
        wait_until(lambda: not site.app.state.services.hub._people, "the seats are free again")


@pytest.mark.slow
@pytest.mark.parametrize("roles", [(), ("viewer",), ("reader",)])
def test_a_stream_ends_with_its_login(site, served, monkeypatch, roles):
    """Who is not known any more, or may read less, hears nothing more; control: who may as much goes on."""
    monkeypatch.setattr(streams, "COMMENT", 0.05)
    site.as_role("reader")
    run = site.start("approval")
    with (
        httpx.Client(base_url=served.url, timeout=20) as http,
        http.stream("GET", f"/v1/runs/{run.id}/events", headers=SSE) as reply,
    ):
        lines = (line for line in reply.iter_lines() if line)
        wait_until(lambda: next(lines).startswith("data:"), "the snapshot is read")
        site.as_role(*roles)
        later = list(itertools.islice(lines, 20))

    assert (len(later) == 20) is (roles == ("reader",))


def test_a_stream_that_never_began_is_not_counted(site):
    """A client that goes before the first line does not lock its person out."""
    hub = site.app.state.services.hub

    async def lines():
        yield ""

    async def gone(message):
        raise OSError

    async def disconnect():
        return {"type": "http.disconnect"}

    for _ in range(2 * streams.STREAMS_EACH):
        response = streams.Stream(None, lines(), hub, site.person)
        with pytest.raises((OSError, ExceptionGroup)):
            asyncio.run(response({"type": "http"}, disconnect, gone))


def test_streams_read_in_few_threads():
    """However many clients come back at once, their reads leave nearly all threads to votes."""
    ends, reads = threading.Event(), []

    def read():
        reads.append(1)
        ends.wait(60)

    async def everybody():
        tasks = [asyncio.create_task(streams._read(read)) for _ in range(100)]
        await to_thread.run_sync(wait_until, lambda: len(reads) >= streams.READERS, "they read")
        votes = await asyncio.gather(
            *[to_thread.run_sync(lambda: len(reads)) for _ in range(100)]
        )
        ends.set()
        await asyncio.gather(*tasks)
        return votes

    assert set(asyncio.run(everybody())) == {streams.READERS}
    assert len(reads) == 100


@pytest.mark.slow
def test_a_thousand_clients_hear_an_event(site, served, monkeypatch):
    """One process serves them, and reads the run once for all."""
    monkeypatch.setattr(streams, "STREAMS_EACH", 2_000)
    run = site.start("approval")
    port = int(served.url.rpartition(":")[2])
    reads = []
    events = site.client.engine.store.events
    monkeypatch.setattr(
        site.client.engine.store, "events", lambda *args: reads.append(args) or events(*args)
    )

    def subscribers():
        return [others for _, others in site.app.state.services.hub._watched.values()]

    async def client(ready):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = [
            f"GET /v1/runs/{run.id}/events HTTP/1.1",
            "Host: localhost",
            f"Accept: {SSE['Accept']}",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode())
        await reader.readuntil(b"event: snapshot")
        await ready.wait()
        await reader.readuntil(b"event: interrupt.answered")
        writer.close()

    async def everybody():
        ready = asyncio.Event()
        clients = [asyncio.create_task(client(ready)) for _ in range(1_000)]
        while sum(map(len, subscribers())) < 1_000:  # noqa: ASYNC110 - it is another thread that counts
            await asyncio.sleep(0.05)
        question = run.interrupts()[0].id
        reads.clear()
        site.client.respond(question, {"ok": True})
        ready.set()
        await asyncio.gather(*clients)

    asyncio.run(everybody())
    assert len(reads) < 100


@pytest.mark.slow
def test_what_happens_to_all_runs_is_heard(site, served):
    """It begins with the open questions; then each question and each end of a run is an event."""
    first = site.start("approval")
    path = "/v1/events?graph=approval"
    with opened(served, path) as read:
        kind, _, document = next(read)
        assert (kind, [item["run_id"] for item in document["items"]]) == (
            "snapshot",
            [first.id],
        )

        site.start("broken")
        second = site.start("approval")
        site.client.respond(second.interrupts()[0].id, {"ok": True})
        site.work()
        heard = [next(read)]
        while heard[-1][0] != "run.ended":
            heard.append(next(read))

    assert [kind for kind, _, _ in heard] == [
        "interrupt.asked",
        "interrupt.answered",
        "run.ended",
    ]
    assert {data["run_id"] for _, _, data in heard} == {second.id}

    with opened(served, path, **{"Last-Event-ID": heard[0][1]}) as read:
        assert [next(read), next(read)] == heard[1:]
        third = site.start("approval")
        assert next(read)[2]["run_id"] == third.id
    with redis.Redis.from_url(site.settings.redis_url) as raw:
        (key,) = raw.keys("*notices")
        raw.xtrim(key, maxlen=2, approximate=False)
    with opened(served, path, **{"Last-Event-ID": heard[0][1]}) as read:
        assert [next(read)[0], next(read)[0]] == ["reset", "snapshot"]


def test_the_events_of_several_runs_are_heard(site, served):
    """Those of their nodes too; a client that comes back misses none, and with other runs gets a reset."""
    runs = [site.start("approval") for _ in range(2)]
    known = {run.id: list(run.events()) for run in runs}
    path = f"/v1/events?run={runs[0].id}&run={runs[1].id}"

    def heard_of_both(read):
        heard = []
        while [event["kind"] for event in heard].count("run.ended") < 2:
            heard.append(next(read)[2])
        return {run.id: [event for event in heard if event["run_id"] == run.id] for run in runs}

    with opened(served, path) as read:
        kind, begun, document = next(read)
        assert kind == "snapshot"
        assert [item["run_id"] for item in document["items"]] == [run.id for run in runs]
        site.start("approval")
        for run in runs:
            site.client.respond(run.interrupts()[0].id, {"ok": True})
        site.work()
        heard = heard_of_both(read)

    for run in runs:
        events = [(event.position, event.kind) for event in run.events()][len(known[run.id]) :]
        assert "node.completed" in [kind for _, kind in events]
        assert [(event["position"], event["kind"]) for event in heard[run.id]] == events
    back = {"Last-Event-ID": begun}
    with opened(served, f"/v1/events?run={runs[1].id}&run={runs[0].id}", **back) as read:
        assert heard_of_both(read) == heard
    with opened(served, f"/v1/events?kind=run.ended&run={runs[0].id}", **back) as read:
        assert [next(read)[0], next(read)[0]] == ["reset", "snapshot"]
    with opened(served, f"{path}&kind=run.ended", **back) as read:
        assert {next(read)[0], next(read)[0]} == {"run.ended"}


def test_a_stream_of_many_runs_counts_as_several(site, served):
    """Fifty runs take five of a person's six streams, so two such are refused; so is one of more runs."""
    ids = [site.start("echo").id for _ in range(streams.MOST_RUNS + 1)]
    path = "/v1/events?run=" + "&run=".join(ids)
    assert site.http.get(path).status_code == 422
    fifty = path.rpartition("&")[0]
    with opened(served, fifty) as read, opened(served, f"/v1/events?run={ids[0]}") as other:
        assert len(next(read)[2]["items"]) == streams.MOST_RUNS
        assert next(other)[0] == "snapshot"
        assert site.http.get(fifty, headers=SSE).status_code == 429
