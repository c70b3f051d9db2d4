"""What every request must pass, and what every answer carries: who may ask, from where, and what a page may do."""

from __future__ import annotations

import hmac
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

COOKIE = "diode-token"
REFUSED = "refused %.20s %.200r: %s"
"""What the log says of a request that is refused: its method and path, and why."""
_PARAMETER = "token"
_MOST_BYTES_OF_URL, _MOST_PARAMETERS = 4_000, 20
_OWN_SITE = frozenset({"same-origin", "none"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused."""

    status: int
    text: str


class Guard:
    """ASGI middleware around the whole site."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        refuse: Callable[[Refusal], Response],
        hosts: frozenset[str] = frozenset(),
        token: str | None = None,
    ) -> None:
        """Guard ``app``.

        Args:
            app: what is guarded.
            refuse: makes the page that says why.
            hosts: values of ``Host`` that are answered, in lower case; empty for any. Without a token it keeps out a
                page of another site whose name was made to point here (DNS rebinding).
            token: what a request must bring, as a bearer or in a cookie; None for nothing.
        """
        self._app, self._refuse, self._hosts, self._token = app, refuse, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        entering = None if self._token is None else self._entering(scope, self._token)
        refusal = self._refusal(scope, is_entering=entering is not None)
        if refusal is not None:
            log.warning(REFUSED, scope["method"], scope["path"], refusal.text)
            await self._refuse(refusal)(scope, receive, send_guarded)
        else:
            await (entering or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, *, is_entering: bool) -> Refusal | None:
        headers = Headers(scope=scope)
        if scope["method"] not in {"GET", "HEAD"}:
            return Refusal(405, "this site only shows; it takes no request that writes")
        query = scope["query_string"]
        if len(scope["raw_path"]) + len(query) > _MOST_BYTES_OF_URL or query.count(b"&") >= _MOST_PARAMETERS:
            return Refusal(414, "this address is too long")
        if self._hosts and headers.get("host", "").lower() not in self._hosts:
            return Refusal(421, f"this server is called {' or '.join(sorted(self._hosts))}")
        if not _is_of_own_site(headers):
            return Refusal(403, "another site asks for this; open it yourself")
        if self._token is not None and not is_entering and not _is_known(scope, headers, self._token):
            return Refusal(401, "a token is needed: open the address with ?token=… once, or send it as a bearer")
        return None

    def _entering(self, scope: Scope, token: str) -> Response | None:
        """Return what keeps the token in a cookie, so that it stays out of addresses; None if it is not in this one."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == _PARAMETER and _is_right(value, token) for name, value in pairs):
            return None
        rest = urlencode([pair for pair in pairs if pair[0] != _PARAMETER])
        # A path of two slashes would be the address of another host.
        address = "/" + scope["path"].lstrip("/\\") + (f"?{rest}" if rest else "")
        response = RedirectResponse(address, status_code=303)
        # Lax, not strict: a link from another site is to work, and nothing here can be changed by following one.
        response.set_cookie(_cookie(scope), token, httponly=True, samesite="lax")
        return response


def _is_of_own_site(headers: Headers) -> bool:
    """Whether a page of this site asks, or somebody who types an address or follows a link to here."""
    if "sec-fetch-site" in headers:
        is_visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return is_visit or headers["sec-fetch-site"] in _OWN_SITE
    # Neither with a handshake of a WebSocket nor over plain HTTP from another machine does a browser say more.
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()


def _is_known(scope: Scope, headers: Headers, token: str) -> bool:
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    kept = cookie_parser(headers.get("cookie", "")).get(_cookie(scope), "")
    return _is_right(bearer, token) or _is_right(kept, token)


def _is_right(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _cookie(scope: Scope) -> str:
    """Return the name of the cookie: cookies are shared by all ports of a host."""
    _, port = scope.get("server") or ("", 0)
    return f"{COOKIE}-{port}"
