"""Allow-list of exact upstream paths, for batches and for synchronous requests.

An upstream accepts POSTs that change it for everyone (`/sleep`, `/collective_rpc`, `/v1/load_lora_adapter`), and the
server uses the upstream's own key. So a path must be listed here, or added by the operator. It is not enough that the
upstream has the path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.core import batch_api

OPENAI = (
    *batch_api.ENDPOINTS,
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/edits",
    "/v1/images/generations",
    "/v1/images/variations",
    "/v1/videos",
)
FORMS = frozenset({"/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations"})
"""Endpoints that take or return a file, which a line of a batch cannot hold."""
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
"""Anthropic's endpoints, which vLLM serves too."""
ENGINES = (
    "/v1/chat/completions/batch",
    "/classify",
    "/detokenize",
    "/pooling",
    "/rerank",
    "/score",
    "/tokenize",
    "/v1/rerank",
    "/v1/score",
    "/v2/rerank",
)
"""Endpoints of vLLM and similar engines besides OpenAI's. Only endpoints that change nothing."""
KNOWN = frozenset({*OPENAI, *ANTHROPIC, *ENGINES})
OWN = ("/v1/files", "/v1/uploads", "/v1/batches", "/v1/models", "/health", "/ready", "/metrics", "/openapi.json")
"""Paths that this server answers itself, with all paths below them."""

_is_path = re.compile(r"(?:/[A-Za-z0-9_][A-Za-z0-9_.~-]*)+").fullmatch


class Endpoints:
    """The allow-list of one server: harmless known paths, and its operator's additions."""

    def __init__(self, added: Iterable[str] = ()) -> None:
        """Raises ValueError for an invalid addition; the text says why."""
        self._added = tuple(dict.fromkeys(map(checked, added)))
        self.all = KNOWN.union(self._added)

    def is_optional(self, path: str) -> bool:
        """True if a batch may name the path only if an upstream has it. Azure's paths lack `/v1`."""
        always = self.for_batches(())
        spelled = {path, f"/v1{path}"}
        return not spelled & {*always, *FORMS} and bool(spelled & self.all)

    def for_batches(self, offered: Iterable[str]) -> tuple[str, ...]:
        """Return the paths that a batch may name. `offered` are the paths that the upstreams list.

        OpenAI's and the operator's paths are always included; other allowed paths only if offered.
        """
        more = (self.all & {*offered}).difference(batch_api.ENDPOINTS, self._added)
        found = (
            *batch_api.ENDPOINTS,
            *(path for path in self._added if path not in batch_api.ENDPOINTS),
            *sorted(more),
        )
        return tuple(path for path in found if path not in FORMS)


def checked(path: str) -> str:
    """Return a path that an operator adds. Raises ValueError for an invalid path; the text says why."""
    if _is_path(path) is None:
        raise ValueError("an endpoint is a path such as /v1/embed, without a query, a trailing slash or '..'")
    if any(path == own or path.startswith(f"{own}/") for own in OWN):
        raise ValueError("this server answers that path itself")
    return path
