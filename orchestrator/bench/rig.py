"""The upstreams and rows that the points of a bench share."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

from orchestrator.bench.point import BenchPoint, PointTerms, measure_point
from orchestrator.bench.rows import Mode, PointRows
from orchestrator.bench.sample import Sample
from orchestrator.bench.target import BenchTarget
from orchestrator.core.errors import BackendError, InputError
from orchestrator.core.extras import install_line
from orchestrator.server.dispatch.body_changes import BYTES_PER_TOKEN
from orchestrator.server.dispatch.plan import InputRows, make_plan
from orchestrator.server.dispatch.upstreams import Upstream

NOT_INSTALLED = f"needs the extra `gpu` ({install_line('gpu')})"
NO_DRIVER = "this machine has no NVIDIA driver"


class GpuMemory:
    """Memory in use on some of this machine's GPUs, by all processes together.

    `problem` is the reason why the memory is unknown. `names` are the GPUs' models.
    """

    def __init__(self, library: Any = None, handles: Sequence[Any] = (), problem: str | None = None) -> None:
        self._library = library
        self._handles = handles
        self.problem = problem
        self.names = tuple(sorted({_text(library.nvmlDeviceGetName(handle)) for handle in handles}))

    def used(self) -> int | None:
        """Return the bytes in use, or None if unknown."""
        if not self._handles:
            return None
        try:
            return sum(int(self._library.nvmlDeviceGetMemoryInfo(handle).used) for handle in self._handles)
        except self._library.NVMLError:
            return None  # a GPU that shares the CPU's memory reports nothing, and any GPU may become unreachable


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


@contextmanager
def gpu_memory(wanted: Sequence[int] | None = None) -> Iterator[GpuMemory]:
    """Yield a monitor of the memory of these GPUs, or of all GPUs. Its `used` returns None if no GPU is readable."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        yield GpuMemory(problem=NOT_INSTALLED)
        return
    try:
        library.nvmlInit()
    except library.NVMLError:
        yield GpuMemory(problem=NO_DRIVER)
        return
    try:
        numbers = range(library.nvmlDeviceGetCount()) if wanted is None else wanted
        yield GpuMemory(library, [library.nvmlDeviceGetHandleByIndex(number) for number in numbers])
    finally:
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()


REACH_SECONDS = 120.0
"""Maximum seconds for an engine to answer again after a failure."""
POLL_SECONDS = 0.1
MOST_ROWS = 100_000


@asynccontextmanager
async def rigged(target: BenchTarget, sample: Sample, memory: GpuMemory) -> AsyncIterator[Rig]:
    """Yield a rig once all of its upstreams answer."""
    upstreams = [
        Upstream(url, api_key=target.api_key, timeout=target.request_timeout, ceiling=1, clock=time.monotonic)
        for url in target.urls
    ]
    watches = []
    try:
        for upstream in upstreams:
            await upstream.open()
            watches.append(asyncio.create_task(upstream.watch(lambda: None, lambda: None)))
        rig = Rig(target, sample, memory, upstreams)
        await rig.reach()
        yield rig
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        for upstream in upstreams:
            await upstream.close()


class Rig:
    """Measures points one after another. By default, rows are sent in the order that a batch would use."""

    def __init__(self, target: BenchTarget, sample: Sample, memory: GpuMemory, upstreams: Sequence[Upstream]) -> None:
        self._target = target
        self._sample = sample
        self._memory = memory
        self._upstreams = upstreams
        self._plans: dict[bool, InputRows] = {}

    async def reach(self) -> None:
        """Wait until every upstream answers. Raises BackendError after REACH_SECONDS."""
        until = time.monotonic() + REACH_SECONDS
        while problems := [one for one in self._upstreams if one.problem is not None]:
            if time.monotonic() >= until:
                raise BackendError(
                    f"{problems[0].shown}: {problems[0].problem}", hint="finished points are kept; start it again"
                )
            await asyncio.sleep(POLL_SECONDS)

    @property
    def order(self) -> str:
        """Reason for the chosen order of rows."""
        return self._plan(in_file_order=False).order.reason

    @property
    def reorders(self) -> bool:
        """True if rows are not sent in file order."""
        return self._plan(in_file_order=False).order.rows is not None

    async def measure(self, terms: PointTerms, *, in_file_order: bool = False, one_token: bool = False) -> BenchPoint:
        """Measure one point, with prompts that are not in vLLM's cache yet."""
        await self.reach()
        sample, plan, salt = self._sample, self._plan(in_file_order=in_file_order), uuid.uuid4().hex[:12]
        rows = PointRows(sample.path, plan, sample.endpoint, self._target.urls, salt=salt, one_token=one_token)
        with closing(rows):
            return await measure_point(self._upstreams, rows, terms, self._memory.used)

    async def warm_up(self, rows: int = 4) -> BenchPoint:
        """Send a few unrecorded rows, so that the engine compiles code and allocates memory."""
        patience = self._target.request_timeout
        return await self.measure(PointTerms(rows, 0.0, Mode.STATIC, flights=1, patience=patience))

    def _plan(self, *, in_file_order: bool) -> InputRows:
        if in_file_order not in self._plans:
            path = self._sample.path
            smallest = min((upstream.cache_tokens for upstream in self._upstreams), default=0) * BYTES_PER_TOKEN
            found = make_plan(
                path, self._sample.endpoint, (), MOST_ROWS, in_order=in_file_order, accepted=True,
                cache_bytes=smallest or None, spill=path.parent,
            )  # fmt: skip
            if not isinstance(found, InputRows):
                raise InputError(found[0].message if found else "has no rows", file=path)
            self._plans[in_file_order] = found
        return self._plans[in_file_order]
