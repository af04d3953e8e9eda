"""One emulated provider for each module, as new for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.client import Emulator
from tests.support.hostedjob import Desk, desk_of


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider")) as emulator:
        yield emulator


@pytest.fixture
def desk(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home before the provider: `desk.run(plain(6))`, `desk.ends(job)`."""
    with desk_of(emulator, tmp_path, monkeypatch) as desk:
        yield desk


@pytest.fixture(params=["sqlite", "postgres"])
def desk_on_each(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    """The same on each database in turn."""
    url = request.getfixturevalue("migrated_url") if request.param == "postgres" else None
    with desk_of(emulator, tmp_path, monkeypatch, url) as desk:
        yield desk
