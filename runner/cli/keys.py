"""`runner keys`: the keys that sign and verify decisions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.arguments import flag, option, to_ms, to_seconds
from runner.cli.context import CommandContext, command, group
from runner.errors import StoreError, UsageError
from runner.records.codec import JSON, JSONObject
from runner.records.json_form import stamp

if TYPE_CHECKING:
    from runner.approvals.keys import KeySet, PublicKey


@group
def keys() -> None:
    """Make, list, rotate and revoke the keys of decisions.

    RUNNER_DECISION_KEYS names the file of public keys (a JSON Web Key Set). Every worker and every door
    reads it, and again when it changes. A private key is written to a separate file, which is the
    RUNNER_SIGNING_KEY of one service or door, or belongs to one person.
    """


KID = click.argument("kid", metavar="KID")
PRIVATE = option(
    "--private FILE",
    "The new file for the private key (default: KID.key.json).",
    type=click.Path(path_type=Path),
)


@command(keys, "list")
def list_keys(context: CommandContext) -> None:
    """List the public keys, oldest first.

    Without a terminal: id, level, algorithm, its owner or the issuers it speaks for, and when it was or
    will be revoked, separated by tabs.
    """
    entries = _set(context).entries()
    rows = [_row(key) for key in entries]
    context.output.listing(
        {"keys": entries}, ("KID", "LEVEL", "ALGORITHM", "OF", "REVOKED"), rows
    )


@command(keys)
@KID
@option(
    "--level",
    "1 for a service, 2 for a door that checks logins, 3 for a person's own key.",
    type=click.IntRange(1, 3),
    required=True,
)
@option(
    "--principal KIND:ISSUER|NAME", "The person who owns the key, at level 3 (default: none)."
)
@option(
    "--issuer",
    "issuers",
    "An issuer whose people it may speak for (default: all).",
    multiple=True,
)
@option(
    "--group",
    "groups",
    "A group of its owner, at level 3; for a door, one that it may state (default: all).",
    multiple=True,
)
@option(
    "--role",
    "roles",
    "A role of its owner, at level 3; for a door, one that it may state (default: all).",
    multiple=True,
)
@flag("--hmac", "A shared secret, at level 1: keep the public file secret then.")
@option(
    "--public FILE",
    "A public key (JWK) that a person has made, such as a passkey (default: a new one).",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@PRIVATE
def new(
    context: CommandContext,
    kid: str,
    *,
    hmac: bool,
    public: Path | None,
    private: Path | None,
    **members: Any,
) -> None:
    """Make a key, or add the public half of one.

    The public half goes to the file of RUNNER_DECISION_KEYS, the private half to a new file.
    Exit codes: 0 made; 2 the options don't fit together; 5 the id or the private file exists.
    """
    options: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in members.items()
    }
    if public is None:
        key = _set(context).make(kid, private or _file_of(kid), hmac=hmac, **options)
    else:
        key = _set(context).add(kid, _public(public, options["principal"]), **options)
    _write(context, "added", key)


@command(keys)
@KID
@option("--to KID", "successor", "The id of the new key.", required=True)
@option(
    "--overlap DURATION",
    "How long signatures of the old key are still accepted, such as 90s or 7d.",
    default="1d",
    callback=to_seconds,
)
@PRIVATE
def rotate(
    context: CommandContext, kid: str, successor: str, overlap: float, private: Path | None
) -> None:
    """Make a key that follows KID, which still signs for a while.

    The new key has the same level and speaks for the same people. Signatures that the old key made until
    then stay valid.
    Exit codes: 0 made; 4 no such key; 5 the new id or the private file exists.
    """
    key = _set(context).rotate(
        kid, successor, private or _file_of(successor), time.time() + overlap
    )
    _write(context, "rotated", key, follows=kid)


@command(keys)
@KID
@option(
    "--since TIME",
    "Refuse signatures dated since then: a duration before now, an RFC 3339 time, "
    "or 'ever' (default: now).",
    callback=lambda context, option, text: (
        0 if text == "ever" else to_ms(context, option, text)
    ),
)
def revoke(context: CommandContext, kid: str, since: int | None) -> None:
    """Refuse the signatures of a key from now on, or since a time.

    A thief can also sign with an earlier time: revoke a stolen key since 'ever', and have calls that it
    approved and that are not done yet approved again. The key stays listed.
    Exit codes: 0 revoked; 4 no such key.
    """
    key = _set(context).revoke(kid, time.time() if since is None else since / 1000)
    _write(context, "revoked", key, revoked_at=key.revoked_at)


def _write(context: CommandContext, operation: str, key: PublicKey, **details: JSON) -> None:
    """Write a key, and an audit entry. The keys are in a file, so they can change without a store."""
    context.output.write(key, [_row(key)])
    details |= {"kid": key.kid, "level": key.level, "principal": key.principal}
    try:
        audit, *_ = context.installation.store.audit_logs
        audit.note(f"decision_key.{operation}", actor=context.user, outcome=details)
    except StoreError as error:
        context.output.note(f"The audit has no entry of this: {error}")


def _set(context: CommandContext) -> KeySet:
    from runner.approvals.keys import KeySet

    path = context.settings.decision_keys
    if not path:
        raise UsageError(
            "RUNNER_DECISION_KEYS names no file: set it to the file of the public keys, also a new one."
        )
    return KeySet(path)


def _file_of(kid: str) -> Path:
    return Path(f"{kid.replace('/', '_')}.key.json")


def _public(path: Path, principal: str | None) -> JSONObject:
    try:
        entry = json.loads(path.read_bytes())
        if entry.get("principal", principal) != principal:
            raise UsageError(
                f"{str(path)!r} was made by {entry['principal']!r:.200}, not by {principal!r:.200}; "
                "nothing was added. If you mean its maker, name them."
            )
        names = ("kty", "crv", "x", "y", "d", "k", "origins", "rp_id", "credential")
        return {name: entry[name] for name in names if name in entry}
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{str(path)!r} is not a public key (JWK): {error}.") from None


def _row(key: PublicKey) -> tuple[object, ...]:
    of = key.principal or ", ".join(key.issuers or ()) or "all"
    return key.kid, key.level, key.algorithm, of, stamp(key.revoked_at) or ""
