"""Redis and RabbitMQ over TLS: certificates of a private authority work, and others are refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import pytest
from kombu.exceptions import OperationalError

from runner import Client, Status
from runner.celery.application import make_app
from runner.errors import StoreError
from runner.operations.doctor import broker_problem
from runner.settings import Settings
from tests.celery.workers import Site, Worker
from tests.chaos.servers import Sentinel, Server
from tests.tcp_store import tcp_store
from tests.tls import Certificate, Relay, certificate
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
__all__ = ["certificate"]


@pytest.fixture(scope="module")
def redis_over_tls(certificate):
    """The address of a Redis that is reached over TLS only."""
    with tcp_store() as store:
        login, _, place = store.tcp_url.removeprefix("redis://").partition("@")
        relay = Relay(certificate, int(place.partition(":")[2].partition("/")[0]))
        yield f"rediss://{login}@127.0.0.1:{relay.port}/0"
        relay.close()


@pytest.fixture
def rabbit_over_tls(rabbit, certificate):
    """The address of a RabbitMQ over TLS."""
    relay = Relay(certificate, rabbit.port)
    yield f"amqps://guest:guest@127.0.0.1:{relay.port}//"
    relay.close()


def connect(**settings):
    """Connect to a broker as a worker does."""
    app = make_app(Settings(**settings))
    try:
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=10)
            connection.default_channel.queue_declare("probe", passive=False)
    finally:
        app.close()


def run_with_an_answer(site) -> None:
    """Run a graph that asks, and answer it by the stream."""
    run = site.client.start("question", "go")
    (question,) = run.wait(60).interrupts
    site.send(json.dumps({"v": 1, "interrupt_id": question.id, "response": "yes"}))
    wait_until(lambda: run.status is Status.COMPLETED, "the run has completed")


def test_store_and_broker_over_tls(redis_over_tls, certificate, tmp_path):
    """The authority is named in the address, for the store's client, the scripts and kombu alike."""
    site = Site(f"{redis_over_tls}?ssl_ca_certs={certificate.authority}", tmp_path)
    try:
        site.add().wait_ready()
        run_with_an_answer(site)
    finally:
        site.end()


def test_a_redis_that_can_t_be_verified_is_refused(redis_over_tls, certificate):
    """By the store's client and by kombu, which alone would take any certificate; unless one says so."""
    with pytest.raises(StoreError, match="certificate verify failed"):
        Client(redis_over_tls).runs()
    with pytest.raises(OperationalError, match="certificate verify failed"):
        connect(redis_url=redis_over_tls)

    other = f"{redis_over_tls}?ssl_ca_certs={certificate.authority}".replace(
        "127.0.0.1", "127.0.0.2"
    )
    with pytest.raises(StoreError, match=r"certificate is not valid for '127\.0\.0\.2'"):
        Client(other).runs()
    with pytest.raises(OperationalError, match=r"certificate is not valid for '127\.0\.0\.2'"):
        connect(redis_url=other)

    connect(redis_url=f"{redis_over_tls}?ssl_cert_reqs=none")
    Client(f"{redis_over_tls}?ssl_cert_reqs=none").runs()


@pytest.fixture(scope="module")
def watched_over_tls(certificate, tmp_path_factory):
    """The Sentinel of a Redis, both over TLS only and for clients that have a certificate."""
    folder = tmp_path_factory.mktemp("sentinel")
    servers = Server(folder, certificate), Sentinel(folder, certificate)
    try:
        primary, sentinel = (server.start() for server in servers)
        sentinel.watch(primary)
        yield sentinel.url.replace("sentinel", "sentinels", 1)
    finally:
        for server in servers:
            server.end()


def test_sentinels_store_and_broker_over_tls(watched_over_tls, certificate, tmp_path):
    """The options of the address are for the Sentinels, the server that they name and kombu alike."""
    url = f"{watched_over_tls}&{urlencode(certificate.options, safe='/')}"
    client = Client(url)
    log = tmp_path / "worker.log"
    log.touch()
    worker = Worker(url, log, ["--pool", "threads"], settings={}, app="runner.celery:app")
    try:
        worker.wait_ready()
        run = client.start("question", "go")
        (question,) = run.wait(60).interrupts
        client.respond(question.id, "yes")
        assert run.wait(60).status is Status.COMPLETED
        assert Settings(redis_url=url).broker_is_store
    finally:
        worker.end()
        client.engine.store.close()


def test_sentinels_that_can_t_be_verified_are_refused(
    watched_over_tls, certificate, tmp_path_factory
):
    """By the store's client and by kombu, unless the address says so; without TLS no Sentinel answers."""
    stranger = Certificate(tmp_path_factory.mktemp("stranger"))
    other = {**certificate.options, "ssl_ca_certs": str(stranger.authority)}
    url = f"{watched_over_tls}&{urlencode(other, safe='/')}"
    plain = watched_over_tls.replace("sentinels", "sentinel", 1)
    another = f"{url}&ssl_cert_reqs=none".replace("/main?", "/another?")
    refused = {
        "certificate verify failed": lambda: Client(url).runs(),
        "No master found": lambda: connect(redis_url=url),
        "no Sentinel names the primary": lambda: Client(plain).runs(),
        "a Sentinel that was asked knows none": lambda: Client(another).runs(),
    }
    with ThreadPoolExecutor() as pool:  # each is tried for seconds
        tried = {words: pool.submit(call) for words, call in refused.items()}
    for words, one in tried.items():
        assert isinstance(
            one.exception(), OperationalError if "master" in words else StoreError
        )
        assert words in str(one.exception())

    connect(redis_url=f"{url}&ssl_cert_reqs=none")
    Client(f"{url}&ssl_cert_reqs=none").runs()


def test_rabbitmq_over_tls(rabbit_over_tls, certificate, databases):
    """The authority is that of the process: SSL_CERT_FILE names it."""
    site = next(databases)
    try:
        site.add(
            RUNNER_BROKER_URL=rabbit_over_tls, SSL_CERT_FILE=str(certificate.authority)
        ).wait_ready()
        run_with_an_answer(site)
    finally:
        site.end()


def test_a_rabbitmq_that_can_t_be_verified_is_refused(
    rabbit_over_tls, certificate, monkeypatch
):
    """Neither one that an unknown authority signed, nor one with another server's name."""
    with pytest.raises(OperationalError, match="certificate verify failed"):
        connect(broker_url=rabbit_over_tls)

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    connect(broker_url=rabbit_over_tls)
    assert broker_problem(rabbit_over_tls) == ""
    assert "certificate" in broker_problem(rabbit_over_tls.replace("127.0.0.1", "127.0.0.2"))
    with pytest.raises(OperationalError, match=r"certificate is not valid for '127\.0\.0\.2'"):
        connect(broker_url=rabbit_over_tls.replace("127.0.0.1", "127.0.0.2"))
