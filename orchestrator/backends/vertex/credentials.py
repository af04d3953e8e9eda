"""Google access tokens. google-auth finds and renews credentials; httpx2 sends its requests within our time
limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from threading import Lock
from typing import Any

import google.auth
import httpx2
from google.auth.exceptions import GoogleAuthError, TransportError
from google.oauth2 import service_account
from msgspec import Struct

from orchestrator.backends.api import ApiRefusal

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_BAD_CREDENTIALS = 401


class _Response(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    data: bytes


class AccessTokens(httpx2.Auth):
    """Adds an access token to each request, and renews the token in time. `path` is a service account's key file.

    The first request searches for credentials.
    """

    def __init__(self, path: str | None, client: httpx2.Client) -> None:
        self._path, self._client = path, client
        self._found: Any = None
        self._lock = Lock()

    def forget(self) -> None:
        """Discard the credentials, so that the next request searches again.

        A user may have renewed a file.
        """
        with self._lock:
            self._found = None

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        self._put(request.headers)
        yield request

    def _put(self, headers: MutableMapping[str, str]) -> None:
        """Add the access token to a request's headers.

        Raises ApiRefusal if credentials are missing or refused, and ConnectError if no token can be fetched.
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
                said = error.args[0] if error.args else error
                why = {"message": f"Google's credentials cannot be used: {said}", "code": "no_credentials"}
                raise ApiRefusal(_BAD_CREDENTIALS, httpx2.Headers(), "", why) from None

    def _load(self) -> Any:
        if self._path is None:
            return google.auth.default(scopes=_SCOPES, request=self._send)[0]
        return service_account.Credentials.from_service_account_file(self._path, scopes=_SCOPES)

    def _send(
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
            found = self._client.request(method, url, content=body, headers=headers, timeout=limit, auth=None)
        except httpx2.HTTPError as error:
            raise TransportError(error) from error
        return _Response(found.status_code, found.headers, found.content)
