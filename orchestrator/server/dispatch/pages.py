"""What an upstream says of itself on its pages: models, and the paths that it takes. Bounded, whatever it sends."""

from __future__ import annotations

from typing import Any

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


def models_in(page: bytes) -> list[dict[str, Any]]:
    """The models of `/v1/models` that have a name. Raises one of wire.JSON_ERRORS where it is not such a page."""
    return [model for model in _decode_models(page).data[:MAX_MODELS] if _is_name(model.get("id"))]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME


def paths_in(page: bytes) -> frozenset[str]:
    """The paths of `/openapi.json` that take a POST. Raises one of wire.JSON_ERRORS where it is not such a page."""
    paths = _decode_description(page).paths
    return frozenset(path for path, methods in paths.items() if "post" in methods and "{" not in path)
