"""TLS for servers of tests: a certificate of a private authority, and a relay that ends TLS for a server."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from runner.testing.plugin import absent


class Certificate:
    """A private authority (`authority`), and a server's certificate that it signed for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            absent("there is no openssl to make certificates with")
        self.authority, self.certificate, self.key = (
            folder / "ca.pem",
            folder / "cert.pem",
            folder / "key.pem",
        )
        name = ["-nodes", "-newkey", "rsa:2048", "-days", "2"]
        _openssl(
            folder,
            *[
                "req",
                "-x509",
                *name,
                "-subj",
                "/CN=test-ca",
                "-keyout",
                "ca.key",
                "-out",
                "ca.pem",
            ],
            *["-addext", "keyUsage=critical,keyCertSign"],  # Python 3.13 asks for it
        )
        _openssl(
            folder,
            *[
                "req",
                "-x509",
                *name,
                "-subj",
                "/CN=localhost",
                "-keyout",
                "key.pem",
                "-out",
                "cert.pem",
            ],
            *["-CA", "ca.pem", "-CAkey", "ca.key"],
            *[
                "-addext",
                "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-addext",
                "basicConstraints=CA:FALSE",
            ],
        )

    @property
    def options(self) -> dict[str, str]:
        """What a client's URL says: whom it trusts, and the certificate by which it is known."""
        return {
            "ssl_ca_certs": str(self.authority),
            "ssl_certfile": str(self.certificate),
            "ssl_keyfile": str(self.key),
        }


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


class Relay:
    """Accepts TLS on a port of its own, and passes what comes on to a plain server."""

    def __init__(self, certificate: Certificate, port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.certificate, certificate.key)
        self._target = port
        self._listener = socket.create_server(
            ("", 0)
        )  # 127.0.0.2, too, which the certificate lacks
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(plain,), daemon=True).start()

    def _relay(self, plain: socket.socket) -> None:
        with suppress(OSError), plain:
            near = self._context.wrap_socket(plain, server_side=True)
            with near, socket.create_connection(("127.0.0.1", self._target)) as far:
                back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                back.start()
                _copy(near, far)
                back.join(1)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A server's certificate, and the authority that clients must trust."""
    return Certificate(tmp_path_factory.mktemp("tls"))
