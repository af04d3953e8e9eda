"""AWS's Signature Version 4, which S3-compatible buckets of other providers also require.

Source: AWS's page on Signature Version 4.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import quote

import httpx2
from msgspec import Struct

DIGEST = "x-amz-content-sha256"
_ALGORITHM = "AWS4-HMAC-SHA256"
_SIGNED = ("content-type", "host")


class AwsKeys(Struct, frozen=True):
    """An access key and its secret. Temporary credentials also have a session token."""

    access_key: str
    secret_key: str
    token: str | None = None


class Signature(httpx2.Auth):
    """Signs each request to one AWS service."""

    def __init__(self, keys: Callable[[], AwsKeys], service: str, region: str) -> None:
        self._keys, self._service, self._region = keys, service, region

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        keys = self._keys()
        if DIGEST not in request.headers:
            request.headers[DIGEST] = sha256(request.read()).hexdigest()
        # AWS compares this time with its own clock, so use real time even in a simulation.
        at = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        request.headers["x-amz-date"] = at
        if keys.token:
            request.headers["x-amz-security-token"] = keys.token
        names = sorted(name for name in request.headers if name.startswith("x-amz-") or name in _SIGNED)
        signed, scope = ";".join(names), f"{at[:8]}/{self._region}/{self._service}/aws4_request"
        told = f"{_ALGORITHM}\n{at}\n{scope}\n{sha256(self._canonical(request, names, signed)).hexdigest()}"
        step = f"AWS4{keys.secret_key}".encode()
        for part in (*scope.split("/"), told):
            step = hmac.digest(step, part.encode(), "sha256")
        credential = f"Credential={keys.access_key}/{scope}, SignedHeaders={signed}"
        request.headers["Authorization"] = f"{_ALGORITHM} {credential}, Signature={step.hex()}"
        yield request

    def _canonical(self, request: httpx2.Request, names: list[str], signed: str) -> bytes:
        """Return the canonical request to sign. Only S3 signs the path exactly as sent."""
        path, _, query = request.url.raw_path.decode().partition("?")
        path = path if self._service == "s3" else quote(path, safe="/~")
        headers = (f"{name}:{' '.join(request.headers[name].split())}" for name in names)
        pairs = "&".join(sorted(query.split("&"))) if query else ""
        return "\n".join([request.method, path, pairs, *headers, "", signed, request.headers[DIGEST]]).encode()
