"""Choice of a job file's documents and tasks by `--limit`, `--only` and `--task`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from orchestrator.core.counts import number_of
from orchestrator.core.errors import UsageError
from orchestrator.core.model import Job
from orchestrator.core.near_names import meant
from orchestrator.policy.canary import places
from orchestrator.settings.config import ReadingSettings
from orchestrator.settings.job_spec import DocumentSource, JobSpec

if TYPE_CHECKING:
    from orchestrator.documents import Listed

MOST_NAMES = 20_000
"""Maximum number of document names kept for suggestions after a misspelled name."""


class Scope(Struct, frozen=True):
    """Scope of a run: the first `limit` documents, `only` by name or pattern, and tasks. Empty means all."""

    limit: int | None = None
    only: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job) -> Scope:
        told = job.options
        return cls(told.get("limit"), tuple(told.get("only") or ()), tuple(told.get("tasks") or ()))

    def to_options(self) -> dict[str, object]:
        """Return this scope as options stored with a job; empty if the scope is unlimited."""
        told = {"limit": self.limit, "only": list(self.only), "tasks": list(self.tasks)}
        return {name: value for name, value in told.items() if value}

    def check_tasks(self, spec: JobSpec) -> None:
        """Raise UsageError for a task that is not in the job file."""
        known = [task.id for task in spec.tasks]
        for name in self.tasks:
            if name not in known:
                hint = meant(name, known) or f"known: {', '.join(known)}"
                raise UsageError(f"--task {name}: the job file has no such task", hint=hint)

    def documents(self, found: Sequence[int | None]) -> int | None:
        """Return the number of documents in scope, given the number in each source. None if it is unknown."""
        known = [number for number in found if number is not None]
        if self.only or len(known) < len(found):
            return None
        return sum(known) if self.limit is None else min(self.limit, sum(known))

    def tasks_of(self, spec: JobSpec, source: DocumentSource) -> list[str]:
        """Return the tasks in scope that ask about the documents of a source."""
        asked = [task.id for task in spec.tasks_of(source)]
        return [name for name in asked if not self.tasks or name in self.tasks]


EVERYTHING = Scope()


def names_document(wanted: str, key: str) -> bool:
    """True if `wanted` names this document: by its key, the end of its path, or a pattern."""
    return key == wanted or key.endswith(f"/{wanted}") or fnmatchcase(key, wanted)


def nearest(wanted: str, keys: Sequence[str]) -> list[str]:
    """Return up to three documents that a user may have meant by a name that matches no document."""
    from difflib import get_close_matches

    having = [key for key in keys if wanted in key]
    by_name = {key.rpartition("/")[2]: key for key in keys} | {key: key for key in keys}
    # A document can match by name and by path, so six matches cover at least three documents.
    like = dict.fromkeys(by_name[name] for name in get_close_matches(wanted, by_name, 6, 0.5))
    return having[:3] or list(like)[:3]


class Selection:
    """Chooses documents one at a time, in the order of the job file.

    With `needs_text`, only readable documents count towards the limit.
    """

    def __init__(self, scope: Scope, *, needs_text: bool = False) -> None:
        self._scope = scope
        self._needs_text = needs_text and scope.limit is not None and not scope.only
        self._passed_over = 0
        self._first_unreadable = ""
        self._taken = 0
        self._unmatched = set(scope.only)
        self._seen: list[str] = []

    @property
    def is_over(self) -> bool:
        return self._scope.limit is not None and self._taken >= self._scope.limit

    def may_hold(self, key: str, *, is_table: bool) -> bool:
        """True if a file must be read because it, or a row in it, may be chosen."""
        return not self.is_over and (is_table or self._is_named(key, key))

    def takes(self, key: str, file: str) -> bool:
        """Choose and count a document of this file if it is in scope. True if it was chosen."""
        if self.is_over or not self._is_named(key, file):
            return False
        self._taken += 1
        return True

    def passes_over(self, key: str, problem: str) -> bool:
        """Skip an unreadable document. True if the next document is chosen in its place."""
        if not self._needs_text or self.is_over:
            return False
        self._passed_over += 1
        self._first_unreadable = self._first_unreadable or f"{key}: {problem}"
        return True

    def _is_named(self, key: str, file: str) -> bool:
        if not self._scope.only:
            return True
        if len(self._seen) < MOST_NAMES:
            self._seen.append(key)
        found = [one for one in self._scope.only if names_document(one, key) or names_document(one, file)]
        self._unmatched.difference_update(found)
        return bool(found)

    def check(self) -> None:
        """Raise UsageError, with the nearest names, if a name matches no document, or if no document is readable."""
        if self._passed_over and not self._taken:
            told = f"none of {number_of(self._passed_over, 'document')} can be read: {self._first_unreadable}"
            raise UsageError(told, hint="`orch validate --list` names them all")
        if self._unmatched and not self.is_over:
            name = min(self._unmatched)
            near = nearest(name, [*dict.fromkeys(self._seen)])
            raise UsageError(
                f"{name}: there is no such document",
                hint=f"did you mean {' or '.join(near)}?" if near else "write its name as reports do, or a pattern",
            )


def sampled(spec: JobSpec, base: Path, number: int, reading: ReadingSettings) -> tuple[str, ...]:
    """Return the keys of up to `number` documents, in the job file's order. The documents are not read.

    Rows of tables are left out. Raises InputError for the same mistakes as reading does. Raises UsageError if the job
    file names only tables.
    """
    from orchestrator.documents import Readers, listed
    from orchestrator.documents.kinds import split_name

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
    sized = [(one.key, _size_of(one)) for one in found]
    sized = [(key, size) for key, size in sized if size != 0] or sized

    def kind_and_size(place: int) -> tuple[str, int]:
        key, size = sized[place]
        return split_name(key)[1].lower(), size or 0

    ordered = sorted(range(len(sized)), key=kind_and_size)
    chosen = sorted(ordered[place - 1] for place in places(len(sized), min(number, len(sized))))
    return tuple(sized[place][0] for place in chosen)


def _size_of(one: Listed) -> int | None:
    from orchestrator.documents.files import DocumentFile

    path = one.order.path if isinstance(one.order, DocumentFile) else ""
    try:
        return Path(path).stat().st_size if path else None
    except OSError:
        return None
