"""A person's own key in a browser: made on a page, added by an administrator, and signing decisions."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from runner.approvals import (
    Action,
    Auth,
    Principal,
    Rule,
    SigningKey,
    operation_body,
    start_body,
    vote_body,
)
from runner.approvals.judgement import requester_level
from runner.approvals.passkeys import signature_request
from runner.approvals.proofs import encoded
from runner.cli.program import runner
from runner.server.access import Person
from tests.graphs import wired
from tests.passkeys import Device, requests_in
from tests.ports import free_port
from tests.server.conftest import Served, Site
from tests.server.test_pages import plain

pytestmark = pytest.mark.full

ORIGIN = "https://runner.example"
ANA = Principal("ana", "https://login.example")
FINANCE = frozenset({"finance"})


OPERATIONS = (
    ("POST", ":claim", "claim", {"ttl": 60}),
    ("POST", ":release", "release", {}),
    ("POST", ":comment", "comment", {"comment": "on it"}),
    ("DELETE", "/votes", "withdraw_vote", {}),
    ("POST", ":delegate", "delegate", {"to": "human:https://login.example|ben"}),
)


def transfer(ctx):
    rule = Rule(eligible=["group:finance"], auth=Auth(level=3, max_age=300))
    action = Action("runner", "function", "transfer", {"amount": 120})
    decided = ctx.interrupt("transfer", rule=rule, action=action)
    args = decided.action["args"] if decided.response is True else decided.response
    return [decided.decision, args, [vote["level"] for vote in decided.votes]]


def share(ctx):
    rule = Rule(eligible=["group:finance"], need=2, auth=Auth(level=3), delegate="group")
    return ctx.interrupt("share", rule=rule).decision


class Bank(Site):
    """A site whose graph asks for a key of one's own, with a file of public keys."""

    def __init__(self, url, folder, monkeypatch, origin=ORIGIN):
        self.folder = folder
        monkeypatch.chdir(folder)
        monkeypatch.setenv("RUNNER_DECISION_KEYS", str(folder / "keys.json"))
        monkeypatch.setenv("RUNNER_SERVER_URL", origin)
        monkeypatch.setenv("RUNNER_REDIS_URL", url)
        self.url = url
        graphs = {"transfer": transfer, "share": share}
        super().__init__(
            url, {name: wired({name: node}).build for name, node in graphs.items()}
        )
        self.person = Person(ANA, frozenset({"approver"}), FINANCE, 2)
        self.http.headers.update({"accept": "text/html", "origin": origin})

    def keys(self, *arguments):
        return CliRunner().invoke(runner, ["keys", *arguments])

    def add_key(self, entry, *options):
        """Add what a page has shown, as an administrator does."""
        path = self.folder / f"{entry['kid']}.json"
        path.write_text(json.dumps(entry))
        arguments = ("--level", "3", "--principal", ANA.key, "--public", str(path))
        return self.keys("new", entry["kid"], *arguments, *options)

    def requester_level(self, run_id):
        """Return at which level it is proven who asked for a run."""
        engine = self.client.engine
        return requester_level(
            engine.store.requester(run_id), engine.decision_keys.read(), run_id
        )

    def ask(self, graph="transfer"):
        return self.start(graph).interrupts()[0]

    def proof(self, device, body):
        """Sign a message as a front-end of one's own does."""
        (key,) = self.client.engine.decision_keys.read().values()
        return device.sign(
            asdict(signature_request(body, key, time.time(), secrets.token_hex(8)))
        )

    def post(self, path, **fields):
        """Send a form of a page as its browser does, with the hidden fields of the page."""
        return self.http.post(path, data={**self.hidden(path), **fields})

    def hidden(self, path):
        return self.hidden_in(self.http.get(path).text)

    @staticmethod
    def hidden_in(text):
        names = ("form_token", "shown", "digest", "token")
        found = {name: re.search(rf'name="{name}" value="([^"]*)"', text) for name in names}
        return {name: unescape(one[1]) for name, one in found.items() if one}

    def register(self, device, kid="ana-laptop", **more):
        """Make a passkey on the page; return the answer."""
        text = self.http.get("/passkeys").text
        (options,), fields = requests_in(text), self.hidden_in(text)
        challenge = more.pop("challenge", options["challenge"])
        made = device.register(challenge, more.pop("rp_id", "runner.example"), **more)
        return self.http.post(
            "/passkeys", data={**fields, "kid": kid, "proof": json.dumps(made)}
        )

    def hold(self, device, kid="ana-laptop", *options):
        """Make a passkey on the page, and have it added."""
        entry = json.loads(
            unescape(re.search(r'id="entry">([^<]*)<', self.register(device, kid).text)[1])
        )
        assert self.add_key(entry, "--group", "finance", *options).exit_code == 0

    def sign_step(self, question, action="", **fields):
        """Send a decision; return the requests of the step that signs, and the form that is sent again."""
        path = f"/q/{question.id}"
        step = self.http.post(f"{path}{action}", data={**self.hidden(path), **fields})
        form = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', step.text))
        return requests_in(step.text), {name: unescape(value) for name, value in form.items()}

    def send(self, question, proof, form, action=""):
        """Send what a passkey has signed; return the status of the receipt."""
        data = {**form, "proof": json.dumps(proof)}
        reply = self.http.post(f"/q/{question.id}{action}", data=data)
        receipt = re.search(r'data-result="([^"]*)"', reply.text)
        return receipt[1] if receipt else reply.status_code


@pytest.fixture
def bank(redis_url, tmp_path, monkeypatch):
    """A site whose question takes a key of one's own."""
    return Bank(redis_url, tmp_path, monkeypatch)


@pytest.fixture
def device(bank):
    """Ana's device, whose passkey an administrator has added."""
    device = Device(ORIGIN, count=1)
    bank.hold(device)
    return device


def test_a_passkey_of_the_page_decides(bank):
    """From the page that makes it to the effect; without one the page has no button and says what to do."""
    question = bank.ask()
    before = bank.page(f"/q/{question.id}")
    assert 'name="decision"' not in before
    assert 'href="/passkeys"' in before

    device = Device(ORIGIN)
    bank.hold(device)
    assert 'name="decision"' in bank.page(f"/q/{question.id}")
    (request,), form = bank.sign_step(question, decision="approve")
    assert bank.send(question, device.sign(request), form) == "accepted"
    bank.work()
    assert bank.output(question.run_id, "transfer") == [
        "approve",
        {"amount": 120},
        [3],
    ]
    assert "ana-laptop" in bank.page("/passkeys")


def test_a_browser_without_script_is_told_what_to_do(bank, device):
    """Nothing there asks an authenticator: the step that signs says what does."""
    path = f"/q/{bank.ask().id}"
    text = bank.post(path, decision="approve").text

    assert "JavaScript" in text
    assert re.search(r"<button[^>]*data-passkey[^>]*hidden>", text)
    assert requests_in(text)  # control: a script would ask for this


def test_all_that_people_do_to_such_a_question_is_signed(bank, device):
    """Claims and comments have a step of their own; without it nothing is done."""
    question = bank.ask()
    for action, fields in (("/claim", {}), ("/comment", {"comment": "on it"})):
        (request,), form = bank.sign_step(question, action, **fields)
        bare = bank.send(question, {**request["proof"], "sig": ""}, form, action)
        assert bare == "forbidden"
        reply = bank.http.post(
            f"/q/{question.id}{action}",
            data={**form, "proof": json.dumps(device.sign(request))},
        )
        assert reply.history[0].status_code == 303
    kinds = [event.kind for event in bank.client.run(question.run_id).events()]
    assert {"interrupt.claimed", "interrupt.commented"} <= set(kinds)


PROGRAM = {"accept": "application/json", "authorization": "Bearer of a program, not a browser"}


def test_a_start_is_signed_by_who_asks_for_it(bank, device):
    """With a passkey or a key in a file, where rules exclude the requester; it starts one run, as signed."""
    bank.person = replace(bank.person, roles=frozenset({"operator"}))
    bank.http.headers.update(PROGRAM)
    body = start_body("transfer", 1, ANA)
    passkey = bank.proof(device, body)
    options = ("--level", "3", "--principal", ANA.key)
    assert bank.keys("new", "ana-file", *options, "--private", "ana.json").exit_code == 0
    proof = SigningKey.read("ana.json").sign(body)["proof"]
    levels, ids = [], set()
    for own in ({"proof": passkey}, {"proof": passkey}, {"proof": proof}, {}):
        started = bank.http.post("/v1/runs", json={"graph": "transfer", "task": 1, **own})
        ids.add(started.json()["run_id"])
        levels.append(bank.requester_level(started.json()["run_id"]))
    assert (levels, len(ids)) == ([3, 3, 3, 0], 3)
    forged = {"graph": "transfer", "task": 2, "proof": passkey}
    assert bank.http.post("/v1/runs", json=forged).status_code == 422


def test_a_start_is_signed_on_the_page_of_its_graph(bank, device):
    """The step shows the task; signed for it, no other starts. Who has no passkey is not offered one."""
    bank.person = replace(bank.person, roles=frozenset({"operator"}))
    path = "/graphs/transfer"
    text = bank.page(path)
    assert 'name="sign"' in text
    fields = {**bank.hidden_in(text), "key": re.search(r'name="key" value="([^"]*)"', text)[1]}
    (name,) = re.findall(r'<textarea[^>]*name="(f\.[^"]*)"', text)
    step = bank.http.post(path, data={**fields, name: '{"amount": 7}', "sign": "yes"}).text
    assert "amount" in step.partition("exactly this task")[2]
    (request,) = requests_in(step)
    form = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', step))
    form = {field: unescape(value) for field, value in form.items()}
    form["proof"] = json.dumps(device.sign(request))
    assert bank.http.post(path, data={**form, name: '{"amount": 8}'}).status_code == 422
    assert not bank.client.runs()
    done = bank.http.post(path, data=form, follow_redirects=False)
    run_id = done.headers["location"].rpartition("/")[2]
    assert bank.requester_level(run_id) == 3
    bank.person = replace(bank.person, principal=Principal("ben"))
    assert 'name="sign"' not in bank.page(path)


def test_an_edit_is_signed_as_it_is_shown(bank, device):
    """The step that signs shows the changes; signed for these arguments, no other ones run."""
    question = bank.ask()
    edit = {"decision": "edit", "arguments": '{"amount": 50}', "confirmed": "yes"}
    path = f"/q/{question.id}"
    step = bank.post(path, **edit).text
    assert re.search(r"<del>120.00</del>.*<ins>50.00</ins>", plain(step))
    (request,), form = bank.sign_step(question, **edit)
    proof = device.sign(request)
    assert bank.send(question, proof, {**form, "arguments": '{"amount": 500}'}) == "forbidden"
    assert bank.send(question, proof, form) == "accepted"
    bank.work()
    output = bank.output(question.run_id, "transfer")
    assert output[:2] == ["edit", {"amount": 50}]


def test_questions_that_are_signed_are_decided_one_by_one(bank, device):
    """Together they are shown, with a link to each and no button; the page of each has them."""
    ids = [bank.ask().id for _ in range(2)]
    text = bank.http.get("/inbox/together", params={"q": ids}).text
    assert all(f'href="/q/{name}"' in text for name in ids)
    assert ('name="decision"' in text, 'name="pick"' in text) == (False, False)
    assert text.count("it takes a signature with a key of your own") == 2
    assert 'name="decision"' in bank.page(f"/q/{ids[0]}")


def forgeries(bank, device, request, form):
    """Return proofs of something else with the form that is sent, by what they are of."""
    (other,), _ = bank.sign_step(bank.ask(), decision="approve")
    device.origin = "https://runner.example.evil.example"
    elsewhere = device.sign(request)
    device.origin = ORIGIN
    proof = device.sign(request)
    return {
        "another device": (Device(ORIGIN, 1).sign(request), form),
        "no verification": (device.sign(request, flags=1), form),
        "no presence": (device.sign(request, flags=4), form),
        "another origin": (elsewhere, form),
        "a frame": (device.sign(request, crossOrigin=True), form),
        "a registration": (device.sign(request, kind="webauthn.create"), form),
        "another question": (device.sign(other), form),
        "another decision": (proof, {**form, "decision": "reject", "comment": "no"}),
        "another comment": (proof, {**form, "comment": "something that nobody has signed"}),
        "another time": ({**proof, "iat": proof["iat"] + 1}, form),
    }


def test_a_signature_of_something_else_decides_nothing(bank, device):
    """Each forgery is refused and the question stays open; then what the device has signed is taken."""
    question = bank.ask()
    (request,), form = bank.sign_step(question, decision="approve")
    for name, (proof, changed_form) in forgeries(bank, device, request, form).items():
        assert bank.send(question, proof, changed_form) == "forbidden", name
        assert bank.client.interrupt(question.id).is_open
    assert bank.send(question, device.sign(request), form) == "accepted"


def test_a_signature_is_that_of_who_is_logged_in(bank, device):
    """Somebody else can't send it as theirs, and it counts once."""
    question = bank.ask()
    (request,), form = bank.sign_step(question, decision="approve", shown="")
    proof, ana = device.sign(request), bank.person
    bank.person = Person(Principal("ben", ANA.iss), frozenset({"approver"}), FINANCE, 2)
    of_ben = {**form, **bank.hidden("/passkeys")}
    assert bank.send(question, proof, of_ben) == "forbidden"
    bank.person = ana
    assert bank.send(question, proof, form) == "accepted"
    bank.send(question, proof, form)
    assert len(bank.votes(question)) == 1


def test_a_revoked_passkey_signs_nothing_more(bank, device):
    """The page offers it no longer, and what it had been asked for counts no more; the next one does."""
    question = bank.ask()
    (request,), form = bank.sign_step(question, decision="approve")
    assert bank.keys("revoke", "ana-laptop", "--since", "ever").exit_code == 0
    assert bank.send(question, device.sign(request), form) == "forbidden"
    assert 'name="decision"' not in bank.page(f"/q/{question.id}")
    assert "since ever" in bank.page("/passkeys")
    assert bank.keys("rotate", "ana-laptop", "--to", "next").exit_code == 5

    phone = Device(ORIGIN)
    bank.hold(phone, "ana-phone")
    (request,), form = bank.sign_step(question, decision="approve")
    assert request["kid"] == "ana-phone"
    assert bank.send(question, phone.sign(request), form) == "accepted"


ELSEWHERE = (
    ({"flags": 1}, "has not verified who you are"),
    ({"kind": "webauthn.get"}, "made for another page"),
    ({"challenge": "AAAA"}, "made for another page"),
    ({"rp_id": "evil.example"}, "has made no passkey of"),
    ({"crossOrigin": True}, "was made at"),
    ({"origin": "https://evil.example"}, "was made at"),
)


def test_a_passkey_that_was_made_elsewhere_is_refused(bank):
    """The page shows no public half of it; of the right one it does."""
    for forged, reason in ELSEWHERE:
        options = dict(forged)
        reply = bank.register(Device(options.pop("origin", ORIGIN)), **options)
        assert (reply.status_code, 'id="entry"' in reply.text) == (422, False), forged
        assert reason in reply.text
    assert 'id="entry"' in bank.register(Device(ORIGIN)).text


def test_a_passkey_is_for_the_address_of_the_setting(bank):
    """The host of a request makes none without RUNNER_SERVER_URL; control: on this machine it may."""
    for base, made in (("https://evil.example", False), ("http://localhost:8080", True)):
        bank.http.base_url, bank.http.headers["origin"] = base, base
        bank.settings.server_url = base
        fields, device = bank.hidden("/passkeys"), Device(base)
        rp_id = base.partition("//")[2].partition(":")[0]
        bank.settings.server_url = ""
        registration = device.register(encoded(fields["token"].encode()), rp_id)
        reply = bank.http.post(
            "/passkeys", data={**fields, "kid": "ana", "proof": json.dumps(registration)}
        )
        page = bank.page("/passkeys")
        assert (reply.status_code == 200, "Make a passkey" in page) == (made, made), reply.text
        assert ("RUNNER_SERVER_URL" in reply.text, "RUNNER_SERVER_URL" in page) == (
            not made,
        ) * 2


def test_a_passkey_is_added_for_who_has_made_it(bank):
    """The file names its maker: for somebody else, or under a name that is taken, it is not added."""
    text = bank.register(Device(ORIGIN)).text
    entry = json.loads(unescape(re.search(r'id="entry">([^<]*)<', text)[1]))
    assert (
        bank.add_key({**entry, "principal": "human:https://login.example|eve"}).exit_code == 2
    )
    assert bank.add_key(entry).exit_code == 0
    (key,) = json.loads(bank.keys("list", "--json").stdout)["keys"]
    assert key["thumbprint"] in text
    assert bank.register(Device(ORIGIN)).status_code == 409


def test_a_shell_reads_a_name_with_a_quote_in_the_command(bank):
    """The command of the page adds the key as it stands there, also that of o'brien."""
    bank.person = replace(bank.person, principal=Principal("o'brien", "https://login.example"))
    text = bank.register(Device(ORIGIN), "laptop").text
    Path("laptop.json").write_text(unescape(re.search(r'id="entry">([^<]*)<', text)[1]))
    command = shlex.split(unescape(re.search(r">(runner keys new [^<]*)<", text)[1]))

    assert CliRunner().invoke(runner, command[1:]).exit_code == 0
    (key,) = json.loads(bank.keys("list", "--json").stdout)["keys"]
    assert key["principal"] == bank.person.principal.key


def test_one_authenticator_is_one_person(bank, device):
    """Its key is added once: for nobody else, and not again after it was revoked; another key is added."""
    entry = {**device.public(), "kid": "ben-laptop", "rp_id": "runner.example"}
    path = bank.folder / "ben.json"
    options = ("--level", "3", "--principal", "human:https://login.example|ben")
    for revoked in (False, True):
        if revoked:
            assert bank.keys("revoke", "ana-laptop", "--since", "ever").exit_code == 0
        path.write_text(json.dumps(entry))
        refused = bank.keys("new", "ben-laptop", *options, "--public", str(path))
        assert (refused.exit_code, "same public half" in refused.output) == (5, True)
    path.write_text(json.dumps({**entry, **Device(ORIGIN).public()}))
    assert bank.keys("new", "ben-laptop", *options, "--public", str(path)).exit_code == 0


@pytest.fixture
def exported(bank, device, monkeypatch):
    """The lines of an audit with two decisions that a passkey has signed; they are verified without Redis."""
    monkeypatch.setenv("RUNNER_AUDIT_KEY", "audit-key.json")
    public = CliRunner().invoke(runner, ["audit", "key", "audit-key.json"])
    Path("audit.pub").write_text(public.stdout)
    for decision in ({"decision": "approve"}, {"decision": "reject", "comment": "not now"}):
        question = bank.ask()
        (request,), form = bank.sign_step(question, **decision)
        assert bank.send(question, device.sign(request), form) == "accepted"
        bank.work()
    arguments = ["audit", "export", "--votes", "--output", "audit.jsonl"]
    assert CliRunner().invoke(runner, arguments).exit_code == 0
    return Path("audit.jsonl").read_text().splitlines()


def verified(lines, keys="keys.json"):
    """Verify lines with the keys of decisions; return the exit code and the words."""
    Path("copy.jsonl").write_text("".join(f"{line}\n" for line in lines))
    arguments = ["verify", "copy.jsonl", "--key", "audit.pub", "--decision-keys", keys]
    done = CliRunner().invoke(runner, ["audit", *arguments])
    return done.exit_code, done.stdout.split("\t")[2]


def test_signed_votes_are_verified_in_a_process_without_redis(exported):
    """The exported file, the public keys and nothing else."""
    alone = {
        name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")
    }
    command = [sys.executable, "-m", "runner.cli", "audit", "verify", "audit.jsonl"]
    done = subprocess.run(
        [*command, "--key", "audit.pub", "--decision-keys", "keys.json"],
        env={**alone, "RUNNER_REDIS_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split("\t")[0]) == (0, "holds"), done.stderr
    assert "2 signed votes hold" in done.stdout


def test_a_vote_that_nobody_has_signed_does_not_hold(exported, bank, device):
    """Changed, exchanged or without its key it is broken; left out it is missing; as it was, it holds."""
    *entries, line = exported
    votes = json.loads(line)["votes"]
    approval, rejection = (vote["body"] for vote in votes)

    def with_votes(*bodies):
        items = [{**vote, "body": body} for vote, body in zip(votes, bodies, strict=False)]
        return verified([*entries, json.dumps({"votes": items})])

    assert with_votes(approval, rejection) == verified(exported)
    assert verified(exported)[0] == 0
    for forged in (
        {**rejection, "comment": "fine"},
        {**rejection, "decision": "approve"},
        {**rejection, "proof": {**rejection["proof"], "sig": approval["proof"]["sig"]}},
        {**approval, "interrupt_id": rejection["interrupt_id"], "proof": rejection["proof"]},
    ):
        code, words = with_votes(approval, forged)
        assert (code, "no proof that holds" in words) == (1, True)
    action = {**votes[0]["action"], "args": {"amount": 1000}}
    changed = [{**votes[0], "action": action}, votes[1]]
    assert "another action" in verified([*entries, json.dumps({"votes": changed})])[1]
    assert with_votes(approval)[0] == 3
    assert verified(entries)[0] == 3
    bank.keys("revoke", "ana-laptop", "--since", "ever")
    assert verified(exported)[0] == 1


def test_a_passkey_that_counts_backwards_is_seen(bank, device, exported):
    """The door refuses it; with the count in Redis deleted, the exported file says which it was."""
    question, device.count = bank.ask(), 1
    (request,), form = bank.sign_step(question, decision="approve")
    proof = device.sign(request)
    assert bank.send(question, proof, form) == "forbidden"
    with redis.Redis.from_url(bank.url) as server:
        assert server.delete("runner:{p00}:passkeys")
    assert bank.send(question, proof, form) == "accepted"
    CliRunner().invoke(runner, ["audit", "export", "--votes", "--output", "audit.jsonl"])
    code, words = verified(Path("audit.jsonl").read_text().splitlines())
    assert (code, "'ana-laptop' has counted backwards" in words) == (3, True)
    assert "3 signed votes hold" in words


@pytest.fixture
def tab(browser, redis_url, tmp_path, monkeypatch):
    """Ana's browser with an authenticator that verifies her, at an address that takes passkeys."""
    port = free_port()
    bank = Bank(redis_url, tmp_path, monkeypatch, f"http://localhost:{port}")
    with Served(bank.app, port):
        context = browser.new_context(base_url=f"http://localhost:{port}")
        tab = context.new_page()
        tab.bank, tab.devtools = bank, context.new_cdp_session(tab)
        tab.devtools.send("WebAuthn.enable")
        tab.device = tab.devtools.send("WebAuthn.addVirtualAuthenticator", {"options": DEVICE})
        yield tab
        context.close()


DEVICE = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_a_browser_makes_a_passkey_and_signs_with_it(tab):
    """Approve, reject and start by Chromium's authenticator; one that can't verify its user sends nothing."""
    bank, question = tab.bank, tab.bank.ask()
    tab.goto(f"/q/{question.id}")
    tab.get_by_role("link", name="Make a passkey").click()
    tab.get_by_label("Name, such as").fill("ana-laptop")
    tab.get_by_role("button", name="Make a passkey").click()
    assert (
        bank.add_key(
            json.loads(tab.locator("#entry").inner_text()), "--group", "finance"
        ).exit_code
        == 0
    )
    tab.goto("/passkeys")
    assert tab.get_by_role("rowheader", name="ana-laptop").is_visible()

    tab.goto(f"/q/{question.id}")
    tab.get_by_role("button", name="Approve", exact=True).click()
    verified = {"authenticatorId": tab.device["authenticatorId"], "isUserVerified": False}
    tab.devtools.send("WebAuthn.setUserVerified", verified)
    tab.get_by_role("button", name="Sign with ana-laptop").click()
    tab.get_by_text("Nothing was sent").wait_for()
    assert bank.client.interrupt(question.id).is_open
    tab.devtools.send("WebAuthn.setUserVerified", {**verified, "isUserVerified": True})
    tab.get_by_role("button", name="Sign with ana-laptop").click()
    tab.locator("[data-result=accepted]").wait_for()
    bank.work()
    output = bank.output(question.run_id, "transfer")
    assert output == ["approve", {"amount": 120}, [3]]

    question = bank.ask()
    tab.goto(f"/q/{question.id}")
    tab.get_by_label("Comment a rejection needs one").fill("not this week")
    tab.get_by_role("button", name="Reject").click()
    tab.get_by_role("button", name="Sign with ana-laptop").click()
    tab.locator("[data-result=accepted]").wait_for()
    assert bank.client.interrupt(question.id).decision == "reject"

    bank.person = replace(bank.person, roles=frozenset({"operator", "approver"}))
    tab.goto("/graphs/transfer?start=yes")
    tab.locator("#start textarea").fill('{"amount": 7}')
    tab.get_by_role("button", name="Start, signed").click()
    tab.get_by_role("button", name="Sign with ana-laptop").click()
    tab.wait_for_url("**/runs/*")
    run_id = tab.url.rpartition("/")[2]
    assert bank.requester_level(run_id) == 3


def test_the_api_takes_signatures_of_all_that_people_do(bank, device):
    """Each operation with the caller's own proof; without it is refused, and the reply says what to do."""
    question = bank.ask("share")
    vote = vote_body(question.id, "approve", ANA, digest=question.digest, response=True)
    body = {"decision": "approve", "response": True, "proof": bank.proof(device, vote)}
    headers = {"if-match": question.digest}
    bank.http.headers.update(PROGRAM)
    assert bank.http.post(
        f"/v1/questions/{question.id}/votes", json=body, headers=headers
    ).is_success
    for method, path, name, fields in OPERATIONS:
        url = f"/v1/questions/{question.id}{path}"
        bare = bank.http.request(method, url, json=fields)
        assert (bare.status_code, "`proof`" in bare.json()["detail"]) == (403, True), name
        message = operation_body(question.id, name, ANA, **fields)
        signed = {**fields, "proof": bank.proof(device, message)}
        assert bank.http.request(method, url, json=signed).is_success, name
