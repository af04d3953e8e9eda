"""Google's credentials and settings for the emulated provider, as a user has them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from orchestrator.backends.vertex.settings import VertexBackend
from tests.emulator.google_wire import REGION, project_of

BUCKET = "night-batches"


def vertex_told(base_url: str, key: str, **more: Any) -> dict[str, Any]:
    """What orch.toml says of a backend in the project of an access token, or of a service account."""
    facts = {"kind": "vertex", "base_url": base_url, "project": project_of(key), "region": REGION, "bucket": BUCKET}
    return {**facts, **more}


def vertex_settings(base_url: str, key: str, **more: Any) -> VertexBackend:
    return VertexBackend.model_validate(vertex_told(base_url, key, **more))


def key_file(folder: Path, email: str, base_url: str) -> Path:
    """The key of a service account, as Google's console gives it out."""
    told = {
        "type": "service_account",
        "project_id": project_of(email),
        "private_key_id": "one",
        "private_key": _private_key(),
        "client_email": email,
        "client_id": "1",
        "token_uri": f"{base_url}/token",
    }
    path = folder / "service-account.json"
    path.write_text(json.dumps(told), encoding="utf-8")
    return path


@cache
def _private_key() -> str:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
