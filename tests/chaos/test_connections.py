"""The wire between programs and the store is cut, stalls, lags or loses replies: nothing is done twice."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from runner import Status
from runner.errors import StoreError
from runner.store.redis import doorbell_template
from runner.store.redis.connection import TIMEOUT
from runner.store.redis.scripts import script
from runner.store.redis.store import RedisStore
from tests.celery.workers import MARGIN, Site
from tests.chaos.load import Load, consistent
from tests.chaos.proxy import Proxy
from tests.chaos.servers import Server
from tests.chaos.transitions import Walk
from tests.waiting import wait_until

HEARS_AGAIN = 20.0
"""Seconds within which a worker notices that its connections are dead, as the docs say."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("wire")).start()
    yield server
    server.end()


@pytest.fixture
def proxy(server):
    """A wire of the test's own."""
    proxy = Proxy(server.port)
    yield proxy
    proxy.end()


@pytest.fixture
def store(proxy, known):
    store = RedisStore(proxy.url, push=False)
    yield store
    store.close()


@pytest.fixture
def known(server):
    """See to it that the server knows every script: what is cut is then the reply to the request itself."""
    server.client.flushdb()
    store = RedisStore(server.url, push=False)
    for _, _, send in Walk(store, "00known"):
        send("")
    store.close()


SCRIPTS = b"EVALSHA"
"""What every call of a script holds."""

EVERY = 1_000
"""More calls than a request has."""

WRITES = {
    "claim": script("take"),
    "save": script("save"),
    "settle": script("apply", doorbell_template.constants({})),
}
"""The scripts that write a request; what isn't here is planned and committed."""


def written_by(verb: str) -> bytes:
    return WRITES.get(verb, script("commit")).sha.encode()


def kinds(store: RedisStore, run_id: str) -> list[str]:
    return [event.kind for event in store.events(run_id)]


@pytest.mark.sample
def test_a_lost_reply_is_asked_for_again(proxy, store):
    """Every request arrives and its reply does not: asked again, the store says what it said first."""
    for verb, wanted, send in Walk(store, "00walk"):
        proxy.cut.clear()
        proxy.cut_replies_to(SCRIPTS, EVERY)
        assert send("") == wanted, verb
        proxy.heal()

        assert any(written_by(verb) in request for request in proxy.cut), (
            f"{verb} lost its reply"
        )
    assert store.read("00walk").record.status is Status.CANCELLED
    # Nothing was done twice, or left out: on a wire that loses nothing it is the same.
    assert kinds(store, "00walk") == kinds(store, "00known")


def test_a_repeat_under_another_name_is_not_told_what_became_of_the_first(proxy, store):
    """Control: with a new nonce a claim or a settle is stale, and a person's own answer a duplicate."""
    other = {}
    for verb, wanted, send in Walk(store, "00walk"):
        # The link asks once more by itself: that reply is lost as well.
        proxy.cut_replies_to(written_by(verb), 2, repeats=True)
        with pytest.raises(StoreError):
            send("")
        other[verb] = send("other")
        assert send("") == wanted, verb

    assert {verb: other[verb] for verb in ("claim", "settle", "answer", "cancel")} == {
        "claim": "stale",
        "settle": "stale",
        "answer": "duplicate",
        "cancel": "already",
    }


def test_a_program_on_a_dead_wire_is_told_so(proxy, store):
    """A request on a wire that stalls ends in an error, twice the time-out later, and works when it heals."""
    walk = iter(Walk(store, "00walk"))
    _, _, send = next(walk)
    send("")
    proxy.stall()
    began = time.monotonic()
    with pytest.raises(StoreError, match="may have been done"):
        send("")
    assert TIMEOUT <= time.monotonic() - began < 3 * TIMEOUT + MARGIN
    proxy.heal()

    assert send("") == "00walk"


def test_a_demoted_server_is_left_for_the_one_that_its_name_leads_to(
    proxy, store, server, tmp_path
):
    """A failover that only moves the name cuts no connection: the refusal of the old primary does."""
    promoted = Server(tmp_path).start()
    _, _, send = next(iter(Walk(store, "00walk")))
    assert store.peek("00walk") is None
    proxy.to = promoted.port
    server.client.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(StoreError, match=r"Nothing was written.*RUNNER_REDIS_URL names it"):
            send("")
        send("")  # the old primary would refuse it again
    finally:
        server.client.replicaof("NO", "ONE")
        promoted.end()


@pytest.fixture(scope="module")
def wired(server, tmp_path_factory):
    """Two workers, each alone on a database and a wire: the second one never checks its connection."""
    sites = []
    for number, app in enumerate(("runner.celery:app", "tests.chaos.no_health_check:app")):
        proxy = Proxy(server.port)
        site = Site(
            server.url.replace("/0", f"/{number + 1}"),
            tmp_path_factory.mktemp(f"wired{number}-"),
        )
        site.wire = proxy
        site.add(app=app, RUNNER_REDIS_URL=proxy.url.replace("/0", f"/{number + 1}"))
        sites.append(site)
    for site in sites:
        site.workers[0].wait_ready()
    yield sites
    for site in sites:
        site.end()
        site.wire.end()
        site.client.engine.store.close()


@pytest.fixture
def site(wired):
    wired[0].wire.heal()
    return wired[0]


def test_a_worker_s_lost_replies_cost_no_second_execution(site, known):
    """Each call that the worker makes for a run loses its first reply: each node is executed once."""
    site.wire.cut.clear()
    site.wire.cut_replies_to(SCRIPTS, EVERY)
    run = site.client.start("chain", "go")

    assert run.wait(60).status is Status.COMPLETED
    take, name = script("take").sha.encode(), run.id.encode()

    def is_lost(text: str, *, claims: bool) -> bool:
        return any(
            name in request
            and (take in request) == claims
            and f"{text}\r\n".encode() in request
            for request in site.wire.cut
        )

    # The worker stays with the run: the settle of a node claims the next one. What ends the run is seen
    # before its reply is cut off.
    wait_until(lambda: is_lost("\r\na", claims=True), "a is claimed in vain at first")
    for node in ("a", "b", "c"):
        settled = partial(is_lost, f"o:{node}.1", claims=False)
        wait_until(settled, f"{node} settles in vain at first")
    assert [event.node for event in run.events() if event.kind == "node.started"] == [
        "a",
        "b",
        "c",
    ]


def test_resets_under_load_lose_and_double_nothing(site):
    """All connections of the worker are reset again and again while runs start and people answer."""
    with Load(site.url) as load:
        for _ in range(20):
            threading.Event().wait(0.2)
            site.wire.reset()
    load.finish(60)

    load.check()
    load.close()
    assert site.workers[0].alive


def test_a_slow_wire_makes_work_slow_and_nothing_else(site):
    """With each byte alone on the wire, and with every chunk late, runs end as always."""
    for fault in (site.wire.dribble, lambda: site.wire.delay(0.05)):
        fault()
        run = site.client.start("diamond", "go")
        assert run.wait(60).status is Status.COMPLETED
        consistent(site.client.engine.store, run.id)


def test_a_worker_on_a_dead_wire_hears_again(wired):
    """A stall of which nobody is told: the worker finds out. Control: without its checks it doesn't."""
    runs = []
    for site in wired:
        site.wire.heal()
        runs.append(site.client.start("gated", "go"))
        site.starter(runs[-1])
        site.wire.stall()
        site.open_gate(runs[-1])
        # What was sent on the dead connections stays lost; new ones pass.
        site.wire.heal()
        runs.append(site.client.start("chain", "go"))
    held, rung, _, unheard = runs

    for run in (held, rung):
        assert run.wait(HEARS_AGAIN + MARGIN).status is Status.COMPLETED
        consistent(wired[0].client.engine.store, run.id)
    assert unheard.status is Status.EXECUTING
