"""Sources of the job file -> documents: folders and files, tables row by row, texts in eight formats."""

from __future__ import annotations

from orchestrator.documents.sources import fields_of, read
from orchestrator.documents.types import Document, DocumentProblem, UnreadableDocument

# Part of every fingerprint. Raise it whenever a reader may give another text for the same bytes;
# tests/unit/test_documents_golden.py fails when that was forgotten.
EXTRACTOR_VERSION = "1"

__all__ = [
    "EXTRACTOR_VERSION",
    "Document",
    "DocumentProblem",
    "UnreadableDocument",
    "fields_of",
    "read",
]
