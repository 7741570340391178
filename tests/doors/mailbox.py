"""A mail server of tests, on a port of this machine: it keeps what it takes."""

from __future__ import annotations

import email
import re
import socketserver
import threading
from collections import deque
from email.policy import default


class Mailbox:
    """A mail server; `faults` are replies that the next commands of a verb get: ("rcpt", "450 later")."""

    def __init__(self):
        self.mails = []
        self.receivers = []
        self.commands = []
        self.faults = deque()
        mailbox = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                self.say("220 mailbox.example")
                while line := self.rfile.readline().decode().rstrip("\r\n"):
                    verb = line.split()[0].lower()
                    mailbox.commands.append(line)
                    if verb == "mail":
                        self.named = list[str]()
                    elif verb == "rcpt":
                        self.named.append(line.partition("<")[2].rstrip(">"))
                    if mailbox.faults and mailbox.faults[0][0] == verb:
                        reply = mailbox.faults.popleft()[1]
                        if not reply:
                            return
                        self.say(reply)
                    elif verb == "data":
                        self.say("354 go on")
                        if not self.take():
                            return
                    elif verb == "quit":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 fine")

            def take(self):
                content = b"".join(iter(self.rfile.readline, b".\r\n"))
                if mailbox.faults and mailbox.faults[0][0] == ".":
                    reply = mailbox.faults.popleft()[1]
                else:
                    reply = "250 taken"
                    mailbox.receivers += self.named
                    mail = email.message_from_bytes(
                        re.sub(rb"(?m)^\.\.", b".", content), policy=default
                    )
                    mailbox.mails.append(mail)
                if reply:
                    self.say(reply)
                return bool(reply)

            def say(self, reply):
                self.wfile.write(f"{reply}\r\n".encode())

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"smtp://127.0.0.1:{self._server.server_address[1]}"
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

    def to(self, address):
        """List the messages to an address."""
        return [mail for mail in self.mails if mail["To"] == address]


def texts_of(mail):
    """Return the plain text of a message, and its HTML."""
    parts = [mail.get_body([kind]) for kind in ("plain", "html")]
    plain, html = (part.get_content() for part in parts)
    return plain, html


def link_of(mail):
    """Return the first link in a message outside of what is quoted."""
    return re.findall(r"^[^>\s].*?(https?://\S+)", texts_of(mail)[0], re.MULTILINE)[0]


def token_of(mail):
    """Return the token of the link in a message; "" where its link is to a page."""
    return link_of(mail).partition("?t=")[2]
