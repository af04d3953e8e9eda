"""Retention of the folders of Python calls. A folder is removed once no job has answers to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.core.model import Job
from orchestrator.settings.home import Home
from orchestrator.store.gc import CLEARED


def unused_frames(home: Home, jobs: Iterable[Job]) -> Iterator[Path]:
    """Yield the folders of `frames` that belong to no job, or only to jobs whose files were removed."""
    if not home.frames.is_dir():
        return
    used = {Path(job.source).parent.resolve() for job in jobs if CLEARED not in job.options}
    for folder in sorted(home.frames.iterdir()):
        if folder.is_dir() and folder.resolve() not in used:
            yield folder
