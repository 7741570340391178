"""Proofs of who decided: signatures over a decision by a service, a login's door or a person's own key.

A decision is a JSON object; its `proof` names the key and the times, and `sig` covers everything
else in the object except `reply_to`. Keys are a JSON Web Key Set (RFC 7517) with members of our
own: `level` (1 a service, 2 a door that checks logins, 3 a person's own key), `issuers` (the
issuers for whose principals a key of level 1 or 2 may speak; all by default) and `principal` (the
owner of a level 3 key). `groups` and `roles` belong to that owner; on a door's key they limit which
ones the door may state, any if empty. `revoked` (seconds since 1970) refuses everything signed from
then on. A passkey's entry also says where it may be used (`rp_id`, `origins`) and its id in the
browser (`credential`): see `runner/approvals/passkeys.py`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping

from runner.approvals.ballots import SKEW
from runner.approvals.digests import canonical
from runner.approvals.rules import OWN_KEY, Principal, Voter
from runner.errors import RunnerError, UsageError, needs_extra
from runner.immutable import immutable
from runner.records import codec, run_ids, validation
from runner.records.codec import JSONMapping, JSONObject

with needs_extra("audit", "signed decisions"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

DOMAIN = b"celery-graph-runner/decision/v2\n"

LIFETIME = 300
"""Maximum seconds during which a service's or a door's signature may be sent; it is made when needed."""

SIGNATURE = frozenset({"sig", "authenticator_data", "client_data"})
"""The members of a proof that are computed from the rest."""

PRESENT, VERIFIED = 1, 4
"""Authenticator flags: a person was present, and was verified."""


class ProofRefused(RunnerError):
    """A proof does not hold; the decision is not counted, and the question stays open."""


@immutable
class VerificationKey:
    """One key of a set; `secret` is set for HMAC, otherwise `public`. See the module for the rest."""

    kid: str
    level: int
    public: Ed25519PublicKey | ec.EllipticCurvePublicKey | None = None
    secret: bytes = b""
    issuers: frozenset[str] | None = None
    principal: str = ""
    revoked: float | None = None
    origins: frozenset[str] = frozenset()
    rp_id: str = ""
    credential: str = ""
    groups: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    x: str = ""


VerificationKeys = Mapping[str, VerificationKey]
"""Keys by their ids."""


@immutable
class Proved:
    """A valid proof: its voter, with everything that the proof vouches for, and its key.

    `issued` and `expires` are in seconds since 1970.
    """

    voter: Voter
    kid: str
    jti: str
    issued: int
    expires: int


def encoded(data: bytes) -> str:
    """Return bytes in base64url without padding, as in all of JOSE."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: object) -> bytes:
    """Read base64url.

    Raises:
        ValueError: the text isn't base64url.
    """
    if not isinstance(text, str) or not text.isascii() or set(text) & {"=", "+", "/", " "}:
        raise ValueError("not base64url")
    return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)


def read_keys(text: str | bytes) -> dict[str, VerificationKey]:
    """Read a JSON Web Key Set, by `kid`.

    Raises:
        UsageError: it is malformed, a `kid` is missing or occurs twice, or it contains a private
            key.
    """
    try:
        entries = json.loads(text)["keys"]
        keys = [_key(entry) for entry in entries]
    except codec.READ_ERRORS as error:
        raise UsageError(
            f"the decision keys can't be read: {error!r}. They are a JSON Web Key Set."
        ) from error
    by_id = {key.kid: key for key in keys}
    if len(by_id) != len(keys):
        raise UsageError("the decision keys have a kid twice.")
    return by_id


def _key(entry: JSONMapping) -> VerificationKey:
    if "d" in entry:
        raise UsageError(
            f"the key {entry.get('kid')!r:.80} is a private one: workers need the public half alone."
        )
    kind = entry["kty"]
    curve = entry.get("crv")
    level = entry["level"]
    public: Ed25519PublicKey | ec.EllipticCurvePublicKey | None = None
    secret = b""
    if kind == "OKP" and curve == "Ed25519":
        public = Ed25519PublicKey.from_public_bytes(decoded(entry["x"]))
    elif kind == "EC" and curve == "P-256":
        x, y = (int.from_bytes(decoded(entry[name]), "big") for name in ("x", "y"))
        public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    elif kind == "oct" and len(decoded(entry["k"])) >= hashlib.sha256().digest_size:
        secret = decoded(entry["k"])
    else:
        raise UsageError(
            f"the key {entry.get('kid')!r:.80} must be Ed25519 (OKP), P-256 (EC) or 32 bytes or more (oct)."
        )
    whole = isinstance(level, int) and not isinstance(level, bool)
    if (
        not isinstance(entry["kid"], str)
        or not whole
        or level not in (1, 2, 3)
        or (secret and level != 1)
    ):
        raise UsageError(
            "a key needs a kid (text) and a level of 1 to 3; a secret has level 1."
        )
    principal = Principal.read(entry["principal"]).key if level == OWN_KEY else ""
    issuers = entry.get("issuers")
    return VerificationKey(
        entry["kid"],
        level,
        public,
        secret,
        None if issuers is None else frozenset(issuers),
        principal,
        entry.get("revoked"),
        frozenset(entry.get("origins", ())),
        entry.get("rp_id", ""),
        entry.get("credential", ""),
        frozenset(entry.get("groups", ())),
        frozenset(entry.get("roles", ())),
        entry.get("x", ""),
    )


def signed_bytes(decision: JSONMapping) -> bytes:
    """Return the bytes that a signature covers: the whole decision except `reply_to` and the signature.

    Raises:
        UnstorableError: it has values that other languages would read as different ones.
    """
    proof = decision.get("proof")
    payload = codec.without(decision, "reply_to", "proof")
    if isinstance(proof, Mapping):
        payload["proof"] = codec.without(proof, *SIGNATURE)
    return DOMAIN + canonical(payload, "the decision")


def challenge_of(decision: JSONMapping) -> bytes:
    """Return the challenge that a passkey signs for a decision: the hash of the bytes of `signed_bytes`.

    Raises:
        UnstorableError: as for `signed_bytes`.
    """
    return hashlib.sha256(signed_bytes(decision)).digest()


def run_name(start: JSONMapping) -> str:
    """Return the id, without its partition, of the one run that a signed message can start.

    It is a run id (a UUID version 7 in 26 letters and digits) with the time of the signature; its
    other bits are a hash of the signed bytes.

    Raises:
        UsageError: the proof has no time. UnstorableError: it has values that other languages would
            read as different ones.
    """
    proof = start.get("proof")
    issued_at = proof.get("iat") if isinstance(proof, Mapping) else None
    if type(issued_at) is not int or not 0 <= issued_at < 1 << 38:
        raise UsageError("the proof of a start needs iat, in whole seconds since 1970.")
    return run_ids.letters(
        issued_at * 1000, run_ids.RANDOM, hashlib.sha256(signed_bytes(start)).digest()
    )


def sign(
    decision: JSONMapping,
    key: Ed25519PrivateKey | bytes,
    kid: str,
    *,
    now: float,
    jti: str,
    login: JSONMapping | None = None,
) -> JSONObject:
    """Return a decision with its proof; `key` is a private key or a secret, `now` is in seconds since 1970.

    `login` is the door's knowledge of the login: `auth_time` (seconds since 1970), `acr`, the lists
    `groups` and `roles` of bare names, and its `level` if lower than the key's.
    """
    proof: JSONObject = {
        "alg": "HS256" if isinstance(key, bytes) else "Ed25519",
        "kid": kid,
        "iat": int(now),
        "exp": int(now) + LIFETIME,
        "jti": jti,
        **(login or {}),
    }
    text = signed_bytes({**decision, "proof": proof})
    signature = hmac.digest(key, text, "sha256") if isinstance(key, bytes) else key.sign(text)
    return {**decision, "proof": {**proof, "sig": encoded(signature)}}


def verify(
    decision: JSONMapping,
    keys: VerificationKeys,
    *,
    now: float | None,
    member: str = "by",
    effective: float = 0,
) -> Proved:
    """Check a decision's proof at `now`, the time it comes in (seconds since 1970).

    A worker that counts votes again later passes None for `now`, since the door that took the
    decision has checked the times. `member` names the principal: "requester" in the message that
    starts a run. `effective` is the time at which a message takes effect, if later: a key revoked
    by then doesn't count.

    Raises:
        ProofRefused: it does not hold; the message says why.
    """
    proof = decision.get("proof")
    if not isinstance(proof, Mapping):
        raise ProofRefused("the decision has no proof.")
    kid = proof.get("kid")
    key = keys.get(kid) if isinstance(kid, str) else None
    if key is None:
        raise ProofRefused(f"the key {kid!r:.80} is not known.")
    try:
        principal = Principal.read(decision[member])
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise ProofRefused("the decision names no one who decides.") from error
    if key.level == OWN_KEY and principal.key != key.principal:
        raise ProofRefused(f"the key {key.kid!r} does not belong to {principal.key!r}.")
    if key.level < OWN_KEY and key.issuers is not None and principal.iss not in key.issuers:
        raise ProofRefused(
            f"the key {key.kid!r} does not speak for the issuer {principal.iss!r}."
        )
    _check_times(proof, key, now, effective)
    if not _signature_holds(decision, proof, key):
        raise ProofRefused(
            "the signature does not hold: the decision or its proof was changed, or the key is another."
        )
    login = proof.get("auth_time")
    level = key.level
    if level < OWN_KEY and type(proof.get("level")) is int:
        level = max(0, min(level, proof["level"]))
    age = (
        proof["iat"] - login
        if isinstance(login, (int, float)) and not isinstance(login, bool)
        else None
    )
    acr = proof.get("acr")
    voter = Voter(
        principal,
        _vouched(key, key.groups, proof.get("groups")),
        _vouched(key, key.roles, proof.get("roles")),
        level,
        age,
        acr
        if isinstance(acr, str) and level < OWN_KEY
        else None,  # only the issuer of a login can state it
        counter=(key.x, signature_count(proof)) if proof.get("alg") == "webauthn" else None,
        claims=frozenset(
            f"{form}:{name}"
            for form in ("group", "role")
            for name in _texts(proof.get(f"{form}s"))
        ),
    )
    return Proved(voter, key.kid, proof["jti"], proof["iat"], proof["exp"])


def _vouched(key: VerificationKey, of_key: frozenset[str], stated: object) -> frozenset[str]:
    """Return a principal's groups or roles: from their own key, or those that a door may state for them."""
    if key.level == OWN_KEY:
        return of_key
    return _texts(stated) & of_key if of_key else _texts(stated)


def _texts(names: object) -> frozenset[str]:
    items = names if isinstance(names, list) else []
    return frozenset(item for item in items if isinstance(item, str))


def signature_count(proof: JSONMapping) -> int:
    """Return a passkey's signature count; 0 if its device doesn't count, or for another kind of key."""
    data = decoded(proof["authenticator_data"]) if proof.get("alg") == "webauthn" else b""
    return int.from_bytes(data[33:37])


def _check_times(
    proof: JSONMapping, key: VerificationKey, now: float | None, effective: float
) -> None:
    moments = [moment for name in ("iat", "exp") if type(moment := proof.get(name)) is int]
    if len(moments) != 2:
        raise ProofRefused("the proof needs iat and exp, in whole seconds since 1970.")
    issued_at, expires = moments
    jti = proof.get("jti")
    if not isinstance(jti, str) or not jti or validation.problem(jti):
        raise ProofRefused("the proof needs a jti, which counts once.")
    if not issued_at < expires <= issued_at + LIFETIME:
        raise ProofRefused(f"the proof may be used for at most {LIFETIME} s.")
    if key.revoked is not None and max(issued_at, effective) >= key.revoked:
        raise ProofRefused(f"the key {key.kid!r} was revoked before it signed this.")
    if now is not None and not issued_at - SKEW <= now <= expires + SKEW:
        raise ProofRefused("the proof is too old, or from the future.")


def _signature_holds(decision: JSONMapping, proof: JSONMapping, key: VerificationKey) -> bool:
    try:
        text = signed_bytes(decision)
        signature = decoded(proof.get("sig"))
        match proof.get("alg"), key.public:
            case "HS256", None:
                return hmac.compare_digest(hmac.digest(key.secret, text, "sha256"), signature)
            case "Ed25519", Ed25519PublicKey() as public if not key.rp_id:
                public.verify(signature, text)
                return True
            case "webauthn", (Ed25519PublicKey() | ec.EllipticCurvePublicKey()) as public:
                return _assertion_holds(challenge_of(decision), proof, signature, key, public)
    except (InvalidSignature, RunnerError, *codec.READ_ERRORS):
        return False
    return False


def _assertion_holds(
    challenge: bytes,
    proof: JSONMapping,
    signature: bytes,
    key: VerificationKey,
    public: Ed25519PublicKey | ec.EllipticCurvePublicKey,
) -> bool:
    """Check a WebAuthn assertion, whose challenge is the hash of the whole decision.

    The steps of https://www.w3.org/TR/webauthn-2/#sctn-verifying-assertion that concern a decision:
    type, challenge, origin (not in another site's frame), relying party, that a person was present
    and verified, and the signature.
    """
    data = decoded(proof["authenticator_data"])
    client = decoded(proof["client_data"])
    client_data = codec.load_json(client)
    flags = data[32] if len(data) >= 37 else 0
    if (
        not isinstance(client_data, dict)
        or client_data.get("type") != "webauthn.get"
        or not hmac.compare_digest(decoded(client_data.get("challenge")), challenge)
        or client_data.get("origin") not in key.origins
        or client_data.get("crossOrigin")
        or data[:32] != hashlib.sha256(key.rp_id.encode()).digest()
        or flags & (PRESENT | VERIFIED) != PRESENT | VERIFIED
    ):
        return False
    payload = data + hashlib.sha256(client).digest()
    if isinstance(public, Ed25519PublicKey):
        public.verify(signature, payload)
    else:
        public.verify(signature, payload, ec.ECDSA(hashes.SHA256()))
    return True
