"""Webhooks: the notices they choose, their signatures (Standard Webhooks), and the results of attempts.

Signed with hashlib, and for Ed25519 with cryptography: the published library would be one more
dependency of every worker, and lacks Ed25519. The tests check the sent messages with it. Pure:
times are milliseconds since 1970 and are passed in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar, Literal
from urllib.parse import urlsplit

from runner.errors import UsageError, needs_extra
from runner.immutable import immutable
from runner.records import validation
from runner.records.listings import checked_tags
from runner.records.run import NOTICES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Signature = Literal["v1", "v1a"]
SIGNATURES = ("v1", "v1a")

KINDS = frozenset({*map(str, NOTICES), "effects.frozen", "effects.thawed"})
"""The kinds of notices that a webhook may choose."""

OVERLAP = 24 * 3_600_000
"""Ms for which a rotated secret still signs beside the new one."""

GONE = 410
"""Status of an endpoint that wants no more notices."""

LONGEST_URL, SECRET_BYTES = 2_000, 32


@immutable
class Webhook:
    """An endpoint that is sent notices.

    `events` are the kinds it is sent, all if empty; `graph` and `tags` apply to the outermost run.
    `secret` signs (base64: the key of an HMAC, or the seed of an Ed25519 key), and until
    `old_until` `old_secret` does, too. `reason` says why it is paused, unless a person did it.
    `group` is the consumer group that reads its notices, a new one each time it is resumed.
    """

    id: str
    url: str
    events: Sequence[str] = ()
    graph: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    signature: Signature = "v1"
    secret: str = ""
    old_secret: str = ""
    old_until: int = 0
    paused: bool = False
    reason: str = ""
    group: str = ""
    created_at: int = 0
    v: int = 1

    kind: ClassVar = "webhook"
    limit: ClassVar = 100  # each needs a thread in one of the workers

    def due_at(self, now: int) -> int | None:
        """Return the time of its timer (ms); None if it is paused."""
        return None if self.paused else now

    @property
    def is_filtered_by_run(self) -> bool:
        """Return whether the run of a notice has to be read."""
        return bool(self.graph or self.tags)


@immutable
class WebhookView:
    """A webhook as it is shown. `secret` is shown only after it was made or rotated, and only for "v1".

    `public_keys` check "v1a", the newest first. `waiting` counts deliveries that are still to be
    sent, `dropped` those given up because too many waited.
    """

    id: str
    url: str
    events: Sequence[str]
    graph: str
    tags: Mapping[str, str]
    signature: str
    secret: str
    public_keys: Sequence[str]
    paused: bool
    reason: str
    created_at: int
    waiting: int = 0
    dropped: int = 0


@immutable
class Delivery:
    """One notice for one webhook; `id` is the message's, the same at every attempt.

    `status` is waiting, delivered or failed. `code` is the HTTP status of the last attempt, 0
    without an answer; `detail` says why it failed. `due_at` is the time of the next attempt, 0 for
    never.
    """

    id: str
    notice: str
    kind: str
    run_id: str
    at: int
    status: Literal["waiting", "delivered", "failed"] = "waiting"
    due_at: int = 0
    attempts: int = 0
    attempted_at: int = 0
    code: int = 0
    detail: str = ""


def checked(webhook: Webhook) -> Webhook:
    """Return a webhook whose values can be used; the sender checks where its address leads.

    Raises:
        UsageError: a value can't be used; the message says which and why.
    """
    if not webhook.id or validation.problem(webhook.id, 200) or set(webhook.id) & set("|/: "):
        raise UsageError(
            f"the id of a webhook is a short text without | / : and spaces, not {webhook.id!r:.80}."
        )
    text = webhook.url
    if (
        validation.problem(text, LONGEST_URL)
        or not (text.isascii() and text.isprintable())
        or " " in text
    ):
        raise UsageError(
            f"the address of a webhook is a URL in ASCII, of {LONGEST_URL} characters at most."
        )
    if not _is_usable(text):
        raise UsageError(
            f"the address of a webhook is such as https://example.com/hooks, without user or fragment, not "
            f"{text!r:.80}."
        )
    unknown = [kind for kind in webhook.events if kind not in KINDS]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r:.80} is not a kind of notice; these are: {', '.join(sorted(KINDS))}."
        )
    if webhook.signature not in SIGNATURES:
        raise UsageError(
            f"signature is one of {', '.join(SIGNATURES)}, not {webhook.signature!r:.40}."
        )
    validation.checked(webhook.graph, "the graph of a webhook")
    checked_tags(webhook.tags)
    return webhook


def _is_usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_whole = (
            parts.scheme in {"https", "http"} and bool(parts.hostname) and parts.port != 0
        )
    except ValueError:
        return False
    return is_whole and parts.username is None and not parts.fragment


def message_id(notice: str) -> str:
    """Return the `webhook-id` of a notice, without dots: these separate the parts of the signed text."""
    return f"msg_{hashlib.sha256(notice.encode()).hexdigest()[:32]}"


def headers(webhook: Webhook, delivery: Delivery, body: bytes, now: int) -> dict[str, str]:
    """Return the headers by which an endpoint identifies the message and its sender.

    Raises:
        UsageError: the webhook has an Ed25519 key, and cryptography is not installed.
    """
    seconds = str(now // 1000)
    signed = f"{delivery.id}.{seconds}.".encode() + body
    secrets = [webhook.secret, *([webhook.old_secret] if now < webhook.old_until else [])]
    signatures = [
        base64.b64encode(_sign(webhook.signature, secret, signed)).decode()
        for secret in secrets
    ]
    return {
        "webhook-id": delivery.id,
        "webhook-timestamp": seconds,
        "webhook-signature": " ".join(
            f"{webhook.signature},{signature}" for signature in signatures
        ),
    }


def _sign(kind: Signature, secret: str, signed: bytes) -> bytes:
    key = base64.b64decode(secret)
    if kind == "v1":
        return hmac.new(key, signed, hashlib.sha256).digest()
    return _private(key).sign(signed)


def _private(seed: bytes) -> Ed25519PrivateKey:
    with needs_extra("audit", "signatures of the kind v1a"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - an extra
    return Ed25519PrivateKey.from_private_bytes(seed)


def view(
    webhook: Webhook, now: int, *, waiting: int = 0, dropped: int = 0, has_secret: bool = False
) -> WebhookView:
    """Return a webhook as it is shown; `has_secret` is for the person who has just made it.

    Raises:
        UsageError: it has an Ed25519 key, and cryptography is not installed.
    """
    keys = [webhook.secret, *([webhook.old_secret] if now < webhook.old_until else [])]
    is_symmetric = webhook.signature == "v1"
    return WebhookView(
        id=webhook.id,
        url=webhook.url,
        events=webhook.events,
        graph=webhook.graph,
        tags=webhook.tags,
        signature=webhook.signature,
        secret=f"whsec_{webhook.secret}" if has_secret and is_symmetric else "",
        public_keys=[] if is_symmetric else [_public(key) for key in keys],
        paused=webhook.paused,
        reason=webhook.reason,
        created_at=webhook.created_at,
        waiting=waiting,
        dropped=dropped,
    )


def _public(secret: str) -> str:
    raw = _private(base64.b64decode(secret)).public_key().public_bytes_raw()
    return f"whpk_{base64.b64encode(raw).decode()}"


def attempted(
    delivery: Delivery, code: int, detail: str, now: int, steps: Sequence[float]
) -> Delivery:
    """Return a delivery after an attempt: delivered by any 2xx, otherwise due after the next of `steps` (s).

    It has failed if it was already sent again after all of them.
    """
    after = replace(
        delivery,
        attempts=delivery.attempts + 1,
        attempted_at=now,
        code=code,
        detail=detail,
        due_at=0,
    )
    if 200 <= code < 300:
        return replace(after, status="delivered")
    if after.attempts > len(steps):
        return replace(after, status="failed")
    return replace(after, due_at=now + round(steps[after.attempts - 1] * 1000))
