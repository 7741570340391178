"""Decision keys in files: the public keys that check proofs, and the private key with which a door signs.

`RUNNER_DECISION_KEYS` is a JSON Web Key Set, read again after a change. `RUNNER_SIGNING_KEY` is one
private key in the same form. `runner keys` writes both; `runner/approvals/proofs.py` describes the
contents. Signatures need the package cryptography (the extra `audit`), which is imported only where
a key is used.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import UsageError
from runner.immutable import immutable
from runner.records.codec import JSONMapping, JSONObject
from runner.store.requests import new_nonce

if TYPE_CHECKING:
    from types import ModuleType

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from runner.approvals.proofs import VerificationKeys

STAMP = tuple[int, int, int]


def proofs() -> ModuleType:
    """Import the module that checks and makes signatures.

    Raises:
        MissingExtra: cryptography is not installed.
    """
    from runner.approvals import proofs as module  # noqa: PLC0415 - an extra, which most do without

    return module


def run_name(requester: JSONMapping | None) -> str:
    """Return a run's id, without its partition, by its requester's signature; "" without a signature.

    Raises:
        UsageError: the signature isn't valid for a start.
    """
    body = (requester or {}).get("body")
    return "" if body is None else str(proofs().run_name(body))


class DecisionKeys:
    """The public keys of a file. Thread-safe; share one per process."""

    def __init__(self, path: str | None = None) -> None:
        """Set the file; without a path, `RUNNER_DECISION_KEYS` names it when it is first needed."""
        self._path = path
        self._lock = threading.Lock()
        self._stamp: STAMP | None = None
        self._keys: VerificationKeys = {}

    def read(self) -> VerificationKeys:
        """Return the keys by `kid`, read again if the file has changed; none if no file is set.

        Raises:
            UsageError: the file can't be read, or has other contents.
        """
        path = self._file()
        if not path:
            return {}
        with self._lock:
            try:
                stat = Path(path).stat()
                stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if stamp != self._stamp:
                    self._keys = proofs().read_keys(Path(path).read_bytes())
                    self._stamp = stamp
            except (OSError, UsageError) as error:
                raise UsageError(f"RUNNER_DECISION_KEYS names {path!r:.200}: {error}") from None
            return self._keys

    def _file(self) -> str:
        if self._path is None:
            from runner.settings import Settings  # noqa: PLC0415 - reading settings is slow, and rarely needed

            self._path = Settings().decision_keys
        return self._path


@immutable
class SigningKey:
    """The key with which a service or a door signs decisions; `key` is a private key, or a secret."""

    kid: str
    key: Ed25519PrivateKey | bytes

    @classmethod
    def read(cls, path: str | Path | None = None) -> SigningKey:
        """Read a private key as `runner keys new` writes it; by default the file of `RUNNER_SIGNING_KEY`.

        Raises:
            UsageError: no key is set, or the file doesn't hold one.
        """
        if path is None:
            from runner.settings import Settings  # noqa: PLC0415 - as above

            path = Settings().signing_key
            if not path:
                raise UsageError(
                    "nothing can be signed: RUNNER_SIGNING_KEY names no file with a private key. "
                    "`runner keys new` makes one."
                )
        module = proofs()
        try:
            entry = json.loads(Path(path).read_bytes())
            return cls(entry["kid"], _private(entry, module.decoded))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{str(path)!r:.200} holds no private decision key: {error!r}."
            ) from None

    def sign(
        self,
        body: JSONMapping,
        *,
        login: JSONMapping | None = None,
        now: float | None = None,
    ) -> JSONObject:
        """Return a message with its proof: an answer of version 2, or a start with a requester.

        `login` holds facts that the door has checked: `auth_time` (seconds since 1970), `acr`, and
        the lists `groups` and `roles`. Sign right before sending: the proof is valid for five
        minutes.

        Raises:
            UnstorableError: other languages would read a value as a different one.
        """
        moment = time.time() if now is None else now
        proof: JSONObject = proofs().sign(
            body, self.key, self.kid, now=moment, jti=new_nonce(), login=login
        )
        return proof


def _private(entry: JSONMapping, decode: Any) -> Ed25519PrivateKey | bytes:
    if entry["kty"] == "oct":
        secret: bytes = decode(entry["k"])
        return secret
    key: Ed25519PrivateKey = proofs().Ed25519PrivateKey.from_private_bytes(decode(entry["d"]))
    return key
