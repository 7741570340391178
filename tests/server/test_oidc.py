from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from base64 import urlsafe_b64encode
from html import unescape
from types import SimpleNamespace
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from fastapi import FastAPI, Form, Request
from fastapi.responses import RedirectResponse
from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import RSAKey

from runner.approvals import Auth, Rule
from runner.approvals.keys import KeySet
from runner.errors import UsageError
from runner.server import OIDC, ApiKeys, create_app, oidc
from runner.server.auth import new_key
from runner.settings import Settings
from tests.graphs import wired
from tests.ports import free_port
from tests.server.conftest import Served, Site

pytestmark = pytest.mark.full

HTML = {"Accept": "text/html"}


class Provider:
    """An identity provider that logs in ana at once; a test may have it say something else."""

    def __init__(self, url):
        self.url, self.app = url, FastAPI()
        self.first_key = RSAKey.generate_key(2048, {"kid": "k1"})
        self.reset()
        self.app.get("/.well-known/openid-configuration")(self.metadata)
        self.app.get("/keys")(self.key_set)
        self.app.get("/authorize")(self.authorize)
        self.app.post("/token")(self.token)

    def reset(self):
        """Be as at first, for the next test."""
        self.signer = self.key = self.first_key
        self.changes, self.codes, self.asked = {}, {}, {}
        self.more_keys, self.ends_sessions = [], False

    def metadata(self):
        ends = {
            "authorization_endpoint": "authorize",
            "token_endpoint": "token",
            "jwks_uri": "keys",
        }
        ends |= {"end_session_endpoint": "end"} if self.ends_sessions else {}
        return {"issuer": self.url, **{name: f"{self.url}/{end}" for name, end in ends.items()}}

    def key_set(self):
        return {"keys": [*self.more_keys, self.key.as_dict(private=False)]}

    def rotate(self):
        """Sign with a new key from now on."""
        self.signer = self.key = RSAKey.generate_key(2048, {"kid": "k2"})

    def authorize(
        self, request: Request, state: str, nonce: str, redirect_uri: str, code_challenge: str
    ):
        self.asked = dict(request.query_params)
        code = f"code{len(self.codes)}"
        self.codes[code] = (nonce, code_challenge)
        return RedirectResponse(
            f"{redirect_uri}?{urlencode({'code': code, 'state': state})}", 302
        )

    def token(self, code: str = Form(), code_verifier: str = Form()):
        nonce, challenge = self.codes.pop(code)
        digest = hashlib.sha256(code_verifier.encode()).digest()
        assert challenge == urlsafe_b64encode(digest).rstrip(b"=").decode()
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": "runner",
            "sub": "ana",
            "name": "Ana",
            "nonce": nonce,
            "iat": now,
            "exp": now + 60,
            "auth_time": now - 5,
            "acr": "gold",
            "groups": ["finance"],
            "roles": ["approver", "emperor"],
        }
        claims = {
            name: value
            for name, value in {**claims, **self.changes}.items()
            if value is not None
        }
        header = {"alg": "RS256", "kid": self.signer.kid}
        return {"id_token": jwt.encode(header, claims, self.signer)}


@pytest.fixture(scope="module")
def served_provider():
    port = free_port()
    provider = Provider(f"http://127.0.0.1:{port}")
    with Served(provider.app, port):
        yield provider


@pytest.fixture
def provider(served_provider):
    served_provider.reset()
    return served_provider


@pytest.fixture
def people(site, provider):
    """The application with logins, and a browser's cookies."""
    site.app = create_app(site.settings, auth=OIDC(provider.url, "runner"))
    site.app.state.services.client = site.client
    return TestClient(site.app, base_url="https://runner.example", follow_redirects=False)


def log_in(people, path="/inbox?tab=all"):
    """Follow the redirects of a login as a browser does; the provider's are real requests."""
    first = people.get(path, headers=HTML)
    return come_back(people, people.get(first.headers["location"]))


def come_back(people, begun):
    """Log in at the provider, and follow its redirect."""
    back = httpx.get(begun.headers["location"], verify=False)  # noqa: S501 - there is no TLS to verify
    return people.get(back.headers["location"].removeprefix("https://runner.example"))


def test_a_subject_with_a_hidden_character_does_nothing(people, provider):
    """Who chooses a name at the provider looks like nobody else; ana is the control."""
    provider.changes = {"sub": "an\u200ba"}
    assert (log_in(people).status_code, people.get("/v1/me").status_code) == (303, 403)

    provider.changes = {}
    people.cookies.clear()
    assert (log_in(people).status_code, people.get("/v1/me").status_code) == (303, 200)


def test_a_login_leads_back_to_the_page(people):
    """Who is not known is sent to log in, and then is where they wanted to be, as themselves."""
    done = log_in(people)

    assert (done.status_code, done.headers["location"]) == (303, "/inbox?tab=all")
    page = people.get("/inbox", headers=HTML)
    assert (page.status_code, "Ana" in page.text) == (200, True)
    assert people.get("/v1/runs").status_code == 200
    assert people.post("/v1/runs", json={"graph": "echo"}).status_code == 403
    cookie = done.headers["set-cookie"]
    words = ("__Host-runner-session", "HttpOnly", "Secure", "SameSite=lax", "Path=/")
    assert all(word in cookie for word in words)


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"email": "Ana@Acme.example", "email_verified": True}, 303),
        ({"email": "bo@partner.example", "email_verified": "true"}, 303),
        ({"email": "eve@partner.example", "email_verified": True}, 403),
        ({"email": "ana@acme.example", "email_verified": False}, 403),
        ({"email": "ana@acme.example", "email_verified": 1}, 403),
        ({"email": "ana@acme.example"}, 403),
        ({"email": "ana@acme.example.evil.example", "email_verified": True}, 403),
        ({"email": "ana@evil.acme.example", "email_verified": True}, 403),
        ({"email": "ana@acme.example@evil.example", "email_verified": True}, 403),
        ({"email": "ana@ac\u212ae.example", "email_verified": True}, 403),
        ({"email": ["ana@acme.example"], "email_verified": True}, 403),
        ({}, 403),
    ],
)
def test_who_may_log_in_is_listed(site, provider, people, claims, status):
    """By a verified address or its domain, and nothing like it; without a list all may, as before."""
    provider.changes = claims
    assert log_in(people).status_code == 303
    listed = ["bo@partner.example", "@acme.example", "@acke.example"]
    people.app.state.auth = auth = OIDC(provider.url, "runner", emails=listed)
    app = create_app(site.settings, auth=auth)
    http = TestClient(app, base_url="https://runner.example", follow_redirects=False)

    assert log_in(http).status_code == status
    assert http.get("/v1/me").status_code == (200 if status == 303 else 401)
    assert people.get("/v1/me").status_code == 401  # a session of before the list


def test_a_list_of_addresses_is_one():
    """A text, or a domain without its @, is a mistake at the start; control: a list is none."""
    for wrong in ("ana@acme.example", ["acme.example"]):
        with pytest.raises(UsageError, match="domains with an @"):
            OIDC("https://login.example", "runner", emails=wrong)
    OIDC("https://login.example", "runner", emails=["@acme.example"])


def test_people_log_in_beside_programs_with_keys(site, provider, tmp_path):
    """`ApiKeys` in front of an `OIDC` leads people to its login, and still knows programs."""
    key, entry = new_key("ci", ["viewer"])
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([entry]))
    site.app = create_app(site.settings, auth=ApiKeys(file, then=OIDC(provider.url, "runner")))
    site.app.state.services.client = site.client
    people = TestClient(site.app, base_url="https://runner.example", follow_redirects=False)

    assert log_in(people).status_code == 303
    assert "Ana" in people.get("/inbox", headers=HTML).text
    assert "Log out" in people.get("/inbox", headers=HTML).text
    people.cookies.clear()
    assert people.get("/v1/runs").status_code == 401
    assert people.get("/v1/runs", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_a_login_is_of_level_two(people, site):
    """It has the time, the class and the groups, for rules that ask for them."""
    log_in(people)

    seen = []
    inner = site.app.state.auth
    site.app.state.auth = lambda request: seen.append(inner(request)) or seen[-1]
    people.get("/v1/runs")

    assert (seen[0].level, seen[0].acr, seen[0].groups) == (2, "gold", frozenset({"finance"}))
    assert seen[0].roles == frozenset({"approver"})
    assert seen[0].principal.key.endswith("|ana")


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://evil.example"},
        {"aud": "another"},
        {"nonce": "replayed"},
        {"nonce": None},
        {"exp": 1},
        {"exp": None},
        {"sub": None},
        {"azp": "another"},
    ],
)
def test_a_token_that_does_not_hold_logs_nobody_in(people, provider, changes):
    """Another issuer, audience, nonce or time: 403, and no session."""
    provider.changes = changes

    assert log_in(people).status_code == 403
    assert people.get("/v1/runs").status_code == 401


def test_a_token_of_another_key_logs_nobody_in(people, provider):
    """Whoever signs it must be who publishes the keys."""
    provider.signer = RSAKey.generate_key(2048, {"kid": "k1"})

    assert log_in(people).status_code == 403


def test_a_callback_that_nobody_began_is_refused(people):
    """Neither without the cookie of the beginning, nor with another state."""
    assert people.get("/callback?code=x&state=y").status_code == 400
    people.get("/login")
    assert people.get("/callback?code=x&state=y").status_code == 400


@pytest.mark.parametrize(
    "path", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_a_login_leads_nowhere_else(people, path):
    """What follows the login is a page of this server."""
    begun = people.get(f"/login?{urlencode({'next': path})}")
    back = httpx.get(begun.headers["location"], verify=False)  # noqa: S501 - there is no TLS to verify
    done = people.get(back.headers["location"].removeprefix("https://runner.example"))

    assert done.headers["location"] == "/"


def test_a_forged_session_is_none(people):
    """Also one that is signed for another purpose, or by another server."""
    people.get("/login")
    people.cookies.set("__Host-runner-session", next(iter(people.cookies.values())))
    assert people.get("/v1/runs").status_code == 401
    people.cookies.set("__Host-runner-session", "e30.e30.e30")
    assert people.get("/v1/runs").status_code == 401


def test_logging_out_ends_the_session(people, site):
    """By a form of this server, as everything that changes something."""
    log_in(people)
    assert people.post("/logout", headers={"Origin": "https://evil.example"}).status_code == 403
    page = people.get("/inbox", headers=HTML).text
    token = page.partition('name="form_token" value="')[2].partition('"')[0]
    form = {"form_token": token}
    headers = {"Origin": "https://runner.example", "Sec-Fetch-Site": "same-origin"}
    done = people.post("/logout", data=form, headers=headers)

    assert done.status_code == 303
    assert people.get("/v1/runs").status_code == 401


def test_logging_out_goes_on_to_the_provider(people, provider):
    """Where the provider ends sessions, the browser is sent there, and from there back."""
    provider.ends_sessions = True
    log_in(people)
    token = people.get("/v1/me").json()["form_token"]
    headers = {"Origin": "https://runner.example", "X-Form-Token": token}
    done = people.post("/logout", headers=headers)

    there = urlsplit(done.headers["refresh"].partition("url=")[2])
    assert (done.status_code, there.path) == (200, "/end")
    assert parse_qs(there.query)["post_logout_redirect_uri"] == ["https://runner.example/"]
    assert people.get("/v1/runs").status_code == 401


@pytest.mark.parametrize(("secret", "status"), [("of all processes", 200), ("", 401)])
def test_a_login_holds_in_each_process(site, provider, secret, status):
    """With RUNNER_SERVER_SECRET a session of one process is one of the others; control: without it."""
    site.settings.server_secret = secret
    browsers = []
    for _ in range(2):
        app = create_app(site.settings, auth=OIDC(provider.url, "runner"))
        app.state.services.client = site.client
        options = {"base_url": "https://runner.example", "follow_redirects": False}
        browsers.append(TestClient(app, **options))
    log_in(browsers[0])
    browsers[1].cookies = browsers[0].cookies

    assert browsers[1].get("/v1/runs").status_code == status


def test_a_session_has_hundreds_of_groups(people, provider, site):
    """No cookie is longer than browsers keep, and every group counts; what no browser keeps is refused."""
    groups = [str(uuid.uuid4()) for _ in range(200)]
    provider.changes = {"groups": groups}
    done = log_in(people)

    cookies = done.headers.get_list("set-cookie")
    assert max(len(cookie) for cookie in cookies) < 4_000
    assert set(people.get("/v1/me").json()["groups"]) == set(groups)
    provider.changes = {"groups": [str(uuid.uuid4()) for _ in range(2_000)]}
    assert "2000 groups" in come_back(people, people.get("/login")).text
    provider.changes = {}
    come_back(people, people.get("/login"))
    assert people.get("/v1/me").json()["groups"] == ["finance"]


def test_a_new_key_of_the_provider_counts_at_once(people, provider, monkeypatch):
    """Who logs in after the provider has rotated its key is not refused until the old one is forgotten."""
    monkeypatch.setattr(oidc, "KEYS_PAUSE", 0.0)
    log_in(people)
    provider.rotate()
    people.cookies.clear()

    assert log_in(people).status_code == 303


def test_keys_of_unknown_kinds_are_ignored(people, provider):
    """One that this program can't use, beside one that it can, keeps nobody out."""
    curve = {"kty": "EC", "crv": "P-999", "kid": "k0", "x": "AA", "y": "AA"}
    provider.more_keys = [curve, {"kty": "PQ"}, None]

    assert log_in(people).status_code == 303


def test_two_tabs_log_in_at_once(people):
    """Whichever comes back first, both are where they wanted to be; many that never do are forgotten."""
    begun = [people.get(f"/login?next=/runs?tab={number}") for number in range(2)]
    for number, reply in enumerate(begun):
        done = come_back(people, reply)
        assert (done.status_code, done.headers.get("location")) == (303, f"/runs?tab={number}")
    for _ in range(20):
        people.get("/login")
    assert len(people.cookies) <= oidc.MOST_LOGINS + 1


def test_a_refusal_of_the_provider_is_said(people):
    """`access_denied` is 403 with the reason, not an error of the connection."""
    state = parse_qs(urlsplit(people.get("/login").headers["location"]).query)["state"][0]
    done = people.get(f"/callback?error=access_denied&state={state}")

    assert (done.status_code, "access_denied" in done.text) == (403, True)


def test_the_challenge_is_sent_and_the_issuer_is_https(people):
    """PKCE with S256; an address without TLS is refused where it is not this machine."""
    query = parse_qs(urlsplit(people.get("/login").headers["location"]).query)

    assert query["code_challenge_method"] == ["S256"]
    with pytest.raises(UsageError, match="https"):
        OIDC("http://login.example", "runner")


@pytest.fixture
def pay(redis_url, provider, tmp_path, monkeypatch):
    """A site with logins that signs, and a question for a fresh login of a class; who logs in decides."""
    public, private = tmp_path / "public.json", tmp_path / "private.json"
    KeySet(public).make("door", private, level=2)
    monkeypatch.setenv("RUNNER_DECISION_KEYS", str(public))
    rule = Rule(eligible=["group:finance"], auth=Auth(level=2, max_age=900, acr="gold"))
    site = Site(
        redis_url,
        {
            "pay": lambda: wired(
                {"ask": lambda ctx: ctx.interrupt("pay", rule=rule).decision}
            ).build()
        },
    )
    settings = Settings(redis_url=redis_url, signing_key=str(private))
    site.app = create_app(settings, auth=OIDC(provider.url, "runner"))
    site.app.state.services.client = site.client
    site.question = site.start("pay").interrupts()[0]
    site.people = TestClient(
        site.app, base_url="https://runner.example", follow_redirects=False
    )
    return site


def decide(site):
    headers = {"If-Match": f'"{site.question.digest}"'}
    return site.people.post(
        f"/v1/questions/{site.question.id}/votes", json={"decision": "approve"}, headers=headers
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"auth_time": 1}, "the login must be at most 900 s old"),
        ({"auth_time": None}, "the login must be at most 900 s old"),
        ({"acr": "silver"}, "the login must be of the class 'gold'"),
        ({"acr": None}, "the login must be of the class 'gold'"),
        ({"groups": []}, "not one of those"),
        ({}, ""),
    ],
)
def test_a_login_that_does_not_suffice_decides_nothing(pay, provider, changes, why):
    """Too old, of unknown age, of another class: 403 with the reason, which the run's events have, too.

    The control is the login as it should be.
    """
    provider.changes = changes
    log_in(pay.people)

    voted = decide(pay)

    refused = [
        event
        for event in pay.client.run(pay.question.run_id).events()
        if event.kind == "interrupt.refused"
    ]
    if not why:
        assert (voted.json()["status"], refused) == ("accepted", [])
        return
    assert voted.status_code == 403
    assert why in voted.json()["detail"]
    assert [
        (event.data["by"].endswith("|ana"), why in event.data["detail"]) for event in refused
    ] == [(True, True)]


def test_who_must_sign_in_again_finds_where(pay, provider):
    """The page says so before anything is typed; the provider is asked for a new login of the class."""
    provider.changes = {"auth_time": 1}
    log_in(pay.people)
    path = f"/q/{pay.question.id}"

    page = pay.people.get(path, headers=HTML).text
    (link,) = re.findall(r'data-login>.*?href="([^"]*)"', page)
    provider.changes = {}
    begun = pay.people.get(unescape(link))
    done = pay.people.get(
        httpx.get(begun.headers["location"])
        .headers["location"]
        .removeprefix("https://runner.example")
    )

    asked = {name: provider.asked.get(name) for name in ("prompt", "max_age", "acr_values")}
    assert asked == {"prompt": "login", "max_age": "0", "acr_values": "gold"}
    assert done.headers["location"] == path
    assert "data-login" not in pay.people.get(path, headers=HTML).text
    assert decide(pay).json()["status"] == "accepted"


def test_a_session_that_is_over_decides_nothing(pay, monkeypatch):
    """Its cookie says when it ends, whatever the browser does with it."""
    log_in(pay.people)
    session = dict(pay.people.cookies)
    for over, status in (1, 401), (-60, 200):
        now = time.time() + 8 * 3600 + over
        monkeypatch.setattr(oidc, "time", SimpleNamespace(time=lambda now=now: now))
        pay.people.cookies.update(session)
        assert decide(pay).status_code == status
