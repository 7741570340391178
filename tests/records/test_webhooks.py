from __future__ import annotations

import base64
import time
from dataclasses import replace

import pytest
import standardwebhooks
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from runner.errors import UsageError
from runner.webhooks.webhook import (
    OVERLAP,
    Delivery,
    Webhook,
    attempted,
    checked,
    headers,
    message_id,
    view,
)

KEY = base64.b64encode(bytes(range(32))).decode()
OLD = base64.b64encode(bytes(32)).decode()
HOOK = Webhook("h", "https://example.com/hooks", secret=KEY)
NEWS = Delivery("msg_1", "r:1", "run.ended", "r", at=5)
BODY = b'{"kind":"run.ended"}'
STEPS = (5, 300)


def now():
    return round(time.time() * 1000)


def test_the_published_vector_is_signed_as_published():
    """The example of the specification, byte for byte."""
    hook = replace(HOOK, secret="MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    news = replace(NEWS, id="msg_p5jXN8AQM9LWM0D4loKWxJek")

    made = headers(hook, news, b'{"test": 2432232314}', 1614265330_000)

    assert made["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("secret", [KEY, OLD])
def test_the_published_library_takes_both_secrets_while_one_is_rotated(secret):
    """A receiver that has not changed its secret yet goes on for a day."""
    moment = now()
    hook = replace(HOOK, old_secret=OLD, old_until=moment + 1)

    made = headers(hook, NEWS, BODY, moment)

    assert standardwebhooks.Webhook(f"whsec_{secret}").verify(BODY, made) == {
        "kind": "run.ended"
    }


def test_the_published_library_refuses_the_old_secret_afterwards():
    """The control of the test above; so it does with another body."""
    moment = now()
    made = headers(replace(HOOK, old_secret=OLD, old_until=moment), NEWS, BODY, moment)

    for secret, body in ((OLD, BODY), (KEY, BODY + b" ")):
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(f"whsec_{secret}").verify(body, made)


def test_v1a_is_checked_by_the_public_key_that_is_shown():
    """Ed25519 over id, time and body, two in a rotation; another body does not pass."""
    hook = replace(HOOK, signature="v1a", old_secret=OLD, old_until=9)
    shown = view(hook, 8, has_secret=True)

    made = headers(hook, NEWS, BODY, 8)

    pairs = zip(shown.public_keys, made["webhook-signature"].split(), strict=True)
    for public, signature in pairs:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix("whpk_")))
        raw = base64.b64decode(signature.removeprefix("v1a,"))
        key.verify(raw, b"msg_1.0." + BODY)
        with pytest.raises(InvalidSignature):
            key.verify(raw, b"msg_1.0." + BODY + b" ")
    assert shown.secret == ""


def test_a_secret_is_shown_to_who_made_it_and_to_nobody_else():
    """Neither are those of before."""
    assert view(HOOK, 0, has_secret=True).secret == f"whsec_{KEY}"
    assert KEY not in str(view(HOOK, 0))


def test_attempts_follow_the_steps_and_end():
    """Delivered by any 2xx; after the last step it has failed."""
    first = attempted(NEWS, 500, "x", 1_000, STEPS)
    second = attempted(first, 0, "away", 9_000, STEPS)
    third = attempted(second, 302, "elsewhere", 400_000, STEPS)

    assert [(item.status, item.due_at) for item in (first, second, third)] == [
        ("waiting", 6_000),
        ("waiting", 309_000),
        ("failed", 0),
    ]
    done = attempted(first, 204, "", 7_000, STEPS)
    assert (done.status, done.due_at, done.attempts, done.detail) == ("delivered", 0, 2, "")


def test_the_id_of_a_message_has_no_dots_and_is_that_of_its_notice():
    """The signed text has dots between its parts."""
    assert message_id("run.1:7") == message_id("run.1:7") != message_id("run.1:8")
    assert "." not in message_id("run.1:7")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "a|b"}, "id"),
        ({"url": "ftp://example.com/"}, "address"),
        ({"url": "https://ana:secret@example.com/"}, "without user"),
        ({"url": "https://example.com/#a"}, "fragment"),
        ({"url": "https:///hooks"}, "address"),
        ({"url": "https://[::1"}, "address"),
        ({"url": "https://example.com:99999/"}, "address"),
        ({"url": "https://example.com/a b"}, "ASCII"),
        ({"url": "https://example.com/\r\nX: y"}, "ASCII"),
        ({"url": "https://exämple.com/"}, "ASCII"),
        ({"events": ["run.started"]}, "run.started"),
        ({"signature": "none"}, "signature"),
        ({"tags": {"a=b": "c"}}, "tag"),
    ],
)
def test_values_that_cannot_be_used_are_refused(change, says):
    """With what is wrong."""
    with pytest.raises(UsageError, match=says):
        checked(replace(HOOK, **change))


def test_the_overlap_is_a_day():
    """As the guide says."""
    assert OVERLAP == 86_400_000
