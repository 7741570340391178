from __future__ import annotations

import json
import re
import sys
import threading

import pytest
import standardwebhooks

from runner.errors import ConflictError, NotFoundError, UsageError
from runner.operations.doctor import WARN, examine, read_facts
from runner.settings import Settings
from runner.store.redis import connection
from runner.store.redis import deliveries as deliveries_module
from runner.store.shared import Deliveries, Shared
from runner.webhooks import delivery as module
from runner.webhooks.delivery import WebhookAdmin, WebhookSender
from runner.webhooks.webhook import OVERLAP, Webhook
from tests.endpoints import Endpoint
from tests.graphs import single
from tests.key_dictionary import type_in_dictionary
from tests.waiting import wait_until
from tests.webhooks import Site

ENDS = ["run.ended"]


@pytest.fixture
def site(redis_url, monkeypatch):
    """A store without webhooks, whose threads look often, so that the tests are over soon."""
    monkeypatch.setattr(module, "LOOK", 0.02)
    monkeypatch.setattr(connection, "NOTICED_WITHIN", 0.01)
    return Site(redis_url)


def add(site, endpoint, name="h"):
    """Have the ends of runs sent to an endpoint."""
    return site.admin.add(Webhook(name, endpoint.url, ENDS))


@pytest.fixture
def endpoint():
    """An endpoint that takes everything."""
    with Endpoint() as endpoint:
        yield endpoint


def test_a_notice_is_sent_signed_as_it_is_on_the_stream(site, endpoint):
    """The published library takes it; the log says so. What was before the webhook is not sent."""
    site.run()
    made = add(site, endpoint)
    with site.served("h"):
        run_id = site.run()
        site.until("h", "delivered")

    (request,) = endpoint.requests
    (delivery,) = site.deliveries("h")
    message = standardwebhooks.Webhook(made.secret).verify(request.body, dict(request.headers))
    assert (message["kind"], message["run_id"], message["detail"]) == (
        "run.ended",
        run_id,
        "completed",
    )
    assert request.headers["webhook-id"] == delivery.id
    assert (delivery.code, delivery.attempts, delivery.run_id) == (200, 1, run_id)
    assert all(
        type_in_dictionary(key.decode()) for key in site.raw.keys("runner:{p00}:webhook*")
    )


@pytest.mark.full
@pytest.mark.parametrize("server", ["https://runner.example/", ""])
def test_what_is_sent_leads_to_its_page(redis_url, monkeypatch, endpoint, server):
    """With the tags of its run, and the address of the question or the run; control: no server is named."""
    monkeypatch.setattr(module, "LOOK", 0.02)
    monkeypatch.setattr(connection, "NOTICED_WITHIN", 0.01)
    graphs = {"g": lambda: single(lambda ctx: ctx.interrupt("go on?"))}
    site = Site(redis_url, graphs, server_url=server)
    site.admin.add(Webhook("h", endpoint.url, ["interrupt.asked", "run.ended"]))
    with site.served("h"):
        run = site.client.run(site.run(tags={"team": "a"}))
        (question,) = run.interrupts()
        run.cancel("enough")
        site.until("h", "delivered", 2)

    sent = [json.loads(request.body) for request in endpoint.requests]
    assert [message["tags"] for message in sent] == [{"team": "a"}] * 2
    paths = [f"q/{question.id}", f"runs/{run.id}"]
    assert [message.get("url") for message in sent] == [
        server + p if server else None for p in paths
    ]
    (stored,) = site.raw.xrange("runner:{p00}:notices", count=1)
    assert b"tags" not in b"".join(stored[1].values())


@pytest.mark.full
def test_only_what_is_chosen_is_sent(site, endpoint):
    """By the kind of the notice, and the graph and the tags of the outermost run."""
    for name, options in {
        "kind": {"events": ["interrupt.asked"]},
        "graph": {"graph": "h"},
        "tags": {"tags": {"team": "a"}},
        "all": {"events": ENDS},
    }.items():
        site.admin.add(Webhook(name, endpoint.url, **options))
    with site.served("kind", "graph", "tags", "all"):
        first = site.run("g", tags={"team": "a", "more": "b"})
        second = site.run("h", tags={"team": "b"})
        site.until("all", "delivered", 2)
        site.until("graph", "delivered")
        site.until("tags", "delivered")

    assert site.deliveries("kind") == []
    assert {item.run_id for item in site.deliveries("graph")} == {second}
    assert {item.run_id for item in site.deliveries("tags")} == {first}


@pytest.mark.slow
def test_the_notices_of_all_partitions_are_sent(redis_url, endpoint):
    """Runs live in any of them; the webhook and its deliveries are in the first."""
    site = Site(redis_url, partitions=2)
    add(site, endpoint)
    runs = set()
    while {run[:2] for run in runs} != {"00", "01"}:
        runs.add(site.run())
    with site.served("h"):
        site.until("h", "delivered", len(runs))

    assert {json.loads(request.body)["run_id"] for request in endpoint.requests} == runs


def test_a_refused_delivery_is_sent_again_and_then_given_up(site, endpoint):
    """After each step; always with the same id. Sent again by a person, it has all its attempts anew."""
    endpoint.code = 500
    add(site, endpoint)
    with site.served("h"):
        site.run()
        site.until("h", "failed")
        (failed,) = site.deliveries("h")
        assert (failed.attempts, failed.code, failed.detail[:12]) == (3, 500, "answered 500")

        endpoint.code = 200
        site.admin.redeliver("h", failed.id)
        site.until("h", "delivered")

    assert endpoint.ids() == [failed.id] * 4


@pytest.mark.full
@pytest.mark.usefixtures("site")
def test_deliveries_that_fail_are_a_line_of_the_log_and_of_doctor(redis_url, endpoint, caplog):
    """One line for an outage, however many deliveries; doctor warns until they are sent, or it is paused."""
    site = Site(redis_url, webhook_retry="600")
    caplog.set_level("WARNING")
    endpoint.code = 500
    add(site, endpoint)

    def told():
        checks = examine(read_facts(site.settings))
        return [(check.result, check.detail) for check in checks if check.name == "webhook"]

    def lines():
        return [line for line in caplog.messages if line.startswith("webhook.failing")]

    assert told() == []
    with site.served("h"):
        for _ in range(3):
            site.run()
        wait_until(lambda: len(endpoint.requests) == 3, "each has failed")
        wait_until(lambda: all(each.code for each in site.deliveries("h")), "it is recorded")
        (line,) = lines()
        assert "deliveries to 'h' fail, and are sent again later: answered 500" in line
        ((result, detail),) = told()
        assert result == WARN
        assert re.fullmatch(
            r"deliveries to 'h' wait \(3, one of them for .*: answered 500.*\)", detail
        )
        endpoint.code = 200
        for delivery in site.deliveries("h"):
            site.admin.redeliver("h", delivery.id)
        site.until("h", "delivered", 3)
        assert told() == []
        endpoint.code = 500
        site.run()
        wait_until(lambda: len(lines()) == 2, "the next outage is told")
    site.admin.pause("h")
    assert told() == []


@pytest.mark.full
def test_an_outage_after_a_pause_is_told(site, endpoint, caplog, monkeypatch):
    """Also if the process has told of one before the pause; a last attempt is not said to be repeated."""
    site.settings.webhook_retry = [600]
    endpoint.code = 500
    add(site, endpoint)
    sender = site.sender()
    monkeypatch.setattr(site, "sender", lambda: sender)
    for number in (1, 2):
        with site.served("h"):
            site.run()
            codes = [500] * number
            wait_until(
                lambda: [each.code for each in site.deliveries("h")] == codes,  # noqa: B023 - called at once
                "it has failed",
            )
        site.admin.pause("h")
        site.admin.resume("h")
    site.settings.webhook_retry = []
    with site.served("h"):
        site.run()
        site.until("h", "failed")

    assert len([line for line in caplog.messages if line.startswith("webhook.failing")]) == 2


@pytest.mark.full
def test_a_dead_endpoint_holds_nobody_up(site, endpoint):
    """While one does not answer, another gets all; the dead one has one request in flight."""
    with Endpoint() as dead:
        dead.gate.clear()
        add(site, dead, "dead")
        add(site, endpoint, "live")
        with site.served("dead", "live"):
            for _ in range(5):
                site.run()
            site.until("live", "delivered", 5)

            wait_until(lambda: dead.requests, "the dead one was asked")
            assert site.deliveries("dead", "delivered") == []
            dead.gate.set()
            site.until("dead", "delivered", 5)
        assert (dead.most_at_once, endpoint.most_at_once) == (1, 1)


def test_one_thread_for_all_would_be_held_up(site, endpoint, monkeypatch):
    """The control of the test above: there no request waits for that of another webhook."""
    one, send = threading.Lock(), WebhookSender._send_due

    def one_at_a_time(self, *arguments):
        with one:
            send(self, *arguments)

    monkeypatch.setattr(WebhookSender, "_send_due", one_at_a_time)
    with Endpoint() as dead:
        dead.gate.clear()
        add(site, dead, "dead")
        add(site, endpoint, "live")
        site.run()
        with site.served("dead"):
            wait_until(lambda: dead.requests, "the dead one was asked")
            with site.served("live"):
                site.until("live", "waiting")
                assert endpoint.requests == []
                dead.gate.set()
                site.until("live", "delivered")


@pytest.mark.full
def test_one_process_serves_a_webhook(site, endpoint):
    """Another one that finds its timer, too, leaves it at that: nothing is sent twice."""
    add(site, endpoint)
    with site.served("h", "h", "h") as threads:
        wait_until(lambda: sum(thread.is_alive() for thread in threads) == 1, "two have ended")
        for _ in range(5):
            site.run()
        site.until("h", "delivered", 5)

    assert sorted(endpoint.ids()) == sorted(item.id for item in site.deliveries("h"))


def test_without_turns_it_would_be_sent_twice(site, endpoint, monkeypatch):
    """The control of the test above."""
    monkeypatch.setattr(Deliveries, "hold", lambda *_: True)
    endpoint.gate.clear()
    add(site, endpoint)
    with site.served("h", "h"):
        site.run()
        wait_until(lambda: endpoint.at_once == 2, "two are in flight")
        endpoint.gate.set()
        site.until("h", "delivered")

    assert len(set(endpoint.ids())) == 1


@pytest.mark.full
def test_gone_disables_a_webhook_until_it_is_resumed(site, endpoint):
    """The delivery stays; the notices of the time between are left out."""
    endpoint.code = 410
    add(site, endpoint)
    with site.served("h") as (thread,):
        site.run()
        wait_until(lambda: not thread.is_alive(), "nobody serves it any more")
    shown = site.admin.show("h")
    assert (shown.paused, shown.reason, shown.waiting) == (True, "the endpoint answered 410", 1)
    assert site.raw.zscore("runner:{p00}:timers", "webhook|h|") is None
    assert site.raw.xinfo_groups("runner:{p00}:notices") == []

    site.run()
    endpoint.code = 200
    site.admin.resume("h")
    with site.served("h"):
        last = site.run()
        site.until("h", "delivered", 2)

    assert [json.loads(request.body)["run_id"] for request in endpoint.requests].count(
        last
    ) == 1
    assert len(endpoint.requests) == 3


def test_a_paused_webhook_keeps_no_notices(site, endpoint):
    """Its consumer group is gone, also where it was served; a removed one leaves nothing."""
    add(site, endpoint)
    with site.served("h") as (thread,):
        site.run()
        site.until("h", "delivered")
        site.admin.pause("h")
        wait_until(lambda: not thread.is_alive(), "nobody serves it any more")
    assert site.raw.xinfo_groups("runner:{p00}:notices") == []

    site.admin.resume("h")
    site.admin.remove("h")

    assert site.raw.xinfo_groups("runner:{p00}:notices") == []
    assert site.raw.keys("*webhook*") == []
    with pytest.raises(NotFoundError):
        site.admin.pause("h")


def test_a_turn_lapses_where_its_process_is_silent(site):
    """Another process gets it only when it was given back, or its time is over."""
    turns = site.shared.deliveries
    assert turns.hold("h", "a")
    assert not turns.hold("h", "b")
    turns.release("h", "b")
    assert not turns.hold("h", "b")
    turns.release("h", "a")
    assert turns.hold("h", "b")
    assert not turns.hold("h", "a")

    assert turns.hold("h", "b", ms=1)
    wait_until(lambda: turns.hold("h", "a"), "the turn has lapsed")


def test_what_a_process_had_in_hand_is_taken_over(site, endpoint, monkeypatch):
    """It died behind the read: the next one sends it, with the id that it would have had."""
    add(site, endpoint)
    (reader,) = site.shared.notice_groups.readers(site.webhooks.get("h").group)
    site.run()
    (notice,) = reader.read(1)
    reader.close()

    with site.served("h"):
        site.until("h", "delivered")

    assert endpoint.ids() == [module.delivery_of(notice).id]


def test_a_process_that_dies_while_it_sends_leaves_the_delivery(site, endpoint, monkeypatch):
    """Written down before it is sent it would be lost: the next process sends it, with the same id."""
    add(site, endpoint)
    site.run()
    with monkeypatch.context() as patch:
        patch.setattr(WebhookSender, "_post", lambda *_: sys.exit())
        with pytest.raises(SystemExit):
            site.sender().serve("h", lambda: False)
    (waiting,) = site.deliveries("h")
    site.raw.hdel("runner:{p00}:webhook:d:h", "#lock")  # It lapses by itself after a while.

    with site.served("h"):
        site.until("h", "delivered")

    assert endpoint.ids() == [waiting.id]


def test_too_many_deliveries_drop_the_oldest(site, monkeypatch, caplog):
    """Neither their number nor their bytes grow without end; what still waited is counted and logged."""
    monkeypatch.setattr(deliveries_module, "MOST", 3)
    site.admin.add(Webhook("h", "http://127.0.0.1:1/", ENDS))
    runs = []
    for _ in range(5):
        runs.append(site.run())
        # Those of one millisecond are in the order of their ids.
        end = site.webhooks.now()
        while site.webhooks.now() == end:
            pass
    with site.served("h"):
        wait_until(
            lambda: "webhook.dropped: 2 deliveries to 'h'" in caplog.text, "two are dropped"
        )

        assert [item.run_id for item in site.deliveries("h")] == runs[:1:-1]
        assert site.admin.show("h").dropped == 2
    held = sum(len(body) for _, body in map(deliveries_module._read, documents(site)))
    assert int(site.raw.hget("runner:{p00}:webhook:d:h", "#bytes")) == held

    monkeypatch.setattr(deliveries_module, "MOST_BYTES", 0)
    site.shared.deliveries.enqueue("h", [])
    assert site.deliveries("h") == []


def documents(site):
    return [
        text
        for name, text in site.raw.hgetall("runner:{p00}:webhook:d:h").items()
        if not name.startswith(b"#")
    ]


def test_old_deliveries_go(site, endpoint, monkeypatch):
    """After a week."""
    add(site, endpoint)
    site.run()
    with site.served("h"):
        site.until("h", "delivered")
    monkeypatch.setattr(deliveries_module, "STAY_MS", -1_000)

    site.shared.deliveries.enqueue("h", [])

    assert site.deliveries("h") == []
    assert documents(site) == []


def test_a_rotation_has_two_secrets_for_a_day(site, endpoint):
    """The new one is shown once; both verify what is sent."""
    old = add(site, endpoint).secret
    new = site.admin.rotate("h").secret
    with site.served("h"):
        site.run()
        site.until("h", "delivered")

    (request,) = endpoint.requests
    for secret in (old, new):
        standardwebhooks.Webhook(secret).verify(request.body, dict(request.headers))
    stored = site.webhooks.get("h")
    assert site.admin.show("h").secret == ""
    assert 0 < stored.old_until - site.webhooks.now() <= OVERLAP


def test_the_log_is_read_in_pages(site):
    """The newest first, to the end."""
    site.admin.add(Webhook("h", "http://127.0.0.1:1/", ENDS))
    for _ in range(3):
        site.run()
    with site.served("h"):
        wait_until(lambda: len(site.deliveries("h")) == 3, "all are there")

    first = site.shared.deliveries.page("h", 2)
    second = site.shared.deliveries.page("h", 2, first.next)

    assert [*first, *second] == site.deliveries("h")
    assert second.next is None


def test_an_address_inside_is_refused_where_it_is_entered(redis_url, monkeypatch):
    """And nothing is stored; so is an id that is taken, and one webhook too many."""
    site, inside = Site(redis_url), Settings(redis_url=redis_url)
    with pytest.raises(UsageError, match="needs https"):
        WebhookAdmin(Shared(inside)).add(Webhook("h", "http://127.0.0.1/"))
    with pytest.raises(UsageError, match="private network"):
        WebhookAdmin(Shared(inside)).add(Webhook("h", "https://127.0.0.1/"))
    assert site.webhooks.all() == []

    site.admin.add(Webhook("h", "http://127.0.0.1/"))
    with pytest.raises(ConflictError):
        site.admin.add(Webhook("h", "http://127.0.0.1/"))
    assert len(site.raw.xinfo_groups("runner:{p00}:notices")) == 1

    monkeypatch.setattr(Webhook, "limit", 2)
    site.admin.add(Webhook("i", "http://127.0.0.1/"))
    with pytest.raises(UsageError, match="there are 2 webhooks already; remove one first"):
        site.admin.add(Webhook("j", "http://127.0.0.1/"))
    assert [webhook.id for webhook in site.webhooks.all()] == ["h", "i"]
    assert len(site.raw.xinfo_groups("runner:{p00}:notices")) == 2


def test_a_sweep_begins_what_is_to_be_served(site, endpoint):
    """Its timer is due at once, and again after each lease, so that a process that dies is followed."""
    began = []
    site.engine.fire = {"webhook": began.append}
    site.engine.sweep()
    assert began == []

    site.admin.add(Webhook("h", endpoint.url))
    site.engine.sweep()
    site.engine.sweep()

    assert began == ["h"]
    assert site.raw.zscore("runner:{p00}:timers", "webhook|h|") > site.webhooks.now()
