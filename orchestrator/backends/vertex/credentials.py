"""Access tokens of Google's credentials, from google-auth.

google-auth finds credentials and knows how each kind gets a token; httpx2 sends, with our limits of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from threading import Lock
from typing import Any

import google.auth
import httpx2
from google.auth import transport
from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError, TransportError

from orchestrator.backends.openai.api import ApiRefusal

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
BAD_CREDENTIALS = 401


class AccessTokens(httpx2.Auth):
    """Puts an access token on each request, renewed before its end. `path` is a file of credentials.

    Credentials are looked for at the first request.
    """

    def __init__(self, path: str | None, client: httpx2.Client) -> None:
        self._path = path
        self._send = _Transport(client)
        self._found: Credentials | None = None
        self._lock = Lock()

    def forget(self) -> None:
        """Look for credentials again before the next request: somebody may have renewed what a file holds."""
        with self._lock:
            self._found = None

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        self._put(request.headers)
        yield request

    def _put(self, headers: MutableMapping[str, str]) -> None:
        """Set the headers. Raises ApiRefusal for credentials that are missing or refused.

        Raises ConnectError if a token cannot be had for now.
        """
        with self._lock:
            try:
                if self._found is None:
                    self._found = self._load()
                if not self._found.valid:
                    self._found.refresh(self._send)
                self._found.apply(headers)
            except (GoogleAuthError, OSError, ValueError) as error:
                if isinstance(error, GoogleAuthError) and (error.retryable or isinstance(error, TransportError)):
                    raise httpx2.ConnectError(f"no access token: {error}") from None
                self._found = None
                why = {"message": f"Google's credentials cannot be used: {error}", "code": "no_credentials"}
                raise ApiRefusal(BAD_CREDENTIALS, httpx2.Headers(), "", why) from None

    def _load(self) -> Credentials:
        if self._path is None:
            found, _ = google.auth.default(scopes=SCOPES, request=self._send)
        else:
            found, _ = google.auth.load_credentials_from_file(self._path, scopes=SCOPES, request=self._send)
        return found


class _Response(transport.Response):  # type: ignore[misc]
    """An answer, as google-auth reads it."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def data(self) -> bytes:
        return self._response.content


class _Transport(transport.Request):  # type: ignore[misc]
    """Sends google-auth's requests."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> _Response:
        limit = self._client.timeout if timeout is None else httpx2.Timeout(timeout)
        try:
            return _Response(self._client.request(method, url, content=body, headers=headers, timeout=limit))
        except httpx2.HTTPError as error:
            raise TransportError(error) from error
