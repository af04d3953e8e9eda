"""The newcomer's page: its commands as they stand, in one shell, from an empty folder to the morning after."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.emulator.clock import ClockFile
from tests.support.process import ROOT, Upstream, wait_until
from tests.support.shell import Shell

PAGE = ROOT / "docs" / "quickstart.md"
ADDRESS = "http://127.0.0.1:8000/v1"
NOON = datetime(2026, 10, 5, 10, tzinfo=UTC)
"""On a Monday, by the clocks of Berlin; 22:00 there is 20:00 UTC."""
NIGHT = NOON.replace(hour=20)
WAIT = 60.0


@pytest.fixture
def clock(tmp_path: Path) -> ClockFile:
    return ClockFile(tmp_path / "clock.json", NOON, speed=60.0)


@pytest.fixture
def shell(tmp_path: Path, clock: ClockFile) -> Iterator[Shell]:
    with Shell(tmp_path, clock.path) as shell:
        yield shell


@pytest.mark.slow
def test_the_page_leads_from_an_empty_folder_to_a_morning(
    shell: Shell, clock: ClockFile, upstream: Upstream, tmp_path: Path
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(ADDRESS) == 1
    blocks = re.findall(r"^```sh\n(.*?)^```", page.replace(ADDRESS, upstream.base_url), re.DOTALL | re.MULTILINE)
    made, settings, asked, tried, scheduled, looked, changed, morning, books, removals, stopped = blocks
    home = tmp_path / "letters-by-night"

    shell.type(made)
    assert {line[:4] for line in shell.type(settings).splitlines()[:-1]} == {"ok  "}
    assert "2 requests of 2 documents, nothing wrong with the file" in shell.type(asked)
    assert "rows     2: 2 succeeded" in shell.type(tried)
    assert "next Mon 2026-10-05 22:00" in shell.type(scheduled)
    log = home / "up.log"
    wait_until(lambda: log.exists() and "is up" in log.read_text(), WAIT)
    assert "daemon: `orch up` (process " in shell.type(looked)
    shell.type(changed)

    clock.set(NIGHT)
    wait_until(lambda: "night of 2026-10-05: done" in log.read_text(), WAIT)
    # Those of the run by day and of the night, each as a page and as text; it is looked once a minute.
    wait_until(lambda: len(list((home / "reports").glob("night-*"))) >= 4, WAIT)
    told = shell.type(morning)
    assert "4 rows: 3 succeeded, 1 failed" in told
    assert "1 item needs attention" in told
    rows = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert {(row["document"], row["provenance"]["why"]) for row in rows} == {
        ("letters/birch.txt", "document changed"),
        ("letters/cole.txt", "unchanged"),
        ("letters/dorn.txt", "new"),
        ("letters/torn.txt", "new"),
    }
    assert "2026-10-05" in shell.type(books)
    assert "first-week.tar: " in shell.type(removals)
    assert (home / "first-week.tar").stat().st_size > 0
    assert "orch: stopped; nothing is lost" in shell.type(stopped)
    assert len(upstream.requests()) == 4
