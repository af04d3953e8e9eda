"""What `orch validate` finds: everything a submit would trip over, with nothing recorded and nothing sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import Config
from orchestrator.jobspec import JobSpec
from orchestrator.model import JobKind
from orchestrator.pipeline import build
from orchestrator.pipeline.intake import kind_of, read_spec

if TYPE_CHECKING:
    from orchestrator.documents import Readers


@dataclass(frozen=True, slots=True)
class Finding:
    """A file that is sound; `problems` are documents that would fail, as (key, code, message).

    `ignored` is what stands in the folders and is no document; None for a batch file.
    """

    kind: JobKind
    documents: int
    requests: int
    problems: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...]
    ignored: Mapping[str, Any] | None = None


def check_file(path: Path, config: Config) -> Finding:
    """Read a job file and all its documents, or a batch file. Raises InputError with every mistake found."""
    kind = kind_of(path)
    if kind is JobKind.BATCH:
        number = sum(1 for _ in build.batch_lines(path))
        return Finding(kind, number, number, (), ())
    from orchestrator.documents import Readers

    spec = read_spec(path, config)
    with Readers.of(config.documents) as readers:
        build.check_variables(spec, path, readers)
        return _check_documents(path, spec, readers)


def _check_documents(path: Path, spec: JobSpec, readers: Readers) -> Finding:
    from orchestrator import documents
    from orchestrator.requests import Builder

    builder = Builder(spec, documents.EXTRACTOR_VERSION)
    problems: list[tuple[str, str, str]] = []
    number = requests = 0
    ignored = documents.Ignored()
    for source in spec.documents:
        for document in documents.read(source, path.parent, readers, ignored):
            number += 1
            for built in builder.build(document):
                requests += 1
                if built.row.problem is not None:
                    problems.append((built.row.document, *built.row.problem))
    found, warnings = tuple(dict.fromkeys(problems)), tuple(_warnings(spec))
    return Finding(JobKind.DOCUMENTS, number, requests, found, warnings, ignored.to_json())


def _warnings(spec: JobSpec) -> Iterator[str]:
    from orchestrator.requests import places_text_late

    for index, task in enumerate(spec.tasks):
        if places_text_late(task):
            yield (
                f"tasks[{index}].prompt places {{{{ text }}}} behind other text: the engine's prefix cache then "
                "reads a document once a task instead of once; leave {{ text }} out and it goes first"
            )
