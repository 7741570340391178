"""The directory of people's groups: doors ask it when a vote comes in, workers never do.

`RUNNER_DIRECTORY=module:object` names the object; every door asks it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Protocol, TypeVar, runtime_checkable

from runner.approvals.rules import Principal, Voter, plain_name
from runner.errors import DirectoryError, RunnerError, UsageError

Answer = TypeVar("Answer")


@runtime_checkable
class Directory(Protocol):
    """Source of people's groups and roles. The methods may be called on many threads at once.

    The names are bare: "finance" is `group:finance` in a rule. For an unknown principal they return
    nothing. An error refuses the vote for now, and a message is applied again later.
    """

    def groups(self, principal: Principal) -> Collection[str]:
        """Return the names of a person's groups."""

    def roles(self, principal: Principal) -> Collection[str]:
        """Return the names of a person's roles."""


@runtime_checkable
class AccountDirectory(Directory, Protocol):
    """A directory that also knows the owners of accounts elsewhere, such as on Slack."""

    def person(self, account: Principal, email: str) -> Principal | None:
        """Return the person as other doors know them, so that they count once; None for an unknown owner.

        `account` has the account's id, and as its issuer the place of the account:
        `https://slack.com/T0123456789`. A mailbox has the issuer `mailto`, and the address as its
        id.
        """


@runtime_checkable
class MailDirectory(AccountDirectory, Protocol):
    """A directory that also knows the addresses to which questions are sent."""

    def addresses(self, selectors: Collection[str]) -> Collection[str]:
        """Return the e-mail addresses of the people whom any of the selectors names.

        The selectors come from a rule: `user:ana`, `group:finance`, `role:manager`, `anyone`.
        """


@lru_cache(maxsize=8)
def directory(name: str) -> Directory:
    """Import a directory by its name, `module:object`.

    Raises:
        UsageError: no such object exists, or it lacks a method.
    """
    module, _, attribute = name.partition(":")
    try:
        candidate: object = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"RUNNER_DIRECTORY={name}: {error}. Name an object that can be imported, as module:object."
        ) from error
    if not isinstance(candidate, Directory) or isinstance(candidate, type):
        raise UsageError(
            f"RUNNER_DIRECTORY={name}: {candidate!r:.80} has no groups(principal) and roles(principal)."
        )
    return candidate


def owner_of(account: Principal, email: str, name: str) -> Voter | None:
    """Return the owner of an account, with their groups and roles, by the directory of that name.

    Raises:
        DirectoryError: it could not be asked. UsageError: it can't be imported, or doesn't know
            accounts.
    """
    source = directory(name)
    if not isinstance(source, AccountDirectory):
        raise UsageError(
            f"RUNNER_DIRECTORY={name}: {source!r:.80} has no person(account, email), so accounts elsewhere "
            "can't be used."
        )
    person = _answered(name, account.key, lambda: source.person(account, email))
    return None if person is None else looked_up(Voter(Principal.read(person.key)), name)


def addresses_of(selectors: Collection[str], name: str) -> list[str]:
    """List the addresses of the people whom selectors name, by the directory of that name.

    Raises:
        DirectoryError: it could not be asked. UsageError: it can't be imported, or doesn't know
            addresses.
    """
    source = directory(name)
    if not isinstance(source, MailDirectory):
        raise UsageError(
            f"RUNNER_DIRECTORY={name}: {source!r:.80} has no addresses(selectors), so no mail can be sent."
        )
    subject = ", ".join(selectors)
    return sorted(_names(_answered(name, subject, lambda: source.addresses(selectors)), name))


def looked_up(voter: Voter, name: str) -> Voter:
    """Return the voter with the groups and roles from the directory of that name, if it isn't "".

    Groups and roles known to the door, as from the claims of a login, stay.

    Raises:
        DirectoryError: it could not be asked. UsageError: it can't be imported.
    """
    if not name:
        return voter
    source = directory(name)
    principal = voter.principal
    groups, roles = _answered(
        name, principal.key, lambda: (source.groups(principal), source.roles(principal))
    )
    return replace(
        voter,
        groups=voter.groups | _names(groups, name),
        roles=voter.roles | _names(roles, name),
    )


def _answered(name: str, subject: str, ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except RunnerError:
        raise
    except Exception as error:
        raise DirectoryError(
            f"the directory {name} could not say who {subject} is: {type(error).__name__}: "
            f"{error}. Nothing was counted; try again."
        ) from error


def _names(names: Collection[str], directory: str) -> frozenset[str]:
    # A text is a collection of letters, which aren't groups.
    is_list = isinstance(names, Collection) and not isinstance(names, str)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"RUNNER_DIRECTORY={directory}: it returned {names!r:.80}, which is not a list of names."
        )
    return frozenset(names)


def selectors_of(voter: Voter, name: str) -> list[str]:
    """Name a voter, with the groups and roles that their door and the directory of that name know."""
    with suppress(DirectoryError):
        voter = looked_up(voter, name)
    groups = [f"group:{group}" for group in sorted(voter.groups)]
    roles = [f"role:{role}" for role in sorted(voter.roles)]
    return [f"user:{plain_name(voter.principal.key)}", *groups, *roles]
