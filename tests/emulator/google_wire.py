"""Google's access tokens and errors on the wire: a service account's assertion is exchanged for a token.

Sources: google-auth 2.63 (oauth2/_client.py, oauth2/service_account.py), RFC 7523, google-genai 3.6.1 (errors.py).
"""

from __future__ import annotations

import base64
import hashlib
import time
from typing import Any
from urllib.parse import parse_qs

import msgspec

from tests.emulator.errors import Json, Problem, gemini_error, refuse

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
AUDIENCE = "https://oauth2.googleapis.com/token"
REGION = "us-central1"
_TOKEN = "ya29."
_LONGEST = 3600


def project_of(key: str) -> str:
    """The project that an access token may use; a minted one is that of its service account."""
    return "project-" + hashlib.sha256(key.removeprefix(_TOKEN).encode()).hexdigest()[:12]


def token_of(email: str) -> str:
    """The access token of a service account."""
    return f"{_TOKEN}{email}"


def exchange(form: bytes) -> Json:
    """The answer to an assertion, by this machine's clock; its signature is taken for good. Raises Refusal."""
    told = {name: values[0] for name, values in parse_qs(form.decode()).items()}
    try:
        claims = _claims(told["assertion"])
        is_good = told["grant_type"] == GRANT and claims["aud"] == AUDIENCE and SCOPE in claims["scope"]
        is_good = is_good and claims["iat"] - 60 <= time.time() < claims["exp"] <= claims["iat"] + _LONGEST
    except (KeyError, ValueError, msgspec.DecodeError):
        is_good = False
    if not is_good or claims["iss"].startswith("nobody"):
        raise refuse(400, "Invalid JWT: account not found", code="invalid_grant")
    return {"access_token": token_of(claims["iss"]), "expires_in": _LONGEST - 1, "token_type": "Bearer"}


def _claims(assertion: str) -> dict[str, Any]:
    part = assertion.split(".")[1]
    found: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def vertex_error(status: int, problem: Problem) -> Json:
    """Google's error; the token endpoint has OAuth's."""
    if problem.code == "invalid_grant":
        return {"error": problem.code, "error_description": problem.message}
    if status == 401:
        words = "Request had invalid authentication credentials."
        return {"error": {"code": 401, "message": words, "status": "UNAUTHENTICATED"}}
    return gemini_error(status, problem)
