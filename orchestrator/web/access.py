"""Access to the pages, and to their actions.

On loopback, `orch` prints a link with a one-time token, which is exchanged for a cookie. Beyond loopback only keys
open the pages (`orch keys add NAME --right view`). Cookies are signed with a secret of the home, so that they outlive
a restart. A key's cookie ends with its key. Browsers send a cookie to every port of its host, even to other programs.
So a cookie is valid only at the port that issued it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from orchestrator.core.atomic import write_once
from orchestrator.core.errors import StorageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.server.keys import Key, KeyRight

SESSION_SECONDS = 30 * 86_400
SECRET_FILE = "web.key"
SECRET_BYTES = 32


class Visitor(Struct, frozen=True):
    """A visitor: the name recorded with actions, the visitor's right, and the token that our own forms carry."""

    name: str
    right: KeyRight
    form_token: str


class _Session(msgspec.Struct, frozen=True, array_like=True):
    name: str
    right: KeyRight
    key_id: str
    ends: int


class KeyRing:
    """Lookup of keys: by secret at sign-in, by id at every later request."""

    def __init__(self, find: Callable[[bytes], Key | None], current: Callable[[str], Key | None]) -> None:
        self.find = find
        self.current = current


class PageAccess:
    """Links, cookies and keys of one address. `links` is True on loopback only. A link grants `right`."""

    def __init__(self, root: Path, identity: str, keys: KeyRing, *, port: int, links: bool, right: KeyRight) -> None:
        self.links = links
        self._port = port
        self._secret = _secret(root / SECRET_FILE)
        self._keys = keys
        self._right = right
        self._lock = threading.Lock()
        self._token: str | None = None
        # Cookies ignore ports: the cookies of two homes on one machine must not replace each other.
        self.cookie = f"orch-{identity[:12]}-{port}"

    def new_link(self) -> str | None:
        """Return the path of a new one-time link and void the previous link; None if only keys open the pages."""
        if not self.links:
            return None
        with self._lock:
            self._token = secrets.token_urlsafe(SECRET_BYTES)
            return f"/enter?token={self._token}"

    def enter(self, token: str) -> str | None:
        """Exchange a link's token for a cookie; None if the token is wrong or used."""
        with self._lock:
            if self._token is None or not _is_same(self._token, token):
                return None
            self._token = None
        return self._signed(_Session("the user", self._right, "", int(time.time()) + SESSION_SECONDS))

    def sign_in(self, secret: str) -> str | None:
        """Return the cookie for a key, or None if the key may not view."""
        key = self._keys.find(secret.encode("utf-8", "replace"))
        if key is None or not key.right.may_view:
            return None
        return self._signed(_Session(key.tenant, key.right, key.id, int(time.time()) + SESSION_SECONDS))

    def of_key(self, secret: bytes) -> Visitor | None:
        """Return the visitor who sends a key with a request, as Prometheus does; None if the key may not view."""
        key = self._keys.find(secret)
        return None if key is None or not key.right.may_view else Visitor(key.tenant, key.right, "")

    def visitor(self, cookie: str | None) -> Visitor | None:
        """Return a cookie's visitor, or None if the cookie is invalid or expired, or its key may no longer view."""
        body, _, signature = (cookie or "").partition(".")
        if not _is_same(self._signature("session", body), signature):
            return None
        try:
            session = json_decoder(_Session).decode(urlsafe_b64decode(body))
        except (ValueError, msgspec.MsgspecError):
            return None
        if session.ends < time.time():
            return None
        right = session.right
        if session.key_id:
            key = self._keys.current(session.key_id)
            if key is None or not key.right.may_view:
                return None
            right = key.right
        elif not self.links:
            return None  # a link's cookie is valid only on loopback
        else:
            right = self._right
        return Visitor(session.name, right, self._signature("form", body))

    def _signed(self, session: _Session) -> str:
        body = urlsafe_b64encode(msgspec.json.encode(session)).decode()
        return f"{body}.{self._signature('session', body)}"

    def _signature(self, purpose: str, body: str) -> str:
        return hmac.new(
            self._secret, f"{purpose}:{self._port}:{body}".encode("utf-8", "replace"), hashlib.sha256
        ).hexdigest()


def _is_same(expected: str, shown: str) -> bool:
    """Compare two secrets in constant time. `shown` may have any characters."""
    return hmac.compare_digest(expected.encode(), shown.encode("utf-8", "replace"))


def _secret(path: Path) -> bytes:
    """Return the secret that signs cookies, created on first use in a file that only its owner can read."""
    try:
        if not path.exists():
            write_once(path, secrets.token_bytes(SECRET_BYTES))
        found = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be used: {error.strerror}") from error
    if len(found) < SECRET_BYTES:
        raise StorageError(f"{path} is damaged", hint="remove it: a new one is made, and everybody signs in again")
    return found
