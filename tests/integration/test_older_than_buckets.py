"""A store that is older than providers whose files lie in a bucket (Vertex AI's name no row), or name their shard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.client import Emulator
from tests.support.hostedjob import HOUR
from tests.support.restoring import (
    OTHER_IDS,
    Backups,
    backed_up,
    batches_are_adopted,
    each_answer_is_its_rows,
    requests_are_adopted_under_other_ids,
)


@pytest.fixture(params=["vertex", "bedrock", "scaleway", "together"])
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


@pytest.mark.thinned(24)
@pytest.mark.parametrize("saved", ["built", "planned", "behind another job"])
@pytest.mark.parametrize("files", [True, False], ids=["whole", "database alone"])
@pytest.mark.parametrize("later", [0.0, HOUR])
def test_rows_of_batches_that_the_store_has_forgotten_are_adopted(
    backups: Backups, saved: str, later: float, *, files: bool
) -> None:
    batches_are_adopted(backups, saved, later, files=files)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("edited", [True, False], ids=["edited", "cut anew"])
def test_each_answer_is_that_of_its_row_however_batches_are_made_now(
    backups: Backups, kind: str, *, edited: bool
) -> None:
    """A forgotten job's file has other lines by now, or its rows go out in other batches."""
    each_answer_is_its_rows(backups, kind, edited=edited, min_rows=1)


@pytest.mark.long
@pytest.mark.thinned(16)
@pytest.mark.parametrize("ids", OTHER_IDS)
@pytest.mark.parametrize("equal", [False, True], ids=["", "equal requests"])
@pytest.mark.parametrize("edited", [False, True], ids=["", "edited"])
def test_requests_of_a_forgotten_job_are_adopted_whatever_their_ids(
    backups: Backups, kind: str, ids: str, *, equal: bool, edited: bool
) -> None:
    backups.desk.backend(kind, limits={"min_rows": 1, "max_rows": 5})
    requests_are_adopted_under_other_ids(backups, ids, equal=equal, edited=edited)
