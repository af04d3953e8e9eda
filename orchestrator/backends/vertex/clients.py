"""HTTP clients of Vertex AI and Cloud Storage, with their access tokens."""

from __future__ import annotations

from orchestrator.backends import call_limits
from orchestrator.backends.buckets import BucketPrefix
from orchestrator.backends.package import BackendAccess
from orchestrator.backends.vertex.api import VertexAPI
from orchestrator.backends.vertex.settings import VertexBackend
from orchestrator.core.errors import UsageError
from orchestrator.core.extras import install_line

_STORAGE = "https://storage.googleapis.com"
_MULTI_REGIONS = ("us", "eu")


def api_of(settings: VertexBackend, access: BackendAccess) -> VertexAPI:
    """Return the calls, at the base URL in the settings or else at Google's addresses. Raises UsageError."""
    silent, own = settings.request_timeout, settings.base_url
    headers = {"Authorization": f"Bearer {access.key}"} if access.key else {}
    vertex, storage = (
        call_limits.open_client(own or address, headers, silent, stay=True)
        for address in (_address(settings.region), _STORAGE)
    )
    place = BucketPrefix(settings.bucket, settings.prefix, "gs")
    parent = f"v1/projects/{settings.project}/locations/{settings.region}"
    if access.key:
        return VertexAPI(vertex, storage, access.key, parent, place, silent)
    try:
        from orchestrator.backends.vertex.credentials import AccessTokens
    except ImportError:
        hint = install_line("vertex")
        raise UsageError(f"backend {access.name} needs the extra `vertex`", hint=hint) from None
    tokens = AccessTokens(settings.key_file, storage)
    vertex.auth = storage.auth = tokens
    return VertexAPI(vertex, storage, "", parent, place, silent, tokens.forget)


def _address(region: str) -> str:
    if region == "global":
        return "https://aiplatform.googleapis.com"
    if region in _MULTI_REGIONS:
        return f"https://aiplatform.{region}.rep.googleapis.com"
    return f"https://{region}-aiplatform.googleapis.com"
