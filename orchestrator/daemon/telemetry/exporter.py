"""The thread that sends spans and metrics of ended work to a receiver. No job ever waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.core.errors import BackendError, StorageError, UsageError
from orchestrator.core.extras import require
from orchestrator.daemon.telemetry import sent
from orchestrator.daemon.telemetry.reader import EndedWork, TraceReader
from orchestrator.daemon.telemetry.sent import SentLog
from orchestrator.daemon.telemetry.usage import HistogramPoint
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.settings.telemetry import Telemetry
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.daemon.telemetry.otlp import Receiver

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
LONGEST_PAUSE = 300.0
"""Maximum seconds between attempts to send while the receiver accepts nothing."""
IDLE_SHARE = 20.0
"""Pause between two rounds of sending, as a multiple of the last round's duration."""
END_SECONDS = 3.0
"""Maximum seconds for which a stopping daemon sends remaining data. The next daemon sends the rest."""
KEPT = timedelta(days=1)
"""Age at which unsent data is dropped."""
MOST_SPANS = 256
"""Maximum number of spans in a request; with content, they are a few megabytes."""


class Exporter:
    """Sends a home's ended work to a receiver. Its thread calls `tell` with messages for the user."""

    def __init__(
        self,
        store: Store,
        home: Home,
        config: Config,
        now: Callable[[], datetime],
        tell: Callable[[str], None],
        *,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._home = home
        self._now = now
        self._tell = tell
        self._look_seconds = look_seconds
        self._config = config
        self._reader = TraceReader(store, home, lambda: self._config, now)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = now()
        self._points: dict[object, HistogramPoint] = {}
        self._receiver: Receiver | None = None
        self._receives: Telemetry | None = None
        self._has_news = False
        self._is_failing = False
        self._said: set[str] = set()
        self.use(config)

    def use(self, config: Config) -> None:
        """Use these settings from now on. The thread starts as soon as settings name a receiver."""
        self._config = config
        if self._thread is None and config.telemetry is not None:
            self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Send the remaining data, for at most END_SECONDS."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def _run(self) -> None:
        pause = 0.0
        while True:
            is_last = self._ending.wait(pause)
            began = time.monotonic()
            is_well = self._send_ended_work()
            if is_last:
                break
            quiet = max(self._look_seconds, IDLE_SHARE * (time.monotonic() - began))
            pause = quiet if is_well else min(LONGEST_PAUSE, max(quiet, 2 * pause))
        if self._receiver is not None:
            self._receiver.close()

    def _send_ended_work(self) -> bool:
        """Send ended work. Return True if nothing failed."""
        settings = self._config.telemetry
        try:
            if settings is None or (receiver := self._open(settings)) is None:
                return True
            is_well = self._send(receiver, settings)
            return self._send_points(receiver, settings) and is_well
        except Exception as error:  # noqa: BLE001 (no job may suffer from telemetry; it is logged, and retried)
            self._failed(error)
            return False

    def _open(self, settings: Telemetry) -> Receiver | None:
        if self._receives == settings:
            return self._receiver
        if self._receiver is not None:
            self._receiver.close()
        self._receiver, self._receives = None, settings
        try:
            require("otel", "[telemetry]")
            from orchestrator.daemon.telemetry.otlp import Receiver

            self._receiver = Receiver(settings, self._home.identity())
        except UsageError as error:
            self._say_once(f"nothing is sent: {error}")
        return self._receiver

    def _send(self, receiver: Receiver, settings: Telemetry) -> bool:
        """Send the spans of ended work. Spans that cannot be sent are kept, and dropped after a day. Return True on
        success.
        """
        at = self._now()
        known = sent.read(self._home)
        # Work that ended before telemetry was switched on is not sent.
        done = known or SentLog(self._began)
        problem: str | None = None
        is_tried = False
        for ended in self._reader.ended(done.since):
            if ended.key in done.ends:
                continue
            if problem is None:
                done, problem = self._send_item(receiver, settings, ended, done)
                is_tried = True
            if problem is not None:
                if at - ended.at < KEPT:
                    break
                lost = sum(1 for _ in self._reader.spans(ended, settings))
                done = done.with_ended(ended.key, ended.at, dropped=lost)
            sent.write(self._home, done)
        else:
            done = done.settled(at)
        if is_tried:  # otherwise the receiver's state is unknown
            self._tell_problem(settings, problem, done)
            done = replace(done, failing=problem)
        if done != known:
            sent.write(self._home, done)
        return problem is None

    def _send_item(
        self, receiver: Receiver, settings: Telemetry, ended: EndedWork, done: SentLog
    ) -> tuple[SentLog, str | None]:
        taken = refused = 0
        try:
            spans = self._reader.spans(ended, settings)
            while batch := [*islice(spans, MOST_SPANS)]:
                took = receiver.send_spans(batch)
                taken, refused = taken + took, refused + len(batch) - took
            for point in self._reader.points(ended):
                before = self._points.get(point.key)
                self._points[point.key] = point if before is None else before.plus(point)
                self._has_news = True
        except BackendError as error:
            return done, error.message
        except StorageError:
            raise  # retried later
        except Exception as error:  # noqa: BLE001 (one unusable item must not block the others)
            self._failed(error)
            refused += 1
        return done.with_ended(ended.key, ended.at, sent=taken, dropped=refused), None

    def _send_points(self, receiver: Receiver, settings: Telemetry) -> bool:
        """Send changed metrics. They count from the daemon's start, so the next request makes up for a lost
        request.
        """
        if not (settings.metrics and self._has_news):
            return True
        try:
            if not receiver.send_points(self._points.values(), self._began, self._now()):
                self._say_once(f"{settings.endpoint} refuses the metrics; `metrics = false` leaves them out")
        except BackendError as error:
            self._say_once(f"{settings.endpoint} takes no metrics now: {error.message}")
            return False
        self._has_news = False
        return True

    def _tell_problem(self, settings: Telemetry, problem: str | None, done: SentLog) -> None:
        if problem is not None and not self._is_failing:
            self._say(f"{settings.endpoint} takes no spans ({problem}); they are kept for a day, and no job waits")
        elif problem is None and self._is_failing:
            self._say(f"{settings.endpoint} takes spans again; {done.dropped:,} were dropped in all")
        self._is_failing = problem is not None

    def _failed(self, error: Exception) -> None:
        name = type(error).__name__
        if name not in self._said:
            log.error("telemetry", exc_info=error)
        self._say_once(f"failed with {name}; engine.log has the details, and no job waits", key=name)

    def _say_once(self, text: str, key: str = "") -> None:
        if (key or text) not in self._said:
            self._said.add(key or text)
            self._say(text)

    def _say(self, text: str) -> None:
        log.warning("telemetry: %s", text)
        self._tell(f"telemetry: {text}")
