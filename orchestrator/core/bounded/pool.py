"""A pool of worker processes that run calls in parallel and return results in the order of the calls."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from orchestrator.core.bounded import messages
from orchestrator.core.bounded.messages import MessageKind, packed
from orchestrator.core.bounded.process import Trip, Tripped, Worker, WorkerLimits
from orchestrator.core.errors import StorageError

BUFFER_BYTES = 64_000_000
"""Maximum bytes of results that the parent buffers. Further results stay in their workers until the buffer has
room.
"""
LOOK_SECONDS = 0.25
AHEAD_SECONDS = 0.1
"""Seconds of work to queue at each worker, so that the worker never waits for its parent."""
LEAST_AHEAD, MOST_AHEAD = 2, 64
STARTS = 3
"""After this many workers in a row die before they are ready, the pool raises StorageError."""


class WorkerCall(NamedTuple):
    """A call of a generator function, named as `package.module:name`, with plain values as arguments."""

    function: str
    arguments: tuple[Any, ...] = ()


class WorkerTask:
    """A submitted call; `WorkerPool.results` returns its values."""

    __slots__ = ("fault", "has_given", "is_over", "payloads", "request", "tries")

    def __init__(self, call: WorkerCall) -> None:
        self.request = packed(MessageKind.CALL, messages.dumps(tuple(call)))
        self.payloads: deque[bytes] = deque()
        self.has_given = False
        self.is_over = False
        self.fault: Tripped | None = None
        self.tries = 0


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """A pool of at most `workers` processes (default: one per core), started on demand. Only one thread at a time may
    use it.

    `check` is called at least every LOOK_SECONDS while the pool waits for results. It may raise to end the wait.
    Every method that needs a worker raises StorageError if no process can be started.
    """

    def __init__(
        self, workers: int | None = None, limits: WorkerLimits | None = None, check: Callable[[], None] = lambda: None
    ) -> None:
        self.most = workers or cores()
        self._limits = limits or WorkerLimits()
        self._check = check
        self._workers: list[Worker] = []
        self._waiting: deque[WorkerTask] = deque()
        self._buffered = 0
        self._failed_starts = 0
        self._mean_seconds = AHEAD_SECONDS
        self._ahead = LEAST_AHEAD  # calls that may be queued at each worker
        self._under_way = 0

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers immediately."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._waiting.clear()

    def leave(self) -> None:
        """Drop all workers without ending them: they belong to the process from which this one was forked."""
        for worker in self._workers:
            worker.leave()
        self._workers.clear()

    def map(self, calls: Iterable[WorkerCall]) -> Iterator[Iterator[Any]]:
        """Yield one iterator of values per call, in order. Calls are taken from `calls` as workers become free.

        The iterators behave as in `results`. Read each one before requesting the next: unread values are lost.
        """
        order: deque[WorkerTask] = deque()
        for call in calls:
            order.append(self.submit(call))
            while order and (order[0].is_over or not self.has_room):
                yield from self._first(order)
        while order:
            yield from self._first(order)

    def _first(self, order: deque[WorkerTask]) -> Iterator[Iterator[Any]]:
        values = self.results(order.popleft())
        yield values
        with suppress(Tripped):
            deque(values, 0)

    @property
    def has_room(self) -> bool:
        """True if more calls are needed to keep every worker busy."""
        return self._under_way < self.most * self._ahead and self._buffered < BUFFER_BYTES

    def submit(self, call: WorkerCall) -> WorkerTask:
        """Queue a call behind all calls already submitted."""
        task = WorkerTask(call)
        self._waiting.append(task)
        self._under_way += 1
        self._dispatch()
        return task

    def call(self, call: WorkerCall) -> Iterator[Any]:
        """Make a call ahead of all queued calls and yield its values. Raises the same errors as `results`."""
        task = WorkerTask(call)
        # Avoid a worker with tasks: if the caller reads this call's values first, both would block.
        worker = next((worker for worker in self._workers if not worker.tasks), None) or self._start_worker()
        worker.give(task, task.request)
        self._under_way += 1
        return self.results(task)

    def results(self, task: WorkerTask) -> Iterator[Any]:
        """Yield a task's values as they arrive. Raises Tripped after the last value if the task did not finish."""
        while True:
            while task.payloads:
                payload = task.payloads.popleft()
                self._buffered -= len(payload)
                try:
                    value = messages.loads(payload)
                except ValueError:
                    self._end_garbled(task)
                    raise Tripped(Trip.CRASH, "garbled") from None
                yield value
            if task.is_over:
                break
            self._pump(task)
        if task.fault is not None:
            raise task.fault

    def _dispatch(self) -> None:
        """Give each waiting task to the worker with the fewest tasks.

        If every worker has a task, another worker is started first, up to the maximum.
        """
        while self._waiting:
            worker = min(self._workers, key=lambda worker: len(worker.tasks), default=None)
            if worker is None or (worker.tasks and len(self._workers) < self.most):
                worker = self._start_worker()
            elif len(worker.tasks) >= self._ahead:
                return
            task = self._waiting.popleft()
            worker.give(task, task.request)

    def _start_worker(self) -> Worker:
        try:
            worker = Worker(self._limits)
        except OSError as error:
            raise _cannot_start(error.strerror or str(error)) from error
        self._workers.append(worker)
        return worker

    def _pump(self, awaited: WorkerTask) -> None:
        self._check()
        self._dispatch()
        poll = select.poll()
        by_number = {worker.fileno(): worker for worker in self._workers}
        for number, worker in by_number.items():
            wanted = worker.tasks and (awaited in worker.tasks or self._buffered < BUFFER_BYTES)
            poll.register(number, (select.POLLIN if wanted else 0) | (select.POLLOUT if worker.has_unsent else 0))
        for number, event in poll.poll(LOOK_SECONDS * 1000):
            worker = by_number[number]
            if event & select.POLLOUT:
                worker.send()
            if event & ~select.POLLOUT:
                self._take_in(worker)
        now = time.monotonic()
        for worker in tuple(self._workers):
            # A worker whose values are not read cannot be blamed for its silence.
            if worker.is_silent(now) and (awaited in worker.tasks or self._buffered < BUFFER_BYTES):
                self._handle_death(worker)

    def _take_in(self, worker: Worker) -> None:
        try:
            for kind, payload in worker.received():
                self._handle(worker, kind, payload)
        except EOFError:
            self._handle_death(worker)

    def _handle(self, worker: Worker, kind: MessageKind, payload: bytes) -> None:
        if kind is MessageKind.READY:
            worker.is_ready = True
            self._failed_starts = 0
            return
        if not worker.tasks or kind is MessageKind.ALIVE:
            return
        task = worker.tasks[0]
        if kind is MessageKind.VALUE:
            task.has_given = True
            task.payloads.append(payload)
            self._buffered += len(payload)
            return
        if kind is MessageKind.END:
            with suppress(ValueError):
                seconds, faults = payload.split()
                worker.faults = int(faults)
                self._mean_seconds += 0.2 * (max(float(seconds), 1e-6) - self._mean_seconds)
                self._ahead = max(LEAST_AHEAD, min(MOST_AHEAD, int(AHEAD_SECONDS / self._mean_seconds)))
        elif kind is MessageKind.TOO_LARGE:
            task.fault = Tripped(Trip.VALUE)
        elif worker.done and not (task.tries or task.has_given):
            self._replace(worker)
            return
        else:
            task.fault = Tripped(Trip.CRASH, payload.decode(errors="replace")[:80])
        self._finish(worker)

    def _finish(self, worker: Worker) -> None:
        worker.tasks.popleft().is_over = True
        worker.done += 1
        self._under_way -= 1

    def _replace(self, worker: Worker) -> None:
        """Retry a task in a fresh worker: the worker's earlier tasks may have caused the failure."""
        worker.end()
        self._workers.remove(worker)
        worker.tasks[0].tries += 1
        self._waiting.extendleft(reversed(worker.tasks))
        worker.tasks.clear()

    def _handle_death(self, worker: Worker) -> None:
        tripped = worker.end()
        self._workers.remove(worker)
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts == STARTS:
                raise _cannot_start(str(tripped))
        elif worker.tasks:
            task = worker.tasks[0]
            # Otherwise retry in a fresh process: an earlier task may have broken a library or filled the memory,
            # and a machine that is out of memory may kill any process.
            if tripped.trip is Trip.TIME or task.tries or task.has_given:
                task.fault = tripped
                self._finish(worker)
            task.tries += 1
        self._waiting.extendleft(reversed(worker.tasks))

    def _end_garbled(self, task: WorkerTask) -> None:
        """End the worker of a task whose value cannot be decoded, if the worker still runs."""
        for worker in tuple(self._workers):
            if task in worker.tasks:
                worker.garbled()
                self._handle_death(worker)


def _cannot_start(why: str) -> StorageError:
    return StorageError(
        f"no process can be started to read documents in: {why}",
        hint="free resources (memory, processes of this user), then run the same command again",
    )
