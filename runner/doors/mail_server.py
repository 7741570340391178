"""The mail server to which the mail door hands its messages."""

from __future__ import annotations

import hashlib
import smtplib
import socket
import ssl
import threading
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formataddr, formatdate
from functools import cache
from urllib.parse import unquote, urlsplit

from runner.doors.notice_thread import Unavailable
from runner.errors import UsageError
from runner.settings import Settings

TIMEOUT, LONGEST = 15.0, 30.0
"""Maximum seconds for a server's reply, and for a message: together less than the door's lock."""

MOST_SUBJECT = 150
"""Characters of a message's subject."""

REPLIES = "Decide with the link: replies are not read"
"""The name of the address for replies, which mail programs show to people who reply."""


class MailServer:
    """The server in RUNNER_MAIL_SERVER, with a connection for each message."""

    def __init__(self, settings: Settings) -> None:
        """Check the server's address, without connecting.

        Raises:
            UsageError: the address can't be used.
        """
        self._sender = settings.mail_from
        self._unsubscribe = settings.mail_unsubscribe
        self._url = urlsplit(settings.mail_server)
        try:
            is_usable = self._url.scheme in {"smtp", "smtps"} and self._url.port != 0
        except ValueError:
            is_usable = False
        if not (is_usable and self._url.hostname):
            raise UsageError("RUNNER_MAIL_SERVER must be like smtp://mail.example.com:587.")

    def compose(
        self, address: str, subject: str, plain: str, html: str, topic: str, mark: str = ""
    ) -> EmailMessage:
        """Write a message about a topic; one with a mark replies to the first one about its topic."""
        mail = EmailMessage()
        # EmailMessage decodes encoded words, so a line end in one would begin a header or the body.
        mail["Subject"] = f"{subject:.{MOST_SUBJECT}}".replace("=?", "= ?")
        mail["From"], mail["To"] = self._sender, address
        mail["Date"], mail["Auto-Submitted"] = formatdate(), "auto-generated"
        if self._unsubscribe:
            mail["List-Unsubscribe"] = f"<{self._unsubscribe}>"
        mail["Reply-To"] = formataddr((REPLIES, self._sender))
        domain = self._sender.rpartition("@")[2]
        # The id is the same at each attempt, so that mail programs show duplicates once.
        mail["Message-ID"] = f"<{hash_of(f'{topic} {address}{mark}')}@{domain}>"
        if mark:
            mail["In-Reply-To"] = f"<{hash_of(f'{topic} {address}')}@{domain}>"
        mail.set_content(plain)
        mail.add_alternative(html, subtype="html")
        return mail

    def send(self, mail: EmailMessage, address: str) -> tuple[str, bool]:
        """Send a message; return the reason for a refusal, or "", and whether it is permanent.

        Raises:
            Unavailable: the server can't be reached, or doesn't accept messages from here.
        """
        try:
            server = self._connect()
            timer = threading.Timer(LONGEST, _cut, [server])
            timer.start()
            try:
                self._log_in(server)
                return self._deliver(server, mail, address)
            finally:
                timer.cancel()
                with suppress(OSError):
                    server.quit()
        except OSError as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error

    def _connect(self) -> smtplib.SMTP:
        host = str(self._url.hostname)
        port = self._url.port
        if self._url.scheme == "smtps":
            return smtplib.SMTP_SSL(host, port or 465, timeout=TIMEOUT, context=_tls())
        return smtplib.SMTP(host, port or 25, timeout=TIMEOUT)

    def _log_in(self, server: smtplib.SMTP) -> None:
        server.ehlo()
        if self._url.scheme == "smtp" and server.has_extn("starttls"):
            server.starttls(context=_tls())
        if self._url.username:
            if not isinstance(server.sock, ssl.SSLSocket):
                raise Unavailable("RUNNER_MAIL_SERVER has no TLS, so no password is sent.")
            server.login(unquote(self._url.username), unquote(self._url.password or ""))

    def _deliver(
        self, server: smtplib.SMTP, mail: EmailMessage, address: str
    ) -> tuple[str, bool]:
        try:
            server.send_message(mail, self._sender, [address])
        except smtplib.SMTPSenderRefused:
            raise
        except smtplib.SMTPRecipientsRefused as error:
            code, text = error.recipients[address]
            return f"{code} {text!r:.200}", code >= 500
        except smtplib.SMTPDataError as error:
            return f"{error.smtp_code} {error.smtp_error!r:.200}", error.smtp_code >= 500
        except OSError as error:
            return f"{type(error).__name__}: {error}", False
        return "", False


def hash_of(text: str) -> str:
    """Return a short hash of an address or a message's name, which is stored or sent in its place."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _cut(server: smtplib.SMTP) -> None:
    with suppress(OSError, AttributeError):  # the connection may have ended meanwhile
        server.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr] # None after the end
