"""Access checks of every request, and security headers of every answer."""

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
"""Log line of a refused request: method, path and reason."""
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
    """Reason why a request is refused."""

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
            app: the site.
            refuse: returns the page that states the reason.
            hosts: accepted values of ``Host``, in lower case; empty for any. Without a token, this keeps out pages of
                other sites whose names were made to point here (DNS rebinding).
            token: token that a request must bring as a bearer or in a cookie; None for no token.
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
            return Refusal(405, "this site is read-only")
        query = scope["query_string"]
        if len(scope["raw_path"]) + len(query) > _MOST_BYTES_OF_URL or query.count(b"&") >= _MOST_PARAMETERS:
            return Refusal(414, "this address is too long")
        if self._hosts and headers.get("host", "").lower() not in self._hosts:
            return Refusal(421, f"this server answers to {' or '.join(sorted(self._hosts))}")
        if not _is_of_own_site(headers):
            return Refusal(403, "the request comes from another site; open this address yourself")
        if self._token is not None and not is_entering and not _is_known(scope, headers, self._token):
            return Refusal(401, "a token is needed; open the address once with ?token=…, or send the token as a bearer")
        return None

    def _entering(self, scope: Scope, token: str) -> Response | None:
        """Return a redirect that moves the token from the address into a cookie; None without the token."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == _PARAMETER and _is_right(value, token) for name, value in pairs):
            return None
        rest = urlencode([pair for pair in pairs if pair[0] != _PARAMETER])
        # A path of two slashes would be the address of another host.
        address = "/" + scope["path"].lstrip("/\\") + (f"?{rest}" if rest else "")
        response = RedirectResponse(address, status_code=303)
        # Lax, not strict: links from other sites should work, and following a link changes nothing here.
        response.set_cookie(_cookie(scope), token, httponly=True, samesite="lax")
        return response


def _is_of_own_site(headers: Headers) -> bool:
    """Return whether the request comes from this site, a typed address or a followed link."""
    if "sec-fetch-site" in headers:
        is_visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return is_visit or headers["sec-fetch-site"] in _OWN_SITE
    # In a WebSocket handshake, or over plain HTTP from another machine, a browser sends no more than the origin.
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()


def _is_known(scope: Scope, headers: Headers, token: str) -> bool:
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    kept = cookie_parser(headers.get("cookie", "")).get(_cookie(scope), "")
    return _is_right(bearer, token) or _is_right(kept, token)


def _is_right(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _cookie(scope: Scope) -> str:
    """Return the name of the cookie, with the port: all ports of a host share cookies."""
    _, port = scope.get("server") or ("", 0)
    return f"{COOKIE}-{port}"
