"""Checks every request before a page is made, and sets the headers of every answer."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response

from orchestrator.core.errors import OrchError
from orchestrator.server.keys import KeyRight
from orchestrator.web.access import PageAccess, Visitor

STATIC, METRICS = "/static/", "/metrics"
OPEN = frozenset({"/enter", "/sign-in"})
"""Paths that visitors may request before they sign in."""
SAFE = frozenset({"GET", "HEAD"})
MAX_FORM = 16 * 1024
HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
VISITOR, FORM = "orch.visitor", "orch.form"


class Guard:
    """Passes requests whose Host is in `hosts` (lower case), from visitors who may view.

    Requests from other sites are refused. Unsafe methods also need the session's token in the form, and the right to
    operate. `sign_in` answers visitors who are not signed in.
    """

    def __init__(self, app: Any, access: PageAccess, hosts: frozenset[str], sign_in: Any) -> None:
        self._app = app
        self._access = access
        self._hosts = hosts
        self._sign_in = sign_in

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return

        async def carried(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        if (refusal := self._stranger(headers)) is not None:
            await refusal(scope, receive, carried)
            return
        path = scope["path"]
        try:
            visitor = self._visitor(headers, path)
        except OrchError as error:
            await PlainTextResponse(f"{error.message}\n", 503)(scope, receive, carried)
            return
        scope[VISITOR] = visitor
        if visitor is None and path not in OPEN and not path.startswith(STATIC):
            await self._sign_in(scope, receive, carried)
            return
        if scope["method"] not in SAFE and path not in OPEN:
            body = await form_of(receive)
            if (refusal := _not_ours(visitor, body)) is not None:
                await refusal(scope, receive, carried)
                return
            scope[FORM] = body
        await self._app(scope, receive, carried)

    def _stranger(self, headers: Headers) -> Response | None:
        """Return the refusal of a request to a foreign host name or from another site, else None."""
        if headers.get("host", "").lower() not in self._hosts:
            # If a foreign host name resolves to this machine (DNS rebinding), a stranger's page could read ours.
            return PlainTextResponse("these pages are not served under that host name\n", 421)
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in {f"{way}://{host}" for host in self._hosts for way in WAYS}:
            return PlainTextResponse("requests from other sites are refused\n", 403)
        return None

    def _visitor(self, headers: Headers, path: str) -> Visitor | None:
        way, _, secret = headers.get("authorization", "").partition(" ")
        if path == METRICS and way.lower() == "bearer":
            return self._access.of_key(secret.strip().encode("latin-1"))
        try:
            jar = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return None
        found = jar.get(self._access.cookie)
        return self._access.visitor(None if found is None else found.value)


WAYS = ("http", "https")
"""Schemes that an Origin may have. A proxy may terminate TLS in front of orch, so both are allowed."""


async def form_of(receive: Any) -> dict[str, str]:
    """Return a form's fields, each with its first value; empty if the form exceeds MAX_FORM bytes."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False) and message["type"] == "http.request"
        if len(body) > MAX_FORM:
            return {}
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {name: values[0] for name, values in fields.items()}


def _not_ours(visitor: Visitor | None, form: dict[str, str]) -> Response | None:
    if visitor is None or not visitor.form_token or form.get("form_token") != visitor.form_token:
        return PlainTextResponse("this form is not from a page of this session: reload the page\n", 403)
    if visitor.right is not KeyRight.OPERATE:
        return PlainTextResponse("actions are off: start with --web-actions, or use a key with operate\n", 403)
    return None
