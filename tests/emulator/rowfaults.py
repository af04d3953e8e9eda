"""Faults of rows: asked for in a row's own text, `[[fault:NAME(:ARGUMENT)*]]`, or by a script's `rows`.

A row may carry several; together they make one effect. A last number says for how many tries the fault holds: a try
is a batch that has started with this text in one of its rows, or a synchronous call with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tests.emulator.errors import STATUS_OF, Problem
from tests.emulator.oddlines import ODD_LINES

MARK = b"[[fault:"
_DIRECTIVE = re.compile(rb"\[\[fault:([a-z_]+)((?::\d+)*)\]\]")

Place = Literal["output", "error", "both", "none"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """What is billed for one row. The parts lie within: cached and written ones in input, reasoning in output."""

    input: int = 0
    cached: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """What becomes of a row. `code` and `message` are its error's where they are not the usual ones of its status,
    `unrun` is the code of a row that was given up, `place` the file that its line is in.

    `reads` and `writes` are the tokens of Anthropic's cache, where a request is marked; `is_hour` those of an hour.

    `problem` is the error of a request that the provider refuses. `reasons` says whether completion_tokens has the
    reasoning in it, as the providers do but for one. `is_early`: it ended for its length before its bound. `odd` are
    the changes of its line, by their names in `oddlines`.
    """

    status: int = 200
    code: str | None = None
    message: str | None = None
    unrun: str | None = None
    finish: Literal["stop", "length", "filtered"] = "stop"
    is_early: bool = False
    is_cached: bool = False
    is_cache_written: bool = False
    reasons: Literal["no", "inside", "outside"] = "no"
    is_string: bool = False
    is_broken: bool = False
    has_stranger: bool = False
    fails_first: bool = False
    copies: int = 1
    place: Place = "output"
    is_billed: bool = True
    wire: Literal["cut", "hang"] | None = None
    odd: tuple[str, ...] = ()
    problem: Problem | None = None
    reads: int = 0
    writes: int = 0
    is_hour: bool = False

    @property
    def has_failed(self) -> bool:
        """As the provider counts it: a row with status 0 or without a line counts as completed."""
        return self.status >= 400 or self.unrun is not None

    def lines(self, kind: str) -> int:
        """How many lines of this row the result file of that kind has, strangers included."""
        held = self.copies if self.place in (kind, "both") else 0
        failure = 1 if self.fails_first and self.place in (kind, "both") else 0
        return held + failure + (1 if self.has_stranger and kind == "output" else 0)

    def tokens(self, prompt: int, completion: int, most: int) -> Tokens:
        """What a row used; one that is cut at its bound has as many tokens as it may have, `most`."""
        completion = most if self.finish == "length" and not self.is_early else completion
        reasoning = 0 if self.reasons == "no" else completion // 2
        return Tokens(
            prompt,
            self.reads or (prompt // 2 if self.is_cached else 0),
            self.writes or (prompt // 4 if self.is_cache_written else 0),
            completion + (reasoning if self.reasons == "outside" else 0),
            reasoning,
        )


PLAIN = Effect()


@dataclass(frozen=True, slots=True)
class RowFault:
    """One directive; `tries` None means always."""

    name: str
    value: int = 0
    tries: int | None = None


def parse(text: str) -> RowFault:
    """`status:429` or `missing:1`. Raises ValueError for what is none."""
    name, *words = text.split(":")
    return _fault(name, [int(word) for word in words])


def marked(line: bytes) -> tuple[RowFault, ...]:
    """The directives in a row's line, in order. Raises ValueError for one that cannot be read."""
    found = _DIRECTIVE.findall(line)
    if len(found) != line.count(MARK):
        raise ValueError("unreadable fault directive")
    return tuple(_fault(name.decode(), [int(word) for word in words.split(b":")[1:]]) for name, words in found)


def _fault(name: str, numbers: list[int]) -> RowFault:
    value = numbers.pop(0) if name == "status" and numbers else 0
    if name not in NAMES or len(numbers) > 1:
        raise ValueError(f"unknown fault of a row: {name}")
    return RowFault(name, value, numbers[0] if numbers else None)


def due(faults: Iterable[RowFault], attempt: int) -> tuple[RowFault, ...]:
    """Those that hold at the `attempt`-th try of the row, from 1."""
    return tuple(fault for fault in faults if fault.tries is None or attempt <= fault.tries)


_ANSWERS: dict[str, dict[str, object]] = {
    "length": {"finish": "length"},
    "window": {"finish": "length", "is_early": True},
    "filtered": {"finish": "filtered"},
    "cached": {"is_cached": True},
    "cache_write": {"is_cache_written": True},
    "reasoning": {"reasons": "inside"},
    "reasoning_outside": {"reasons": "outside"},
    "body_string": {"is_string": True},
    "broken_line": {"is_broken": True},
    "unknown_id": {"has_stranger": True},
    "duplicate": {"copies": 2},
    "fails_first": {"fails_first": True},
    "missing": {"place": "none"},
    "never_ran": {"place": "none", "is_billed": False},
    "in_output": {"place": "output"},
    "both_files": {"place": "both"},
    "cut": {"wire": "cut"},
    "hang": {"wire": "hang"},
}
_FAILURES: dict[str, dict[str, object]] = {
    code: {"status": status, "code": code, "place": "error", "is_billed": False} for code, status in STATUS_OF.items()
} | {name: {"unrun": f"batch_{name}", "place": "error", "is_billed": False} for name in ("expired", "cancelled")}
_EFFECTS = _FAILURES | _ANSWERS
NAMES = ("status", *_EFFECTS, *ODD_LINES)


def effect_of(faults: Iterable[RowFault]) -> Effect:
    """What these do together, later ones upon earlier ones."""
    effect = PLAIN
    for fault in faults:
        if fault.name == "status":
            failed = fault.value >= 400
            effect = replace(effect, status=fault.value, is_billed=False, place="error" if failed else effect.place)
        elif fault.name in ODD_LINES:
            effect = replace(effect, odd=(*effect.odd, fault.name))
        else:
            effect = replace(effect, **_EFFECTS[fault.name])  # type: ignore[arg-type]
    return effect
