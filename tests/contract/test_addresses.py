"""Where a store is: URLs of Sentinels, as the store and as Celery read them."""

from __future__ import annotations

import pytest

from runner.celery.application import make_app
from runner.celery.engines import pushes
from runner.errors import UsageError
from runner.settings import Settings
from runner.store.addresses import cluster, sentinels, without_password

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
