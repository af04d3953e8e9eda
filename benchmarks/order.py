"""Prefix-cache hits of batches in the file's order and in ours, on simulated engines.

Input files are made, planned as the server plans them, and their rows handed out as it hands them out. The engines
are simulated: each holds 400,000 tokens, runs 128 rows at a time, keeps what running rows need, and forgets the rest,
least recently used first. A hit is a prompt token that need not be computed; a prefix can be hit once a row with it
runs.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving import say
from orchestrator.server.dispatch.plan import InputRows, make_plan
from orchestrator.server.dispatch.upstream_queue import UpstreamQueues

CHAT = "/v1/chat/completions"
CACHE_TOKENS = 400_000
RUNNING = 128
BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows of `prefix` tokens that `rows` of them share and `own` tokens of their own, in a shuffled file."""

    name: str
    prefixes: int
    rows: int
    prefix: int
    own: int
    engines: int = 1

    @property
    def ceiling(self) -> float:
        """The hit rate if every prefix is computed once."""
        return (self.rows - 1) * self.prefix / (self.rows * (self.prefix + self.own))


WORKLOADS = (
    Workload("5 system prompts x 4,000", 5, 4_000, 1_000, 200),
    Workload("2,500 documents x 8 questions", 2_500, 8, 2_000, 200),
    Workload("400 templates x 50", 400, 50, 3_000, 300),
    Workload("2,500 x 8 on 4 engines", 2_500, 8, 2_000, 200, engines=4),
)


def main() -> None:
    """Print hit rates, and what planning cost."""
    say(f"{'order: prefix-cache hits':32}{'file order':>12}{'ours':>8}{'ceiling':>9}{'plan':>13}")
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        for work in WORKLOADS:
            path = Path(name) / "input.jsonl"
            prefix_of = write(path, work)
            as_it_is, _ = planned(path, in_order=True)
            ours, seconds = planned(path, in_order=False)
            say(
                f"{work.name:32}{hit_rate(work, as_it_is, prefix_of):>12.1%}{hit_rate(work, ours, prefix_of):>8.1%}"
                f"{work.ceiling:>9.1%}{seconds / len(prefix_of) * 1e6:>7.1f} us/row\n    {ours.order.reason}"
            )


def write(path: Path, work: Workload) -> list[int]:
    """Write the input file; gives the number of each row's prefix."""
    chance = random.Random(1)
    prefix_of = [number for number in range(work.prefixes) for _ in range(work.rows)]
    chance.shuffle(prefix_of)
    prefixes = [text(chance, work.prefix) for _ in range(work.prefixes)]
    with path.open("w", encoding="utf-8") as file:
        for row, prefix in enumerate(prefix_of):
            content = prefixes[prefix] + text(chance, work.own)
            body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 64}
            line = {"custom_id": f"row-{row}", "method": "POST", "url": CHAT, "body": body}
            file.write(json.dumps(line) + "\n")
    return prefix_of


def text(chance: random.Random, tokens: int) -> str:
    """Text of so many tokens that has nothing in common with another one."""
    return chance.randbytes(tokens * BYTES_PER_TOKEN // 2).hex()


def planned(path: Path, *, in_order: bool) -> tuple[InputRows, float]:
    """The plan, and the CPU seconds it took."""
    started = time.process_time()
    plan = make_plan(
        path, CHAT, (), 1_000_000, in_order=in_order, cache_bytes=CACHE_TOKENS * BYTES_PER_TOKEN, spill=path.parent
    )
    seconds = time.process_time() - started
    assert isinstance(plan, InputRows)
    return plan, seconds


def hit_rate(work: Workload, plan: InputRows, prefix_of: list[int]) -> float:
    """The part of all prompt tokens that the engines had in their caches; they take rows in turn."""
    engines = {f"http://engine-{number}/v1": Engine(work) for number in range(work.engines)}
    sync_options = UpstreamQueues(plan, list(engines))
    rows = 0
    while rows < len(prefix_of):
        for name, engine in engines.items():
            row = sync_options.take(name)
            if row is not None:
                engine.run(prefix_of[row], row)
                rows += 1
    hits = sum(engine.hit_tokens for engine in engines.values())
    return hits / (rows * (work.prefix + work.own))


class Engine:
    """A prefix cache with rows running on it; every row runs equally long."""

    def __init__(self, work: Workload) -> None:
        self.hit_tokens = 0
        self._work = work
        self._running: deque[tuple[int, int]] = deque()
        self._users: dict[int, int] = {}
        # What no running row needs, least recently used first: prefixes by number, own parts by number below zero.
        self._idle: OrderedDict[int, int] = OrderedDict()
        self._tokens = 0

    def run(self, prefix: int, row: int) -> None:
        """Begin a row as soon as there is room."""
        if len(self._running) == RUNNING:
            self._end_one()
        if prefix in self._users or prefix in self._idle:
            self.hit_tokens += self._work.prefix
            self._tokens -= self._idle.pop(prefix, 0)
            needed = self._work.own + (0 if prefix in self._users else self._work.prefix)
        else:
            needed = self._work.own + self._work.prefix
        self._users[prefix] = self._users.get(prefix, 0) + 1
        while self._tokens + needed > CACHE_TOKENS:
            if self._idle:
                self._tokens -= self._idle.popitem(last=False)[1]
            else:
                self._end_one()
        self._tokens += needed
        self._running.append((prefix, row))

    def _end_one(self) -> None:
        prefix, row = self._running.popleft()
        self._users[prefix] -= 1
        self._idle[-1 - row] = self._work.own
        if not self._users[prefix]:
            del self._users[prefix]
            self._idle[prefix] = self._work.prefix
