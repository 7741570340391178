"""A device with a passkey, in software: what a browser and its authenticator make, and what nobody should."""

from __future__ import annotations

import hashlib
import json
import re
from html import unescape

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from runner.approvals.proofs import encoded

VERIFIED_PERSON = 5
"""Flags: somebody was there, and was recognized."""


class Device:
    """One passkey at an origin; `count` is its counter of signatures, 0 for one that has none."""

    def __init__(self, origin, count=0):
        self.origin, self.count, self.credential = origin, count, b"credential-of-a-device"
        self._key = ec.generate_private_key(ec.SECP256R1())

    def data(self, rp_id, flags):
        self.count += bool(self.count)
        head = hashlib.sha256(rp_id.encode()).digest()
        return head + bytes([flags]) + self.count.to_bytes(4, "big")

    def client_data(self, kind, challenge, **more):
        client = {"type": kind, "challenge": challenge, "origin": self.origin, **more}
        return json.dumps(client).encode()

    def register(self, challenge, rp_id, flags=VERIFIED_PERSON, kind="webauthn.create", **more):
        """Return what a browser sends of a new passkey."""
        client = self.client_data(kind, challenge, **more)
        length = len(self.credential).to_bytes(2, "big")
        data = self.data(rp_id, flags | 64) + bytes(16) + length + self.credential + b"COSE"
        public = self._key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return {
            "client_data": encoded(client),
            "authenticator_data": encoded(data),
            "public_key": encoded(public),
        }

    def public(self):
        """Return the members of a JSON Web Key."""
        numbers = self._key.public_key().public_numbers()
        x, y = (encoded(number.to_bytes(32)) for number in (numbers.x, numbers.y))
        return {"kty": "EC", "crv": "P-256", "x": x, "y": y}

    def sign(self, request, flags=VERIFIED_PERSON, kind="webauthn.get", **more):
        """Return the proof that a browser sends for a signature request of a page."""
        client = self.client_data(kind, request["challenge"], **more)
        data = self.data(request["rp_id"], flags)
        signature = self._key.sign(
            data + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256())
        )
        return {
            **request["proof"],
            "authenticator_data": encoded(data),
            "client_data": encoded(client),
            "sig": encoded(signature),
        }


def requests_in(text):
    """Return what a page asks of passkeys."""
    return [
        json.loads(unescape(found)) for found in re.findall(r"data-passkey='([^']*)'", text)
    ]
