"""A part of the server that ends by a fault of the program itself: /health and /ready say so, and the log why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.server.dispatch.results import ResultFile
from orchestrator.server.health import not_ready
from orchestrator.server.service import Service
from orchestrator.server.settings import Settings


class Fault(Exception):
    """What nobody foresaw."""


def broken_report(notes: list[Any]) -> None:
    raise Fault


def writes_and_ends(service: Service) -> None:
    file = ResultFile(service.root / "some.jsonl", broken_report)
    service._writer.put(file, b"{}", None)


def reviews_and_ends(service: Service) -> None:
    service.upstreams.append(None)  # type: ignore[arg-type]


PARTS = {"the writer": writes_and_ends, "the review": reviews_and_ends}


@pytest.mark.parametrize("breaks", PARTS.values(), ids=PARTS)
def test_a_part_that_ends_makes_the_server_bad(
    tmp_path: Path, breaks: Callable[[Service], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def live() -> tuple[list[str | None], list[str]]:
        service = Service(tmp_path, Settings(upstreams=()))
        await service.open()
        before = service.state()[1]
        breaks(service)
        while service._broken is None:
            await asyncio.sleep(0.01)
        service.upstreams.clear()
        found = service.state()
        reasons = not_ready(service, is_known=True)
        await service.close()
        return [before, *found], reasons

    (before, status, problem), reasons = asyncio.run(asyncio.wait_for(live(), 20))
    assert (before, status) == (None, "broken")
    assert "internal error" in str(problem)
    assert "a part of the server has ended: its log and /health tell why" in reasons
    assert "a part of the server has ended" in caplog.text
    assert "Traceback" in caplog.text
