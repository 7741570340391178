"""Decision keys: make, list, rotate and revoke them, in a file of public keys.

The file is a JSON Web Key Set and holds no private key. A key is revoked but never removed, since
decisions that it signed must stay checkable. See `runner/approvals/proofs.py` for the meaning of
the entries.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.approvals.decision_keys import proofs
from runner.approvals.digests import canonical
from runner.errors import ConflictError, NotFoundError, UsageError
from runner.immutable import immutable
from runner.records.codec import JSON, JSONMapping, JSONObject, without_empty

SECRET_BYTES = 32

Entry = JSONObject


@immutable
class PublicKey:
    """A public decision key, without its bytes; `revoked_at` is in milliseconds, 0 while it is valid.

    `algorithm` is "Ed25519", "P-256" or "HMAC". `level` is 1 for a service, 2 for a door that
    checks logins and 3 for a person's own key. `issuers` is None if the key speaks for all.
    `thumbprint` follows RFC 7638; people compare keys by it. A secret has none.
    """

    kid: str
    level: int
    algorithm: str
    principal: str = ""
    issuers: Sequence[str] | None = None
    groups: Sequence[str] = ()
    roles: Sequence[str] = ()
    revoked_at: int = 0
    thumbprint: str = ""


class KeySet:
    """The public keys of one file, which need not exist yet."""

    def __init__(self, path: str | Path) -> None:
        """Set the path of the file."""
        self._path = Path(path)

    def entries(self) -> list[PublicKey]:
        """List the keys, oldest first.

        Raises:
            UsageError: the file isn't a key set.
        """
        return [_shown(entry) for entry in self._read()]

    def make(
        self, kid: str, private: Path, *, hmac: bool = False, **members: JSON
    ) -> PublicKey:
        """Make a key and write both halves: the public one into the set, the private one to a new file.

        `members` belong to the entry: level, issuers, principal, groups, roles. With `hmac` there
        is one secret, which is written to both files.

        Raises:
            ConflictError: the set has the `kid`, or the private file exists.
            UsageError: the members don't fit together.
        """
        public, private_members = new_key(hmac=hmac)
        return self.add(
            kid,
            public,
            lambda entry: write_private(private, {**entry, **private_members}),
            **members,
        )

    def add(
        self,
        kid: str,
        public: JSONMapping,
        before_write: Callable[[Entry], object] = lambda entry: entry,
        **members: JSON,
    ) -> PublicKey:
        """Add the public half of a key that a person has made: kty, crv, x and y; for a passkey more.

        `before_write` is called with the entry before the set is written.

        Raises:
            ConflictError: the set has the `kid`, or the public half. UsageError: the members don't
                fit together.
        """
        entry = {
            "kid": kid,
            **public,
            **without_empty(members),
        }
        with self._changed() as entries:
            if any(existing["kid"] == kid for existing in entries):
                raise ConflictError(
                    f"the key {kid!r} exists already; `runner keys rotate` replaces it."
                )
            for other in entries:
                if "x" in entry and entry["x"] == other.get("x"):
                    raise ConflictError(
                        f"the key {other['kid']!r} has the same public half: one authenticator counts for "
                        "one person, and a key that was revoked stays so. Make another key."
                    )
            entries.append(entry)
            proofs().read_keys(json.dumps({"keys": entries}))
            before_write(entry)
        return _shown(entry)

    def rotate(self, kid: str, successor: str, private: Path, ends: float) -> PublicKey:
        """Make a successor of a key, with the same members; the old key signs until `ends`.

        `ends` is in seconds since 1970: until then either of the two is accepted.

        Raises:
            NotFoundError: no such key exists. ConflictError: as for `make`, or it is a passkey.
        """
        old_entry = self._entry(kid)
        if "rp_id" in old_entry:
            raise ConflictError(
                f"the key {kid!r} is a passkey, which a browser makes: add another one, then revoke this."
            )
        members = {
            name: old_entry[name]
            for name in old_entry.keys() - {"kid", "kty", "crv", "x", "y", "k", "revoked"}
        }
        new_key = self.make(successor, private, hmac=old_entry["kty"] == "oct", **members)
        self.revoke(kid, ends)
        return new_key

    def revoke(self, kid: str, since: float) -> PublicKey:
        """Refuse signatures that a key dates from a time on, in seconds since 1970; 0 refuses all of them.

        Raises:
            NotFoundError: no such key exists.
        """
        self._entry(kid)
        with self._changed() as entries:
            entry = next(entry for entry in entries if entry["kid"] == kid)
            entry["revoked"] = min(since, entry.get("revoked", since))
        return _shown(entry)

    def _entry(self, kid: str) -> Entry:
        for entry in self._read():
            if entry["kid"] == kid:
                return entry
        raise NotFoundError(f"{str(self._path)!r} has no key {kid!r}.")

    def _read(self) -> list[Entry]:
        if not self._path.exists():
            return []
        text = self._path.read_bytes()
        proofs().read_keys(text)
        entries: list[Entry] = json.loads(text)["keys"]
        return entries

    @contextmanager
    def _changed(self) -> Iterator[list[Entry]]:
        """Change the whole file at once: a reader finds the old set or the new one."""
        entries = self._read()
        folder = self._path.parent
        yield entries
        folder.mkdir(parents=True, exist_ok=True)
        secret = any(entry["kty"] == "oct" for entry in entries)
        with tempfile.NamedTemporaryFile(
            "w", dir=folder, delete=False, encoding="utf-8"
        ) as new_file:
            json.dump({"keys": entries}, new_file, indent=2)
            new_file.write("\n")
        Path(new_file.name).chmod(0o600 if secret else 0o644)
        Path(new_file.name).replace(self._path)


def write_private(path: Path, entry: JSONMapping) -> None:
    """Write a private key to a new file that only its owner can read.

    Raises:
        ConflictError: the file exists. UsageError: it can't be written.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConflictError(
            f"{str(path)!r} exists already; a private key is never written over another file."
        ) from None
    except OSError as error:
        raise UsageError(f"the private key can't be written: {error}.") from None
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(entry, file, indent=2)
        file.write("\n")


def new_key(*, hmac: bool = False) -> tuple[Entry, Entry]:
    """Make a key: return the members of its public entry, and the additional ones of the private file."""
    encode = proofs().encoded
    if hmac:
        return {"kty": "oct", "k": encode(secrets.token_bytes(SECRET_BYTES))}, {}
    key = proofs().Ed25519PrivateKey.generate()
    public = {"kty": "OKP", "crv": "Ed25519", "x": encode(key.public_key().public_bytes_raw())}
    return public, {"d": encode(key.private_bytes_raw())}


def _shown(entry: Entry) -> PublicKey:
    return PublicKey(
        entry["kid"],
        entry["level"],
        "HMAC" if entry["kty"] == "oct" else entry["crv"],
        entry.get("principal", ""),
        entry.get("issuers"),
        entry.get("groups", ()),
        entry.get("roles", ()),
        max(1, round(entry["revoked"] * 1000)) if "revoked" in entry else 0,
        thumbprint(entry),
    )


def thumbprint(entry: JSONMapping) -> str:
    """Return the thumbprint of a public key (RFC 7638); "" for a secret."""
    if entry["kty"] == "oct":
        return ""
    members = {name: entry[name] for name in ("crv", "kty", "x", "y") if name in entry}
    return str(proofs().encoded(hashlib.sha256(canonical(members, "the key")).digest()))
