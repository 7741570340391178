from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from runner.errors import UsageError
from runner.webhooks import outbound
from tests.endpoints import Endpoint
from tests.tls import Certificate, Relay

LOOPBACK = ["127.0.0.0/8"]


@pytest.fixture
def tls_endpoint(tmp_path, monkeypatch):
    """An endpoint behind TLS, whose authority this process trusts."""
    certificate = Certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    outbound._tls.cache_clear()
    with Endpoint() as endpoint:
        relay = Relay(certificate, endpoint.port)
        yield relay
        relay.close()
    outbound._tls.cache_clear()


def resolves(monkeypatch, *answers):
    """Have every name lead to one address after the other."""
    left, real = list(answers), socket.getaddrinfo

    def look_up(host, port, *options, **named):
        if not host.endswith(".example"):
            return real(host, port, *options, **named)
        address = left.pop(0) if len(left) > 1 else left[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "0.0.0.1",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "169.254.169.254",
        ),
        *(
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.0.170",
            "192.0.2.1",
            "192.88.99.1",
        ),
        *("192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1"),
        *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
        *(
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::808:808",
        ),
        *(
            "100::1",
            "2001:0:7f00:1::1",
            "2001:2::1",
            "2001:10::1",
            "2001:db8::1",
            "2002:7f00:1::",
        ),
        *("3fff::1", "3fff:fff::1", "5f00::1", "fc00::1", "fd00::1", "fe80::1%eth0", "fec0::1"),
        *("ff02::1", "ff0e::1"),
    ],
)
def test_no_name_leads_into_a_private_network(monkeypatch, address):
    """Nor into another special-purpose range of IANA, nor by the IPv6 forms of private IPv4 addresses."""
    resolves(monkeypatch, address)

    with pytest.raises(UsageError, match="private network"):
        outbound.check("https://hooks.example/", [])


@pytest.mark.parametrize(
    "address",
    [
        *(
            "93.184.216.34",
            "100.128.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.1",
        ),
        *("2606:2800:220:1::1", "2a00::1", "3ffe::1", "64:ff9b::5db8:d822", "2002:5db8:d822::"),
    ],
)
def test_public_addresses_are_reached_by_https_alone(monkeypatch, address):
    """The control of the test above."""
    resolves(monkeypatch, address)

    assert outbound.check("https://hooks.example/", []) == [address]
    with pytest.raises(UsageError, match="https"):
        outbound.check("http://hooks.example/", [])


def test_a_private_address_beside_public_ones_is_enough_to_refuse(monkeypatch):
    """Which of them would be taken is not ours to say."""
    both = [(0, 0, 0, "", (address, 443)) for address in ("93.184.216.34", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)

    with pytest.raises(UsageError, match="private network"):
        outbound.check("https://hooks.example/", [])


def test_an_allowed_network_may_be_reached_also_by_plain_http(monkeypatch):
    """One that is allowed allows no other."""
    resolves(monkeypatch, "10.0.0.7")

    assert outbound.check("http://hooks.example/", ["10.0.0.0/24"]) == ["10.0.0.7"]
    with pytest.raises(UsageError, match="https"):
        outbound.check("http://hooks.example/", ["10.0.1.0/24"])


def test_a_name_that_leads_elsewhere_later_reaches_nothing():
    """It is resolved and checked at each request, not only where it was entered."""
    with Endpoint() as inside, pytest.MonkeyPatch.context() as patch:
        resolves(patch, "93.184.216.34", "127.0.0.1")
        url = f"https://rebinding.example:{inside.port}/"
        outbound.check(url, [])  # as it was registered

        answer = outbound.post(url, b"{}", {}, [])

        assert (answer.code, "private network" in answer.problem, inside.requests) == (
            0,
            True,
            [],
        )


def test_the_address_that_was_checked_is_connected(monkeypatch):
    """A request resolves once; a moment later the name leads elsewhere. Path and headers are as given."""
    with Endpoint() as endpoint:
        resolves(monkeypatch, "127.0.0.1", "203.0.113.1")

        answer = outbound.post(
            f"http://once.example:{endpoint.port}/a?b=c", b"{}", {"x-y": "z"}, LOOPBACK
        )

        (request,) = endpoint.requests
        assert (answer.code, request.path, request.headers["x-y"]) == (200, "/a?b=c", "z")
        assert request.headers["host"] == f"once.example:{endpoint.port}"


def test_without_the_check_the_inside_would_be_reached(monkeypatch):
    """The control of the tests above: it is the guard that keeps the request back."""
    with Endpoint() as inside:
        resolves(monkeypatch, "93.184.216.34", "127.0.0.1")
        monkeypatch.setattr(outbound, "_is_public", lambda _: True)
        url = f"https://rebinding.example:{inside.port}/"
        outbound.check(url, [])

        outbound.post(url, b"{}", {}, [])

        assert inside.connected


def test_a_redirect_is_an_answer_and_not_followed():
    """Where it leads is not asked."""
    with Endpoint() as second, Endpoint(302, {"Location": second.url}) as first:
        answer = outbound.post(first.url, b"{}", {}, LOOPBACK)

        assert (answer.code, len(first.requests), second.requests) == (302, 1, [])


def test_who_answers_byte_by_byte_is_cut_off(monkeypatch):
    """The whole request has one time limit, and an endless answer is not read to its end."""
    monkeypatch.setattr(outbound, "TIMEOUT", 0.3)
    listener, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip():
        opened, _ = listener.accept()
        with opened, suppress(OSError):
            opened.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not over.wait(0.02):
                opened.sendall(b"a")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        answer = outbound.post(
            f"http://127.0.0.1:{listener.getsockname()[1]}/", b"{}", {}, LOOPBACK
        )
    finally:
        over.set()
        thread.join()
        listener.close()

    assert (answer.code, "TimeoutError" in answer.problem) == (0, True)


@pytest.mark.full
def test_a_certificate_of_another_name_is_refused(tls_endpoint):
    """By https the name is checked, though the address is connected; the right name is the control."""
    port = tls_endpoint.port

    right = outbound.post(f"https://localhost:{port}/", b"{}", {}, [*LOOPBACK, "::1/128"])
    with pytest.MonkeyPatch.context() as patch:
        resolves(patch, "127.0.0.1")
        wrong = outbound.post(f"https://other.example:{port}/", b"{}", {}, LOOPBACK)

    assert (right.code, wrong.code) == (200, 0)
    assert "CERTIFICATE_VERIFY_FAILED" in wrong.problem


def test_what_is_not_there_is_said():
    """Nothing is raised: the delivery says it."""
    assert "Refused" in outbound.post("http://127.0.0.1:1/", b"{}", {}, LOOPBACK).problem
    assert "resolved" in outbound.post("https://nowhere.invalid/", b"{}", {}, LOOPBACK).problem
