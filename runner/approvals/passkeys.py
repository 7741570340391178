"""Passkeys: a person's own key (level 3), held by a browser or a device (WebAuthn).

A server can't make a passkey valid. It checks the browser's registration and shows the public half;
an administrator adds that to the decision keys, like any other key of the person: see
`runner/approvals/keys.py`.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from runner.approvals.proofs import (
    LIFETIME,
    PRESENT,
    VERIFIED,
    ProofRefused,
    VerificationKey,
    VerificationKeys,
    challenge_of,
    decoded,
    encoded,
)
from runner.errors import RunnerError, needs_extra
from runner.immutable import immutable
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject

with needs_extra("audit", "signed decisions"):
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

HAS_KEY = 64
"""Authenticator flag: the data contains the newly made key."""

KEY_ID = 55
"""Offset of the key's id in that data; the two bytes before it hold the id's length."""


@immutable
class SignatureRequest:
    """Request that a browser has one passkey sign `challenge`; the signature completes `proof`."""

    kid: str
    rp_id: str
    credential: str
    challenge: str
    proof: JSONMapping


def passkeys_of(
    keys: VerificationKeys, principal: str, origin: str, now: float
) -> list[VerificationKey]:
    """List the passkeys with which a principal can sign at an origin now (seconds since 1970)."""
    return [
        key
        for key in keys.values()
        if key.principal == principal
        and key.credential
        and origin in key.origins
        and (key.revoked is None or now < key.revoked)
    ]


def signature_request(
    body: JSONMapping, key: VerificationKey, now: float, jti: str
) -> SignatureRequest:
    """Return the request for a passkey's signature on a message, at a time in seconds since 1970.

    That time is also when the owner was authenticated: the device verifies them at each signature.
    """
    issued_at = int(now)
    proof: JSONObject = {
        "alg": "webauthn",
        "kid": key.kid,
        "iat": issued_at,
        "exp": issued_at + LIFETIME,
        "jti": jti,
        "auth_time": issued_at,
    }
    challenge = challenge_of({**body, "proof": proof})
    return SignatureRequest(key.kid, key.rp_id, key.credential, encoded(challenge), proof)


def public_half(registration: JSONMapping, challenge: bytes, origin: str) -> JSONObject:
    """Return the public half of a passkey that a browser made at an origin, as an entry of a key set.

    `registration` has `client_data`, `authenticator_data` and `public_key` (DER), as a browser
    gives them: https://www.w3.org/TR/webauthn-2/#sctn-registering-a-new-credential, without an
    attestation.

    Raises:
        ProofRefused: the passkey was made for something else, or its owner was not verified.
    """
    try:
        client_data = codec.load_json(decoded(registration["client_data"]))
        data = decoded(registration["authenticator_data"])
        public = load_der_public_key(decoded(registration["public_key"]))
        is_answer = client_data["type"] == "webauthn.create" and hmac.compare_digest(
            decoded(client_data["challenge"]), challenge
        )
        made_at = client_data["origin"]
        is_framed = client_data.get("crossOrigin")
    except (RunnerError, *codec.READ_ERRORS) as error:
        raise ProofRefused(f"the browser has not sent a passkey: {error!r:.200}.") from error
    rp_id = urlsplit(origin).hostname or ""
    if not is_answer:
        raise ProofRefused(
            "the passkey was made for another page: load this one and make another."
        )
    if made_at != origin or is_framed:
        raise ProofRefused(
            f"the passkey was made at {made_at!r:.200}, not at {origin!r}: set RUNNER_SERVER_URL to where "
            "people open the pages."
        )
    flags, length = (
        (data[32], int.from_bytes(data[53:KEY_ID])) if len(data) > KEY_ID else (0, 0)
    )
    if (
        data[:32] != hashlib.sha256(rp_id.encode()).digest()
        or not flags & HAS_KEY
        or not length
    ):
        raise ProofRefused(f"the authenticator has made no passkey of {rp_id!r}.")
    if flags & (PRESENT | VERIFIED) != PRESENT | VERIFIED:
        raise ProofRefused(
            "the authenticator has not verified who you are: it needs a PIN, a fingerprint or a face."
        )
    return {
        **_members(public),
        "origins": [origin],
        "rp_id": rp_id,
        "credential": encoded(data[KEY_ID : KEY_ID + length]),
    }


def _members(public: object) -> JSONObject:
    """Return the members of the public key's JSON Web Key."""
    if isinstance(public, Ed25519PublicKey):
        return {"kty": "OKP", "crv": "Ed25519", "x": encoded(public.public_bytes_raw())}
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1):
        numbers = public.public_numbers()
        x, y = (encoded(number.to_bytes(32)) for number in (numbers.x, numbers.y))
        return {"kty": "EC", "crv": "P-256", "x": x, "y": y}
    raise ProofRefused("the passkey is neither Ed25519 nor P-256.")
