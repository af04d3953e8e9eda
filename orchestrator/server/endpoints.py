"""Allow-list of exact upstream paths, for batches and for synchronous requests.

An upstream accepts POSTs that change it for everyone (`/sleep`, `/collective_rpc`, `/v1/load_lora_adapter`), and the
server uses the upstream's own key. So a path must be listed here, or be added by the operator. A path is not allowed
merely because the upstream has it.
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
"""Endpoints that take or return a file. A batch line cannot hold a file."""
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
"""Anthropic's endpoints. vLLM serves them too."""
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
"""Endpoints of vLLM and similar engines that OpenAI lacks. They change nothing on the engine."""
KNOWN = frozenset({*OPENAI, *ANTHROPIC, *ENGINES})
OWN = ("/v1/files", "/v1/uploads", "/v1/batches", "/v1/models", "/health", "/ready", "/metrics", "/openapi.json")
"""Paths that this server answers itself. All paths below them are included."""

_is_path = re.compile(r"(?:/[A-Za-z0-9_][A-Za-z0-9_.~-]*)+").fullmatch


class Endpoints:
    """The allow-list of one server: known harmless paths, and the operator's additions."""

    def __init__(self, added: Iterable[str] = ()) -> None:
        """Raises ValueError if an added path is invalid; the message says why."""
        self._added = tuple(dict.fromkeys(map(checked, added)))
        self.all = KNOWN.union(self._added)

    def is_optional(self, path: str) -> bool:
        """True if a batch may name the path only if an upstream has the path. Azure's paths lack `/v1`."""
        always = self.for_batches(())
        spelled = {path, f"/v1{path}"}
        return not spelled & {*always, *FORMS} and bool(spelled & self.all)

    def for_batches(self, offered: Iterable[str]) -> tuple[str, ...]:
        """Return the paths that a batch may name. `offered` are the paths that the upstreams list.

        Paths of OpenAI and of the operator are always included. Other allowed paths are included only if offered.
        """
        more = (self.all & {*offered}).difference(batch_api.ENDPOINTS, self._added)
        found = (
            *batch_api.ENDPOINTS,
            *(path for path in self._added if path not in batch_api.ENDPOINTS),
            *sorted(more),
        )
        return tuple(path for path in found if path not in FORMS)


def checked(path: str) -> str:
    """Return a path that an operator adds. Raises ValueError if the path is invalid; the message says why."""
    if _is_path(path) is None:
        raise ValueError("an endpoint is a path such as /v1/embed, without a query, a trailing slash or '..'")
    if any(path == own or path.startswith(f"{own}/") for own in OWN):
        raise ValueError("this server answers that path itself")
    return path
