"""Reads an upstream's model list and OpenAPI paths, with bounded memory."""

from __future__ import annotations

from typing import Any

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.error_body import read_error
from orchestrator.core.errors import BackendError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.sanitize import shortened
from orchestrator.server.dispatch import http1

ASK_SECONDS = 5.0
MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_MODELS = 10_000
MAX_WORDS = 200
WITHOUT_PAGE = frozenset({404, 405, 501})
"""Statuses from a server that does not have the page."""
LONGEST_NAME = 500


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


class _Description(msgspec.Struct):
    paths: dict[str, dict[str, msgspec.Raw]]


_decode_models = json_decoder(_Models).decode
_decode_description = json_decoder(_Description).decode


def models_in(page: bytes) -> list[dict[str, Any]]:
    """Return the models with a name on a `/v1/models` page. Raises one of batch_api.JSON_ERRORS for any other
    page.
    """
    return [model for model in _decode_models(page).data[:MAX_MODELS] if _is_name(model.get("id"))]


def context_window(models: list[dict[str, Any]]) -> int:
    """Return the largest context window of these models in tokens, as vLLM and SGLang state it.

    Return 0 if a model states none. An adapter has the window of its parent.
    """
    stated = [model.get("max_model_len") for model in models if not model.get("parent")]
    windows = [window for window in stated if type(window) is int]
    return max(windows, default=0) if len(windows) == len(stated) else 0


def models_problem(status: int, body: bytes) -> str | None:
    """Return why a server gets no rows, or None, judged by its answer to `/v1/models`.

    A server without this page is healthy as long as it answers.
    """
    if status < 300 or status in WITHOUT_PAGE:
        return None
    if status in (401, 403):
        return f"upstream refuses the API key ({status})"
    return f"/v1/models answers with status {status}{said(body)}"


def said(body: bytes) -> str:
    """Return a page's message as a suffix for a sentence; empty if the page has no message."""
    message = read_error(body).message
    return "" if message is None else f": {shortened(message, MAX_WORDS)}"


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME


def paths_in(page: bytes) -> frozenset[str]:
    """Return the parameterless paths that accept a POST. Raises JSON_ERRORS if the page is not `/openapi.json`."""
    paths = _decode_description(page).paths
    return frozenset(path for path, methods in paths.items() if "post" in methods and "{" not in path)


class UpstreamPages:
    """The pages of one upstream. `root` is the URL before each path; `query` follows the path."""

    def __init__(self, root: str, query: str, headers: dict[str, str]) -> None:
        self._root, self._query, self._headers = root, query, headers
        self._pool: http1.ConnectionPool | None = None

    def open(self) -> None:
        """Open the connection pool. Call this once, on the event loop that will use it."""
        self._pool = http1.ConnectionPool(
            self._root, self._headers, timeout=ASK_SECONDS, connect_timeout=ASK_SECONDS, max_body=MAX_PAGE_BYTES
        )

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    async def ask(self, path: str) -> tuple[int, bytes]:
        """Return the status and body of a page. Raises http1.ExchangeError."""
        if self._pool is None:
            raise BackendError(f"upstream {self._root} was not opened")
        page = await self._pool.get(path + self._query)
        return page.status, page.body

    async def paths(self) -> frozenset[str] | None:
        """Return the paths that accept a POST: empty if no page lists them, None if the upstream does not answer now.

        Call this only when needed: LiteLLM takes seconds to make this page, and answers nothing else meanwhile.
        """
        try:
            status, body = await self.ask("/openapi.json")
        except http1.ExchangeError:
            return None
        if status >= 500:
            return None
        try:
            return paths_in(body) if status < 300 else frozenset()
        except JSON_ERRORS:
            return frozenset()
