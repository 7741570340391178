"""Signed checkpoints of the audit's tree, in the form of C2SP tlog-checkpoint and signed-note.

A checkpoint states the number of entries and their root, signed with Ed25519. It is a few lines of
text, so a log line, a file, a webhook or a witness can keep it. Forms:
https://c2sp.org/tlog-checkpoint and https://c2sp.org/signed-note.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping

from runner.errors import UsageError, needs_extra
from runner.immutable import immutable

with needs_extra("audit", "a signed audit"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ED25519 = b"\1"
"""Key type in signed-note; no other type is written or read here."""

DASH = "— "
"""Beginning of a signature line: an em dash and a space."""


@immutable
class Checkpoint:
    """The size and root of the tree of one partition, named by its `origin`."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        """Return the lines that are signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def key_id(name: str, public: bytes) -> bytes:
    """Return the four bytes by which a signature names its key."""
    return hashlib.sha256(name.encode() + b"\n" + ED25519 + public).digest()[:4]


def public_bytes(key: Ed25519PublicKey) -> bytes:
    """Return the 32 bytes of a public key."""
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def verifier_key(name: str, key: Ed25519PublicKey) -> str:
    """Format a public key as signed-note does: `name+id+key`."""
    public = public_bytes(key)
    return f"{name}+{key_id(name, public).hex()}+{base64.b64encode(ED25519 + public).decode()}"


def read_verifier_key(text: str) -> tuple[str, Ed25519PublicKey]:
    """Read a public key with its name.

    Raises:
        UsageError: the text isn't a verifier key.
    """
    name, _, hash_and_key = text.strip().partition("+")
    identity, _, key_text = hash_and_key.partition("+")
    try:
        data = base64.b64decode(key_text, validate=True)
        if not name or data[:1] != ED25519 or key_id(name, data[1:]).hex() != identity:
            raise UsageError(
                f"{text.strip():.80} is not a verifier key: its name, id and key do not fit together."
            )
        return name, Ed25519PublicKey.from_public_bytes(data[1:])
    except ValueError as error:  # includes binascii.Error
        raise UsageError(
            f"{text.strip():.80} is not a verifier key (name+id+base64): {error}."
        ) from error


def sign(checkpoint: Checkpoint, name: str, key: Ed25519PrivateKey) -> str:
    """Return a checkpoint as a signed note; `name` is the key's name."""
    text = checkpoint.text()
    signature = key_id(name, public_bytes(key.public_key())) + key.sign(text.encode())
    return f"{text}\n{DASH}{name} {base64.b64encode(signature).decode()}\n"


def read(note: str, keys: Mapping[str, Ed25519PublicKey]) -> Checkpoint:
    """Read a checkpoint signed by any of these keys; signatures of other keys are ignored.

    The keys are by name, or by name and id joined by "+", since keys share a name after a rotation.
    A key with an empty name stands for any name.

    Raises:
        UsageError: it isn't a checkpoint, or no signature of a known key holds.
    """
    text, blank, signatures = note.partition("\n\n")
    text += "\n"
    lines = text.split("\n")
    if not blank or len(lines) < 4 or not lines[0]:
        raise UsageError(
            "this is not a checkpoint: it needs an origin, a size, a root, an empty line and signatures."
        )
    if not any(_holds(line, text, keys) for line in signatures.splitlines()):
        names = ", ".join(sorted(keys)) or "none"
        raise UsageError(f"no signature of the checkpoint holds for the keys given ({names}).")
    try:
        root = base64.b64decode(lines[2], validate=True)
    except binascii.Error as error:
        raise UsageError(f"the checkpoint's root is not base64: {error}.") from error
    size = lines[1]
    if (
        len(root) != hashlib.sha256().digest_size
        or not (size.isascii() and size.isdecimal())
        or size != str(int(size))
    ):
        raise UsageError("the checkpoint's size or root is malformed.")
    return Checkpoint(lines[0], int(size), root)


def _holds(line: str, text: str, keys: Mapping[str, Ed25519PublicKey]) -> bool:
    name, _, signature_text = line.removeprefix(DASH).partition(" ")
    if not line.startswith(DASH):
        return False
    for key in named(keys, name):
        try:
            data = base64.b64decode(signature_text, validate=True)
            if data[:4] == key_id(name, public_bytes(key)):
                key.verify(data[4:], text.encode())
                return True
        except (InvalidSignature, binascii.Error):
            continue
    return False


def named(keys: Mapping[str, Ed25519PublicKey], name: str) -> list[Ed25519PublicKey]:
    """List the keys with a name, see `read`."""
    return [key for label, key in keys.items() if label.partition("+")[0] in {"", name}]
