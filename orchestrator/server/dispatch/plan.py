"""Checks an input file line by line and says where its rows lie."""

from __future__ import annotations

from array import array
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from orchestrator.wire import MAX_LINE_ERRORS, CheckedLine, LineError, check_line, duplicate_error, id_key, lines


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows of an input file by index: offset and length in bytes, and which of them are done already."""

    offsets: array[int]
    lengths: array[int]
    done: bytearray
    model: str | None

    def __len__(self) -> int:
        return len(self.offsets)


def make_plan(path: Path, endpoint: str, done: Set[int], max_rows: int) -> Plan | list[LineError]:
    """The plan of an input file, or every bad line in order (at most MAX_LINE_ERRORS of them).

    `done` holds the `id_key` of each row that already has its result. Raises OSError.
    """
    plan = Plan(array("Q"), array("L"), bytearray(), None)
    model: str | None = None
    seen: set[int] = set()
    errors: list[LineError] = []
    with path.open("rb") as file:
        for number, offset, raw in lines(file):
            checked = check_line(raw, endpoint)
            if isinstance(checked, CheckedLine):
                model = checked.model if model is None else model
                key = id_key(checked.custom_id)
                checked = _against_others(checked, model, duplicate=key in seen)
                seen.add(key)
            if isinstance(checked, LineError):
                errors.append(LineError(checked.code, checked.message, checked.param, number))
                if len(errors) == MAX_LINE_ERRORS:
                    break
            else:
                plan.offsets.append(offset)
                plan.lengths.append(len(raw))
                plan.done.append(key in done)
    if errors:
        return errors
    if not len(plan):
        return [LineError("empty_file", "The input file is empty.")]
    if len(plan) > max_rows:
        return [LineError("too_many_tasks", f"The input file has {len(plan):,} rows; at most {max_rows:,} may be.")]
    return Plan(plan.offsets, plan.lengths, plan.done, model)


def _against_others(line: CheckedLine, model: str | None, *, duplicate: bool) -> CheckedLine | LineError:
    if duplicate:
        return duplicate_error(line.custom_id)
    if line.model != model:
        return LineError(
            "mismatched_model",
            f"The model '{line.model}' for this request does not match the rest of the batch. "
            "Each batch must contain requests for a single model.",
            "body.model",
        )
    return line
