"""A few documents of a job file that stand for all: of each kind and length, in proportion."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.documents import Readers, listed
from orchestrator.documents.files import DocumentFile
from orchestrator.documents.kinds import split_name
from orchestrator.documents.sources import Listed
from orchestrator.policy.canary import places
from orchestrator.settings.config import ReadingSettings
from orchestrator.settings.job_spec import JobSpec


def sampled(spec: JobSpec, base: Path, number: int, reading: ReadingSettings) -> tuple[str, ...]:
    """Return the keys of up to `number` documents, in the job file's order; nothing is read.

    Rows of tables are left out. Raises InputError as reading does, and UsageError if there are only tables.
    """
    with Readers.of(reading) as readers:
        found = [
            one
            for source in spec.documents
            for one in listed(source, base, time.time_ns(), readers)
            if not one.is_table
        ]
    if not found:
        raise UsageError(
            "--sample is for files, and the job file names only tables", hint="-n takes their first rows"
        )
    ordered = sorted(range(len(found)), key=lambda place: _kind_and_size(found[place]))
    chosen = sorted(ordered[place - 1] for place in places(len(found), min(number, len(found))))
    return tuple(found[place].key for place in chosen)


def _kind_and_size(one: Listed) -> tuple[str, int]:
    path = one.order.path if isinstance(one.order, DocumentFile) else ""
    try:
        size = Path(path).stat().st_size if path else 0
    except OSError:
        size = 0
    return split_name(one.key)[1].lower(), size
