"""Save a home and its database, and put them back later: a store that is older than its providers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url

from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.support.databases import new_sqlite
from tests.support.hostedjob import HOUR, Desk, desk_of
from tests.support.postgres import copy_database


def age(home: Home) -> None:
    """As if the files had been written an hour before they were put back."""
    found = (home.root / "home.id").stat()
    os.utime(home.root / "home.id", (found.st_atime, found.st_mtime - HOUR))
    for path in home.last_creates.glob("*.json"):
        told = json.loads(path.read_bytes())
        path.write_text(json.dumps(told | {"written_at": told["written_at"] - HOUR}))


@dataclass(frozen=True)
class Backups:
    """Backups of a desk's home. Whoever works in the home ends before one is made or put back."""

    desk: Desk
    folder: Path
    database_url: str

    def save(self, name: str) -> None:
        """Make a backup; another process goes on with the home."""
        self._end()
        shutil.copytree(self.desk.home.root, self.folder / name)
        copy_database(self.database_url, self._database, self._database_of(name))
        self._begin()

    def put_back(self, name: str, *, files: bool = True) -> None:
        """The home as it was; without `files`, its database alone."""
        self._end()
        if files:
            shutil.rmtree(self.desk.home.root)
            shutil.copytree(self.folder / name, self.desk.home.root)
            age(self.desk.home)
        elif self._database is None:
            for left in self.desk.home.root.glob("orch.db-*"):
                left.unlink()
            shutil.copy(self.folder / name / "orch.db", self.desk.home.root / "orch.db")
        copy_database(self.database_url, self._database_of(name), self._database)
        self._begin()

    def _end(self) -> None:
        self.desk._stop()
        self.desk.daemon = None
        self.desk.store.close()

    def _begin(self) -> None:
        self.desk.store = Store.open(self.database_url)
        self.desk.start_anew()

    @property
    def _database(self) -> str | None:
        url = make_url(self.database_url)
        return url.database if url.get_backend_name() == "postgresql" else None

    def _database_of(self, name: str) -> str | None:
        return None if self._database is None else f"{self._database}_{name}"


@contextmanager
def backed_up(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backups]:
    """Backups of a desk whose database is of the kind that the fixture's parameter names."""
    home = tmp_path / "home"
    home.mkdir()
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("migrated_url") if is_postgres else new_sqlite(home / "orch.db")
    with desk_of(emulator, tmp_path, monkeypatch, url) as desk:
        yield Backups(desk, tmp_path / "backups", url)


def lists(desk: Desk) -> int:
    """How often batches were listed."""
    return sum(one["count"] for one in desk.provider.state()["requests"] if one["verb"] == "list")
