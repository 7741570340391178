"""Logins by OpenID Connect: the authorization code flow with PKCE, and a session in a signed cookie.

The token of the identity provider is checked (signature, issuer, audience, times, nonce) and thrown away; the
cookie keeps who it is about, when they logged in and with which class, groups and roles.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import httpx
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse, Response
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, OctKey

from runner.approvals.rules import Principal
from runner.errors import UsageError
from runner.server.access import GRANTS, OPEN, Person
from runner.server.problems import Problem, prefix

SESSION, LOGIN = "__Host-runner-session", "__Host-runner-login"
"""Cookies: `__Host-` means that no other host of the domain, and no page without TLS, can set them."""

LOGIN_AGE = 600
"""Seconds that somebody has to log in."""

ALGORITHMS = ["RS256", "PS256", "ES256", "EdDSA"]

TIMEOUT = 10.0

LEEWAY = 60
"""Seconds by which the provider's clock may differ."""

Roles = Callable[[Mapping[str, Any]], Iterable[str]]


def roles_in_claim(claims: Mapping[str, Any]) -> Iterable[str]:
    """Take those of the claim `roles` that are roles of this server."""
    return [name for name in _listed(claims.get("roles")) if name in GRANTS]


class OIDC:
    """Logins by an OpenID provider.

    `roles` says which roles the claims of a token give; without it the claim `roles` names them. `groups` is
    the claim with the groups. `max_age` is how many seconds a session lasts.
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
    ) -> None:
        """`secret` signs sessions; with several processes all need the same one.

        Raises:
            UsageError: the issuer is no https address (http only on this machine).
        """
        local = issuer.startswith(("http://127.0.0.1", "http://localhost"))
        if not (issuer.startswith("https://") or local):
            raise UsageError(f"the issuer {issuer!r:.200} must be an https address.")
        self._issuer, self._client_id, self._client_secret = (
            issuer.rstrip("/"),
            client_id,
            client_secret,
        )
        self._roles, self._groups, self._scopes, self._max_age = roles, groups, scopes, max_age
        self._key = OctKey.import_key(secret or secrets.token_hex(32))
        self._metadata: dict[str, Any] = {}
        self._keys: tuple[float, KeySet | None] = (0.0, None)
        self.router = APIRouter(include_in_schema=False)
        self.router.add_api_route(
            "/login", self._login, methods=["GET"], dependencies=[Depends(OPEN)]
        )
        self.router.add_api_route(
            "/callback", self._callback, methods=["GET"], dependencies=[Depends(OPEN)]
        )
        self.router.add_api_route(
            "/logout", self._logout, methods=["POST"], dependencies=[Depends(OPEN)]
        )

    def __call__(self, request: Request) -> Person | None:
        """Return whose session the request has."""
        claims = self._opened(request.cookies.get(SESSION, ""), "session")
        if claims is None:
            return None
        return Person(
            Principal(claims["sub"], self._issuer, "human", claims.get("name", "")),
            frozenset(claims["roles"]),
            frozenset(claims["groups"]),
            level=2,
            login_at=claims["auth_time"],
            acr=claims.get("acr"),
        )

    # -- the flow ------------------------------------------------------------------------------------------

    def _login(
        self,
        request: Request,
        next: Annotated[str, Query()] = "/",  # noqa: A002 - its name
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
            "redirect_uri": self._redirect_uri(request),
            "scope": " ".join(self._scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        if again:  # somebody who is logged in shows once more who they are
            query |= {"prompt": "login", "max_age": "0", **({"acr_values": acr} if acr else {})}
        response = RedirectResponse(
            f"{self._provider('authorization_endpoint')}?{urlencode(query)}", 303
        )
        login = {"state": state, "nonce": nonce, "verifier": verifier, "next": _local(next)}
        self._set(response, LOGIN, login, "login", LOGIN_AGE)
        return response

    def _callback(
        self,
        request: Request,
        code: Annotated[str, Query()] = "",
        state: Annotated[str, Query()] = "",
    ) -> Response:
        login = self._opened(request.cookies.get(LOGIN, ""), "login")
        if login is None or not state or not secrets.compare_digest(state, login["state"]):
            raise Problem(400, "This login was not begun here, or took too long. Begin again.")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri(request),
            "client_id": self._client_id,
            "code_verifier": login["verifier"],
        }
        form |= {"client_secret": self._client_secret} if self._client_secret else {}
        reply = self._fetch("POST", self._provider("token_endpoint"), data=form)
        claims = self._verified(str(reply.get("id_token", "")), login["nonce"])
        base = prefix(request)
        response = RedirectResponse(base + login["next"], 303)
        self._set(response, SESSION, self._session(claims), "session", self._max_age)
        response.delete_cookie(LOGIN, secure=True, httponly=True, samesite="lax")
        return response

    def _logout(self, request: Request) -> Response:
        base = prefix(request)
        response = RedirectResponse(f"{base}/", 303)
        response.delete_cookie(SESSION, secure=True, httponly=True, samesite="lax")
        return response

    def _session(self, claims: Mapping[str, Any]) -> dict[str, Any]:
        login_at = claims.get("auth_time")
        return {
            "sub": str(claims["sub"]),
            "name": str(claims.get("name") or claims.get("email") or claims["sub"]),
            "groups": _listed(claims.get(self._groups)),
            "roles": sorted(self._roles(claims)),
            # A token is new, and the login that it is of may be old: not known is not fresh.
            "auth_time": login_at if isinstance(login_at, (int, float)) else None,
            "acr": claims.get("acr"),
        }

    def _verified(self, token: str, nonce: str) -> Mapping[str, Any]:
        """Check an ID token: https://openid.net/specs/openid-connect-core-1_0.html#IDTokenValidation."""
        try:
            id_token = jwt.decode(token, self._key_set(), algorithms=ALGORITHMS)
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

    # -- the provider --------------------------------------------------------------------------------------

    def _provider(self, name: str) -> str:
        if not self._metadata:
            self._metadata = self._fetch("GET", f"{self._issuer}/.well-known/openid-configuration")
            if str(self._metadata.get("issuer", "")).rstrip("/") != self._issuer:
                self._metadata = {}
                raise Problem(503, "The identity provider says that it is another one.")
        return str(self._metadata[name])

    def _key_set(self) -> KeySet:
        read_at, keys = self._keys
        if keys is None or time.monotonic() - read_at > 300:  # it rotates its keys
            keys = KeySet.import_key_set(self._fetch("GET", self._provider("jwks_uri")))  # type: ignore[arg-type]
            self._keys = (time.monotonic(), keys)
        return keys

    def _fetch(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        try:
            reply = httpx.request(method, url, timeout=TIMEOUT, follow_redirects=False, **options)
            reply.raise_for_status()
            document: dict[str, Any] = reply.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Problem(503, "The identity provider can't be reached; try again.") from error
        return document

    def _redirect_uri(self, request: Request) -> str:
        base = prefix(request)
        return f"{request.url.scheme}://{request.url.netloc}{base}/callback"

    # -- cookies -------------------------------------------------------------------------------------------

    def _set(
        self, response: Response, name: str, claims: dict[str, Any], purpose: str, seconds: int
    ) -> None:
        cookie = jwt.encode(
            {"alg": "HS256"},
            {**claims, "aud": purpose, "exp": int(time.time()) + seconds},
            self._key,
        )
        response.set_cookie(
            name, cookie, max_age=seconds, secure=True, httponly=True, samesite="lax"
        )

    def _opened(self, cookie: str, purpose: str) -> dict[str, Any] | None:
        try:
            token = jwt.decode(cookie, self._key, algorithms=["HS256"])
            jwt.JWTClaimsRegistry(aud={"value": purpose}, exp={"essential": True}).validate(
                token.claims
            )
        except (JoseError, ValueError):
            return None
        return token.claims


def _listed(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split()
    return [str(item) for item in value] if isinstance(value, list) else []


def _local(path: str) -> str:
    """Return a path of this server; one that leads elsewhere is the first page."""
    safe = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return quote(path, safe="/?=&%+:,.-_~") if safe else "/"
