"""Checks an input file line by line, locates its rows, and decides their order.

A row costs about 15 bytes while its batch runs, and about as much again while the plan is made.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct, field

from orchestrator.core.batch_api import MAX_LINE_BYTES, MAX_LINE_ERRORS, LineError
from orchestrator.core.counts import number_of
from orchestrator.core.request_lines import TOO_DEEP, duplicate_error, find_custom_id, id_key, lines, shown
from orchestrator.server.dispatch.request_header import Head, LongRow, RequestBody, can_share, long_row, reader
from orchestrator.server.dispatch.row_order import RowOrder, Sorter
from orchestrator.server.memory_limits import SMALL

BUCKETS = 256
_READ_BYTES = 1 << 18


class InputRows(Struct, frozen=True):
    """Rows of an input file by index: their positions, which rows are done, and their order.

    Row i is the bytes `offsets[i]:offsets[i + 1]`, which may end with blank lines. `faults` are rows that must not be
    sent, with the reasons. Their lines were once accepted, but would be refused now. `long` are lines above `SMALL`
    bytes, whose bodies are found without decoding.
    """

    offsets: array[int]
    done: bytearray
    model: str | None
    order: RowOrder
    faults: Mapping[int, LineError] = field(default_factory=dict)
    long: Mapping[int, LongRow] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.done)

    def size(self, index: int) -> int:
        """Return the number of bytes to read for a row."""
        return min(self.offsets[index + 1] - self.offsets[index], MAX_LINE_BYTES)

    def read(self, file: int, index: int) -> bytes:
        """Read a row from the open input file: one JSON object, perhaps followed by whitespace. Raises OSError."""
        return os.pread(file, self.size(index), self.offsets[index])


def make_plan(
    path: Path,
    endpoint: str,
    done: Iterable[int],
    max_rows: int,
    *,
    in_order: bool = False,
    accepted: bool = False,
    cache_bytes: int | None = None,
    spill: Path | None = None,
    key: Callable[[str], int] = id_key,
) -> InputRows | list[LineError]:
    """Return the plan of an input file, or its bad lines in order (at most MAX_LINE_ERRORS).

    `done` has the `key` of each row that already has its result. `in_order` keeps the file's order. An `accepted`
    file passed the checks before. If today's rules refuse one of its lines, the line becomes one of the plan's
    `faults`; only damaged lines are errors. `cache_bytes` is the amount of text that the smallest upstream's prefix
    cache holds, None if unknown. `spill` is the folder for a temporary file; None means the system's. `key` maps a
    custom_id to 64 bits; rows whose keys collide are still distinguished. Raises OSError.
    """
    sorts = can_share(endpoint) and not in_order
    with closing(Sorter(spill)) as sorter:
        survey = _Survey(endpoint, max_rows, sorter if sorts else None, key, accepted=accepted)
        twice = survey.read(path, done)
        if errors := survey.all_errors(path, twice):
            return errors
        why = "the batch asks for it" if in_order else "rows of this endpoint share no work"
        order = sorter.order(cache_bytes) if sorts else RowOrder(f"file order: {why}")
    return InputRows(survey.offsets, survey.done, survey.model, order, survey.faults, survey.long)


class _Survey:
    def __init__(
        self, endpoint: str, max_rows: int, sorter: Sorter | None, key: Callable[[str], int], *, accepted: bool
    ) -> None:
        self.offsets = array("Q")
        self.done = bytearray()
        self.model: str | None = None
        self.faults: dict[int, LineError] = {}
        self.long: dict[int, LongRow] = {}
        self._accepted = accepted
        self._check = reader(endpoint)
        self._max_rows = max_rows
        self._sorter = sorter
        self._key = key
        self._errors: dict[int, LineError] = {}
        self._last_line = 0

    def read(self, path: Path, done: Iterable[int]) -> array[int]:
        """Check lines until there are too many errors or rows. Return the keys that occur more than once, sorted."""
        keys = _Keys(done)
        check, sorter, key, offsets = self._check, self._sorter, self._key, self.offsets
        end = 0
        with path.open("rb", _READ_BYTES) as file:
            for number, offset, raw in lines(file):
                self._last_line = number
                head = check(raw)
                if isinstance(head, Head):
                    keys.add(key(head.custom_id), len(offsets))
                    if head.body.model == self.model or self._has_model(head):
                        if len(raw) > SMALL and (known := long_row(raw, head)) is not None:
                            self.long[len(offsets)] = known
                        offsets.append(offset)
                        end = offset + len(raw)
                        if sorter is not None:
                            sorter.add(head.body.text, head.body.most_tokens)
                        if len(offsets) > self._max_rows:
                            break
                        continue
                    head = _mismatch(head.body.model)
                elif self._accepted and (name := _name_of(raw, head)) is not None:
                    keys.add(key(name), len(offsets))
                    self.faults[len(offsets)] = head
                    offsets.append(offset)
                    end = offset + len(raw)
                    if sorter is not None:
                        sorter.add(b"", None)
                    continue
                self._errors[number] = _numbered(head, number)
                if len(self._errors) == MAX_LINE_ERRORS:
                    break
        self.done = keys.done(len(offsets))
        offsets.append(end)
        return keys.twice()

    def all_errors(self, path: Path, twice: array[int]) -> list[LineError]:
        errors = self._errors
        if twice:
            errors |= self._duplicates(path, twice)
        if errors:
            return [errors[number] for number in sorted(errors)][:MAX_LINE_ERRORS]
        rows = len(self.done)
        if not rows:
            return [LineError("empty_file", "The input file is empty.")]
        if rows > self._max_rows:
            problem = f"The input file has at least {number_of(rows, 'row')}; at most {self._max_rows:,} are allowed."
            return [LineError("too_many_tasks", problem)]
        return []

    def _has_model(self, head: Head[RequestBody]) -> bool:
        if self.model is None:
            self.model = head.body.model
        return head.body.model == self.model

    def _duplicates(self, path: Path, twice: array[int]) -> dict[int, LineError]:
        """Return the lines that repeat an earlier custom_id, by line number. Keys only narrow down the candidates."""
        found: dict[int, LineError] = {}
        first_at = array("Q", bytes(8 * len(twice)))
        collided: dict[int, set[str]] = {}
        with path.open("rb", _READ_BYTES) as file, path.open("rb") as again:
            for number, offset, raw in lines(file):
                if number > self._last_line or len(found) == MAX_LINE_ERRORS:
                    break
                head = self._check(raw)
                if not isinstance(head, Head):
                    continue
                key = self._key(head.custom_id)
                place = bisect_left(twice, key)
                if place == len(twice) or twice[place] != key:
                    continue
                if not first_at[place]:
                    first_at[place] = offset + 1
                    continue
                again.seek(first_at[place] - 1)
                first = self._check(again.readline(MAX_LINE_BYTES))
                known = collided.setdefault(key, set())
                if head.custom_id in known or (isinstance(first, Head) and first.custom_id == head.custom_id):
                    found[number] = _numbered(duplicate_error(head.custom_id), number)
                else:
                    known.add(head.custom_id)
        return found


class _Keys:
    """The keys of all rows, in buckets. At most one bucket is in memory as a set."""

    def __init__(self, done: Iterable[int]) -> None:
        self._keys = [array("Q") for _ in range(BUCKETS)]
        self._done = [array("Q") for _ in range(BUCKETS)]
        for key in done:
            self._done[key >> 56].append(key)
        # The row of a key matters only if some rows are done.
        self._rows = [array("I") for _ in range(BUCKETS)] if any(self._done) else None

    def add(self, key: int, row: int) -> None:
        bucket = key >> 56
        self._keys[bucket].append(key)
        if self._rows is not None:
            self._rows[bucket].append(row)

    def done(self, rows: int) -> bytearray:
        """Return one byte for each row: 1 if the row is done."""
        marks = bytearray(rows)
        if self._rows is not None:
            for keys, numbers, done in zip(self._keys, self._rows, self._done, strict=True):
                known = set(done)
                for key, row in zip(keys, numbers, strict=True):
                    if key in known and row < rows:
                        marks[row] = 1
        return marks

    def twice(self) -> array[int]:
        found = array("Q")
        for keys in self._keys:
            if len(set(keys)) < len(keys):
                repeated = {one for one, other in pairwise(sorted(keys)) if one == other}
                found.extend(sorted(repeated))
        return found


def _numbered(error: LineError, number: int) -> LineError:
    return LineError(error.code, error.message, error.param, number)


def _name_of(raw: bytes, error: LineError) -> str | None:
    """Return the custom_id of a refused line; None if the line is damaged."""
    is_damaged = error.code == TOO_DEEP.code and error is not TOO_DEEP
    found = None if is_damaged else find_custom_id(raw)
    return None if found is None else msgspec.json.decode(found, type=str)


def _mismatch(model: str) -> LineError:
    return LineError(
        "mismatched_model",
        f"The model '{shown(model)}' for this request does not match the rest of the batch. "
        "Each batch must contain requests for a single model.",
        "body.model",
    )
