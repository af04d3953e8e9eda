"""A store that is older than the providers whose files lie in a bucket; Vertex AI's name no row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.answers import CHAT, decode_body, read
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.integration.test_older_than_anthropic import asked
from tests.support.hostedjob import HOUR, cost_of, plain, row
from tests.support.restoring import Backups, backed_up


@pytest.fixture(params=["vertex", "bedrock"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=["sqlite"])
def backups(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> Iterator[Backups]:
    with backed_up(request, emulator, tmp_path, monkeypatch) as found:
        found.desk.provider.settings(min_rows=1)
        found.desk.backend(kind, limits={"min_rows": 1, "max_rows": 8})
        yield found


@pytest.mark.parametrize("saved", ["built", "planned", "behind another job"])
@pytest.mark.parametrize("files", [True, False], ids=["whole", "database alone"])
@pytest.mark.parametrize("later", [0.0, HOUR])
def test_rows_of_batches_that_the_store_has_forgotten_are_adopted(
    backups: Backups, saved: str, later: float, *, files: bool
) -> None:
    desk = backups.desk
    if saved == "behind another job":
        desk.run([row("earlier")])
    job = desk.submit(plain(20))
    if saved == "planned":
        desk.until(job, lambda: bool(desk.states(job)))
    backups.save("monday")
    before = len(desk.batches())
    desk.until(job, lambda: len(desk.batches()) == before + 3)
    desk.provider.clock.advance(later)
    backups.put_back("monday", files=files)
    desk.finish(job)
    assert len(desk.batches()) == before + 3
    assert list(desk.ends(job).values()) == ["succeeded"] * 20
    assert set(asked(desk).values()) == {1}
    assert sum(desk.cost(one) for one in desk.store.jobs.newest()) == cost_of(desk.provider.bill())


@pytest.mark.parametrize("edited", [True, False], ids=["edited", "cut anew"])
def test_each_answer_is_that_of_its_row_however_batches_are_made_now(
    backups: Backups, kind: str, *, edited: bool
) -> None:
    """A forgotten job's file has other lines by now, or its rows go out in other batches."""
    desk = backups.desk
    path = desk.written(jsonl(plain(12)))
    desk.run([row("earlier")])
    if edited:
        backups.save("monday")
    first = desk.submit(path)
    if not edited:
        backups.save("monday")
    desk.until(first, lambda: len(desk.batches()) == 3)
    desk.provider.clock.advance(HOUR)
    backups.put_back("monday")
    desk.backend(kind, limits={"min_rows": 1, "max_rows": 5 if edited else 20})
    if edited:
        path.write_bytes(jsonl([row("new"), *plain(12)[::-1][:9]]))
    job = desk.submit(path)
    desk.finish(job)
    assert sorted(asked(desk).values()) == [1] * (14 if edited else 13)
    for name, found in desk.rows(job).items():
        digest = read(decode_body(json.dumps(row(name)["body"]).encode()), CHAT).digest.hex()
        assert found["output"] == f"answer {digest}"
    assert sum(desk.cost(one) for one in desk.store.jobs.newest()) == cost_of(desk.provider.bill())
