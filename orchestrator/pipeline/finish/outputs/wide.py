"""The wide layout: a table row per document, with the answers of all its tasks side by side. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import msgspec

from orchestrator.core.json_decoders import json_decoder
from orchestrator.pipeline.finish.outputs.column_types import Plain
from orchestrator.pipeline.finish.outputs.layout import ON_REQUEST, AnswerColumns, MergedRow, Tasks, columns_of, read

TEXT = {"type": "string"}
_PART = "map"


class _Document(msgspec.Struct):
    document: str
    task: str
    stage: str | None = None


_decode = json_decoder(_Document).decode


class WideLayout:
    """A table row per document. The `other_answers` column holds answers that do not fit their columns, as JSON by
    task.

    For a long document asked in parts, the row has the answer about all parts.
    """

    def __init__(self, job: str, tasks: Tasks, *, flat: bool, every: bool = False) -> None:
        self._job = job
        self._every = every
        told = {task: TEXT if kind is None else kind for task, kind in tasks.items()}
        self._answers = AnswerColumns(told, flat=flat)
        self.columns = columns_of(
            (
                ("document", Plain.TEXT), *self._answers.named, ("error", Plain.TEXT), ("other_answers", Plain.TEXT),
                ("document_notes", Plain.TEXT), ("cost_usd", Plain.MONEY), ("job", Plain.TEXT),
                *(ON_REQUEST if every else ()),
            )
        )  # fmt: skip

    def records(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the lines of each document, joined by newlines. A document's lines must be adjacent."""
        document, tasks, record = "", set[str](), list[bytes]()
        for line in lines:
            row = _decode(line)
            # Two documents with one name have the same tasks. A long document's parts follow its answer.
            is_answer = row.stage != _PART
            if record and (row.document != document or (is_answer and row.task in tasks)):
                yield b"\n".join(record)
                tasks, record = set(), []
            document = row.document
            record.append(line)
            if is_answer:
                tasks.add(row.task)
        if record:
            yield b"\n".join(record)

    def cells(self, record: bytes) -> list[Any]:
        """Return the cells of a document's lines, one per column; None is an empty cell."""
        rows = [read(line) for line in record.split(b"\n")]
        answers: list[Any] = [None] * len(self._answers.named)
        others: dict[str, msgspec.Raw] = {}
        for row, output, raw in rows:
            if row.stage != _PART and self._answers.fill(answers, row, output, raw) is not None:
                others[row.task] = msgspec.Raw(raw)
        failed: dict[str, dict[str, None]] = {}
        for row, _, _ in rows:
            if row.status != "succeeded":
                failed.setdefault(_error(row), {})[row.task] = None
        errors = "; ".join(f"{', '.join(tasks)}: {why}" for why, tasks in failed.items())
        notes = next((row.provenance.document_notes for row, _, _ in rows if row.provenance.document_notes), None)
        cost = sum((row.provenance.cost_usd for row, _, _ in rows), Decimal(0))
        told = msgspec.json.encode(others).decode() if others else None
        more = (any(row.provenance.cost_estimated for row, _, _ in rows),) if self._every else ()
        return [rows[0][0].document, *answers, errors or None, told, notes, cost, self._job, *more]


def _error(row: MergedRow) -> str:
    if row.error is None:
        return row.status
    return ": ".join(part for part in (row.error.code, row.error.message) if part)
