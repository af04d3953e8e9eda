"""Known answers, and their comparison with a job's answers. Pure except for reading the file.

A line of a gold file is `{"document": ..., "task": ..., "expect": {field: value, ...}}`. Each field counts once. For
a task without a schema, `expect` is the answer's whole text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.core.counts import number_of
from orchestrator.core.errors import InputError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.source_lines import read_bytes

TOLERANCE = 1e-6
"""Largest relative difference at which numbers count as equal: JSON may change a float this much."""
MOST_NAMES = 3
MAX_BYTES = 100_000_000


class Gold(Struct, frozen=True, forbid_unknown_fields=True):
    """The expected content of a task's answer about a document."""

    document: str
    task: str
    expect: dict[str, Any] | str


_decode_line = json_decoder(Gold).decode


class Score(Struct, frozen=True):
    """Result of a comparison: `hits` correct of `fields` fields, in `rows` rows. `wrong` names the first misses."""

    hits: int = 0
    fields: int = 0
    rows: int = 0
    wrong: tuple[str, ...] = ()


def tasks_of(spec: JobSpec) -> list[str]:
    """Return the tasks that can have known answers: all except embeddings, whose vectors cannot be predicted."""
    return [task.id for task in spec.tasks if task.kind != "embedding"]


def read(path: Path, tasks: Iterable[str]) -> list[Gold]:
    """Read the known answers of a file. Raises InputError with file, line and field for an invalid line."""
    lines = read_bytes(path, MAX_BYTES, "gold").splitlines()
    known, seen, found = list(tasks), set[tuple[str, str]](), []
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            line = _decode_line(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            hint = 'write {"document": ..., "task": ..., "expect": {field: value}}, one per line'
            raise InputError(f"is not a known answer: {error}", file=path, line=number, hint=hint) from None
        if line.task not in known:
            raise InputError(
                f"the job has no task {line.task!r} that answers in text",
                file=path, line=number, field="task",
                hint=f"its tasks: {', '.join(known)}",
            )  # fmt: skip
        if not line.expect:
            raise InputError("expects nothing", file=path, line=number, field="expect", hint="name a field")
        if (line.document, line.task) in seen:
            raise InputError(f"has {line.document!r} for {line.task} twice", file=path, line=number, field="document")
        seen.add((line.document, line.task))
        found.append(line)
    if not found:
        raise InputError("contains no known answers", file=path, field="gold", hint="write one per line")
    return found


def score(known: Iterable[tuple[Gold, Any]]) -> Score:
    """Compare parsed answers (None for a row without an answer) with the expected answers."""
    total = Score()
    for gold, answer in known:
        hits, fields = _fields(gold.expect, answer)
        wrong = total.wrong if hits == fields else (*total.wrong, f"{gold.document} ({gold.task})")[:MOST_NAMES]
        total = Score(total.hits + hits, total.fields + fields, total.rows + 1, wrong)
    return total


def _fields(expect: Mapping[str, Any] | str, answer: Any) -> tuple[int, int]:
    if isinstance(expect, str):
        return int(alike(expect, answer)), 1
    given = answer if isinstance(answer, dict) else {}
    return sum(name in given and alike(value, given[name]) for name, value in expect.items()), len(expect)


def alike(expected: Any, given: Any) -> bool:
    """True if an answer's value equals the expected value.

    Texts are compared without case and spacing, numbers within TOLERANCE. Lists must match element by element.
    Objects need match only in the expected fields. Other values must be identical.
    """
    if isinstance(expected, bool) or isinstance(given, bool):
        return expected is given
    match expected, given:
        case str(), str():
            return _plain(expected) == _plain(given)
        case int() | float(), int() | float():
            return math.isclose(expected, given, rel_tol=TOLERANCE)
        case list(), list():
            return len(expected) == len(given) and all(map(alike, expected, given))
        case dict(), dict():
            return all(name in given and alike(value, given[name]) for name, value in expected.items())
    return expected is None and given is None


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def score_words(score: Score, absent: int) -> str:
    """Describe a score: share of correct fields, counts, misses, and the `absent` answers that were not compared."""
    words = f"{score.hits:,} of {number_of(score.fields, 'known field')} right, in {number_of(score.rows, 'row')}"
    if score.fields:
        words = f"{score.hits / score.fields:.1%}: {words}"
    if score.wrong:
        words += f"; wrong in {', '.join(score.wrong)}" + (" …" if len(score.wrong) == MOST_NAMES else "")
    return words + (f"; {absent:,} known answers have nothing to be compared with" if absent else "")
