"""Logins by OpenID Connect: the authorization code flow with PKCE, and a session in a signed cookie.

The token of the identity provider is checked (signature, issuer, audience, times, nonce) and discarded; the
cookie keeps the person, the time and class of the login, the groups and the roles.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import urlencode

import httpx
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, KeySet
from markupsafe import escape

from runner.approvals.rules import LOGIN, Principal
from runner.errors import UsageError
from runner.records.codec import JSONMapping, JSONObject
from runner.server.access import GRANTS, OPEN, Person
from runner.server.auth import local_path, same
from runner.server.parameters import QueryText
from runner.server.problems import Problem, prefix
from runner.settings import Settings

SESSION_COOKIE, LOGIN_COOKIE = "__Host-runner-session", "__Host-runner-login-"
"""Cookies: `__Host-` means that no other host of the domain, and no page without TLS, can set them."""

LOGIN_AGE = 600
"""Seconds that a person has to log in."""

ALGORITHMS = ["RS256", "PS256", "ES256", "EdDSA"]

TIMEOUT = 10.0

KEYS_AGE, KEYS_PAUSE = 300.0, 5.0
"""Seconds for which the provider's keys are kept, and at least between two reads for an unknown key."""

MOST_COOKIE = 3_500
"""Maximum characters of a cookie: browsers drop one over 4,096 bytes. A longer session has several."""

MOST_PIECES = 2
"""Maximum cookies of one session: proxies refuse a line of cookies longer than 8 KB."""

MOST_LOGINS = 5
"""Maximum tabs of a browser with a login under way."""

LEEWAY = 60
"""Seconds by which the provider's clock may differ."""

Roles = Callable[[Mapping[str, Any]], Iterable[str]]


def roles_in_claim(claims: JSONMapping) -> Iterable[str]:
    """Return the names in the claim `roles` that are roles of this server."""
    return [name for name in _listed(claims.get("roles")) if name.partition(":")[0] in GRANTS]


class OIDC:
    """Logins by an OpenID provider.

    `roles` returns the roles that a token's claims give; by default the claim `roles` names them.
    `groups` is the claim with the groups. `max_age` is the length of a session in seconds. `emails`
    lists the verified addresses, and domains such as "@example.com", that may log in; by default
    everyone may.
    """

    login_path = "/login"

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str = "",
        *,
        roles: Roles = roles_in_claim,
        groups: str = "groups",
        scopes: Collection[str] = ("openid", "profile", "email"),
        max_age: int = 8 * 3600,
        secret: str = "",
        emails: Collection[str] = (),
    ) -> None:
        """`secret` signs sessions; with several processes all need the same one, or RUNNER_SERVER_SECRET.

        Raises:
            UsageError: the issuer isn't an https address (http only on this machine), or `emails` isn't a
                list of addresses and domains.
        """
        if isinstance(emails, str) or not all("@" in email for email in emails):
            raise UsageError(
                f"emails is a list of addresses, and domains with an @, not {emails!r:.200}."
            )
        local = issuer.startswith(("http://127.0.0.1", "http://localhost"))
        if not (issuer.startswith("https://") or local):
            raise UsageError(f"the issuer {issuer!r:.200} must be an https address.")
        self._issuer = issuer.rstrip("/")
        self._client_id = client_id
        self._client_secret = client_secret
        self._roles = roles
        self._groups = groups
        self._scopes = scopes
        self._max_age = max_age
        self._emails = frozenset(email.lower() for email in emails)
        self._secret = secret
        self._random = secrets.token_hex(32)
        self._metadata: JSONObject = {}
        self._keys: tuple[float, KeySet | None] = (0.0, None)
        self.router = APIRouter(include_in_schema=False, dependencies=[Depends(OPEN)])
        self.router.get("/login")(self._login)
        self.router.get("/callback")(self._callback)
        self.router.post("/logout")(self._logout)

    def __call__(self, request: Request) -> Person | None:
        """Return the person whose session the request has."""
        pieces = (request.cookies.get(_piece(number), "") for number in range(MOST_PIECES))
        claims = self._open(request, "".join(pieces), "session")
        if claims is None:
            return None
        return Person(
            Principal(claims["sub"], self._issuer, "human", claims.get("name", "")),
            frozenset(claims["roles"]),
            frozenset(claims["groups"]),
            level=LOGIN,
            login_at=claims["auth_time"],
            acr=claims.get("acr"),
        )

    # -- the flow ------------------------------------------------------------------------------------------

    def _login(
        self,
        request: Request,
        next: QueryText = "/",  # noqa: A002 - its name
        again: Annotated[bool, Query()] = False,  # noqa: FBT002 - as a query has it
        acr: Annotated[str, Query(max_length=200)] = "",
    ) -> Response:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = (
            urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        )
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": _address(request, "/callback"),
            "scope": " ".join(self._scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        if again:  # a logged-in person must prove their identity again
            query |= {"prompt": "login", "max_age": "0", **({"acr_values": acr} if acr else {})}
        response = RedirectResponse(
            f"{self._provider('authorization_endpoint')}?{urlencode(query)}", 303
        )
        login = {"nonce": nonce, "verifier": verifier, "next": local_path(next)}
        # Each login has a cookie: of two tabs that log in, either may come back first.
        begun = [name for name in request.cookies if name.startswith(LOGIN_COOKIE)]
        for name in begun[: max(0, len(begun) + 1 - MOST_LOGINS)]:
            _drop(response, name)
        cookie = self._sealed(request, login, "login", LOGIN_AGE, state)
        _keep(response, LOGIN_COOKIE + state, cookie, LOGIN_AGE)
        return response

    def _callback(
        self,
        request: Request,
        code: QueryText = "",
        state: QueryText = "",
        error: QueryText = "",
    ) -> Response:
        login = self._open(
            request, request.cookies.get(LOGIN_COOKIE + state, ""), "login", state
        )
        if login is None:
            raise Problem(400, "This login was not begun here, or took too long. Begin again.")
        if error or not code:
            reason = error or "it sent no code"
            raise Problem(403, f"The identity provider refused the login: {reason:.100}.")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": _address(request, "/callback"),
            "client_id": self._client_id,
            "code_verifier": login["verifier"],
        }
        form |= {"client_secret": self._client_secret} if self._client_secret else {}
        reply = self._fetch("POST", self._provider("token_endpoint"), data=form)
        claims = self._verified(str(reply.get("id_token", "")), login["nonce"])
        self._check_email(claims)
        response = RedirectResponse(prefix(request) + login["next"], 303)
        self._begin(request, response, self._session(claims))
        _drop(response, LOGIN_COOKIE + state)
        return response

    def _begin(self, request: Request, response: Response, session: JSONObject) -> None:
        cookie = self._sealed(request, session, "session", self._max_age)
        if len(cookie) > MOST_PIECES * MOST_COOKIE:
            raise Problem(
                403,
                f"The session is too long for a browser: it has {len(session['groups'])} groups. Let the "
                "identity provider send only the groups that are assigned to this application.",
            )
        for number in range(MOST_PIECES):
            piece = cookie[number * MOST_COOKIE : (number + 1) * MOST_COOKIE]
            if piece:
                _keep(response, _piece(number), piece, self._max_age)
            elif _piece(number) in request.cookies:
                _drop(response, _piece(number))

    def _logout(self, request: Request) -> Response:
        """End the session here, then at the provider if it supports that."""
        home = f"{prefix(request)}/"
        response: Response = RedirectResponse(home, 303)
        with suppress(Problem):  # without the provider, the session here still ends
            self._metadata_of_provider()
        if end := self._metadata.get("end_session_endpoint"):
            query = {
                "client_id": self._client_id,
                "post_logout_redirect_uri": _address(request, "/"),
            }
            # The Content Security Policy forbids to redirect a form to another site.
            there = f"{end}{'&' if '?' in str(end) else '?'}{urlencode(query)}"
            text = f'<p>You are logged out here. <a href="{escape(there)}">Log out at the provider</a>.'
            response = HTMLResponse(text, headers={"refresh": f"0; url={there}"})
        for number in range(MOST_PIECES):
            _drop(response, _piece(number))
        return response

    def _session(self, claims: JSONMapping) -> JSONObject:
        login_at = claims.get("auth_time")
        return {
            "sub": str(claims["sub"]),
            "name": str(claims.get("name") or claims.get("email") or claims["sub"]),
            "groups": _listed(claims.get(self._groups)),
            "roles": sorted(self._roles(claims)),
            # The token is new, but its login may be old: an unknown time doesn't count as fresh.
            "auth_time": login_at if isinstance(login_at, (int, float)) else None,
            "acr": claims.get("acr"),
        }

    def _verified(self, token: str, nonce: str) -> JSONMapping:
        """Check an ID token: https://openid.net/specs/openid-connect-core-1_0.html#IDTokenValidation."""
        try:
            id_token = self._decode(token)
            audience = {"essential": True, "values": [self._client_id]}
            issuer = {"essential": True, "value": self._provider("issuer")}
            registry = jwt.JWTClaimsRegistry(
                leeway=LEEWAY,
                iss=issuer,  # type: ignore[arg-type] # as joserfc documents it
                aud=audience,  # type: ignore[arg-type]
                exp={"essential": True},
                iat={"essential": True},
                sub={"essential": True},
                nonce={"essential": True, "value": nonce},
            )
            registry.validate(id_token.claims)
        except (JoseError, ValueError) as error:
            raise Problem(403, "The answer of the identity provider doesn't hold.") from error
        azp = id_token.claims.get("azp")
        if azp is not None and azp != self._client_id:
            raise Problem(403, "The identity provider's answer is for another program.")
        return id_token.claims

    def _check_email(self, claims: JSONMapping) -> None:
        email = str(claims.get("email", ""))
        domain = f"@{email.rpartition('@')[2]}"
        # The Kelvin sign becomes a k if the case is ignored, but belongs to another domain.
        names = {email.lower(), domain.lower()} if email.isascii() else set()
        is_listed = not self._emails.isdisjoint(names)
        is_verified = claims.get("email_verified")
        if self._emails and not (is_listed and (is_verified is True or is_verified == "true")):
            raise Problem(
                403,
                "Your mail address is not among those that may log in here, or the identity provider has not "
                "verified it. Ask the people who run this server.",
            )

    def _decode(self, token: str) -> jwt.Token:
        try:
            return jwt.decode(token, self._key_set(KEYS_AGE), algorithms=ALGORITHMS)
        except (JoseError, ValueError):  # the provider may have a new key
            return jwt.decode(token, self._key_set(KEYS_PAUSE), algorithms=ALGORITHMS)

    # -- the provider --------------------------------------------------------------------------------------

    def _metadata_of_provider(self) -> JSONObject:
        if not self._metadata:
            metadata = self._fetch("GET", f"{self._issuer}/.well-known/openid-configuration")
            if str(metadata.get("issuer", "")).rstrip("/") != self._issuer:
                raise Problem(
                    503, "The identity provider names another issuer than the configured one."
                )
            self._metadata = metadata
        return self._metadata

    def _provider(self, name: str) -> str:
        return str(self._metadata_of_provider()[name])

    def _key_set(self, age: float) -> KeySet:
        read_at, keys = self._keys
        if keys is None or time.monotonic() - read_at > age:
            keys = _usable(self._fetch("GET", self._provider("jwks_uri")))
            self._keys = (time.monotonic(), keys)
        return keys

    def _fetch(self, method: str, url: str, **options: Any) -> JSONObject:
        try:
            reply = httpx.request(
                method, url, timeout=TIMEOUT, follow_redirects=False, **options
            )
            reply.raise_for_status()
            document: JSONObject = reply.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Problem(503, "The identity provider can't be reached; try again.") from error
        return document

    # -- cookies -------------------------------------------------------------------------------------------

    def _sealed(
        self,
        request: Request,
        claims: JSONObject,
        purpose: str,
        seconds: int,
        state: str = "",
    ) -> str:
        """Write claims as a signed cookie; compressed, since people are in many groups."""
        text = json.dumps({**claims, "exp": int(time.time()) + seconds}).encode()
        body = urlsafe_b64encode(zlib.compress(text, 9)).decode()
        return f"{body}.{self._mac(request, purpose, state, body)}"

    def _open(
        self, request: Request, cookie: str, purpose: str, state: str = ""
    ) -> JSONObject | None:
        body, _, mac = cookie.partition(".")
        if not same(mac, self._mac(request, purpose, state, body)):
            return None
        claims: JSONObject = json.loads(zlib.decompress(urlsafe_b64decode(body)))
        return claims if claims["exp"] > time.time() else None

    def _mac(self, request: Request, *parts: str) -> str:
        settings: Settings = request.app.state.services.settings
        secret = self._secret or settings.server_secret or self._random
        # A change of the list of addresses ends all earlier sessions.
        text = "\n".join((self._issuer, self._client_id, *sorted(self._emails), *parts))
        return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def _piece(number: int) -> str:
    return f"{SESSION_COOKIE}-{number}" if number else SESSION_COOKIE


def _keep(response: Response, name: str, value: str, seconds: int) -> None:
    response.set_cookie(
        name, value, max_age=seconds, secure=True, httponly=True, samesite="lax"
    )


def _drop(response: Response, name: str) -> None:
    response.delete_cookie(name, secure=True, httponly=True, samesite="lax")


def _usable(document: JSONMapping) -> KeySet:
    """Return the keys of a provider that this program can use; it may have others, of new kinds."""
    keys = []
    for entry in document.get("keys", ()):
        with suppress(JoseError, ValueError, KeyError, TypeError, AttributeError):
            keys.append(JWKRegistry.import_key(entry))
    return KeySet(keys)


def _address(request: Request, path: str) -> str:
    """Return the address of a page as people open it: below RUNNER_SERVER_URL, if it is set."""
    settings: Settings = request.app.state.services.settings
    base = prefix(request)
    return settings.page(path) or f"{request.url.scheme}://{request.url.netloc}{base}{path}"


def _listed(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split()
    return [str(item) for item in value] if isinstance(value, list) else []
