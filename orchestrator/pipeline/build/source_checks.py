"""Checks of a job file's names against its documents: paths, columns and template variables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.errors import InputError
from orchestrator.pipeline.build.placeholders import meant_by
from orchestrator.pipeline.selection import Scope
from orchestrator.policy.requests import variables
from orchestrator.settings.job_file import mistake_at
from orchestrator.settings.job_spec import JobSpec

if TYPE_CHECKING:
    from orchestrator.documents import Readers


@contextmanager
def located(file: Path, index: int) -> Iterator[None]:
    """Add the job file's line number to an InputError about a field of the source at this index."""
    try:
        yield
    except InputError as error:
        if error.field is None or error.line is not None:
            raise
        place = ("documents", index, error.field)
        raise mistake_at(file, place, error.message, error.hint) from error


def in_two_sources(file: Path, document: str) -> InputError:
    told = f"the document {document} is in two sources"
    return mistake_at(
        file, ("documents",), told, "change `include` or `exclude` of the sources so that they do not overlap"
    )


def check_names(spec: JobSpec, file: Path, readers: Readers, scope: Scope) -> int | None:
    """Check columns and template variables, and return the number of documents in scope.

    Return None if only reading the documents can tell their number. Raises InputError for a path or column that does
    not exist, and for a variable that no document has.
    """
    from orchestrator.core.templates import template
    from orchestrator.documents import survey

    surveys = {}
    for index, source in enumerate(spec.documents):
        with located(file, index):
            surveys[source] = survey(source, file.parent, readers)
    fields = {source: found.fields for source, found in surveys.items()}
    for index, task in enumerate(spec.tasks):
        of_task = [fields[source] for source in spec.sources_of(task)]
        known = frozenset[str]().union(*(found for found in of_task if found is not None))
        if None in of_task:
            continue  # only the rows can tell; a row without the variable is reported by name
        for name in sorted(variables(task) - known):
            near = meant_by(name, [*known, "text"])
            field = "prompt" if name in template(task.prompt).variables else "system"
            raise mistake_at(
                file,
                ("tasks", index, field),
                f"the template uses {{{{ {name} }}}}, which no document has",
                f"did you mean {{{{ {near} }}}}?" if near else f"known: text, {', '.join(sorted(known))}",
            )
    return scope.documents([surveys[source].documents for source in spec.documents if scope.tasks_of(spec, source)])
