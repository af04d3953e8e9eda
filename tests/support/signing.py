"""Webhooks as providers sign them (Standard Webhooks), written from the scheme: a secret, an id, a time, a body."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import itertools
import json
import time
from urllib.parse import urlsplit

SECRET = "whsec_" + base64.b64encode(b"a secret of the tests, 32 bytes.").decode()
_numbers = itertools.count()


def event(kind: str, batch_id: str) -> bytes:
    """The body of an event."""
    data = {"id": batch_id}
    return json.dumps({"id": "evt_1", "object": "event", "type": kind, "created_at": 0, "data": data}).encode()


def signed(body: bytes, secret: str = SECRET, *, age: float = 0.0, id: str | None = None) -> dict[str, str]:  # noqa: A002
    """The headers of a body that was signed `age` seconds ago; an event of its own unless its id is given.

    In real time: what it protects from does not live in the time that tests set.
    """
    event_id, at = id or f"wh_{next(_numbers)}", str(int(time.time() - age))
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    mac = hmac.digest(key, f"{event_id}.{at}.".encode() + body, hashlib.sha256)
    signature = "v1," + base64.b64encode(mac).decode()
    return {"webhook-id": event_id, "webhook-timestamp": at, "webhook-signature": signature}


def deliver(url: str, body: bytes, headers: dict[str, str], method: str = "POST") -> tuple[int, bytes]:
    """Send it; the answer's status and body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.request(method, parts.path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def tell(url: str, kind: str, batch_id: str, secret: str = SECRET) -> int:
    """Deliver an event that is as it should be; the answer's status."""
    body = event(kind, batch_id)
    return deliver(url, body, signed(body, secret))[0]
