"""What `orch validate` finds: everything a submit would trip over, with nothing recorded and nothing sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.config import Config
from orchestrator.jobspec import JobSpec
from orchestrator.model import JobKind
from orchestrator.pipeline import build
from orchestrator.pipeline.intake import kind_of, read_spec
from orchestrator.pipeline.selection import EVERYTHING, Scope, Selection

if TYPE_CHECKING:
    from orchestrator.documents import Document, UnreadableDocument


@dataclass(frozen=True, slots=True)
class Finding:
    """A file that is sound; `problems` are documents that would fail, as (key, code, message)."""

    kind: JobKind
    documents: int
    requests: int
    problems: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...]


def check_file(
    path: Path, config: Config, scope: Scope = EVERYTHING, progress: build.Progress = lambda documents, rows: None
) -> Finding:
    """Read a job file and its documents, or a batch file. Raises InputError with every mistake found.

    With a `scope`, only these documents and tasks; `progress` is told documents and requests so far.
    """
    kind = kind_of(path)
    if kind is JobKind.BATCH:
        selection = Selection(scope)
        ids = (checked.custom_id for checked, _ in build.batch_lines(path))
        number = sum(selection.takes(custom_id, custom_id) for custom_id in ids)
        selection.check()
        return Finding(kind, number, number, (), ())
    spec = read_spec(path, config)
    scope.check_tasks(spec)
    build.check_variables(spec, path)
    return _check_documents(path, spec, scope, progress)


def _chosen(path: Path, spec: JobSpec, scope: Scope) -> Iterator[tuple[list[str], Document | UnreadableDocument]]:
    """The documents that are meant, each with the tasks that are asked of it."""
    from orchestrator import documents

    selection = Selection(scope)
    for source in spec.documents:
        tasks = scope.tasks_of(spec, source)
        for found in documents.listed(source, path.parent, 0) if tasks else ():
            if not selection.may_hold(found.key, is_table=found.is_table):
                continue
            for document in found.read():
                if selection.takes(document.key, found.key):
                    yield tasks, document
    selection.check()


def _check_documents(path: Path, spec: JobSpec, scope: Scope, progress: build.Progress) -> Finding:
    from orchestrator import documents
    from orchestrator.requests import Builder

    builder = Builder(spec, documents.EXTRACTOR_VERSION)
    problems: list[tuple[str, str, str]] = []
    number = requests = 0
    for tasks, document in _chosen(path, spec, scope):
        number += 1
        for built in builder.asking(tasks).build(document):
            requests += 1
            if built.row.problem is not None:
                problems.append((built.row.document, *built.row.problem))
        progress(number, requests)
    return Finding(JobKind.DOCUMENTS, number, requests, tuple(dict.fromkeys(problems)), tuple(_warnings(spec)))


def _warnings(spec: JobSpec) -> Iterator[str]:
    from orchestrator.requests import places_text_late

    for index, task in enumerate(spec.tasks):
        if places_text_late(task):
            yield (
                f"tasks[{index}].prompt places {{{{ text }}}} behind other text: the engine's prefix cache then "
                "reads a document once a task instead of once; leave {{ text }} out and it goes first"
            )
