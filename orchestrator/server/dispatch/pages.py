"""What an upstream says of itself on its pages: models, and the paths that it takes. Bounded, whatever it sends."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec

MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_MODELS = 10_000
LONGEST_NAME = 500


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


class _Description(msgspec.Struct):
    paths: dict[str, dict[str, msgspec.Raw]]


_decode_models = msgspec.json.Decoder(_Models).decode
_decode_description = msgspec.json.Decoder(_Description).decode


async def read_page(response: aiohttp.ClientResponse) -> bytes:
    """The page's content. Raises aiohttp.ClientPayloadError for one that is longer than any such page is."""
    page = bytearray()
    async for part in response.content.iter_any():
        page += part
        if len(page) > MAX_PAGE_BYTES:
            raise aiohttp.ClientPayloadError(f"a page is longer than {MAX_PAGE_BYTES:,} bytes")
    return bytes(page)


def models_in(page: bytes) -> list[dict[str, Any]]:
    """The models of `/v1/models` that have a name. Raises one of wire.JSON_ERRORS where it is not such a page."""
    return [model for model in _decode_models(page).data[:MAX_MODELS] if _is_name(model.get("id"))]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME


def paths_in(page: bytes) -> frozenset[str]:
    """The paths of `/openapi.json` that take a POST. Raises one of wire.JSON_ERRORS where it is not such a page."""
    paths = _decode_description(page).paths
    return frozenset(path for path, methods in paths.items() if "post" in methods and "{" not in path)
