"""The server's state: records, batches, dispatcher and upstreams under one folder."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core import batch_api
from orchestrator.core.client_limits import Connections
from orchestrator.core.engines import EngineProgress, ModelDemand
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.server.batches import Batches
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.dispatch.aliases import Aliases
from orchestrator.server.dispatch.body_changes import DEFAULT_MODEL
from orchestrator.server.dispatch.dispatcher import Dispatcher
from orchestrator.server.dispatch.rate_limiter import RateLimiter
from orchestrator.server.dispatch.results import Writer
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.endpoints import Endpoints
from orchestrator.server.expired_files import Upkeep
from orchestrator.server.keys import Keys
from orchestrator.server.memory_limits import Calls, NoSpace, Rooms
from orchestrator.server.ordered_results import OrderedResults
from orchestrator.server.records import Records
from orchestrator.server.replicated_folder import ServerContents
from orchestrator.server.settings import Settings
from orchestrator.server.uploads import FOLDER as UPLOADS
from orchestrator.server.uploads import Uploads
from orchestrator.server.webhooks import Webhooks, target_of

if TYPE_CHECKING:
    from orchestrator.core.replica.replicator import Replicator
    from orchestrator.core.replica.takeover import Replica

log = logging.getLogger(__name__)

FOLDERS = ("files", UPLOADS)
REVIEW_SECONDS = 1.0
DRAIN_STEP = 0.2
SMOOTHING = 0.2


class Service:
    """One server's state. `open` and `close` must run on the event loop that serves it.

    Raises UsageError for invalid settings.
    """

    def __init__(
        self,
        root: Path,
        settings: Settings,
        replica: Replica | None = None,
        may_send: Callable[[], bool] | None = None,
        resumes: Callable[[batch_api.Batch], bool] = lambda batch: True,
    ) -> None:
        """`replica` is where the active server replicates its folder. `may_send` returns True while this server's
        owner is active, if the owner itself is replicated. `resumes` chooses the unfinished batches that continue;
        the other batches wait for another start.
        """
        self._resumes = resumes
        self._may_send = may_send
        self.root = root
        self.settings = settings
        self._replica = replica
        self.replicator: Replicator | None = None
        self.upstreams: list[Upstream] = []
        self.failure: Exception | None = None
        self.ordered_results = OrderedResults()
        self.ending = asyncio.Event()
        """Set when shutdown begins. Event streams then end, even if their batch still runs."""
        self.patience: float | None = None
        """Seconds that `close` waits for rows in flight, in addition to `stop_seconds`. Setting None stops the
        wait.
        """
        self._webhook = target_of(settings.webhook_url, settings.webhook_secret)
        self.endpoints = _endpoints(settings.allow_endpoints)
        self.aliases = Aliases(settings.aliases)
        most = settings.max_connections
        self.connections = Connections(most, most // 2 if settings.require_keys else 0, settings.patience)
        self.rooms = Rooms(settings.body_memory, has_tenants=settings.require_keys)
        self.calls = Calls()
        self.uploaded_bytes = 0
        self._rows_per_second = 0.0
        self._rows_ended = 0
        """Number of rows that ended at upstreams removed since."""
        self._broken: str | None = None
        self.engines: Callable[[], list[dict[str, Any]]] = list
        """Returns the state of the engines started for this server, for /health."""

    async def open(self) -> None:
        """Open the database, resume unfinished batches, and watch the upstreams. Raises StorageError or OSError."""
        settings = self.settings
        for name in FOLDERS:
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.database = ServerDatabase(self.root / FILE_NAME)
        self.webhooks = Webhooks(self.database, self._webhook, self.settled)
        self.records = Records(self.database, self._at_end)
        self.uploads = Uploads(self.database, self.records, self.root)
        self.keys = Keys(self.database)
        self._sweep()
        self._writer = Writer()
        learned = self.records.learned_concurrency()
        self.upstreams = [self._upstream(url, learned) for url in settings.upstreams]
        self._watches: dict[Upstream, asyncio.Task[None]] = {}
        self._dispatcher = Dispatcher(
            self.upstreams,
            retry_delay=settings.retry_delay,
            paused=lambda: self._writer.is_full or not self.is_active,
            enabled=settings.dispatch,
            expected_models=settings.expected_models,
            rooms=self.rooms,
        )
        self._writer.on_room = self._dispatcher.top_up
        self.batches = Batches(
            self.records,
            self.root,
            self._dispatcher,
            self._writer,
            max_rows=settings.max_rows,
            allowed=self.endpoints.all,
            paid=settings.paid,
            tier=settings.service_tier,
            expected_models=settings.expected_models,
            has_tenants=settings.require_keys,
        )
        if self._replica is not None:
            from orchestrator.core.replica.replicator import Replicator

            contents = ServerContents(self.root, self.database, self._recorded, self.batches.growing)
            self.replicator = Replicator(self._replica, contents, self._dispatcher.top_up)
            self.replicator.start()
        for upstream in self.upstreams:
            await self._begin(upstream)
        self._reviewing = asyncio.create_task(self._review())
        for task in (self._reviewing, self._writer.task):
            task.add_done_callback(self._ended)
        self.webhooks.start()
        self.upkeep = Upkeep(
            self.root,
            self.records,
            self.uploads,
            unfinished=self.batches.unfinished,
            is_in_use=self.batches.reads,
            period=settings.upkeep_seconds,
        )
        self.batches.resume(self._resumes)
        self.upkeep.start()

    async def close(self) -> None:
        """Stop once received results are durable. Rows in flight run again after the next start."""
        await self.upkeep.close()
        tasks = [*self._watches.values(), self._reviewing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._drained()
        await self.batches.close()
        await self.webhooks.close()
        await self._dispatcher.close()
        await self._writer.close()
        if self.replicator is not None:
            await self.replicator.close()
        for upstream in self.upstreams:
            await upstream.close()
        self.batches.close_files()
        self.database.close()

    async def send_no_more(self) -> int:
        """Stop sending rows. Return the number of rows in flight."""
        await self._dispatcher.drain(0.0)
        return self._dispatcher.in_flight

    async def _drained(self) -> None:
        await self._dispatcher.drain(self.settings.stop_seconds if self.is_active else 0.0)
        began = time.monotonic()
        while self.patience is not None and self._dispatcher.in_flight and time.monotonic() - began < self.patience:
            await self._dispatcher.drain(DRAIN_STEP)

    async def join(self, url: str, models: Sequence[str] = (), api_key: str | None = None) -> None:
        """Add an upstream that serves these models, with its own `api_key`, if any. Does nothing if `url` is
        known.
        """
        if any(upstream.url == url for upstream in self.upstreams):
            return
        upstream = self._upstream(url, self.records.learned_concurrency(), models, api_key)
        self._dispatcher.join(upstream)
        await self._begin(upstream)

    async def leave(self, url: str, seconds: float) -> None:
        """Remove an upstream. Its requests may run for `seconds`; then its rows wait, or go to other upstreams."""
        upstream = next((each for each in self.upstreams if each.url == url and not each.is_leaving), None)
        if upstream is None:
            return
        if (watch := self._watches.pop(upstream, None)) is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        until = time.monotonic() + seconds
        upstream.leave()
        while upstream.interactive and time.monotonic() < until:
            await asyncio.sleep(DRAIN_STEP)
        await self._dispatcher.leave(upstream, max(0.0, until - time.monotonic()))
        self._rows_ended += upstream.stats.ended
        await upstream.close()

    def demand(self) -> list[ModelDemand]:
        """Return the rows without a result, by model; None for rows that accept any model."""
        found: dict[str | None, ModelDemand] = {}
        for run in self.batches.runs.values():
            if not run.rows_left or run.is_stopping:
                continue
            model = None if run.model == DEFAULT_MODEL else run.model
            before = found.get(model, ModelDemand(model, 0, 0, run.deadline))
            rows, out = before.rows + run.rows_left, before.in_flight + run.in_flight
            due = (*before.due, (run.deadline, run.rows_left))
            found[model] = ModelDemand(model, rows, out, min(before.deadline, run.deadline), due)
        return list(found.values())

    def progress(self) -> list[EngineProgress]:
        return [
            EngineProgress(
                up.url,
                up.stats.input_tokens,
                up.stats.cached_tokens,
                up.stats.output_tokens,
                up.inflight,
                up.stats.ended,
            )
            for up in self.upstreams
        ]

    async def _begin(self, upstream: Upstream) -> None:
        await upstream.open()
        if self.settings.dispatch:
            dispatcher = self._dispatcher
            watching = upstream.watch(lambda: dispatcher.probed(upstream), lambda: dispatcher.top_up(upstream))
            watch = self._watches[upstream] = asyncio.create_task(watching)
            watch.add_done_callback(self._ended)

    def _upstream(
        self, url: str, learned: Mapping[str, int], models: Sequence[str] = (), api_key: str | None = None
    ) -> Upstream:
        settings = self.settings
        # A measured limit takes precedence over one learned for an address, where another engine may run by now.
        measured = [limit for model, limit in settings.measured_limits.items() if not models or model in models]
        rates = (settings.requests_per_minute, settings.tokens_per_minute)
        return Upstream(
            url,
            api_key=api_key or settings.api_key,
            timeout=settings.request_timeout,
            ceiling=settings.max_concurrency,
            most_in_flight=settings.most_in_flight,
            clock=time.monotonic,
            learned=min(measured, default=learned.get(url)),
            rate_limiter=RateLimiter(*rates) if settings.paid or any(rates) else None,
            paid=settings.paid,
            account_seconds=settings.account_seconds,
            models=models,
            aliases=self.aliases,
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a part of the server has ended", exc_info=error)
            self._broken = "a part of the server stopped because of an internal error; see the log, and restart it"

    async def _review(self) -> None:
        learned = self.records.learned_concurrency()
        ended = 0
        while True:
            await asyncio.sleep(REVIEW_SECONDS)
            before, ended = ended, self._rows_ended + sum(upstream.stats.ended for upstream in self.upstreams)
            self._rows_per_second += SMOOTHING * ((ended - before) / REVIEW_SECONDS - self._rows_per_second)
            self._dispatcher.review(self._rows_per_second)
            for upstream in self.upstreams:
                limit = upstream.limiter.limit
                if not upstream.limiter.growing and abs(limit - learned.get(upstream.url, 0)) > 0.2 * limit:
                    with contextlib.suppress(StorageError):
                        self.records.learn_concurrency(upstream.url, limit)
                    learned[upstream.url] = limit

    def _sweep(self) -> None:
        """Remove files without a record, left by uploads that a kill cut off."""
        known = self._recorded()
        for name in FOLDERS:
            for path in (self.root / name).iterdir():
                if str(path.relative_to(self.root)) not in known and not path.is_dir():
                    path.unlink(missing_ok=True)

    def _at_end(self, batch: batch_api.Batch) -> None:
        self.webhooks.record(batch)
        self.upkeep.note_ended(batch.id)

    def require_room(self, size: int = 0) -> None:
        """Raise NoSpace if `size` more bytes would leave less than `min_free_bytes` of disk."""
        free, stays = shutil.disk_usage(self.root).free, self.settings.min_free_bytes
        if free - size < stays:
            raise NoSpace(
                f"{free:,} bytes of its disk are free, {size:,} are needed, and {stays:,} more must stay free"
            )

    def new_file_path(self, file_id: str) -> Path:
        """Return the path for an upload's bytes. Ids are the server's own, so no user's name becomes a path."""
        return self.root / "files" / file_id

    @property
    def is_active(self) -> bool:
        """True if no other server can have taken over. Without a replica, only `may_send` can report a takeover."""
        if self.replicator is not None:
            return self.replicator.is_held
        return self._may_send is None or self._may_send()

    def resume(self) -> None:
        self._dispatcher.top_up()

    async def settled(self) -> None:
        """Wait until the replica, if any, holds everything recorded so far. Raises StorageError."""
        if self.replicator is not None:
            await self.replicator.settled()

    def _recorded(self) -> dict[str, int]:
        return self.records.file_sizes() | self.uploads.part_sizes()

    def refused_rows(self, upstream: Upstream) -> list[dict[str, Any]]:
        """Return the rows to retry that an upstream refused or failed, grouped by batch, fault and status."""
        return self._dispatcher.refused.describe(upstream, upstream.clock())

    @property
    def backlog_bytes(self) -> int:
        """Bytes of results that wait to become durable."""
        return self._writer.waiting_bytes

    def state(self) -> tuple[str, str | None]:
        """Return the status (`ok`; `storage`: cannot write now; `broken`) and the problem."""
        broken = self._broken or self._dispatcher.problem
        replica = None if self.replicator is None else self.replicator.problem
        storage = self._writer.problem or self.batches.storage_problem or replica
        status = "broken" if broken is not None else "ok" if storage is None else "storage"
        return status, broken or storage or self.batches.problem


def _endpoints(added: Sequence[str]) -> Endpoints:
    try:
        return Endpoints(added)
    except ValueError as error:
        raise UsageError(f"allow_endpoints: {error}") from error
