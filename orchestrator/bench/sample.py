"""The rows of a bench: a sample of a job's request lines, with the job's mix of long and short rows.

Neighbouring rows (a document's tasks) stay together, because an engine's prefix cache reuses their common prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from orchestrator.core.atomic import durable
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import InputError, UsageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import Span
from orchestrator.core.request_lines import lines
from orchestrator.pipeline.build.builder import Progress
from orchestrator.pipeline.build.rehearsal import rehearsed
from orchestrator.pipeline.build.submission import Options, draft
from orchestrator.pipeline.plan.routes import check_eligible, models_of
from orchestrator.policy.model_names import resolve_model, with_model
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store

BLOCK = 8
"""Number of neighbouring rows that stay together."""
MOST_ROWS = 1_024
MOST_BYTES = 64_000_000
FILE_NAME = "rows.jsonl"


class _Body(msgspec.Struct):
    model: str | None = None


class _Line(msgspec.Struct):
    url: str
    body: _Body


_decode = json_decoder(_Line).decode


class Sample(Struct, frozen=True):
    """A sample at `path`: `rows` of the job's `job_rows`, all for one `endpoint` and one `model`.

    `model` is the name at the backend. `left_out` rows are for other models or endpoints. `digest` identifies the
    content.
    """

    path: Path
    endpoint: str
    model: str
    rows: int
    job_rows: int
    documents: int
    left_out: int
    digest: str
    name: str


def take_sample(
    store: Store, home: Home, config: Config, file: Path, backend: str, now: Callable[[], datetime],
    progress: Progress,
) -> Sample:  # fmt: skip
    """Build the job temporarily, and write a sample of its lines under `home.bench`. Raises OrchError."""
    job = draft(file, config, home, Options(backend=backend, new=True), now())
    check_eligible(config, job)
    with rehearsed(store, home, config, job, now(), progress) as (built, report):
        path = home.requests(built.id)
        groups = _groups(path)
        if not groups:
            raise InputError("the job has no rows to ask", file=file)
        (endpoint, alias), spans = max(groups.items(), key=lambda item: len(item[1]))
        model = resolve_model(alias, backend, models_of(config, built)) or alias
        if alias in models_of(config, built) and resolve_model(alias, backend, models_of(config, built)) is None:
            raise UsageError(f"the model {alias} has no name at {backend}", hint=f"name it under models.{alias}")
        taken = stratified(spans)
        digest = _digest(path, taken, model)
        target = home.bench(digest) / FILE_NAME
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, taken, model, target)
    total = sum(map(len, groups.values()))
    return Sample(
        target, endpoint, model, len(taken), len(spans), report.documents, total - len(spans), digest, built.name
    )


def _groups(path: Path) -> dict[tuple[str, str], list[Span]]:
    found: dict[tuple[str, str], list[Span]] = {}
    with path.open("rb") as file:
        for _, offset, raw in lines(file):
            try:
                line = _decode(raw)
            except JSON_ERRORS:
                continue  # a real run would report this as the row's failure
            found.setdefault((line.url, line.body.model or ""), []).append(Span(offset, len(raw)))
    return found


def stratified(spans: Sequence[Span], most: int = MOST_ROWS, most_bytes: int = MOST_BYTES) -> list[Span]:
    """Return at most `most` rows in file order, as blocks of neighbours picked evenly over their lengths."""
    mean = sum(span.length for span in spans) / len(spans)
    wanted = max(1, min(most, int(most_bytes / max(1.0, mean))))
    if len(spans) <= wanted:
        return list(spans)
    blocks = [spans[at : at + BLOCK] for at in range(0, len(spans), BLOCK)]
    by_length = sorted(range(len(blocks)), key=lambda at: sum(span.length for span in blocks[at]) / len(blocks[at]))
    many = max(1, wanted // BLOCK)
    picked = sorted(by_length[int((at + 0.5) * len(blocks) / many)] for at in range(min(many, len(blocks))))
    return [span for at in picked for span in blocks[at]]


def _digest(path: Path, spans: Sequence[Span], model: str) -> str:
    digest = hashlib.sha256(model.encode())
    for raw in _read(path, spans):
        digest.update(raw)
    return digest.hexdigest()[:16]


def _write(path: Path, spans: Sequence[Span], model: str, target: Path) -> None:
    with durable(target) as file:
        for raw in _read(path, spans):
            file.write(with_model(raw, model) + b"\n")


def _read(path: Path, spans: Sequence[Span]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for span in spans:
            file.seek(span.offset)
            yield file.read(span.length).rstrip(b"\r\n")
