"""Vertex AI's batch jobs: OpenAI's verbs, rows by the request that an answer echoes, and a check of the bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator.backends import DoctorCheck, RemoteBatch
from orchestrator.backends.openai.translated import TranslatedBatches, sent_rows
from orchestrator.backends.profiles import Profile
from orchestrator.backends.result_lines import lines
from orchestrator.backends.vertex.api import VertexAPI
from orchestrator.backends.vertex.echoes import Echoes
from orchestrator.backends.vertex.requests import translate
from orchestrator.backends.vertex.results import digest_of, matched
from orchestrator.backends.vertex.settings import VertexBackend
from orchestrator.core.errors import OrchError


class VertexBatches(TranslatedBatches):
    """The verbs of a Batch API on Vertex AI's calls."""

    def __init__(self, name: str, api: VertexAPI, profile: Profile, settings: VertexBackend) -> None:
        super().__init__(name, api, profile, translate, digest=digest_of)
        self._vertex, self._settings = api, settings

    def account(self) -> str:
        """Return the project and the location, whose jobs are seen and which pays them."""
        return f"google:{self._settings.project}/{self._settings.region}"

    def input_ids(self, batch: RemoteBatch) -> frozenset[str] | None:
        """Return None: no file at Google's names rows. `input_lines` recognises them."""
        return None

    def _read_lines(self, chunks: Iterable[bytes], input_path: Path) -> Iterator[bytes]:
        with input_path.open("rb") as source:
            echoes = Echoes(sent_rows(source, translate))
        yield from matched(lines(chunks), echoes)
        yield from self._beside(input_path)

    def check(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        yield from super().check(models)
        bucket = self._settings.bucket
        try:
            with self._translated(f"list the bucket {bucket}"):
                self._vertex.files(1)
            told = f"{bucket} can be listed; whether Vertex AI's service agent may use it shows at a job"
            yield DoctorCheck("bucket", True, told)
        except OrchError as error:
            yield DoctorCheck("bucket", False, str(error))
