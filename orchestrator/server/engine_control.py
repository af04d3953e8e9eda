"""A server that runs, as those reach it who steer it and its engines from another thread."""

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
    """Each method has the server's own loop do something, and raises BackendError where it has ended."""

    def __init__(self, service: Service, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        """`loop` gives that of a server that has started."""
        self._service = service
        self._loop = loop

    def join(self, url: str, models: Sequence[str], api_key: str | None = None) -> None:
        """One more upstream, which serves these models, with a key of its own where it asks for one."""
        self._call(self._service.join(url, models, api_key))

    def leave(self, url: str, seconds: float) -> None:
        """An upstream leaves; returns when its requests have ended, or, after so many seconds, were taken back."""
        self._call(self._service.leave(url, seconds))

    def demand(self) -> list[ModelDemand]:
        """What the rows that have no result yet ask for, by model."""

        async def asked() -> list[ModelDemand]:
            return self._service.demand()

        return self._call(asked())

    def progress(self) -> list[EngineProgress]:
        """What each upstream has done since it joined."""

        async def asked() -> list[EngineProgress]:
            return self._service.progress()

        return self._call(asked())

    def resume(self) -> None:
        """Rows may go out again."""

        async def asked() -> None:
            self._service.resume()

        self._call(asked())

    def durable_bytes(self) -> dict[str, int | None]:
        """How much of each result file of a running batch is durable, by its path; None where it is not known yet."""

        async def asked() -> dict[str, int | None]:
            return self._service.durable_bytes()

        return self._call(asked())

    def tell_engines(self, report: Callable[[], list[dict[str, Any]]]) -> None:
        """What `/health` says of the engines behind this server."""
        self._service.engines = report

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
                # What comes to a loop in its last moment is never answered.
                if not loop.is_running():
                    raise BackendError("the batch server has ended") from None
