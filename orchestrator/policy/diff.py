"""Differences between the answers of two runs, field by field. Pure; rows are processed one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from orchestrator.core.sanitize import cut

MOST_FIELDS = 100
"""Maximum number of fields that get their own count of changes.

Without a schema, every answer may have different fields. Changes of further fields share a single count.
"""
WHOLE, STATUS, OTHERS = "answer", "status", "(others)"
MAX_TEXT = 200


class _Missing:
    """Placeholder for a field that an answer lacks."""

    def __repr__(self) -> str:
        return "—"


MISSING = _Missing()


class ComparedRow(Struct, frozen=True):
    """A row's identity: a task about a document."""

    custom_id: str
    document: str
    task: str

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form, documented in docs/reference/json.md."""
        return {"custom_id": self.custom_id, "document": self.document, "task": self.task}


class DocumentRun(Struct, frozen=True):
    """A document in a run, compared with the previous run. All numbers count rows.

    `known` rows were in the previous run, too. `changed` rows are requested differently now: `asked` with another
    prompt, settings or schema, `other_model` by another model. `code` and `message` describe one of the document's
    failures.

    `old` failures were acknowledged by a person, or are known from an earlier run. `since` is the time of the oldest
    of these failures.
    """

    name: str
    rows: int
    known: int
    changed: int
    asked: int
    other_model: int
    failed: int
    unreadable: int
    open: int
    code: str | None
    message: str | None
    old: int = 0
    since: datetime | None = None


class FieldChange(Struct, frozen=True):
    """A field of an answer before and after; MISSING if the answer lacked it. `field` names nested fields as `a.b`.

    The name `answer` stands for an answer that is not an object, and `status` for the outcome.
    """

    field: str
    before: Any
    after: Any

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form. Leaves out `before` or `after` if that answer lacks the field."""
        sides = {"before": self.before, "after": self.after}
        return {"field": self.field, **{name: value for name, value in sides.items() if value is not MISSING}}


class RowChange(Struct, frozen=True):
    """A row whose answer changed."""

    asked: ComparedRow
    fields: tuple[FieldChange, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {**self.asked.to_json(), "fields": [change.to_json() for change in self.fields]}


class CountedRows(Struct):
    """A number of rows, and the first few of these rows."""

    number: int = 0
    first: list[ComparedRow] = field(default_factory=list)


class Difference(Struct):
    """Differences between two runs.

    `added` rows are only in the later run, `removed` rows only in the earlier run. `changed` counts the rows whose
    answers differ. `by_field` counts changes by `TASK.FIELD`. `unread` counts rows whose answer is in a deleted file
    or nested too deeply to read.
    """

    before: str
    after: str
    added: CountedRows = field(default_factory=CountedRows)
    removed: CountedRows = field(default_factory=CountedRows)
    changed: int = 0
    unread: int = 0
    by_field: dict[str, int] = field(default_factory=dict)
    first: list[RowChange] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form, documented in docs/reference/json.md."""
        return {
            "before": self.before,
            "after": self.after,
            "added": {"rows": self.added.number, "first": [one.to_json() for one in self.added.first]},
            "removed": {"rows": self.removed.number, "first": [one.to_json() for one in self.removed.first]},
            "changed": {
                "rows": self.changed,
                "fields": self.by_field,
                "first": [one.to_json() for one in self.first],
            },
            "unread": self.unread,
        }


class Said(Struct, frozen=True):
    """A row's outcome: its state, and its answer or the code of its failure."""

    state: str
    output: Any


def difference(
    before: str,
    after: str,
    added: Iterable[ComparedRow],
    removed: Iterable[ComparedRow],
    moved: Iterable[tuple[ComparedRow, Said | None, Said | None]],
    most: int,
) -> Difference:
    """Compare two runs. `moved` has each row of both runs, with its outcomes before and after (None: unreadable).

    All rows are counted, but only the first `most` of each kind are kept.
    """
    found = Difference(before, after, _count(added, most), _count(removed, most))
    for asked, old, new in moved:
        if old is None or new is None:
            found.unread += 1
            continue
        changes = changes_between(old, new)
        if not changes:
            continue
        found.changed += 1
        if len(found.first) < most:
            found.first.append(RowChange(asked, changes))
        for name in {change.field for change in changes}:
            key = f"{asked.task}.{name}" if asked.task else name
            if key not in found.by_field and len(found.by_field) >= MOST_FIELDS:
                key = OTHERS
            found.by_field[key] = found.by_field.get(key, 0) + 1
    found.by_field = dict(sorted(found.by_field.items(), key=lambda item: (-item[1], item[0])))
    return found


def _count(rows: Iterable[ComparedRow], most: int) -> CountedRows:
    found = CountedRows()
    for row in rows:
        found.number += 1
        if len(found.first) < most:
            found.first.append(row)
    return found


def changes_between(before: Said, after: Said) -> tuple[FieldChange, ...]:
    """Return the field changes between two outcomes. If the states differ, `status` is the only change."""
    if before.state != after.state:
        return (FieldChange(STATUS, _outcome(before), _outcome(after)),)
    if before.state != "succeeded":
        return () if before.output == after.output else (FieldChange(STATUS, _outcome(before), _outcome(after)),)
    old, new = dict(_flat_fields("", before.output)), dict(_flat_fields("", after.output))
    return tuple(
        FieldChange(name or WHOLE, old.get(name, MISSING), new.get(name, MISSING))
        for name in dict.fromkeys((*old, *new))
        if not _is_same(old.get(name, MISSING), new.get(name, MISSING))
    )


def _is_same(one: Any, other: Any) -> bool:
    # Python treats true as equal to 1.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _outcome(said: Said) -> str:
    return said.state if said.state == "succeeded" or said.output is None else f"{said.state}: {said.output}"


def _flat_fields(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of an answer as (name, value). A list, or an empty nested object, counts as one field."""
    if isinstance(value, dict) and (value or not name):
        for key, inner in value.items():
            yield from _flat_fields(f"{name}.{key}" if name else key, inner)
    else:
        yield name, value


def shown(value: Any) -> str:
    """Return a field's value for display, on one line."""
    if value is MISSING or value is None:
        return "—"
    if isinstance(value, bool):
        return str(value).lower()
    return cut(" ".join(str(value).split()), MAX_TEXT)
