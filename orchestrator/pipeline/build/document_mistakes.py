"""Mistakes of a job file that show only in its documents, such as a missing column or a failing template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

from orchestrator.core.counts import number_of
from orchestrator.core.errors import InputError
from orchestrator.policy.requests import Built
from orchestrator.settings.job_file import mistake_at
from orchestrator.settings.job_spec import JobSpec

MOST_NAMED = 3
BAD_TEMPLATE = "template"
"""Error code of a request whose template fails."""


class ValidationProblem(Struct):
    """A problem with `documents` documents. `message` is about the first, and `first` names up to three of them."""

    code: str
    message: str
    documents: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, document: str) -> None:
        self.documents += 1
        if len(self.first) < MOST_NAMED:
            self.first.append(document)

    def __str__(self) -> str:
        more = f" (and {self.documents - 1:,} like it: --list)" if self.documents > 1 else ""
        return f"{self.first[0]}: {self.code}: {self.message}{more}"


class _Source(Struct):
    """A source's documents. `settings` has each document's faulty setting, or None for a usable document."""

    settings: set[str | None] = field(default_factory=set)
    documents: int = 0
    last: str | None = None
    problem: ValidationProblem | None = None


class Askable:
    """Records the documents that each task can be asked about, and the settings that each source's documents lack."""

    def __init__(self, file: Path, spec: JobSpec) -> None:
        self._file = file
        self._spec = spec
        self._sources: dict[int, _Source] = {}
        self._asked: set[str] = set()
        self._failed: dict[str, ValidationProblem] = {}
        self._is_unusable = True

    def note(self, index: int, built: Built) -> None:
        """Record a request about a document of the source with this index."""
        source = self._sources.setdefault(index, _Source())
        row = built.row
        if row.document != source.last:
            source.documents, source.last = source.documents + 1, row.document
        source.settings.add(built.setting)
        if row.problem is None:
            self._asked.add(row.task)
            self._is_unusable = False
            return
        code, message = row.problem
        self._is_unusable = self._is_unusable and code != BAD_TEMPLATE
        if built.setting is not None and source.problem is None:
            source.problem = ValidationProblem(code, message, 1, [row.document])
        self._failed.setdefault(row.task, ValidationProblem(code, message)).add(row.document)

    @property
    def documents(self) -> int:
        return sum(source.documents for source in self._sources.values())

    @property
    def is_unusable(self) -> bool:
        """True if no document can be used, whatever the task."""
        return self._is_unusable and self.documents > 0

    def mistakes(self) -> Iterator[InputError]:
        """Yield settings that fail for every document of a source, and templates that always fail."""
        for index, source in self._sources.items():
            [setting, *others] = source.settings
            if setting is not None and not others:
                told = f"{no_document(source.documents)} can be used: {source.problem}"
                yield self.mistake(("documents", index, setting), told)
        for index, task in enumerate(self._spec.tasks):
            failed = self._failed.get(task.id)
            if failed is not None and task.id not in self._asked and failed.code == BAD_TEMPLATE:
                told = f"{task.id!r} can be asked of {no_document(self.documents)}: {failed}"
                yield self.mistake(("tasks", index, "prompt"), told)

    def require(self) -> None:
        for mistake in self.mistakes():
            raise mistake

    def mistake(self, place: tuple[str | int, ...], message: str) -> InputError:
        """Return an error with its line in the job file."""
        return mistake_at(self._file, place, message)


def no_document(number: int) -> str:
    return f"none of {number_of(number, 'document')}" if number != 1 else "no document"
