"""Proofs of who decided: they hold for the decision that was signed, and for no other."""

from __future__ import annotations

import hashlib
import json

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from runner.approvals.proofs import (
    LIFETIME,
    SKEW,
    ProofRefused,
    encoded,
    read_keys,
    sign,
    signed_bytes,
    verify,
)
from runner.audit.checkpoint import public_bytes
from runner.errors import UsageError

NOW = 1_790_000_000
SERVICE, DOOR, OWN = (
    Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3)
)
SECRET = b"s" * 32
PASSKEY = ec.derive_private_key(7, ec.SECP256R1())
LOGIN = "https://login.example"


def jwk(private: Ed25519PrivateKey, **more: object) -> dict:
    return {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": encoded(public_bytes(private.public_key())),
        **more,
    }


def point(private: ec.EllipticCurvePrivateKey, **more: object) -> dict:
    numbers = private.public_key().public_numbers()
    x, y = (encoded(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": "P-256", "x": x, "y": y, **more}


SET = [
    jwk(SERVICE, kid="bot", level=1),
    {"kty": "oct", "k": encoded(SECRET), "kid": "chat", "level": 1},
    jwk(DOOR, kid="door", level=2, issuers=[LOGIN]),
    jwk(OWN, kid="ana", level=3, principal=f"human:{LOGIN}|ana"),
    point(
        PASSKEY,
        kid="ana2",
        level=3,
        principal=f"human:{LOGIN}|ana",
        origins=["https://shop.example"],
        rp_id="shop.example",
    ),
]
KEYS = read_keys(json.dumps({"keys": SET}))
PRIVATE = {"bot": SERVICE, "chat": SECRET, "door": DOOR, "ana": OWN}

DECISION = {
    "v": 2,
    "interrupt_id": "00run.pay.1.0123456789abcdef",
    "decision": "approve",
    "by": f"human:{LOGIN}|ana",
    "digest": "sha256:" + "0" * 64,
    "response": {"amount": 120},
    "reply_to": "runner:replies:1",
}


def signed(kid: str, **more: object) -> dict:
    return sign({**DECISION, **more}, PRIVATE[kid], kid, now=NOW, jti="once")


def by_passkey(
    flags: int = 5,
    origin: str = "https://shop.example",
    kind: str = "webauthn.get",
    **more: object,
) -> dict:
    """A decision as a browser and an authenticator sign it."""
    proof = {"alg": "webauthn", "kid": "ana2", "iat": NOW, "exp": NOW + LIFETIME, "jti": "once"}
    decision = {**DECISION, **more, "proof": proof}
    challenge = encoded(hashlib.sha256(signed_bytes(decision)).digest())
    client = json.dumps({"type": kind, "challenge": challenge, "origin": origin}).encode()
    data = hashlib.sha256(b"shop.example").digest() + bytes([flags]) + (1).to_bytes(4, "big")
    signature = PASSKEY.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256()))
    parts = {
        "authenticator_data": encoded(data),
        "client_data": encoded(client),
        "sig": encoded(signature),
    }
    return {**decision, "proof": {**proof, **parts}}


def with_client_data(client: bytes) -> dict:
    """A passkey's decision whose client data somebody exchanged."""
    decision = by_passkey()
    return {**decision, "proof": {**decision["proof"], "client_data": encoded(client)}}


@pytest.mark.parametrize(
    ("decision", "level"),
    [
        (signed("bot"), 1),
        (signed("chat"), 1),
        (signed("door"), 2),
        (signed("ana"), 3),
        (by_passkey(), 3),
    ],
    ids=["service", "secret", "door", "own", "passkey"],
)
def test_a_proof_holds_for_what_was_signed(decision, level):
    """The level is that of the key, wherever the receipt goes."""
    assert verify(decision, KEYS, now=NOW).voter.level == level
    assert verify({**decision, "reply_to": "runner:replies:2"}, KEYS, now=NOW).jti == "once"
    assert verify(decision, KEYS, now=None).kid == decision["proof"]["kid"]


@pytest.mark.full
@pytest.mark.parametrize(
    "decision", [signed("bot"), signed("chat"), by_passkey()], ids=["key", "secret", "passkey"]
)
@given(data=st.data())
def test_nothing_of_a_decision_can_be_changed(decision, data):
    """Another value, one more or one less member, in the decision or its proof: it does not hold."""
    inside = data.draw(st.booleans())
    part = dict(decision["proof"] if inside else decision)
    names = sorted(set(part) - {"reply_to", "proof"})
    name = data.draw(st.sampled_from([*names, "more"]))
    value = data.draw(
        st.none() | st.integers() | st.text(max_size=3) | st.just(DECISION["response"])
    )
    if value is None and name != "more":
        del part[name]
    elif part.get(name) == value and type(part.get(name)) is type(value):
        return
    else:
        part[name] = value

    with pytest.raises(ProofRefused):
        verify({**decision, "proof": part} if inside else part, KEYS, now=NOW)


@pytest.mark.parametrize(
    "forged",
    [
        {**DECISION},
        {**DECISION, "proof": None},
        sign(DECISION, DOOR, "bot", now=NOW, jti="once"),
        sign(DECISION, SERVICE, "gone", now=NOW, jti="once"),
        signed("door", by="human:https://elsewhere.example|ana"),
        signed("door", by="ana"),
        signed("ana", by=f"human:{LOGIN}|ben"),
        signed("bot", by=""),
        sign({**DECISION, "by": None}, SERVICE, "bot", now=NOW, jti="once"),
        sign(DECISION, SERVICE, "bot", now=NOW, jti=""),
        by_passkey(flags=1),
        by_passkey(flags=4),
        by_passkey(origin="https://evil.example"),
        by_passkey(kind="webauthn.create"),
        by_passkey(by=f"human:{LOGIN}|ben"),
        with_client_data(b"3"),
    ],
    ids=[
        "none", "null", "other-key", "unknown-key", "issuer", "asserted", "person", "nobody", "no-name",
        "no-jti", "not-verified", "not-present", "origin", "type", "passkey-person",
        "no-client-data",
    ],
)  # fmt: skip
def test_a_proof_of_another_or_of_nobody_is_refused(forged):
    """Who may speak for whom is decided by the key, not by the message."""
    with pytest.raises(ProofRefused):
        verify(forged, KEYS, now=NOW)


@pytest.mark.parametrize(
    ("now", "holds"),
    [
        (NOW, True),
        (NOW + LIFETIME + SKEW, True),
        (NOW - SKEW, True),
        (NOW + LIFETIME + SKEW + 1, False),
        (NOW - SKEW - 1, False),
        (None, True),
    ],
)
def test_a_proof_is_taken_in_for_some_minutes(now, holds):
    """A door refuses old ones and those from the future; a recount later does not look at the clock."""
    if holds:
        verify(signed("bot"), KEYS, now=now)
    else:
        with pytest.raises(ProofRefused):
            verify(signed("bot"), KEYS, now=now)


def test_a_proof_can_not_be_made_to_last():
    """`exp` is signed, but a service may not sign a year."""
    proof = {
        "alg": "Ed25519",
        "kid": "bot",
        "iat": NOW,
        "exp": NOW + LIFETIME + 1,
        "jti": "once",
    }
    decision = {**DECISION, "proof": proof}
    proof["sig"] = encoded(SERVICE.sign(signed_bytes(decision)))
    with pytest.raises(ProofRefused, match="at most"):
        verify(decision, KEYS, now=NOW)


def test_a_revoked_key_holds_for_what_it_signed_before():
    """Rotation with overlap: the old key's votes still count, and it can sign no new ones."""
    for moment, holds in ((NOW + 1, True), (NOW, False)):
        keys = read_keys(
            json.dumps({"keys": [jwk(SERVICE, kid="bot", level=1, revoked=moment)]})
        )
        if holds:
            verify(signed("bot"), keys, now=NOW)
        else:
            with pytest.raises(ProofRefused, match="revoked"):
                verify(signed("bot"), keys, now=NOW)


@pytest.mark.parametrize(("kid", "acr"), [("door", "gold"), ("ana", None)])
def test_a_login_has_an_age_and_a_class(kid, acr):
    """What the door knew of the login is covered by its signature; no person states a class of their own."""
    login = {"auth_time": NOW - 30, "acr": "gold"}
    proved = verify(
        sign(DECISION, PRIVATE[kid], kid, now=NOW, jti="once", login=login), KEYS, now=NOW
    )

    assert (proved.voter.login_age, proved.voter.acr) == (30, acr)


@pytest.mark.parametrize("rp_id", ["", "shop.example"])
def test_a_passkey_signs_by_webauthn_alone(rp_id):
    """Its plain signature, without a verified person and a count, is refused; that of a file's key holds."""
    entry = jwk(OWN, kid="ana", level=3, principal=f"human:{LOGIN}|ana", rp_id=rp_id)
    keys = read_keys(json.dumps({"keys": [entry]}))
    if not rp_id:
        assert verify(signed("ana"), keys, now=NOW).voter.level == 3
    else:
        with pytest.raises(ProofRefused, match="signature does not hold"):
            verify(signed("ana"), keys, now=NOW)


def test_a_door_states_no_more_than_its_key_may():
    """The level of the person, at most the key's; groups and roles, at most those that the key names."""
    login = {"level": 1, "groups": ["finance", "board"], "roles": ["cfo"]}
    decision = sign(DECISION, DOOR, "door", now=NOW, jti="once", login=login)
    (entry,) = (entry for entry in SET if entry["kid"] == "door")
    free = verify(decision, KEYS, now=NOW).voter
    assert (free.level, free.groups, free.roles) == (1, {"finance", "board"}, {"cfo"})
    bound = read_keys(
        json.dumps({"keys": [{**entry, "groups": ["finance"], "roles": ["lead"]}]})
    )
    proof = verify(decision, bound, now=NOW).voter
    assert (proof.groups, proof.roles) == ({"finance"}, set())
    above = sign(DECISION, DOOR, "door", now=NOW, jti="once", login={"level": 3})
    assert verify(above, KEYS, now=NOW).voter.level == 2


@pytest.mark.parametrize(
    "keys",
    [
        "",
        "[]",
        "{}",
        '{"keys": [1]}',
        json.dumps({"keys": [SET[0], SET[0]]}),
        json.dumps({"keys": [{**SET[0], "d": "AAAA"}]}),
        json.dumps({"keys": [{**SET[0], "level": 0}]}),
        json.dumps({"keys": [{**SET[0], "level": True}]}),
        json.dumps({"keys": [{**SET[0], "level": 3}]}),
        json.dumps({"keys": [{**SET[1], "level": 2}]}),
        json.dumps({"keys": [{**SET[1], "k": encoded(b"short")}]}),
        json.dumps({"keys": [{**SET[0], "crv": "X25519"}]}),
        json.dumps({"keys": [{**SET[4], "y": SET[4]["x"]}]}),
        json.dumps({"keys": [{"level": 1, **jwk(SERVICE)}]}),
    ],
)
def test_a_set_of_keys_that_proves_nothing_is_refused(keys):
    """A private key, a level that a secret can't have, a key twice: the worker does not start with them."""
    with pytest.raises(UsageError):
        read_keys(keys)
