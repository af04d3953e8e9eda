"""The rows of one batch, some twenty bytes each: a million of them are not a burden.

Rows end in an order of their own, the rank, which is a permutation that needs no memory: (a * rank + b) mod n. What
is known of a row stands in the order of ranks, so that "what has run by now" is the first so many.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path

from tests.emulator.rowfaults import PLAIN, Effect, Tokens


@dataclass(slots=True)
class Effects:
    """Every effect that any row has, by a code of one byte; 0 is the plain one."""

    known: list[Effect] = field(default_factory=lambda: [PLAIN])

    def code(self, effect: Effect) -> int:
        if effect not in self.known:
            self.known.append(effect)
        return self.known.index(effect)


@dataclass(slots=True)
class Draft:
    """Rows as they are read, in the order of their file."""

    starts: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    prompts: array[int] = field(default_factory=lambda: array("I"))
    completions: array[int] = field(default_factory=lambda: array("I"))
    most: array[int] = field(default_factory=lambda: array("I"))

    def add(self, start: int, length: int, prompt: int, completion: int, most: int) -> None:
        self.starts.append(start)
        self.lengths.append(length)
        self.prompts.append(prompt)
        self.completions.append(completion)
        self.most.append(most)


class Rows:
    """`codes` are the effects of all rows in the order of their file; `salt` decides the order in which they end."""

    def __init__(self, path: Path, draft: Draft, codes: bytearray, effects: Effects, salt: int) -> None:
        self.path = path
        self.count = count = len(codes)
        self._starts, self._lengths = draft.starts, draft.lengths
        self._step, self._offset = _affine(count, salt)
        self._effects = effects
        order = [self.index(rank) for rank in range(count)]
        self._codes = bytearray(codes[index] for index in order)
        self._prompts = array("I", (draft.prompts[index] for index in order))
        self._completions = array("I", (draft.completions[index] for index in order))
        self._most = array("I", (draft.most[index] for index in order))

    @property
    def prompt_tokens(self) -> int:
        """Of all rows: what counts as enqueued."""
        return sum(self._prompts)

    def index(self, rank: int) -> int:
        """Where in the file the row stands that ends as number `rank`, from 0."""
        return (self._step * rank + self._offset) % self.count

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Index and rank of each row, as they stand in the file."""
        back = pow(self._step, -1, self.count) if self.count > 1 else 1
        for index in range(self.count):
            yield index, (index - self._offset) * back % self.count

    def by_rank(self) -> Iterator[tuple[int, int]]:
        """Index and rank of each row, in the order in which they end."""
        for rank in range(self.count):
            yield self.index(rank), rank

    def effect(self, rank: int) -> Effect:
        return self._effects.known[self._codes[rank]]

    def tally(self, ran: int, count: Callable[[Effect], int]) -> int:
        """The sum of `count` over the first `ran` rows to end."""
        return sum(
            count(effect) * found
            for code, effect in enumerate(self._effects.known)
            if (found := self._codes.count(code, 0, ran))
        )

    def tokens(self, rank: int) -> Tokens:
        return self.effect(rank).tokens(self._prompts[rank], self._completions[rank], self._most[rank])

    def billed(self, ran: int) -> Iterator[int]:
        """The ranks of those of the first `ran` rows that are billed."""
        return (rank for rank in range(ran) if self.effect(rank).is_billed)

    def sums(self, ran: int) -> tuple[int, Tokens]:
        """How many of the first `ran` rows are billed, and their tokens."""
        if self._codes.count(0, 0, ran) == ran:
            return ran, Tokens(sum(self._prompts[:ran]), output=sum(self._completions[:ran]))
        total, rows = Tokens(), 0
        for rank in self.billed(ran):
            rows, total = rows + 1, plus(total, self.tokens(rank))
        return rows, total

    def lines(self, order: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        """Index, rank and line of each row in that order."""
        if not self.count:
            return
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            for index, rank in order:
                start = self._starts[index]
                yield index, rank, view[start : start + self._lengths[index]]


def _affine(count: int, salt: int) -> tuple[int, int]:
    if count < 2:
        return 1, 0
    step = salt % count or 1
    while gcd(step, count) != 1:
        step = step % count + 1
    return step, (salt >> 32) % count


def plus(one: Tokens, other: Tokens) -> Tokens:
    return Tokens(
        one.input + other.input,
        one.cached + other.cached,
        one.cache_write + other.cache_write,
        one.output + other.output,
        one.reasoning + other.reasoning,
    )
