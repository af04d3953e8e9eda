"""Turns sources of the job file into documents: folders and files, table rows, and parts of archives and mails."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
_SOURCES = dict.fromkeys(("Listed", "listed", "read", "survey"), "sources")
_PLACES = {"Ignored": "ignored", "Readers": "readers", **_SOURCES}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because a ready batch file needs no readers."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'types')}"), name)
