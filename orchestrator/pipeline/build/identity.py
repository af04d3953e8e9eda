"""Identity of a job: which runs are of the same file, and which are of the same content."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from orchestrator.core.errors import InputError
from orchestrator.core.model import Job, JobKind
from orchestrator.pipeline.build.selection import Scope
from orchestrator.pipeline.plan.synchronous_backends import AT_ONCE


def identity_of(job: Job, *, series: str) -> str:
    """Return a digest of the series, the content of a job's file and its scope."""
    content = _file_digest(Path(job.source)) if job.kind is JobKind.BATCH else json.dumps(job.spec, sort_keys=True)
    limits = Scope.of(job).to_options() | ({AT_ONCE: True} if AT_ONCE in job.options else {})
    return digest(series, content, *([json.dumps(limits)] if limits else []))


def digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    found = sha256()
    try:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                found.update(part)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from None
    return found.hexdigest()
