"""Save a home and its database, and put them back later: a store that is older than its providers."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url

from orchestrator.core.model import Job
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.emulator.answers import CHAT, decode_body, read
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.databases import new_sqlite
from tests.support.hostedjob import HOUR, Desk, cost_of, desk_of, plain, row
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


def asked(desk: Desk) -> Counter[str]:
    """How often each request was paid; its id there says nothing of the request."""
    return Counter(desk.provider.bill(rows=True)["asked"])


def batches_are_adopted(backups: Backups, saved: str, later: float, *, files: bool) -> Job:
    """Make three batches, put a store back that has forgotten them, and see that each row is paid once."""
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
    return job


def each_answer_is_its_rows(backups: Backups, kind: str, *, edited: bool, **limits: int) -> None:
    """Put a store back that has forgotten three batches, of a file with other lines by now or cut anew."""
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
    desk.backend(kind, limits={**limits, "max_rows": 5 if edited else 20})
    if edited:
        path.write_bytes(jsonl([row("new"), *plain(12)[::-1][:9]]))
    job = desk.submit(path)
    desk.finish(job)
    assert sorted(asked(desk).values()) == [1] * (14 if edited else 13)
    for name, found in desk.rows(job).items():
        digest = read(decode_body(json.dumps(row(name)["body"]).encode()), CHAT).digest.hex()
        assert found["output"] == f"answer {digest}"
    assert sum(desk.cost(one) for one in desk.store.jobs.newest()) == cost_of(desk.provider.bill())


OTHER_IDS = {
    "renamed": lambda name: f"letters/{name}",
    "turned round": lambda name: f"r{11 - int(name[1:])}",
}
"""What the same requests are called once a folder is renamed, or lines are numbered anew."""


def requests_are_adopted_under_other_ids(backups: Backups, ids: str, *, equal: bool, edited: bool) -> None:
    """Put a store back that has forgotten three batches; its file's rows have other ids by now.

    With `equal`, several rows have one request; `edited`: one row is not asked any more, and another one is new.
    """
    desk = backups.desk
    lines = plain(12)
    for number, line in enumerate(lines if equal else []):
        line["body"] = row(f"r{number // 3}", temperature=1)["body"]
    desk.run([row("earlier")])
    backups.save("monday")
    path = desk.written(jsonl(lines))
    first = desk.submit(path)
    desk.until(first, lambda: len(desk.batches()) == 4)
    backups.put_back("monday")
    named = [line | {"custom_id": OTHER_IDS[ids](line["custom_id"])} for line in lines]
    path.write_bytes(jsonl([*named[1:], row("new")] if edited else named))
    job = desk.submit(path)
    desk.finish(job)
    assert len(desk.batches()) == 4 + edited
    assert asked(desk).total() == 13 + edited
    for line in named[1:]:
        digest = read(decode_body(json.dumps(line["body"]).encode()), CHAT).digest.hex()
        assert desk.rows(job)[line["custom_id"]]["output"] == f"answer {digest}"
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert not desk.inputs(job)
    assert sum(desk.cost(one) for one in desk.store.jobs.newest()) == cost_of(desk.provider.bill())
