from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import fastapi
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.docs.blocks import read
from tests.ports import free_port
from tests.server.conftest import Served
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
HTML = {"Accept": "text/html"}
LINK = re.compile(r'(?:href|src|action)="(/[^"]*)"')

PROJECT = """
import os, sys
from pathlib import Path

os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"
sys.path.insert(0, ".")
import django

django.setup()
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command

call_command("migrate", verbosity=0)
ana = User.objects.create_user("ana", is_staff=True)
session = SessionStore()
session[SESSION_KEY], session[BACKEND_SESSION_KEY] = str(ana.pk), "django.contrib.auth.backends.ModelBackend"
session[HASH_SESSION_KEY] = ana.get_session_auth_hash()
session.create()
Path("session").write_text(session.session_key)

import uvicorn
from asgi import application

uvicorn.run(application, port=int(sys.argv[1]), log_level="warning", lifespan="off", ws="none")
"""

SETTINGS = """
SECRET_KEY = "only for this test"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite"}}
MIDDLEWARE = []
ROOT_URLCONF = "site_settings"
urlpatterns = []
"""


@contextmanager
def in_django(site, prefix, folder):
    """Serve the project of the page about Django in a process of its own; give its address and a login."""
    (block,) = [
        block for block in read(ROOT / "docs/how-to/django.md") if block.file == "asgi.py"
    ]
    (folder / "asgi.py").write_text(block.text.replace("/runner", prefix))
    (folder / "site_settings.py").write_text(SETTINGS)
    (folder / "run.py").write_text(PROJECT)
    port = free_port()
    environment = {
        "RUNNER_REDIS_URL": site.settings.redis_url,
        "PYTHONPATH": str(ROOT),
        "PATH": "",
    }
    with subprocess.Popen(
        [sys.executable, "run.py", str(port)], cwd=folder, env=environment
    ) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until(
                lambda: process.poll() is not None or _answers(url), "the project answers"
            )
            yield url, {"sessionid": (folder / "session").read_text()}
        finally:
            process.terminate()


def _answers(url):
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return 0


@contextmanager
def mounted(framework, site, prefix, folder):
    """Serve the application below a path of another one."""
    if framework == "django":
        with in_django(site, prefix, folder) as served:
            yield served
        return
    if framework == "fastapi":
        outer = fastapi.FastAPI()
        outer.mount(prefix, site.app)
    else:
        outer = Starlette(routes=[Mount(prefix, site.app)])
    with Served(outer, free_port()) as served:
        yield served.url, {}


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["fastapi", "starlette", "django"])
def test_all_of_it_works_below_a_path(site, tmp_path, framework):
    """Pages, their links and files, forms, the API, streams and errors stay below the path of the mount."""
    prefix = f"/{secrets.token_hex(4)}/{secrets.token_hex(4)}"
    run = site.start("approval")

    with (
        mounted(framework, site, prefix, tmp_path) as (url, cookies),
        httpx.Client(base_url=url + prefix, cookies=cookies, timeout=20) as http,
    ):
        assert (
            httpx.get(url + prefix, follow_redirects=True, cookies=cookies).status_code == 200
        )
        question = run.interrupts()[0].id
        for path in (
            "/",
            "/inbox",
            "/runs",
            f"/runs/{run.id}",
            f"/q/{question}",
            "/graphs",
            "/workers",
        ):
            page = http.get(path, headers=HTML)
            links = LINK.findall(page.text)
            assert (page.status_code, bool(links)) == (200, True), path
            assert all(link.startswith(f"{prefix}/") for link in links), (path, links)
        statics = {link for link in links if "/static/" in link}
        assert statics
        assert all(httpx.get(url + link).status_code == 200 for link in statics)
        missing = http.get("/runs/0none", headers=HTML)
        assert (missing.status_code, f'href="{prefix}/' in missing.text) == (404, True)

        token = re.search(
            r'name="form_token" value="([^"]+)"', page_of(http, f"/q/{question}")
        )[1]
        form = {"form_token": token, "task": "1"}
        foreign = http.post(
            "/graphs/echo", data=form, headers={**HTML, "Origin": "https://evil.example"}
        )
        sent = http.post("/graphs/echo", data=form, headers={**HTML, "Origin": url})
        assert (foreign.status_code, sent.status_code) == (403, 303)
        assert sent.headers["location"].startswith(f"{prefix}/runs/")

        started = http.post("/v1/runs", json={"graph": "echo"})
        assert started.headers["location"] == f"{prefix}/v1/runs/{started.json()['run_id']}"
        assert (
            httpx.get(url + started.headers["location"], cookies=cookies).json()["graph"]
            == "echo"
        )
        assert http.get("/openapi.json").json()["servers"] == [{"url": prefix}]
        with http.stream(
            "GET", f"/v1/runs/{run.id}/events", headers={"Accept": "text/event-stream"}
        ) as stream:
            data = next(line for line in stream.iter_lines() if line.startswith("data: "))
        assert json.loads(data.removeprefix("data: "))["run_id"] == run.id
        if framework == "django":
            assert httpx.get(f"{url}{prefix}/v1/runs").status_code == 401
            assert httpx.get(f"{url}/elsewhere").status_code == 404


def page_of(http, path):
    return http.get(path, headers=HTML).text
