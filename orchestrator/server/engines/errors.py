"""The error of this package."""

from __future__ import annotations

from orchestrator.core.errors import BackendError

ELSEWHERE = "use a server that runs elsewhere: make demo UPSTREAM=http://host:port/v1 MODEL=name"


class EngineUnavailable(BackendError):
    """Raised if an engine cannot be installed, does not start, or has died. The hint names an alternative.

    `brief` is the message without the engine's log.
    """

    def __init__(self, message: str, *, hint: str | None = ELSEWHERE, brief: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.brief = brief or message
