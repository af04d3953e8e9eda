"""The server's parts put together: records, batches, fan-out and upstreams under one folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from orchestrator import wire
from orchestrator.server.batches import Batches
from orchestrator.server.database import Database
from orchestrator.server.dispatch.fanout import FanOut
from orchestrator.server.dispatch.results import Writer
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.records import Records
from orchestrator.server.settings import Settings


class Service:
    """One server's state. `open` and `close` belong to the event loop that serves it."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self.root = root
        self.settings = settings
        self.upstreams: list[Upstream] = []
        self.failure: Exception | None = None

    async def open(self) -> None:
        """Open the database, take up unfinished batches, begin to watch the upstreams.

        Raises StorageError or OSError.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        (self.root / "files").mkdir(parents=True, exist_ok=True)
        self.database = Database(self.root / "server.db")
        self.records = Records(self.database)
        self._sweep()
        self._writer = Writer(loop.call_soon_threadsafe)
        self.upstreams = [
            Upstream(
                url,
                api_key=settings.api_key,
                timeout=settings.request_timeout,
                ceiling=settings.max_concurrency,
                now=loop.time,
            )
            for url in settings.upstreams
        ]
        self._fanout = FanOut(
            self.upstreams,
            retry_delay=settings.retry_delay,
            paused=lambda: self._writer.is_full,
            enabled=settings.dispatch,
        )
        self.batches = Batches(self.records, self.root, self._fanout, self._writer, max_rows=settings.max_rows)
        for upstream in self.upstreams:
            await upstream.open()
        self._watchers = [
            asyncio.create_task(upstream.watch(self._fanout.top_up))
            for upstream in self.upstreams
            if settings.dispatch
        ]
        self.batches.resume()

    async def close(self) -> None:
        """Stop; results that are here become durable first, rows in flight run again at the next start."""
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await self.batches.close()
        await self._fanout.close()
        await asyncio.to_thread(self._writer.close)
        for upstream in self.upstreams:
            await upstream.close()
        self.batches.close_files()
        self.database.close()

    def _sweep(self) -> None:
        """Remove what uploads left that a kill cut off: bytes that no record names."""
        known = self.records.file_paths()
        for path in (self.root / "files").iterdir():
            if str(path.relative_to(self.root)) not in known:
                path.unlink(missing_ok=True)

    def new_file_path(self, file_id: str) -> Path:
        """Where an upload's bytes go; ids are our own, so no name of a user becomes a path."""
        return self.root / "files" / file_id

    def is_in_use(self, file_id: str) -> bool:
        """Whether a running batch reads the file."""
        return any(run.batch.input_file_id == file_id for run in self.batches.runs.values())

    def endpoints(self) -> tuple[str, ...]:
        """The paths that a batch may name."""
        return wire.ENDPOINTS

    def health(self) -> dict[str, Any]:
        """What a person wants to know when nothing moves."""
        now = asyncio.get_running_loop().time()
        problem = self._writer.problem or self.batches.problem
        return {
            "status": "ok" if problem is None else "storage",
            "problem": problem,
            "running_batches": len(self.batches.runs),
            "upstreams": [
                {
                    "url": upstream.url,
                    "problem": upstream.problem,
                    "problem_seconds": 0.0 if upstream.problem is None else round(now - upstream.since, 1),
                    "in_flight": upstream.inflight,
                    "limit": upstream.flow.limit,
                    "limit_reason": upstream.flow.reason,
                    "models": upstream.models,
                }
                for upstream in self.upstreams
            ],
        }
