"""What is different between the answers of two runs, field by field. Pure; rows come one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

MOST_FIELDS = 100
"""Fields that changes are counted by; of answers that are objects without a schema, each may have others."""
WHOLE, STATUS, OTHERS = "answer", "status", "(others)"
MAX_TEXT = 200


class _Missing:
    """What a field holds that an answer does not have."""

    def __repr__(self) -> str:
        return "—"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A row by what it asks: a task, of a document."""

    custom_id: str
    document: str
    task: str

    def to_json(self) -> dict[str, Any]:
        """The stable form; documented in docs/reference/json.md."""
        return {"custom_id": self.custom_id, "document": self.document, "task": self.task}


@dataclass(frozen=True, slots=True)
class DocumentRun:
    """A document in a run, beside the run before; all but the texts count rows.

    `known` had the same task before, `changed` are asked otherwise than then: `asked` by other words, settings or
    schema, `other_model` of another model. `code` and `message` are of a failure among them; `old` of the failed ones
    are known from an earlier run or acknowledged, and the oldest began at `since`.
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


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field of an answer before and after; MISSING where the answer had none. `field` names nested ones as `a.b`.

    `answer` stands for an answer that is not an object, `status` for the outcome.
    """

    field: str
    before: Any
    after: Any

    def to_json(self) -> dict[str, Any]:
        """The stable form. A side that has no such field is left out."""
        sides = {"before": self.before, "after": self.after}
        return {"field": self.field, **{name: value for name, value in sides.items() if value is not MISSING}}


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row whose answer is another one."""

    asked: ComparedRow
    fields: tuple[FieldChange, ...]

    def to_json(self) -> dict[str, Any]:
        """The stable form."""
        return {**self.asked.to_json(), "fields": [change.to_json() for change in self.fields]}


@dataclass(slots=True)
class CountedRows:
    """How many rows there are, and the first of them."""

    number: int = 0
    first: list[ComparedRow] = field(default_factory=list)


@dataclass(slots=True)
class Difference:
    """Two runs: rows that only the later has, that only the earlier had, and whose answer is another one.

    `by_field` counts changes by `TASK.FIELD`. `unread` rows have an answer in a file that is gone, or that is too
    deep to be read.
    """

    before: str
    after: str
    added: CountedRows = field(default_factory=CountedRows)
    removed: CountedRows = field(default_factory=CountedRows)
    changed: int = 0
    unread: int = 0
    by_field: dict[str, int] = field(default_factory=dict)
    first: list[RowChange] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the runs say the same."""
        return not (self.added.number or self.removed.number or self.changed or self.unread)

    def to_json(self) -> dict[str, Any]:
        """The stable form; documented in docs/reference/json.md."""
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


@dataclass(frozen=True, slots=True)
class Said:
    """What a row came to: its state, and its answer or the code of its failure."""

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
    """Compare two runs. `moved` are rows that both have, before and after, None where it cannot be read.

    All are counted, the first `most` of each kind are kept.
    """
    found = Difference(before, after, _counted(added, most), _counted(removed, most))
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


def _counted(rows: Iterable[ComparedRow], most: int) -> CountedRows:
    found = CountedRows()
    for row in rows:
        found.number += 1
        if len(found.first) < most:
            found.first.append(row)
    return found


def changes_between(before: Said, after: Said) -> tuple[FieldChange, ...]:
    """What is different between two outcomes; an answer that came or went is told by its status alone."""
    if before.state != after.state:
        return (FieldChange(STATUS, _outcome(before), _outcome(after)),)
    if before.state != "succeeded":
        return () if before.output == after.output else (FieldChange(STATUS, _outcome(before), _outcome(after)),)
    old, new = dict(_flat("", before.output)), dict(_flat("", after.output))
    return tuple(
        FieldChange(name or WHOLE, old.get(name, MISSING), new.get(name, MISSING))
        for name in dict.fromkeys((*old, *new))
        if not _is_same(old.get(name, MISSING), new.get(name, MISSING))
    )


def _is_same(one: Any, other: Any) -> bool:
    # To Python, true is 1.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _outcome(said: Said) -> str:
    return said.state if said.state == "succeeded" or said.output is None else f"{said.state}: {said.output}"


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of an answer; a list is one field, and so is what is empty within."""
    if isinstance(value, dict) and (value or not name):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else key, inner)
    else:
        yield name, value


def shown(value: Any) -> str:
    """A value of a field for people, on one line."""
    if value is MISSING or value is None:
        return "—"
    if isinstance(value, bool):
        return str(value).lower()
    text = " ".join(str(value).split())
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
