"""A Slack workspace of tests: its API on a port of this machine, and what people do there.

It refuses what Slack's reference says that Slack refuses, and signs what it sends like Slack.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections import deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urlsplit

TEAM, CHANNEL, TOKEN, SECRET = (
    "T0000001",
    "C0000001",
    "xoxb-of-the-tests",
    "signing-secret-of-the-tests",
)

LIMITS = {"section": 3000, "context": 2000, "button": 75, "input": 2000, "title": 24}
"""Characters of a text, by what it is of."""


class Workspace:
    """A workspace with an app; `faults` are replies that the next calls get instead of their own.

    `slow` are the seconds that each call takes.
    """

    def __init__(self):
        self.users = {}
        self.messages = {}
        self.threads = {}
        self.whispers = []
        self.direct = []
        self.homes = {}
        self.views = []
        self.calls = []
        self.faults = deque()
        self.slow = 0.0
        self._number = 0
        workspace = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                is_json = "json" in self.headers.get("content-type", "")
                fields = json.loads(body) if is_json else dict(parse_qsl(body.decode()))
                method = urlsplit(self.path).path.removeprefix("/api/")
                fields |= dict(parse_qsl(urlsplit(self.path).query))
                status, reply, headers = workspace.reply(
                    method, fields, self.headers.get("authorization", "")
                )
                content = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(BrokenPipeError):  # a caller that did not wait
                    self.wfile.write(content)

            do_GET = do_POST  # noqa: N815 - http.server's name

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/api/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=[0.01], daemon=True
        )

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # The API

    def reply(self, method, fields, authorization):
        """Answer a call; a text is no JSON."""
        self.calls.append(method)
        threading.Event().wait(self.slow)
        if self.faults:
            return self.faults.popleft()
        if authorization != f"Bearer {TOKEN}":
            return 200, {"ok": False, "error": "invalid_auth"}, {}
        name = method.replace(".", "_")
        error, reply = getattr(self, f"_{name}")(fields)
        return 200, {"ok": False, "error": error} if error else {"ok": True, **reply}, {}

    def _chat_postMessage(self, fields):  # noqa: N802 - Slack's name
        if fields["channel"] != CHANNEL and fields["channel"] not in self.users:
            return "channel_not_found", {}
        self._number += 1
        if fields["channel"] in self.users:
            self.direct.append((fields["channel"], fields["text"]))
            return "", {
                "channel": f"D{fields['channel']}",
                "ts": f"1700000000.{self._number:06}",
            }
        ts = f"1700000000.{self._number:06}"
        if "thread_ts" in fields:
            self.threads.setdefault(fields["thread_ts"], []).append(fields)
            return "", {"channel": fields["channel"], "ts": ts}
        return self._write(ts, fields)

    def _users_lookupByEmail(self, fields):  # noqa: N802 - Slack's name
        for user in self.users.values():
            if user["profile"]["email"] == fields["email"]:
                return "", {"user": user}
        return "users_not_found", {}

    def _chat_update(self, fields):
        if fields["ts"] not in self.messages:
            return "message_not_found", {}
        return self._write(fields["ts"], fields)

    def _write(self, ts, fields):
        if not fits(fields["blocks"], 50):
            return "invalid_blocks", {}
        self.messages[ts] = {**fields, "ts": ts}
        return "", {"channel": fields["channel"], "ts": ts}

    def _chat_postEphemeral(self, fields):  # noqa: N802 - Slack's name
        self.whispers.append(fields)
        return "", {"message_ts": "1"}

    def _users_info(self, fields):
        user = self.users.get(fields["user"])
        return ("", {"user": user}) if user else ("user_not_found", {})

    def _views_open(self, fields):
        view = fields["view"]
        if not fields["trigger_id"] or len(view["title"]["text"]) > LIMITS["title"]:
            return "invalid_arguments", {}
        if len(view["private_metadata"]) > 3000 or not fits(view["blocks"], 100):
            return "invalid_blocks", {}
        self._number += 1
        self.views.append({**view, "id": f"V{self._number}"})
        return "", {"view": self.views[-1]}

    def _views_publish(self, fields):
        view = fields["view"]
        if view["type"] != "home" or not fits(view["blocks"], 100):
            return "invalid_arguments", {}
        self.homes[fields["user_id"]] = view["blocks"]
        return "", {"view": view}

    # What people see and do

    def join(self, user, email, **fields):
        """Let a person into the workspace."""
        profile = {"email": email}
        self.users[user] = {
            "id": user,
            "team_id": TEAM,
            "profile": profile,
            "is_email_confirmed": True,
            **fields,
        }

    def click(self, message, action, user):
        """Return the payload of a click on a button of a message."""
        self._number += 1
        button = buttons_of(message)[action]
        click = {"action_id": f"runner:{action}", "value": button.get("value", "")}
        return {
            "type": "block_actions",
            "team": {"id": TEAM, "domain": "tests"},
            "user": {"id": user, "name": "root", "team_id": TEAM},
            "trigger_id": f"trigger.{self._number}",
            "container": {"channel_id": message["channel"], "message_ts": message["ts"]},
            "actions": [{**click, "type": "button", "action_ts": f"17.{self._number}"}],
        }

    def submit(self, user, *inputs):
        """Return the payload of the modal that was opened last, with these inputs."""
        view = self.views[-1]
        fields = [block for block in view["blocks"] if block["type"] == "input"]
        values = {
            block["block_id"]: {block["element"]["action_id"]: entered}
            for block, entered in zip(fields, inputs, strict=True)
        }
        return {
            "type": "view_submission",
            "team": {"id": TEAM},
            "user": {"id": user, "team_id": TEAM},
            "view": {**view, "state": {"values": values}},
        }


def request(payload, secret=SECRET, age=0):
    """Return the body, the time and the signature with which Slack sends a payload, some seconds ago."""
    return signed(urlencode({"payload": json.dumps(payload)}).encode(), secret, age)


def signed(body, secret=SECRET, age=0):
    """Return a body with the time and the signature of a request of Slack, some seconds ago."""
    timestamp = str(int(time.time() - age))
    content = b"v0:%s:%s" % (timestamp.encode(), body)
    return (
        body,
        timestamp,
        "v0=" + hmac.new(secret.encode(), content, hashlib.sha256).hexdigest(),
    )


def buttons_of(message):
    """Return the buttons of a message by their actions."""
    return {
        element["action_id"].removeprefix("runner:"): element
        for block in message["blocks"]
        if block["type"] == "actions"
        for element in block["elements"]
    }


def text_of(message):
    """Return the texts of a message as people see them."""
    texts = [block["text"] for block in message["blocks"] if block["type"] == "section"]
    texts += [
        each
        for block in message["blocks"]
        if block["type"] == "context"
        for each in block["elements"]
    ]
    text = "\n".join(each["text"] for each in texts)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def fits(blocks, most):
    """Say if Slack takes blocks, by the limits of its reference."""
    if not 0 < len(blocks) <= most or len(
        {block.get("block_id", id(block)) for block in blocks}
    ) < len(blocks):
        return False
    for block in blocks:
        texts = {
            "section": lambda block: [block["text"]],
            "context": lambda block: block["elements"],
            "actions": lambda block: [],
            "input": lambda block: [
                block["label"],
                *([block["hint"]] if "hint" in block else []),
            ],
        }[block["type"]](block)
        if not all(0 < len(each["text"]) <= LIMITS[block["type"]] for each in texts):
            return False
        if not all(
            _is_button(each) for each in block.get("elements", ()) if block["type"] == "actions"
        ):
            return False
        if not _is_button(block.get("accessory", {"text": {"text": "none"}})):
            return False
        if block["type"] == "input" and not _is_element(block["element"]):
            return False
    return True


def _is_button(element):
    size = len(element["text"]["text"])
    return 0 < size <= LIMITS["button"] and len(element.get("value", "")) <= 2000


def _is_element(element):
    if element["type"] == "plain_text_input":
        return 0 < element["max_length"] <= 3000
    if element["type"] == "number_input":
        return isinstance(element["is_decimal_allowed"], bool)
    options = element["options"]
    return 0 < len(options) <= 100 and all(
        0 < len(option["text"]["text"]) <= 75 and len(option["value"]) <= 150
        for option in options
    )
