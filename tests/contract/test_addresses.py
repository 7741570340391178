"""Where a store is: URLs of Sentinels, as the store and as Celery read them."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

import pytest
from celery import Celery

from runner import Client
from runner.celery.application import make_app
from runner.celery.config import is_amqp, is_redis
from runner.celery.engines import pushes
from runner.definition.registry import Registry
from runner.errors import UsageError
from runner.operations.doctor import broker_problem
from runner.settings import Settings
from runner.store.addresses import canonical, cluster, sentinels, without_password
from runner.store.redis.connection import RedisConnection
from tests.celery.workers import Worker
from tests.tcp_store import tcp_store

URL = "sentinel://ann:p%40ss@one:26380,two/main?db=3&sentinel_password=eye"


def test_a_url_of_sentinels_is_read():
    """Hosts, service, database and both logins come out as they went in; the port has its default."""
    found = sentinels(URL)

    assert found.hosts == (("one", 26380), ("two", 26379))
    assert (found.service, found.database) == ("main", 3)
    assert (found.username, found.password) == ("ann", "p@ss")
    assert (found.sentinel_username, found.sentinel_password) == (None, "eye")
    assert "p@ss" not in found.place
    assert "p%40ss" not in found.place


def test_other_urls_name_no_sentinels():
    """A server's URL stays what it is."""
    assert sentinels("redis://localhost:6379/0") is None


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://one:x/main",
        "sentinel://one:1",
        "sentinel://:1/main",
        "sentinel://one/main?db=a",
        "sentinel://one/m?bd=1",
        "sentinel://one/m?ssl_ca_certs=ca.pem",
        "sentinels://one/m?ssl_ca_cert=ca.pem",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url):
    """What can't be read says how it is written, and shows nothing of what was given."""
    with pytest.raises(UsageError, match="sentinel://host:26379") as error:
        sentinels(url.replace("://", "://u:secret@"))
    assert "secret" not in str(error.value)


def test_a_url_of_a_cluster_is_read():
    """Hosts, login and TLS come out; a cluster has one database, and is a broker under another scheme."""
    found = cluster("rediss+cluster://ann:p%40ss@one:7000,two")

    assert (found.hosts, found.tls) == ((("one", 7000), ("two", 6379)), True)
    assert (found.username, found.password) == ("ann", "p@ss")
    assert found.place == "the cluster one:7000,two:6379"
    assert cluster("redis://one:7000") is None
    for wrong in ("redis+cluster://one/3", "redis+cluster://one:x", "redis+cluster://:1"):
        with pytest.raises(UsageError, match=r"redis.cluster://host:6379"):
            cluster(wrong)
    settings = Settings(redis_url="rediss+cluster://ann:p%40ss@one:7000,two", namespace="shop")
    assert settings.broker == "rediscluster://ann:p%40ss@one:7000/0"
    conf = make_app(settings).conf
    options = conf.broker_transport_options
    assert options["hosts"] == [("one", 7000), ("two", 6379)]
    assert options["global_keyprefix"] == "{shop}:"
    assert conf.broker_use_ssl == {"ssl_cert_reqs": "required"}


def test_celery_is_given_the_same_sentinels():
    """The broker is the store behind its Sentinels, whose scripts then ring for nodes."""
    settings = Settings(redis_url=URL)
    app = make_app(settings)

    assert (
        app.conf.broker_url
        == "sentinel://ann:p%40ss@one:26380/3;sentinel://ann:p%40ss@two:26379/3"
    )
    options = app.conf.broker_transport_options
    assert (options["master_name"], options["sentinel_kwargs"]["password"]) == ("main", "eye")
    assert settings.broker_is_store
    assert pushes(app, settings)

    conf = make_app(Settings(redis_url="sentinels://one/main?ssl_ca_certs=ca.pem")).conf
    assert (conf.broker_url, app.conf.broker_use_ssl) == ("sentinel://one:26379/0", False)
    assert conf.broker_use_ssl == {"ssl_cert_reqs": "required", "ssl_ca_certs": "ca.pem"}
    login = conf.broker_transport_options["sentinel_kwargs"]
    assert {"ssl": True, **conf.broker_use_ssl}.items() <= login.items()


@pytest.mark.parametrize(
    ("url", "same", "for_celery"),
    [
        ("valkey://one/3", "redis://one/3", "redis://one/3"),
        ("valkeys://one/3", "rediss://one/3", "rediss://one/3?ssl_cert_reqs=required"),
        (
            "valkeys://one/3?ssl_cert_reqs=none",
            "rediss://one/3",
            "rediss://one/3?ssl_cert_reqs=none",
        ),
    ],
)
def test_a_valkey_is_a_broker_as_a_redis_is(url, same, for_celery):
    """Celery connects to it, verifies its certificate unless told not to, and scripts may ring there."""
    settings = Settings(redis_url=same, broker_url=url)
    app = make_app(settings)

    assert app.conf.broker_url == for_celery
    assert app.connection_for_write().transport.driver_type == "redis"
    assert settings.broker_is_store
    assert pushes(app, settings)


@pytest.mark.parametrize(
    "broker",
    [
        "sentinel://one:26380,two/other?db=3",
        "sentinel://one:26380,two/main?db=4",
        "redis://one:6379/3",
    ],
)
def test_another_service_or_database_is_another_broker(broker):
    """Scripts don't ring where the queue is not."""
    settings = Settings(redis_url="sentinel://one:26380,two/main?db=3", broker_url=broker)

    assert not settings.broker_is_store
    assert not pushes(make_app(settings), settings)


@pytest.mark.parametrize("url", [URL, "redis+cluster://ann:p%40ss@one:7000,two"])
def test_no_password_is_shown(url):
    """What the command line shows of an address has neither the servers' password nor the Sentinels'."""
    shown = without_password(url)

    assert "ann:***@one" in shown
    assert "p%40ss" not in shown
    assert "eye" not in shown


READ = [
    ("redis://", "localhost", 6379, 0, None),
    ("redis://one", "one", 6379, 0, None),
    ("redis://one/", "one", 6379, 0, None),
    ("redis://one/2", "one", 6379, 2, None),
    ("redis://one/2/", "one", 6379, 2, None),
    ("redis://one?db=2", "one", 6379, 2, None),
    ("redis://one/?db=2", "one", 6379, 2, None),
    ("redis://one/1?db=2", "one", 6379, 2, None),
    ("redis://one:7000?db=2", "one", 7000, 2, None),
    ("redis://one:7000/2", "one", 7000, 2, None),
    (" redis://one/2\n", "one", 6379, 2, None),
    ("redis://127.0.0.1:7000/2", "127.0.0.1", 7000, 2, None),
    ("redis://[::1]:7000/2", "::1", 7000, 2, None),
    ("redis://:word@one/2", "one", 6379, 2, "word"),
    ("redis://ann:word@one?db=2", "one", 6379, 2, "word"),
    *[
        (
            f"redis://:{quote(sign, safe='')}a{quote(sign, safe='')}@one/2",
            "one",
            6379,
            2,
            f"{sign}a{sign}",
        )
        for sign in "#/?@;[]%&=+: ,ü"
    ],
    ("redis://:a:b@one/2", "one", 6379, 2, "a:b"),
    ("redis://:a%ss@one/2", "one", 6379, 2, "a%ss"),
    ("rediss://one", "one", 6379, 0, None),
    ("rediss://:word@one:7000/2", "one", 7000, 2, "word"),
    ("rediss://one?db=2&ssl_ca_certs=/etc/ca.pem", "one", 6379, 2, None),
    ("rediss://one/2?ssl_cert_reqs=none", "one", 6379, 2, None),
    ("rediss://one/2?ssl_cert_reqs=CERT_REQUIRED", "one", 6379, 2, None),
]

REFUSED = [
    *[(f"redis://:secret{sign}word@one/2", "must be percent-encoded") for sign in "#/?@;[]"],
    ("redis://:#secret@one/2", "must be percent-encoded"),
    ("rediss://ann:secret/@one/2", "must be percent-encoded"),
    ("sentinel://:secret/word@one/main", "must be percent-encoded"),
    ("redis+cluster://:secret#word@one", "must be percent-encoded"),
    ("unix://:secret?@/run/redis.sock", "must be percent-encoded"),
    ("redis://one/2#secret", "must be percent-encoded"),
    ("redis://ann:secret", "no host and port"),
    ("redis://one:secret/2", "no host and port"),
    ("redis://one:99999/2", "no host and port"),
    ("redis://[::1/2", "no host and port"),
    ("redis://one/abc", "database is not a number"),
    ("redis://one/1/2", "database is not a number"),
    ("redis://one/-1", "database is not a number"),
    ("redis://one?db=", "database is not a number"),
    ("redis://one?db=two", "database is not a number"),
    ("unix:///run/redis.sock?db=two", "database is not a number"),
    ("redis://one?protocol=2", "option protocol"),
    ("redis://one/0?socket_timeout=secret", "option socket_timeout"),
    ("redis://one/0?password=secret", "option password"),
    ("redis://one/0?ssl_cert_reqs=none", "option ssl_cert_reqs"),
    ("rediss://one/0?ssl_min_version=secret", "option ssl_min_version"),
    ("unix:///run/redis.sock?protocol=secret", "option protocol"),
]


@pytest.mark.full
@pytest.mark.parametrize(("url", "host", "port", "database", "password"), READ)
def test_an_address_is_read_alike_by_all(url, host, port, database, password):
    """The store's client, Celery's and the doctor connect to one server and database, with one password."""
    settings = Settings(redis_url=url)
    store = RedisConnection(url)
    of_store = store.client.connection_pool.connection_kwargs
    app = make_app(settings)
    broker = app.connection_for_write()

    assert (of_store.get("host", "localhost"), of_store.get("port", 6379)) == (host, port)
    assert (broker.hostname or "localhost", broker.port or 6379) == (host, port)
    assert of_store["db"] == int(broker.virtual_host) == database
    assert of_store.get("password") == broker.password == password
    assert bool(broker.ssl) is url.strip().startswith("rediss")
    assert settings.redis_url == canonical(settings.redis_url) == canonical(url)
    assert settings.broker_is_store
    assert pushes(app, settings)
    assert f"{port}/{database}" in store.place


@pytest.mark.parametrize(
    ("url", "database", "user", "password"),
    [
        ("unix:///run/redis.sock", 0, None, None),
        ("unix:///run/redis.sock?db=2", 2, None, None),
        ("unix://:wo%23rd@/run/redis.sock?db=2", 2, None, "wo#rd"),
        ("unix:///run/redis.sock?db=2&password=wo%23rd", 2, None, "wo#rd"),
        ("unix:///run/redis.sock?username=ann&password=word", 0, "ann", "word"),
    ],
)
def test_a_socket_is_read_alike_by_all(url, database, user, password):
    """Its login stands in front, as kombu wants it, or among the options, as in redis-py's documentation."""
    settings = Settings(redis_url=url)
    of_store = RedisConnection(settings.redis_url).client.connection_pool.connection_kwargs
    of_broker = urlsplit(settings.broker)

    assert of_store["path"] == of_broker.path == "/run/redis.sock"
    assert of_store.get("db", 0) == database
    assert of_broker.query == f"virtual_host={database}"
    assert of_store.get("username") == (of_broker.username or None) == user
    assert of_store.get("password") == password
    assert (of_broker.password and unquote(of_broker.password)) == password
    assert settings.broker_is_store


@pytest.mark.full
@pytest.mark.parametrize(("url", "why"), REFUSED)
def test_an_address_that_one_side_reads_otherwise_is_refused(url, why):
    """By every program at its start, as the store's and as the broker's, without a part of the password."""
    opened = {
        "RUNNER_REDIS_URL": lambda: Settings(redis_url=url),
        "RUNNER_BROKER_URL": lambda: Settings(broker_url=url),
        "invalid setting": lambda: Client(url),
        "the address of the": lambda: RedisConnection(url),
    }
    for begins, program in opened.items():
        with pytest.raises(UsageError, match=why) as refused:
            program()
        assert begins in str(refused.value)
        assert "secret" not in str(refused.value)
        assert "word@" not in str(refused.value)


def test_an_app_s_own_broker_is_read_so_too():
    """A worker of an app that has `install` says what is wrong with its broker_url."""
    app = Celery("shop", broker="redis://:secret#word@one/2", set_as_current=False)

    with pytest.raises(UsageError, match="must be percent-encoded") as refused:
        pushes(app, Settings())
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("brokers", "redis", "amqp"),
    [
        (["redis://one/0", "redis://two/0"], True, False),
        ("redis://one/0;redis://two/0", True, False),
        (["amqp://one//", "amqp://two//"], False, True),
        ("amqp://:a%3Bb@one//;amqp://:a%3Bb@two//", False, True),
    ],
)
def test_several_brokers_are_celery_s_form_of_failover(brokers, redis, amqp):
    """Their kind is the first one's; no script rings there, and each is asked whether it can be reached."""
    app = Celery("shop", broker=brokers, set_as_current=False)
    assert (is_redis(app.conf.broker_url), is_amqp(app.conf.broker_url)) == (redis, amqp)
    assert not pushes(app, Settings(redis_url="redis://one/0"))

    if isinstance(brokers, str):
        settings = Settings(redis_url="redis://one/0", broker_url=brokers)
        assert settings.broker == brokers
        assert not settings.broker_is_store


def test_the_doctor_asks_each_of_several_brokers():
    """One that can be reached is enough; where none can, each is named without its password."""
    with tcp_store() as store:
        assert broker_problem(f"redis://127.0.0.1:1/0;{store.broker_url}") == ""
    problem = broker_problem("amqp://u:secret@127.0.0.1:1//;amqp://u:secret@127.0.0.1:2//")

    assert "127.0.0.1:1" in problem
    assert "127.0.0.1:2" in problem
    assert "secret" not in problem


def test_an_empty_address_is_none(monkeypatch):
    """A variable without a value, as compose files pass it on, counts as unset."""
    monkeypatch.setenv("RUNNER_REDIS_URL", "")
    monkeypatch.setenv("RUNNER_BROKER_URL", "")
    monkeypatch.setenv("RUNNER_PARTITIONS", "")

    assert Settings().redis_url == "redis://127.0.0.1:6379/0"
    assert Settings().broker == Settings().redis_url
    assert Settings().partitions == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("app", "changed"),
    [
        ("runner.celery:app", lambda store: store.tcp_url.replace("/0", "?db=2")),
        ("tests.celery.failover_app:app", lambda store: store.tcp_url),
    ],
)
def test_a_worker_runs_what_a_client_starts(tmp_path, app, changed):
    """With the database as an option of the address, and with two brokers of which one is away."""
    with tcp_store() as store:
        url = changed(store)
        worker = Worker(url, tmp_path / "w.log", ["--pool", "threads"], settings={}, app=app)
        (tmp_path / "w.log").touch()
        try:
            worker.wait_ready()
            result = Client(url, registry=Registry()).start("chain", "x").wait(60)
            assert result.status.value == "completed"
        finally:
            worker.end()
