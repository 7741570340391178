from __future__ import annotations

import json
import os
import re

import httpx
import pytest
import redis
from fastapi import APIRouter, Request
from fastapi.testclient import TestClient

from runner import Limit
from runner.approvals import Principal
from runner.cli.program import runner
from runner.errors import UsageError
from runner.server import ApiKeys, Local, Person, Problem, ProxyHeaders, create_app
from runner.server.__main__ import main, roles_of
from runner.server.app import permission_of, routes
from runner.server.auth import new_key
from runner.settings import Settings
from runner.store.redis.store import RedisStore
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.server.conftest import Served
from tests.waiting import wait_until


def filled(path):
    """A path of a route with something in its place."""
    return (
        path.replace("{run_id}", "0none")
        .replace("{question_id}", "0none.a.1.b")
        .replace("{schedule_id}", "none")
        .replace("{job_id}", "none")
        .replace("/plan/{action}", "/plan/cancel")
        .replace("{webhook_id}", "none")
        .replace("{delivery_id}", "msg_none")
        .replace("{action}", "pause")
        .replace("{grant_id}", "none")
        .replace("{letter_id}", "message:1-0")
        .replace("{name}", "style.css")
        .replace("{name:path}", "none")
        .replace("{graph}", "echo")
    )


def test_every_route_names_its_permission(site):
    """There is no route that nobody has thought about."""
    paths = {route.path for route in routes() if permission_of(route)}

    assert paths >= {"/healthz", "/v1/runs", "/v1/runs/{run_id}:cancel"}
    assert len(paths) == len({route.path for route in routes()})


def test_a_route_without_permission_is_refused(site):
    """The control of the test above: an application with such a route is not made."""
    router = APIRouter()
    router.add_api_route("/forgotten", lambda: "open", methods=["GET"])

    def auth(request):
        return None

    auth.router = router
    with pytest.raises(UsageError, match="/forgotten"):
        create_app(site.settings, auth)


@pytest.mark.slow
def test_nobody_known_may_do_nothing(site):
    """Each route but the probes and the OpenAPI document answers 401."""
    site.as_role()
    open_to_all = {"/healthz", "/readyz", "/openapi.json", "/static/{name}"}

    for route in routes():
        for method in route.methods:
            status = site.http.request(method, filled(route.path)).status_code
            assert (status == 401) is (route.path not in open_to_all), (
                method,
                route.path,
                status,
            )


@pytest.mark.full
@pytest.mark.parametrize("role", ["viewer", "reader", "approver", "admin"])
def test_only_operators_change_runs(site, role):
    """Other roles get 403 before anything is looked at."""
    site.as_role(role)

    for route in routes():
        if route.path.startswith("/v1/runs") and route.methods & {"POST", "DELETE"}:
            for method in route.methods:
                assert site.http.request(method, filled(route.path)).status_code == 403, (
                    route.path
                )


def test_a_key_by_a_value_of_the_input_is_shown_to_readers_only(site):
    """Others see that nodes wait for the limit, how many and since when."""
    limit = Limit("model", concurrency=1, by="input:customer")
    clock = ManualClock(1_000_000)
    store = RedisStore(site.settings.redis_url, clock=clock)
    worker = ManualWorker(store, clock)
    graph = shape("a b", entries=["a", "b"], limits={"a": [limit], "b": [limit]})
    run_id = worker.start(graph, task={"customer": "secret"})
    worker.claim(run_id, "a")
    worker.limited(run_id, "b")

    (seen,) = site.http.get("/v1/limits").json()["items"]
    site.as_role("operator")
    (bare,) = site.http.get("/v1/limits").json()["items"]
    assert seen["waiting"][0] == {**bare["waiting"][0], "key": "model:input:customer:secret"}
    assert bare["waiting"][0]["key"] == "model:input"


@pytest.mark.full
def test_a_paused_value_of_the_input_does_not_look_like_a_paused_limit(site):
    """Who may not read sees that a key is paused, not which, and cannot resume it; readers see which."""
    store, key = RedisStore(site.settings.redis_url), "model:input:customer:secret"
    limits = {"a": [Limit("model", concurrency=1, by="input:customer")]}
    store.publish([shape("a", limits=limits)])
    site.as_role("operator")
    paused = site.http.post(f"/v1/limits/{key}:pause", json={"seconds": None}).json()
    assert [each["key"] for each in paused["setting"]["pauses"]] == ["model:input"]
    page = site.page("/limits")
    assert ("<code>model:input</code>" in page, "/limits/resume" in page) == (True, False)
    assert site.http.post("/v1/limits/model:input:resume", json={}).status_code == 404

    site.as_role("reader", "operator")
    page = site.page("/limits")
    assert (f"<code>{key}</code>" in page, "/limits/resume" in page) == (True, True)
    store.close()


def stored(site):
    """Return all that the store holds, without the reports of the server itself."""
    with redis.Redis.from_url(site.settings.redis_url) as raw:
        return {key: raw.dump(key) for key in raw.keys("*") if not key.endswith(b":doors")}


@pytest.mark.full
def test_looking_changes_nothing(site):
    """No GET writes, whatever it is about; the control, a POST, does."""
    run = site.start("approval")
    question = run.interrupts()[0].id

    before = stored(site)
    for route in routes():
        if "GET" in route.methods and route.path != "/v1/events":
            path = route.path.replace("{run_id}", run.id).replace("{question_id}", question)
            site.http.get(filled(path))
    assert stored(site) == before
    site.http.post(f"/v1/runs/{run.id}:cancel", json={})
    assert stored(site) != before


# -- browsers ---------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "https://runner.example:8443"},
        {"Origin": "null"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "same-origin"},  # from here, but without the token of a page
        {"Origin": "https://runner.example", "X-Form-Token": "0.0"},
    ],
)
def test_pages_of_other_sites_change_nothing(site, headers):
    """Whatever a page elsewhere can make a browser send, nothing is started by it."""
    body = json.dumps({"graph": "echo"})
    reply = site.http.post(
        "/v1/runs", content=body, headers={"Content-Type": "application/json", **headers}
    )

    assert reply.status_code == 403
    assert not site.client.runs()


def test_the_token_of_a_page_is_its_persons(site):
    """Another person's page, one of yesterday and one of another server are refused."""
    tokens, ana = site.app.state.form_tokens, site.person
    site.as_role("operator", name="ben")

    assert tokens.holds(tokens.issue(ana, 1_000), ana, 2_000)
    assert not tokens.holds(tokens.issue(ana, 1_000), site.person, 2_000)
    assert not tokens.holds(tokens.issue(ana, 1_000), ana, 100_000)
    assert not tokens.holds(type(tokens)().issue(ana, 1_000), ana, 2_000)
    assert not tokens.holds("zz", ana)


def test_each_answer_has_the_headers_of_a_safe_page(site):
    """Also an error's: nothing inline is run, nothing frames a page, nothing is guessed or stored."""
    for path in ("/v1/runs", "/v1/nothing", "/healthz"):
        headers = site.http.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


# -- who calls --------------------------------------------------------------------------------------------


def called(auth, redis_url, base="http://localhost", client=("127.0.0.1", 1), **headers):
    http = TestClient(
        create_app(Settings(redis_url=redis_url), auth=auth), base_url=base, client=client
    )
    return http.get("/v1/runs", headers=headers).status_code


@pytest.mark.full
def test_local_serves_its_own_machine(redis_url):
    """Not another address, not through a proxy, and not under a name that somebody else's DNS gave it."""
    local = Local()
    token = {"Authorization": f"Bearer {local.token}"}

    assert called(local, redis_url, **token) == 200
    assert called(local, redis_url, base="http://127.0.0.1:8000", **token) == 200
    assert called(local, redis_url, client=("10.0.0.5", 1), **token) == 403
    assert called(local, redis_url, base="http://rebound.example", **token) == 403
    assert called(local, redis_url, client=("::ffff:127.0.0.1", 1), **token) == 200
    for name in Local.PROXIES:
        assert called(local, redis_url, **{name: "10.0.0.5"}, **token) == 403, name


@pytest.mark.full
def test_a_proxy_that_adds_nothing_makes_nobody_admin(redis_url):
    """A request of nginx's bare `proxy_pass` looks like one of this machine; without the token it is 401."""
    assert called(None, redis_url) == 401
    assert called(Local(), redis_url, Authorization="Bearer ") == 401
    assert called(Local(), redis_url, Authorization=f"Bearer {Local().token}") == 401
    local = Local(secret="s3cret")
    assert (
        called(local, redis_url, Authorization=f"Bearer {Local(secret='s3cret').token}") == 200
    )


def test_a_proxy_that_is_not_configured_is_named(redis_url):
    """The refusal of its requests says which option names it; so does that of headers from elsewhere."""
    for auth, headers in (
        (Local(), {"X-Forwarded-For": "192.0.2.1"}),
        (ProxyHeaders(trusted=["10.0.0.0/8"]), {"X-Forwarded-User": "ana"}),
    ):
        http = TestClient(
            create_app(Settings(redis_url=redis_url), auth=auth),
            base_url="http://localhost",
            client=("127.0.0.1", 1),
        )
        reply = http.get("/v1/runs", headers=headers)
        assert (reply.status_code, "--trusted" in reply.json()["detail"]) == (403, True)


@pytest.mark.full
def test_a_browser_exchanges_the_token_for_a_cookie(redis_url, tmp_path):
    """Once for all pages, also beside keys; a wrong token, another port's cookie or none lead to no page."""
    (tmp_path / "keys.json").write_text("[]")
    local, html = Local(), {"Accept": "text/html"}
    app = create_app(Settings(redis_url=redis_url), auth=ApiKeys(tmp_path / "keys.json", local))

    def browser(port=8080):
        return TestClient(
            app, base_url=f"http://127.0.0.1:{port}", client=("127.0.0.1", 1), headers=html
        )

    http = browser()
    refused = http.get("/runs")
    assert (refused.status_code, "logged at its start" in refused.text) == (403, True)
    assert http.get("/login?token=guess").status_code == 403
    assert http.get("/login?token=").status_code == 403
    assert not http.cookies
    begun = http.get(f"/login?token={local.token}&next=/runs", follow_redirects=False)
    assert (begun.status_code, begun.headers["location"]) == (303, "/runs")
    assert local.token not in begun.headers["set-cookie"]
    assert http.get("/runs").status_code == 200
    other = browser(8081)
    other.cookies = http.cookies
    assert other.get("/runs").status_code == 403
    for elsewhere in ("//evil.example", "https://evil.example"):
        reply = browser().get(
            f"/login?token={local.token}&next={elsewhere}", follow_redirects=False
        )
        assert reply.headers["location"] == "/"
    form = {
        "form_token": re.search(r'name="form_token" value="([^"]*)"', http.get("/runs").text)[1]
    }
    http.post("/logout", data=form, headers={"Origin": "http://127.0.0.1:8080"})
    assert http.get("/runs").status_code == 403


def test_headers_count_from_the_proxy_only(redis_url):
    """Anybody can write a header; the address from which it comes can't be chosen."""
    auth = ProxyHeaders(trusted=["10.0.0.0/8"], default_roles=["viewer"])
    login = {"X-Forwarded-User": "ana"}

    assert called(auth, redis_url, client=("10.0.0.9", 1), **login) == 200
    assert called(auth, redis_url, client=("192.0.2.1", 1), **login) == 403
    assert called(auth, redis_url, client=("10.0.0.9", 1)) == 401
    with pytest.raises(UsageError, match="everywhere"):
        ProxyHeaders(trusted=["everywhere"])


def named(auth, headers=(), client=("127.0.0.1", 1)):
    """Return who calls by some headers, given as pairs of bytes; a status where they are refused."""
    scope = {
        "type": "http",
        "headers": [(b"x-forwarded-user", b"ana"), *headers],
        "client": client,
    }
    try:
        return auth(Request(scope))
    except Problem as problem:
        return problem.status


def test_a_proxys_names_are_one_person_each():
    """However an accent is written; with `casefold` neither case nor width makes anybody another."""
    for name, sub in (("Ana", "Ana"), ("Jose\u0301", "José")):
        assert called_as(name, ProxyHeaders()).principal.sub == sub
    for name in ("Ana", "\uff21\uff4e\uff41"):
        assert called_as(name, ProxyHeaders(casefold=True)).principal.sub == "ana"


def called_as(name, auth):
    """Return who calls by the header of a name."""
    headers = [(b"x-forwarded-user", name.encode())]
    return auth(Request({"type": "http", "headers": headers, "client": ("127.0.0.1", 1)}))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "status"),
    [("ana", 200), ("José", 200), ("an\u200ba", 403), ("\u0430na", 403), (" ", 403)],
)
def test_a_name_hides_nothing_whoever_says_it(redis_url, tmp_path, name, status):
    """A login whose name is read as another's does nothing, by each way; the others are the control."""
    path, person = tmp_path / "keys.json", Person(Principal(name), frozenset({"viewer"}))
    key, entry = new_key(name, ["viewer"])
    path.write_text(json.dumps([entry]))
    proxy = ProxyHeaders(default_roles=["viewer"])

    assert called(lambda _: person, redis_url) == status
    assert called(ApiKeys(path), redis_url, Authorization=f"Bearer {key}") == status
    if name.strip():
        assert called(proxy, redis_url, **{"X-Forwarded-User": name.encode()}) == status


def test_a_caller_gets_no_role_by_a_header():
    """Roles are those of the groups that the proxy names; a header of roles counts only by its name."""
    auth = ProxyHeaders(role_of={"finance": ["approver"], "ops": ["operator", "viewer"]})
    claims = [(b"x-forwarded-roles", b"admin"), (b"x-forwarded-groups", b"finance, staff")]

    assert named(auth, claims).roles == {"approver"}
    assert named(auth, [(b"x-forwarded-groups", b"ops,finance")]).roles == {
        "approver",
        "operator",
        "viewer",
    }
    assert named(ProxyHeaders(roles="x-forwarded-roles"), claims).roles == {"admin"}


@pytest.mark.parametrize(
    "name", [b"x-forwarded-user", b"x-forwarded-groups", b"x-forwarded-roles"]
)
def test_a_header_that_is_there_twice_is_refused(name):
    """One of them is the client's, whichever comes first; the control has it once."""
    auth = ProxyHeaders(roles="x-forwarded-roles")
    header = (name, b"root")

    assert named(auth, [header, header]) == 400
    assert named(auth, [header] if b"user" not in name else []).principal.sub == "ana"


def test_a_name_is_read_as_utf_8():
    """As an OpenID provider and the directory write it, so that it is one person; nothing else is a name."""
    auth = ProxyHeaders(user="remote-user")

    assert named(auth, [(b"remote-user", "José".encode())]).principal.sub == "José"
    assert named(auth, [(b"remote-user", "José".encode("latin-1"))]) == 400


@pytest.mark.full
def test_a_proxy_is_trusted_by_its_address_or_its_socket(site, tmp_path):
    """An IPv4 address as an IPv6 socket writes it, and a socket file only where it is named."""
    private, unix = ProxyHeaders(trusted=["10.0.0.0/8"]), ProxyHeaders(trusted=["unix"])

    assert named(private, client=("::ffff:10.1.2.3", 1)).principal.sub == "ana"
    assert named(private, client=("::ffff:192.0.2.1", 1)) == 403
    assert named(private, client=None) == 403
    assert named(unix) == 403
    path = str(tmp_path / "server.sock")
    site.app.state.auth = ProxyHeaders(trusted=["unix"], default_roles=["viewer"])
    with (
        Served(site.app, uds=path),
        httpx.Client(
            transport=httpx.HTTPTransport(uds=path), base_url="http://runner.example"
        ) as http,
    ):
        assert http.get("/v1/runs", headers={"X-Forwarded-User": "ana"}).status_code == 200
        site.app.state.auth = ProxyHeaders(default_roles=["viewer"])
        assert http.get("/v1/runs", headers={"X-Forwarded-User": "ana"}).status_code == 403


def test_a_proxy_can_show_a_secret():
    """Without it, or with another one, whoever reaches the server names nobody."""
    auth = ProxyHeaders(secret="s3cret")

    assert named(auth, [(b"x-proxy-secret", b"s3cret")]).principal.sub == "ana"
    assert named(auth, [(b"x-proxy-secret", b"guess")]) == 403
    assert named(auth) == 403


def serve(*arguments):
    """Do what the process of `runner server` does with the options, and return its exit code."""
    return main(runner.commands["server"].make_context("server", [*arguments]).params)


def test_the_command_line_gives_groups_their_roles(capsys):
    """GROUP=ROLE or GROUP=ROLE:GRAPH, several for a group; what is no role ends the server."""
    assert roles_of(["finance=approver:a:b", "a=b=viewer", "finance=viewer"]) == {
        "finance": ["approver:a:b", "viewer"],
        "a=b": ["viewer"],
    }
    for wrong in ("finance", "=viewer", "finance=boss", "finance=viewer:", "finance=admin:pay"):
        assert serve("--auth", "proxy", "--role-of", wrong) == 2
        assert "GROUP=ROLE" in capsys.readouterr().err


@pytest.mark.full
def test_an_api_key_is_read_from_the_file_until_it_is_removed(redis_url, tmp_path):
    """The file has only a hash; who takes an entry out locks the key out."""
    file = tmp_path / "keys.json"
    key, entry = new_key("ci", ["viewer"])
    file.write_text(json.dumps([entry]))
    auth = ApiKeys(file)

    assert key not in file.read_text()
    assert called(auth, redis_url, Authorization=f"Bearer {key}") == 200
    assert called(auth, redis_url, Authorization="Bearer rk_guessed") == 401
    assert called(auth, redis_url) == 401
    at = file.stat().st_mtime_ns
    file.write_text("[")
    assert called(auth, redis_url, Authorization=f"Bearer {key}") == 503
    file.unlink()
    assert called(auth, redis_url, Authorization=f"Bearer {key}") == 503
    file.write_text("[]")
    os.utime(file, ns=(at, at))
    assert called(auth, redis_url, Authorization=f"Bearer {key}") == 401
    with pytest.raises(UsageError, match="boss"):
        new_key("ci", ["boss"])


def test_a_printed_key_goes_into_the_list_of_the_file(redis_url, tmp_path, capsys):
    """The entry that the command prints, in a list; alone it is no file, and the error names the command."""
    file = tmp_path / "keys.json"
    assert serve("--new-key", "ci", "--role", "viewer", "--role", "operator:pay") == 0
    key, entry = capsys.readouterr().out.splitlines()
    file.write_text(entry)
    with pytest.raises(UsageError, match="runner server --new-key"):
        ApiKeys(file)
    file.write_text(f"[{entry}]")
    assert called(ApiKeys(file), redis_url, Authorization=f"Bearer {key}") == 200
    assert json.loads(entry)["roles"] == ["operator:pay", "viewer"]
    assert serve("--new-key", "ci", "--role", "boss") == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("expires", "status"),
    [("2020-01-01", 401), ("2020-01-01T00:00:00+02:00", 401), ("2999-01-01", 200), (7, 503)],
)
def test_an_api_key_expires(redis_url, tmp_path, expires, status):
    """From its time on it is refused, before it is not; a time that can't be read locks all keys out."""
    file = tmp_path / "keys.json"
    key, entry = new_key("ci", ["viewer"], days=1)
    file.write_text(json.dumps([entry]))
    auth = ApiKeys(file)
    assert called(auth, redis_url, Authorization=f"Bearer {key}") == 200

    file.write_text(json.dumps([entry | {"expires": expires}]))
    assert called(auth, redis_url, Authorization=f"Bearer {key}") == status


@pytest.mark.full
def test_the_last_use_of_an_api_key_is_recorded(site, tmp_path):
    """API and command line show it, and not of the key that nobody uses; one use a minute is written."""
    file, keys, entries = tmp_path / "keys.json", {}, []
    for name in ("ci", "idle", "late"):
        keys[name], entry = new_key(name, ["viewer"])
        entries.append(entry)
    file.write_text(json.dumps(entries))
    site.app.state.auth = ApiKeys(file, lambda request: site.person)
    store = redis.Redis.from_url(site.settings.redis_url)

    def use(name):
        headers = {"Authorization": f"Bearer {keys[name]}"}
        assert site.http.get("/v1/runs", headers=headers).status_code == 200
        assert site.http.get("/v1/keys", headers=headers).status_code == 403

    def used():
        return [
            key["name"] for key in site.http.get("/v1/keys").json()["items"] if key["used_at"]
        ]

    use("ci")
    wait_until(lambda: used() == ["ci"], "the use is recorded")
    listed = site.http.get("/v1/keys").json()["items"]
    assert [(key["name"], key["used_at"] is None) for key in listed] == [
        ("ci", False),
        ("idle", True),
        ("late", True),
    ]
    store.delete("runner:api_keys")
    use("ci")
    use("late")
    wait_until(lambda: used() == ["late"], "only another key has a new use")


def test_a_callable_may_be_async_and_refuse(redis_url):
    """A framework's own login is asked as it is; what it refuses is a problem document."""

    async def nobody(request):
        return None

    async def refusing(request):
        raise Problem(403, "not today")

    assert called(nobody, redis_url) == 401
    assert called(refusing, redis_url) == 403


ELSEWHERE = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}


def test_a_front_end_of_this_origin_sends_requests(site):
    """With the token of `/v1/me`; control: without it, or with credentials that browsers add, not."""
    ours = {"Origin": "https://runner.example", "Sec-Fetch-Site": "same-origin"}
    me = site.http.get("/v1/me").json()
    statuses = [
        site.http.post(
            "/v1/runs", json={"graph": "echo"}, headers={**ours, **headers}
        ).status_code
        for headers in (
            {"X-Form-Token": me["form_token"]},
            {},
            {"Authorization": "Basic YW5hOmFuYQ=="},
        )
    ]

    assert statuses == [201, 403, 403]
    assert (me["principal"], me["name"]) == ("human:|ana", "ana")
    assert {"read", "decide"} <= set(me["permissions"])


@pytest.mark.full
@pytest.mark.parametrize(("origins", "allowed"), [(["https://app.example"], True), ([], False)])
def test_pages_of_other_origins_use_keys(site, tmp_path, origins, allowed):
    """A key counts from anywhere, since no browser adds it; answers are read by origins of the setting."""
    key, entry = new_key("app", ["operator"])
    (tmp_path / "keys.json").write_text(json.dumps([entry]))
    site.settings.cors_origins = origins
    app = create_app(
        site.settings, auth=ApiKeys(tmp_path / "keys.json", lambda request: site.person)
    )
    app.state.services.client = site.client
    http = TestClient(app, base_url="https://runner.example")
    asks = {**ELSEWHERE, "Access-Control-Request-Method": "POST"}
    asked = http.options(
        "/v1/runs", headers={**asks, "Access-Control-Request-Headers": "if-match"}
    )
    with_key = {**ELSEWHERE, "Authorization": f"Bearer {key}"}
    started, as_person = (
        http.post("/v1/runs", json={"graph": "echo"}, headers=headers)
        for headers in (with_key, ELSEWHERE)
    )

    assert (asked.status_code == 200) is allowed
    assert (
        started.headers.get("access-control-allow-origin") == "https://app.example"
    ) is allowed
    assert "access-control-allow-credentials" not in started.headers
    assert (started.status_code, as_person.status_code) == (201, 403)


@pytest.mark.full
def test_payloads_are_for_readers(site):
    """What exists is shown to all who may see, by pages and API; what people have written is for readers."""
    run, withdrawn = (site.start("approval", {"secret": "task"}) for _ in range(2))
    (open_, closed) = (each.interrupts()[0].id for each in (run, withdrawn))
    site.client.withdraw(closed, "a secret reason")
    cancelled = site.start("approval").id
    site.http.post(f"/v1/runs/{cancelled}:cancel", json={"reason": "a secret reason"})
    schedule = {"id": "daily", "graph": "echo", "interval": 60, "task": "secret task"}
    assert site.http.post("/v1/schedules", json=schedule).status_code == 201
    with redis.Redis.from_url(site.settings.redis_url) as raw:
        message = {"source": "runner:responses", "reason": "a secret reason", "body": "secret"}
        raw.xadd("runner:dead", message)
    pages = [f"/runs/{run.id}", f"/q/{open_}", "/inbox?tab=all", "/schedules", "/dead"]
    pages += [
        f"/runs/{cancelled}",
        f"/runs/{cancelled}?tab=events",
        f"/runs/{site.start('broken').id}",
    ]
    records = [f"/v1/runs/{name}" for name in (run.id, cancelled)]
    records += [f"/v1/runs/{cancelled}/events", f"/v1/questions/{closed}", "/v1/questions"]
    records += ["/v1/schedules", "/v1/schedules/daily", "/v1/dead"]

    def shown(path):
        reply = site.http.get(path, headers={"Accept": "text/html"})
        assert reply.status_code == 200, path
        return bool(re.search("secret|unpunctual", reply.text))

    for role in ("viewer", "operator"):
        site.as_role(role)
        assert [path for path in (*pages, *records) if shown(path)] == []
    assert "secret" not in site.http.post("/v1/schedules/daily:pause").text
    site.as_role("reader")
    assert [path for path in records if not shown(path)] == []
