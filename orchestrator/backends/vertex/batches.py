"""Batch operations on Vertex AI's jobs. Results are matched to rows by the echoed request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.backends import RemoteBatch
from orchestrator.backends.buckets import WithBucket
from orchestrator.backends.chat_rows import sent_rows
from orchestrator.backends.echoes import Echoes
from orchestrator.backends.profiles import Profile
from orchestrator.backends.result_lines import lines
from orchestrator.backends.translated import TranslatedBatches
from orchestrator.backends.vertex.api import VertexAPI
from orchestrator.backends.vertex.requests import SPOKEN, translate
from orchestrator.backends.vertex.results import matched, sent_line
from orchestrator.backends.vertex.settings import VertexBackend


class VertexBatches(WithBucket, TranslatedBatches):
    """Vertex AI's batch operations."""

    def __init__(self, name: str, api: VertexAPI, profile: Profile, settings: VertexBackend) -> None:
        agent = "Vertex AI's service agent"
        more = {"translate": translate, "sent": sent_line}
        super().__init__(name, api, profile, bucket=settings.bucket, role=agent, **more)
        self._settings = settings

    def account(self) -> str:
        """Return the project, which pays for its jobs, and the location. A list shows only the jobs in both."""
        return f"google:{self._settings.project}/{self._settings.region}"

    def input_ids(self, batch: RemoteBatch) -> frozenset[str] | None:
        """Return None, because no file at Google has row ids. `input_lines` recognises rows by their requests."""
        return None

    def _read_lines(self, chunks: Iterable[bytes], input_path: Path) -> Iterator[bytes]:
        with input_path.open("rb") as source:
            echoes = Echoes(sent_rows(source, translate), SPOKEN)
        yield from matched(lines(chunks), echoes)
        yield from self._beside(input_path)
