"""The engine behind the upstream: slots, a FIFO queue, a prefix cache, and gauges that tell the truth."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

# vLLM caches the prompt in blocks of 16 tokens; a token is four characters here.
CHARS_PER_TOKEN = 4
BLOCK_TOKENS = 16
BLOCK_CHARS = BLOCK_TOKENS * CHARS_PER_TOKEN


def count_tokens(text: str) -> int:
    return (len(text) + CHARS_PER_TOKEN - 1) // CHARS_PER_TOKEN


class Work(Protocol):
    """One request in the engine. `seconds` is how long it holds its slot; None is for ever."""

    seconds: float | None
    timer: asyncio.TimerHandle | None
    in_slot: bool

    def begin(self) -> None:
        """It has its slot."""

    def finish(self) -> None: ...


class Engine:
    def __init__(self, slots: int, cache_blocks: int) -> None:
        self.slots = slots
        self.running = 0
        self.waiting: OrderedDict[Work, None] = OrderedDict()
        self.cache = PrefixCache(cache_blocks)
        self.aborted = 0
        self._loop = asyncio.get_running_loop()
        self._draining = False

    @property
    def in_flight(self) -> int:
        return self.running + len(self.waiting)

    def submit(self, work: Work) -> None:
        # Nobody overtakes: a free slot belongs to those who wait already.
        if self.waiting or self.running >= self.slots:
            self.waiting[work] = None
        else:
            self._start(work)

    def abort(self, work: Work) -> None:
        """The client went away: the request leaves the queue or its slot, as vLLM aborts it."""
        if work in self.waiting:
            del self.waiting[work]
        elif work.in_slot:
            if work.timer is not None:
                work.timer.cancel()
            self._leave_slot(work)
            self._drain()
        else:
            return
        self.aborted += 1

    def _start(self, work: Work) -> None:
        work.in_slot = True
        self.running += 1
        work.begin()
        if work.seconds is None:
            return
        if work.seconds > 0:
            work.timer = self._loop.call_later(work.seconds, self._done, work)
            return
        self._leave_slot(work)
        work.finish()

    def _done(self, work: Work) -> None:
        self._leave_slot(work)
        work.finish()
        self._drain()

    def _leave_slot(self, work: Work) -> None:
        work.in_slot = False
        self.running -= 1

    def _drain(self) -> None:
        # An answer may bring the next pipelined request, whose answer would drain again: no recursion.
        if self._draining:
            return
        self._draining = True
        while self.waiting and self.running < self.slots:
            work, _ = self.waiting.popitem(last=False)
            self._start(work)
        self._draining = False


class PrefixCache:
    """Which prompt blocks were seen, least recently used out first."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._seen: OrderedDict[int, None] = OrderedDict()
        self.queries = 0
        self.hits = 0

    def look_up(self, prompt: str) -> int:
        """How many tokens of `prompt` were cached; from now on all its full blocks are."""
        seen, chain, cached, hit = self._seen, 0, 0, True
        # The last token is always computed, so a block that ends the prompt never counts.
        for start in range(0, len(prompt) - BLOCK_CHARS, BLOCK_CHARS):
            chain = hash((chain, prompt[start : start + BLOCK_CHARS]))
            hit = hit and chain in seen
            cached += hit
            seen[chain] = None
            seen.move_to_end(chain)
        while len(seen) > self._blocks:
            seen.popitem(last=False)
        self.queries += count_tokens(prompt)
        self.hits += cached * BLOCK_TOKENS
        return cached * BLOCK_TOKENS
