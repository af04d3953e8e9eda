"""A reader without the database library sees what the store tells, and leaves to the store what it cannot read."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import JSON, Table

from orchestrator.core.model import JobKind
from orchestrator.core.schedules import Misfire, Overlap, Schedule
from orchestrator.core.shards import ShardState
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.columns import Instant, Money
from orchestrator.store.night_tables import schedules
from orchestrator.store.status_reader import KINDS, CannotRead, status_reader
from orchestrator.store.tables import jobs, shards
from tests.support.process import ROOT
from tests.support.stored import NOW, added, failed, job, later, settle, sharded, succeeded


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a b ü#.db'}"


def filled(store: Store) -> None:
    """Jobs of every state: with failures old, new and acknowledged, running shards, and schedules."""
    store.jobs.add(
        job(
            "full", kind=JobKind.BATCH, spec={"ä": [1.5, None]}, options={"backend": "gpu"}, deadline_at=later(10),
            budget=Decimal("12.000000000001"), built_at=later(0.1), cancel_requested_at=later(0.2),
            cancel_reason="budget reached", finished_at=later(0.3), output_path="/o", error="gone",
            error_code="refused", ignored={"kinds": {".png": 2}},
        ),
        {"team": "legal"},
    )  # fmt: skip
    for number in range(3):
        one = added(store, 4, f"night-{number}", created_at=later(number))
        store.jobs.mark_built(one.id, later(number))
        sent = sharded(store, one)
        marks = {"cut": number < 2, "repaired": True, "odd_end": number > 0}
        ends = [succeeded(0, "0.25", **marks), failed(1), failed(2, "refusal" if number else "http_500")]
        settle(store, sent, *ends, now=later(number))
        store.failures.trace(one)
        if number == 1:
            known = [found for found in store.failures.of_home("home") if found.custom_id == "r1"]
            store.failures.acknowledge(known, "seen", later(2))
        store.shards.note(sent, provider_completed=2, failing={"new": {"refusal": 1}})
    sharded(store, added(store, 2, "ended", series="other"), state=ShardState.ENDED)
    added(store, 1, "waiting", series="other")
    for name, budget in (("b", None), ("a", Decimal("0.5"))):
        store.schedules.add(
            Schedule(
                f"id-{name}", name, "home", "None", "/job.yaml", "0 2 * * *", "UTC", "6h", budget, Misfire.RUN,
                timedelta(seconds=90), Overlap.SKIP, NOW, NOW, later(1) if budget else None,
            )
        )  # fmt: skip


@pytest.mark.parametrize("limit", [None, 2, 0])
def test_it_sees_what_the_store_tells(url: str, limit: int | None) -> None:
    with Store.open(url) as store:
        filled(store)
        with status_reader(url, 1.0) as seen:
            found = store.jobs.newest(limit)
            assert seen.jobs.newest(limit) == found
            ids = [one.id for one in found]
            assert seen.jobs.counts(ids) == store.jobs.counts(ids)
            assert seen.jobs.submitted(ids) == store.jobs.submitted(ids)
            assert seen.failures.of_jobs(ids) == store.failures.of_jobs(ids)
            for job_id in ids:
                assert seen.shards.of_job(job_id) == store.shards.of_job(job_id)
                assert seen.ledger.spent(job_id) == store.ledger.spent(job_id)
            assert seen.schedules.all() == store.schedules.all()
        assert any(one.cut for one in store.jobs.counts([one.id for one in store.jobs.newest()]).values())
        told = store.failures.of_jobs([one.id for one in store.jobs.newest()]).values()
        assert any(one.new for one in told)
        assert any(one.known and one.since for one in told)
        assert any(one.acknowledged for one in told)


@pytest.mark.parametrize("table", [jobs, shards, schedules], ids=str)
def test_it_knows_every_column_that_is_not_what_the_database_gives(table: Table) -> None:
    for column in table.columns:
        is_known = column.name.endswith("_at") or column.name in KINDS
        assert is_known == isinstance(column.type, Instant | Money | JSON), column.name


def test_it_looks_while_another_writes_and_sees_one_moment(url: str) -> None:
    with Store.open(url) as store, status_reader(url, 1.0) as seen:
        assert seen.jobs.newest() == []
        store.jobs.add(job(), {})
        assert seen.jobs.newest() == []
        with status_reader(url, 1.0) as later_on:
            assert len(later_on.jobs.newest()) == 1


def cannot(url: str) -> None:
    with pytest.raises(CannotRead), status_reader(url, 1.0) as seen:
        seen.jobs.newest()


def test_what_it_cannot_look_at_is_left_to_the_store(url: str, tmp_path: Path) -> None:
    cannot("postgresql+psycopg://nobody@127.0.0.1:1/none")
    cannot(url)
    cannot(f"{url}?mode=memory")
    assert list(tmp_path.iterdir()) == [], "nothing is made by looking"
    path = Path(url.removeprefix("sqlite:///"))
    path.write_bytes(b"no database at all")
    cannot(url)
    path.unlink()
    with Store.open(url):
        pass
    for change in ("UPDATE alembic_version SET version_num = '9999'", "DROP TABLE alembic_version"):
        connection = sqlite3.connect(path)
        connection.execute(change)
        connection.commit()
        connection.close()
        cannot(url)


LOOK = """
import sys
from orchestrator.cli import main
sys.argv = ["orch", "status", *sys.argv[1:]]
try:
    main()
finally:
    heavy = {"sqlalchemy", "alembic", "pydantic", "rich", "openai", "httpx2", "jinja2"} & set(sys.modules)
    print(*sorted(heavy), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--json"], ["--all"]], ids=str)
def test_the_listing_imports_nothing_heavy_even_beside_a_running_batch(tmp_path: Path, arguments: list[str]) -> None:
    gpu = '[backends.gpu]\nupstreams = ["http://127.0.0.1:9/v1"]\ncost_per_hour = 36\n'
    (tmp_path / "orch.toml").write_text(gpu)
    with Store.open(f"sqlite:///{tmp_path / 'orch.db'}") as store:
        store.jobs.add(job("over", built_at=NOW, finished_at=later(1)), {})
        added(store, 2, "queued")
        mine = Home(tmp_path).identity()
        store.shards.note(sharded(store, added(store, 2, "begun", home=mine, built_at=NOW)), provider_seconds=100.0)
    told = subprocess.run(
        [sys.executable, "-c", LOOK, *arguments],
        env={"ORCH_HOME": str(tmp_path), "PATH": "/usr/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (told.returncode, told.stderr.strip()) == (0, "")
    words = set(told.stdout.replace('"', " ").split())
    assert {"over", "queued", "begun", "stopped"} <= words
    assert {"$1.00", "1.000000000000"} & words, "100 seconds of $36 an hour"
