"""Thread-safe control of a running server and its upstreams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from orchestrator.core.engines import EngineProgress, ModelDemand
from orchestrator.core.errors import BackendError
from orchestrator.server.service import Service

T = TypeVar("T")

CALL_SECONDS = 1.0


class SteeredServer:
    """A handle whose methods run in the server's event loop. Its methods raise BackendError if the server has
    ended.
    """

    def __init__(self, service: Service, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        """`loop` returns the event loop of a started server."""
        self._service = service
        self._loop = loop

    def join(self, url: str, models: Sequence[str], api_key: str | None = None) -> None:
        """Add an upstream that serves these models. `api_key` is the upstream's own key, if it needs one."""
        self._call(self._service.join(url, models, api_key))

    def leave(self, url: str, seconds: float) -> None:
        """Remove an upstream. Its requests may run for up to `seconds` more, then its rows in flight are
        withdrawn.
        """
        self._call(self._service.leave(url, seconds))

    def demand(self) -> list[ModelDemand]:
        """Return the rows without a result, by model."""
        return self._in_loop(self._service.demand)

    def progress(self) -> list[EngineProgress]:
        """Return the progress of each upstream since the upstream joined."""
        return self._in_loop(self._service.progress)

    def resume(self) -> None:
        """Allow the dispatcher to send rows again."""
        self._in_loop(self._service.resume)

    def send_no_more(self) -> int:
        """Stop sending rows. Return the number of rows in flight."""
        return self._call(self._service.send_no_more())

    def durable_bytes(self) -> dict[str, int | None]:
        """Return the durable bytes of each running batch's result files, by path. The value is None while unknown."""
        return self._in_loop(lambda: self._service.batches.growing())

    def tell_engines(self, report: Callable[[], list[dict[str, Any]]]) -> None:
        """Set the function that reports on engines for `/health`."""
        self._service.engines = report

    def _in_loop(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return self._call(run())

    def _call(self, asked: Coroutine[Any, Any, T]) -> T:
        loop = self._loop()
        try:
            future = asyncio.run_coroutine_threadsafe(asked, loop)
        except RuntimeError as error:
            asked.close()
            raise BackendError("the batch server has ended") from error
        while True:
            try:
                return future.result(CALL_SECONDS)
            except CancelledError as error:
                raise BackendError("the batch server has ended") from error
            except TimeoutError:
                # A call that reaches a loop in its last moment is never answered.
                if not loop.is_running():
                    raise BackendError("the batch server has ended") from None
