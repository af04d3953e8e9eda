"""What a tenant may reach at an upstream: an allow-list of exact paths, for batches and for synchronous requests.

An upstream takes POSTs that change it for everybody (`/sleep`, `/collective_rpc`, `/v1/load_lora_adapter`), and the
server asks with the upstream's own key. So a path is reached because it is named here or by the operator, never
because the upstream has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.core import wire

OPENAI = (
    *wire.ENDPOINTS,
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/edits",
    "/v1/images/generations",
    "/v1/images/variations",
    "/v1/videos",
)
FORMS = frozenset({"/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations"})
"""Endpoints that take a form with a file, or answer with a file: a line of a batch holds neither."""
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
"""Served by vLLM too."""
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
"""What vLLM and its like answer beside OpenAI's endpoints, and what changes nothing there."""
KNOWN = frozenset({*OPENAI, *ANTHROPIC, *ENGINES})
OWN = ("/v1/files", "/v1/uploads", "/v1/batches", "/v1/models", "/health", "/ready", "/metrics", "/openapi.json")
"""Paths that this server answers itself, with all below them."""

_is_path = re.compile(r"(?:/[A-Za-z0-9_][A-Za-z0-9_.~-]*)+").fullmatch


class Endpoints:
    """The allow-list of one server: what is known to be harmless, and what its operator adds."""

    def __init__(self, added: Iterable[str] = ()) -> None:
        """Raises ValueError for an addition that cannot be one; the text says why."""
        self._added = tuple(dict.fromkeys(map(checked, added)))
        self.all = KNOWN.union(self._added)
        """Every path that may be reached."""

    def for_batches(self, offered: Iterable[str]) -> tuple[str, ...]:
        """The paths that a batch may name; `offered` are those that the upstreams say they take.

        OpenAI's and the operator's are always among them; of the others only what is offered.
        """
        more = (self.all & {*offered}).difference(wire.ENDPOINTS, self._added)
        found = (*wire.ENDPOINTS, *(path for path in self._added if path not in wire.ENDPOINTS), *sorted(more))
        return tuple(path for path in found if path not in FORMS)


def checked(path: str) -> str:
    """A path that an operator adds. Raises ValueError where it cannot be one; the text says why."""
    if _is_path(path) is None:
        raise ValueError("an endpoint is a path such as /v1/embed, without a query, a trailing slash or '..'")
    if any(path == own or path.startswith(f"{own}/") for own in OWN):
        raise ValueError("this server answers that path itself")
    return path
