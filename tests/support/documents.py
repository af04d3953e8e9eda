"""Documents read as a build reads them, by worker processes that all tests of a process share."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from orchestrator import documents
from orchestrator.documents import Document, Ignored, Readers, UnreadableDocument
from orchestrator.settings.job_spec import DocumentSource


@cache
def readers() -> Readers:
    """Two worker processes, started when they are first needed."""
    found = Readers(workers=2)
    atexit.register(found.close)
    return found


def read(
    source: DocumentSource, base: Path, ignored: Ignored | None = None
) -> Iterator[Document | UnreadableDocument]:
    """The documents of a source."""
    return documents.read(source, base, readers(), ignored)


def fields_of(source: DocumentSource, base: Path) -> frozenset[str] | None:
    """The names that a template may use for some document of a source."""
    return documents.survey(source, base, readers()).fields
