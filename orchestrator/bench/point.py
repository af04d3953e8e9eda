"""Measures a point: rows at a fixed concurrency, until enough rows have ended to know the throughput.

In steady state, all slots are taken; their number is the concurrency. A flight is one row per slot. Throughput is
measured from the end of the first flight to the end of a later flight. Rows are sent until then, so the final phase
with empty slots is not measured.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct, field

from orchestrator.bench.rows import Mode, PointRows, RowEnd
from orchestrator.server.dispatch.concurrency_limiter import ConcurrencyLimiter, Gauges
from orchestrator.server.dispatch.dispatcher import Dispatcher
from orchestrator.server.dispatch.upstreams import Upstream

FLIGHTS = 5
"""Minimum number of flights in a point."""
STEADY = 0.01
"""Largest standard error at which a point ends early, as a share of its mean flight time."""
LATE = 4.0
"""Maximum duration of a point, as a multiple of its `seconds`."""
FEW_FAILURES, FALLEN = 10, 0.2
"""An engine has failed after `FEW_FAILURES` failed attempts if their share of all attempts exceeds `FALLEN`."""
DOWN_SECONDS = 3.0
LOOK_SECONDS = 0.2
RETRY_DELAY = 0.5
LEAST_DRAIN = 5.0


class PointEnd(StrEnum):
    MEASURED = "measured"
    SHORT = "short"  # time ran out before two flights had ended; the rate is a lower bound
    FELL_OVER = "fell_over"  # too many attempts failed, or the engine stopped answering


class PointTerms(Struct, frozen=True):
    """Terms of a point with `concurrency` rows at once per upstream, for about `seconds`.

    Only DYNAMIC uses `window`, in seconds. The point waits for at least `flights` flights, but at most `patience`
    seconds (None: LATE times `seconds`).
    """

    concurrency: int
    seconds: float
    mode: Mode = Mode.CONTINUOUS
    window: float = 0.0
    flights: int = FLIGHTS
    patience: float | None = None


class BenchPoint(Struct, frozen=True):
    """Results of a point. Rates are per second, for all upstreams together. Latencies are in seconds.

    `cache_hits` is the share of prompt tokens from the prefix cache, and `kv_peak` is the peak use of the KV cache.
    Both range from 0 to 1. Without vLLM's gauges, both and `preemptions` are None. `vram_peak` is in bytes.
    """

    concurrency: int
    mode: Mode
    end: PointEnd
    rows: int
    seconds: float
    rows_per_second: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    p50: float
    p99: float
    attempts: int
    error_share: float
    cache_hits: float | None
    preemptions: int | None
    kv_peak: float | None
    vram_peak: int | None = field(name="vram_peak_bytes")
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        return rounded(self)  # type: ignore[no-any-return]

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> BenchPoint:
        """Read the result of `to_json`. Raises msgspec.ValidationError if the input is invalid."""
        return msgspec.convert(told, cls)


def rounded(figures: Struct) -> Any:
    """Return figures in JSON form, rounded to four decimals."""
    return _rounded(msgspec.to_builtins(figures))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


async def measure_point(
    upstreams: Sequence[Upstream], rows: PointRows, terms: PointTerms, vram: Callable[[], int | None]
) -> BenchPoint:
    """Measure one point. The upstreams must be open, watched and otherwise idle. `vram` returns GPU bytes in use."""
    for upstream in upstreams:
        upstream.limiter = ConcurrencyLimiter.fixed(terms.concurrency)
    dispatcher = Dispatcher(list(upstreams), retry_delay=RETRY_DELAY, paused=lambda: False, enabled=True)
    point = _Measuring(upstreams, rows, terms, dispatcher, vram)
    try:
        return await point.run()
    finally:
        rows.stop()
        await dispatcher.close()


class _Measuring:
    def __init__(
        self, upstreams: Sequence[Upstream], rows: PointRows, terms: PointTerms, dispatcher: Dispatcher,
        vram: Callable[[], int | None],
    ) -> None:  # fmt: skip
        self._upstreams = upstreams
        self._rows = rows
        self._terms = terms
        self._dispatcher = dispatcher
        self._vram = vram
        self._patience = LATE * terms.seconds if terms.patience is None else terms.patience
        self._places = terms.concurrency * len(upstreams)
        self._clock: Callable[[], float] = time.monotonic
        self._over = asyncio.Event()
        self._changed = asyncio.Event()
        self._allowed = self._places
        self._flights: list[float] = []
        self._problem: str | None = None
        self._fell = False
        self._kv_peak = 0.0
        self._vram_peak: int | None = None
        self._down_since: float | None = None

    async def run(self) -> BenchPoint:
        retried = sum(upstream.stats.retried for upstream in self._upstreams)
        before = await self._gauges()
        self._retried_before = retried
        self._rows.gate = self._gate
        self._rows.on_end = self._on_end
        self._began = self._clock()
        self._dispatcher.sources.add(self._rows)
        self._dispatcher.top_up()
        helpers = [asyncio.create_task(self._look())]
        if self._terms.mode is Mode.DYNAMIC:
            helpers.append(asyncio.create_task(self._windows()))
        try:
            await self._over.wait()
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        after = await self._gauges()
        result = self._result(before, after)
        await self._drain(result)
        return result

    # --- sending

    def _gate(self) -> int:
        if self._over.is_set():
            return 0
        return 1 if self._terms.mode is Mode.CONTINUOUS else self._allowed - self._rows.taken

    async def _windows(self) -> None:
        while True:
            await asyncio.sleep(self._terms.window)
            self._allowed = self._rows.taken + self._places - self._rows.out
            self._dispatcher.top_up()

    def _on_end(self) -> None:
        ended = len(self._rows.ended)
        self._changed.set()
        if self._over.is_set():
            return
        if self._rows.problem is not None and self._has_fallen():
            self._fall(f"{self._failed():,} of {self._failed() + ended:,} attempts failed: {self._rows.problem}")
            return
        waits = self._terms.mode is Mode.STATIC and self._rows.out > 0
        if ended % self._places == 0 and not waits:
            self._flights.append(self._clock())
            if self._is_enough():
                self._over.set()
                return
        if self._terms.mode is Mode.STATIC and not waits:
            self._allowed = self._rows.taken + self._places
            asyncio.get_running_loop().call_soon(self._dispatcher.top_up)

    def _is_enough(self) -> bool:
        if len(self._flights) < self._terms.flights:
            return False
        if self._flights[-1] - self._flights[0] >= self._terms.seconds:
            return True
        times = [after - before for before, after in pairwise(self._flights)]
        error = statistics.stdev(times) / math.sqrt(len(times))
        return len(times) >= FLIGHTS and error <= STEADY * statistics.mean(times)

    # --- checks while the point runs

    def _failed(self) -> int:
        retried = sum(upstream.stats.retried for upstream in self._upstreams) - self._retried_before
        return self._rows.failed + retried

    def _has_fallen(self) -> bool:
        failed, answered = self._failed(), len(self._rows.ended) - self._rows.failed
        return failed >= FEW_FAILURES and failed > FALLEN * (failed + answered)

    def _fall(self, problem: str) -> None:
        self._fell, self._problem = True, problem
        self._over.set()

    async def _look(self) -> None:
        while not self._over.is_set():
            self._note_peaks()
            problems = [upstream.problem for upstream in self._upstreams]
            now = self._clock()
            if None in problems:
                self._down_since = None
            elif self._down_since is None:
                self._down_since = now
            elif now - self._down_since >= DOWN_SECONDS:
                self._fall("; ".join(filter(None, problems)))
            if self._has_fallen():
                self._fall(f"{self._failed():,} attempts failed: {self._rows.problem or 'refused as too many'}")
            elif now - self._began >= self._patience:
                self._over.set()
            await asyncio.sleep(LOOK_SECONDS)

    def _note_peaks(self) -> None:
        seen = [upstream.gauges.kv_usage for upstream in self._upstreams if upstream.gauges is not None]
        self._kv_peak = max([self._kv_peak, *seen])
        used = self._vram()
        if used is not None:
            self._vram_peak = max(used, self._vram_peak or 0)

    async def _gauges(self) -> list[Gauges]:
        found = await asyncio.gather(*(upstream.refresh() for upstream in self._upstreams))
        return [one for one in found if one is not None]

    async def _drain(self, result: BenchPoint) -> None:
        """Wait for rows in flight, because an engine that still works on them would slow the next point."""
        until = self._clock() + max(LEAST_DRAIN, 2 * result.p99)
        while self._rows.out and not self._fell and (left := until - self._clock()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return

    # --- results

    def _result(self, before: Sequence[Gauges], after: Sequence[Gauges]) -> BenchPoint:
        measured, seconds, end = self._measured()
        answers = [one for one in measured if one.is_answer]
        latencies = sorted(one.seconds for one in answers)
        rate = 0.0 if not seconds else 1 / seconds
        queries, hits, preempted = (
            sum(getattr(one, name) for one in after) - sum(getattr(one, name) for one in before)
            for name in ("cache_queries", "cache_hits", "preemptions")
        )
        failed, has_gauges = self._failed(), bool(before) and len(before) == len(after)
        attempts = failed + len(self._rows.ended) - self._rows.failed
        return BenchPoint(
            concurrency=self._terms.concurrency,
            mode=self._terms.mode,
            end=end,
            rows=len(measured),
            seconds=seconds,
            rows_per_second=len(answers) * rate,
            input_tokens_per_second=sum(one.tokens.input for one in answers) * rate,
            output_tokens_per_second=sum(one.tokens.output for one in answers) * rate,
            p50=_percentile(latencies, 0.5),
            p99=_percentile(latencies, 0.99),
            attempts=attempts,
            error_share=failed / attempts if attempts else 1.0 if self._fell else 0.0,
            cache_hits=hits / queries if has_gauges and queries > 0 else None,
            preemptions=int(preempted) if has_gauges else None,
            kv_peak=self._kv_peak if has_gauges else None,
            vram_peak=self._vram_peak,
            problem=self._problem,
        )

    def _measured(self) -> tuple[Sequence[RowEnd], float, PointEnd]:
        """Return the measured rows, the seconds from the first end to the last, and how the point ended."""
        ended, places = self._rows.ended, self._places
        first = 0 if self._terms.mode is Mode.STATIC else places
        begin = self._began if self._terms.mode is Mode.STATIC else (self._flights or [self._began])[0]
        last = len(self._flights) * places
        if last > first and not self._fell:
            return ended[first:last], self._flights[-1] - begin, PointEnd.MEASURED
        seconds = ended[-1].at - self._began if ended else 0.0
        return ended, max(0.0, seconds), PointEnd.FELL_OVER if self._fell else PointEnd.SHORT


def _percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value with at least `share` of all values at or below it; 0 without values.

    `values` must be sorted.
    """
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else 0.0
