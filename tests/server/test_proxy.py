"""The server behind a proxy with TLS, as the page of docs has it."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from runner.server import OIDC, create_app
from runner.testing.plugin import absent
from tests.ports import free_port
from tests.server.conftest import Served
from tests.server.test_oidc import provider, served_provider  # noqa: F401 - fixtures
from tests.tls import Certificate
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "server.md"

BLOCK = re.compile(r"```(?:nginx|text)\n((?:server|runner.example.com) \{.*?)```", re.DOTALL)

NGINX, CADDY = BLOCK.findall(PAGE.read_text())

AROUND_NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder};
    proxy_temp_path {folder};
    fastcgi_temp_path {folder};
    uwsgi_temp_path {folder};
    scgi_temp_path {folder};
    {server}
}}
"""

AROUND_CADDY = """
{{
    admin off
    auto_https disable_redirects
    storage file_system {folder}
}}
{server}
"""

NO_HOST = NGINX.replace("proxy_set_header Host $http_host;", "")


class Proxy:
    """A proxy of the docs' page between a port with TLS and a server on another one."""

    def __init__(self, folder, server=NGINX):
        tls = Certificate(folder)
        self.port, self.inner = free_port(), free_port()
        self.url = f"https://localhost:{self.port}"
        name, around = ("caddy", AROUND_CADDY) if server == CADDY else ("nginx", AROUND_NGINX)
        files = {
            "/etc/ssl/runner.pem": str(tls.certificate),
            "/etc/ssl/runner.key": str(tls.key),
        }
        address = f"localhost:{self.port} {{\n    tls {tls.certificate} {tls.key}"
        for text, value in {
            "127.0.0.1:8080": f"127.0.0.1:{self.inner}",
            **(
                {"runner.example.com {": address}
                if name == "caddy"
                else {"listen 443": f"listen {self.port}", **files}
            ),
        }.items():
            assert text in server
            server = server.replace(text, value)
        user = "user root;" if os.getuid() == 0 else ""
        file = folder / f"{name}.conf"
        file.write_text(around.format(folder=folder, user=user, server=server))
        program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            absent(f"there is no {name} to be a proxy")
        options = {
            "nginx": ["-p", str(folder), "-c", str(file)],
            "caddy": ["run", "--adapter", "caddyfile", "--config", str(file)],
        }
        self._process = subprocess.Popen(
            [program, *options[name]], env={**os.environ, "HOME": str(folder)}
        )
        trusted = ssl.create_default_context(cafile=tls.authority)
        self.http = httpx.Client(base_url=self.url, verify=trusted, timeout=20)

    def __enter__(self):
        wait_until(self.answers, "the proxy answers")
        return self

    def __exit__(self, *_):
        self.http.close()
        self._process.terminate()
        self._process.wait(20)

    def answers(self):
        """Say if it accepts connections; without a server behind it that is 502."""
        try:
            return self.http.get("/healthz").status_code > 0
        except httpx.TransportError:
            return False


def log_in(proxy):
    """Follow the redirects of a login; return the address that the provider is asked to come back to."""
    begun = proxy.http.get("/login?next=/inbox")
    address = httpx.URL(begun.headers["location"])
    back = httpx.get(address)
    done = proxy.http.get(back.headers["location"])
    assert (done.status_code, done.headers["location"]) == (303, "/inbox")
    return address.params["redirect_uri"]


@pytest.mark.parametrize("server", [NGINX, NO_HOST, CADDY], ids=["nginx", "no host", "caddy"])
def test_people_work_through_a_proxy_with_tls(site, provider, tmp_path, server):  # noqa: F811 - a fixture
    """They log in, follow and decide at RUNNER_SERVER_URL, also where the proxy sends its own `Host`."""
    run = site.start("approval")
    question = run.interrupts()[0]
    with Proxy(tmp_path, server) as proxy:
        site.settings.server_url = proxy.url
        app = create_app(site.settings, auth=OIDC(provider.url, "runner"))
        app.state.services.client = site.client
        with Served(app, proxy.inner):
            assert log_in(proxy) == f"{proxy.url}/callback"
            with proxy.http.stream(
                "GET", f"/v1/runs/{run.id}/events", headers={"Accept": "text/event-stream"}
            ) as stream:
                assert any("event: snapshot" in line for line in stream.iter_lines())
            token = proxy.http.get("/v1/me").json()["form_token"]
            form = {"form_token": token, "digest": question.digest, "f.ok": "true"}
            for origin, status in ("https://localhost", 403), (proxy.url, 200):
                headers = {"Origin": origin, "Accept": "text/html"}
                sent = proxy.http.post(f"/q/{question.id}", data=form, headers=headers)
                assert sent.status_code == status

    assert run.interrupts() == []


def test_without_its_address_a_server_knows_only_its_own(site, provider, tmp_path):  # noqa: F811 - a fixture
    """The control: without RUNNER_SERVER_URL a login would come back without TLS."""
    with Proxy(tmp_path) as proxy:
        app = create_app(site.settings, auth=OIDC(provider.url, "runner"))
        with Served(app, proxy.inner):
            begun = httpx.URL(proxy.http.get("/login").headers["location"])

    assert begun.params["redirect_uri"].startswith("http://")
