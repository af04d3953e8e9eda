"""Batch APIs, behind five verbs: upload, create, retrieve, cancel, download. A backend is data until proven code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.wire import BatchStatus

BATCH_GONE = "batch_gone"
"""The problem of a batch that its backend has lost: its rows go on in another one."""


@dataclass(frozen=True, slots=True)
class LineProblem:
    """Why a backend refused a batch; `line` counts from 1, None where it is about the whole."""

    code: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """A batch as its backend tells it. `upstream_seconds` is known of our own server only."""

    id: str
    status: BatchStatus
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    upstream_seconds: float = 0.0
    output_file_id: str | None = None
    error_file_id: str | None = None
    problems: tuple[LineProblem, ...] = field(default=())


class Backend(Protocol):
    """One Batch API. Every verb raises BackendError where the backend is away or refuses."""

    def upload(self, path: Path, name: str) -> str:
        """Upload an input file under a name; its id. A file of that name that is there already is taken."""

    def create(
        self, input_file_id: str, endpoint: str, window_seconds: int, metadata: Mapping[str, str]
    ) -> RemoteBatch:
        """Create a batch. Never tried again by itself: only `find` can tell whether it exists."""

    def find(self, metadata: Mapping[str, str]) -> RemoteBatch | None:
        """The batch that carries this metadata, or None."""

    def retrieve(self, batch_id: str) -> RemoteBatch:
        """The batch as it is now; one that is gone is told as failed, with the problem BATCH_GONE."""

    def cancel(self, batch_id: str) -> None:
        """Ask for its end; one that is over already is left as it is."""

    def download(self, file_id: str, path: Path) -> None:
        """A result file to `path`, whole and durable or not at all."""

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        """The results so far of a running batch to `path`; False where the backend does not give them."""

    def forget_file(self, file_id: str) -> None:
        """Delete a file; one that is gone already is no error."""
