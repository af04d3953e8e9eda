"""Sources of the job file → documents: folders and files, tables row by row, archives and mail part by part."""

from __future__ import annotations

from orchestrator.documents.ignored import Ignored
from orchestrator.documents.readers import Readers
from orchestrator.documents.sources import Listed, listed, read, survey
from orchestrator.documents.types import Document, DocumentProblem, UnreadableDocument

__all__ = [
    "Document",
    "DocumentProblem",
    "Ignored",
    "Listed",
    "Readers",
    "UnreadableDocument",
    "listed",
    "read",
    "survey",
]
