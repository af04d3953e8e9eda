"""The upstreams and rows that the points of a bench share."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from orchestrator.core.errors import BackendError, InputError
from orchestrator.server.bench.gpu import GpuMemory
from orchestrator.server.bench.point import BenchPoint, PointTerms, measure_point
from orchestrator.server.bench.rows import Mode, PointRows
from orchestrator.server.dispatch.bodies import BYTES_PER_TOKEN
from orchestrator.server.dispatch.plan import InputRows, make_plan
from orchestrator.server.dispatch.upstreams import Upstream

REACH_SECONDS = 120.0
"""Seconds until an engine that fell over must answer again."""
POLL_SECONDS = 0.1
MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class RigTerms:
    """A batch file whose rows have one endpoint and one model, and the upstreams for it."""

    urls: tuple[str, ...]
    api_key: str | None
    request_timeout: float
    rows: Path
    endpoint: str
    models: tuple[str, ...] = ()


class Rig:
    """`async with Rig(...)`: measures points one after another; rows go out in the usual order by default."""

    def __init__(self, terms: RigTerms, memory: GpuMemory) -> None:
        self._terms = terms
        self._memory = memory
        self._upstreams: list[Upstream] = []
        self._watches: list[asyncio.Task[None]] = []
        self._plans: dict[bool, InputRows] = {}

    async def __aenter__(self) -> Rig:
        self._upstreams = [
            Upstream(
                url, api_key=self._terms.api_key, timeout=self._terms.request_timeout, ceiling=1,
                clock=time.monotonic, models=self._terms.models,
            )
            for url in self._terms.urls
        ]  # fmt: skip
        for upstream in self._upstreams:
            await upstream.open()
            self._watches.append(asyncio.create_task(upstream.watch(lambda: None, lambda: None)))
        try:
            await self.reach()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for upstream in self._upstreams:
            await upstream.close()

    async def reach(self, seconds: float = REACH_SECONDS) -> None:
        """Return when every upstream answers. Raises BackendError after `seconds`."""
        until = time.monotonic() + seconds
        while problems := [one for one in self._upstreams if one.problem is not None]:
            if time.monotonic() >= until:
                raise BackendError(
                    f"{problems[0].shown}: {problems[0].problem}", hint="finished points are kept; start it again"
                )
            await asyncio.sleep(POLL_SECONDS)

    @property
    def has_gauges(self) -> bool:
        """True if the upstreams show vLLM's gauges."""
        return all(upstream.gauges is not None for upstream in self._upstreams)

    @property
    def order(self) -> str:
        """The order in which rows go out, and the reason."""
        return self._plan(in_file_order=False).order.reason

    @property
    def reorders(self) -> bool:
        """True if that order differs from the file's."""
        return self._plan(in_file_order=False).order.rows is not None

    async def measure(self, terms: PointTerms, *, in_file_order: bool = False, one_token: bool = False) -> BenchPoint:
        """Measure one point, with prompts that are not in vLLM's cache from an earlier point."""
        await self.reach()
        with self._rows(in_file_order=in_file_order, one_token=one_token) as rows:
            return await measure_point(self._upstreams, rows, terms, self._memory)

    async def warm_up(self, rows: int = 4) -> BenchPoint:
        """Send a few rows without recording them, so that the engine compiles and allocates what it needs."""
        patience = self._terms.request_timeout
        return await self.measure(PointTerms(rows, 0.0, Mode.STATIC, flights=1, patience=patience))

    @contextmanager
    def _rows(self, *, in_file_order: bool, one_token: bool) -> Iterator[PointRows]:
        plan = self._plan(in_file_order=in_file_order)
        rows = PointRows(
            self._terms.rows, plan, self._terms.endpoint, self._terms.urls, salt=uuid.uuid4().hex[:12],
            one_token=one_token,
        )  # fmt: skip
        try:
            yield rows
        finally:
            rows.close()

    def _plan(self, *, in_file_order: bool) -> InputRows:
        if in_file_order not in self._plans:
            smallest = min((upstream.cache_tokens for upstream in self._upstreams), default=0) * BYTES_PER_TOKEN
            found = make_plan(
                self._terms.rows, self._terms.endpoint, (), MOST_ROWS, in_order=in_file_order, accepted=True,
                cache_bytes=smallest or None, spill=self._terms.rows.parent,
            )  # fmt: skip
            if not isinstance(found, InputRows):
                raise InputError(_first(found), file=self._terms.rows)
            self._plans[in_file_order] = found
        return self._plans[in_file_order]


def _first(errors: Sequence[object]) -> str:
    return getattr(errors[0], "message", "has rows that cannot be sent") if errors else "has no rows"
