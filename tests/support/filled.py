"""A database with 200 rows for each of a chunk, as nights leave it: two that are over, and three jobs just built.

The rows are copies of a few that the store wrote, made by the database itself, which takes seconds.
"""

from __future__ import annotations

import os

from sqlalchemy import Connection, Table, text

from orchestrator.core.model import JobId, Row, Span
from orchestrator.core.shards import Shard, ShardState
from orchestrator.store import Store
from orchestrator.store.records import SeenDocument
from orchestrator.store.tables import documents, ledger, requests
from tests.support.stored import NOW, failed, job, later, row, settle, shard, succeeded
from tests.support.stored import ranges as ranges_of

CHUNK = int(os.environ.get("ORCH_CHUNK_ROWS", "200"))
"""Rows that a verb is about; `make soak` says 1000."""
PARTS = 33
OLD, BIG, TWINS, LONG = 30 * CHUNK, 100 * CHUNK, 30 * CHUNK, CHUNK * 51 // 5
SHARD = 50 * CHUNK
"""Rows of the big job that are in a shard; ORIGINALS are asked for themselves, and the rest are their twins."""
ORIGINALS = 60 * CHUNK
FIRST, SECOND, TONIGHT, SAME, PARTED = map(JobId, ("first-1", "second-1", "tonight-1", "same-1", "parted-1"))
DATABASES = ("requests", "ledger", "documents", "shards", "jobs", "events")


def fill_before(store: Store) -> None:
    """Two nights of a job file: one that was answered, each hundredth row badly, and one that carried it all over."""
    _built(store, FIRST, 1, "nights")
    store.rows.add(FIRST, [made(0), made(1)], {}, NOW)
    batch = _sharded(store, FIRST, 2, ShardState.ENDED)
    settle(store, batch, failed(0, "refusal"), succeeded(1))
    _built(store, SECOND, 2, "nights")
    known = store.known.earlier([FIRST], {"row-0": "f0", "row-1": "f1"})
    store.rows.add(SECOND, [made(0), made(1)], known, NOW)
    with store._database.write() as tx:
        for job_id in (FIRST, SECOND):
            _copy(tx, job_id, 0, "n % 100 = 0", OLD)
            _copy(tx, job_id, 1, "n % 100 <> 0", OLD)
        _repeat(tx, ledger, {"seq": "n"}, f"p.job_id = '{FIRST}'", 2, OLD)
    store.shards.move(store.shards.get(batch.id), ShardState.COLLECTED)
    for job_id in (FIRST, SECOND):
        store.jobs.finish(job_id, "/out", NOW)


def fill_tonight(store: Store) -> None:
    """A big job of which half is with a batch, one of twins alone, and one of long documents; what was read."""
    _built(store, TONIGHT, 3, "tonight")
    store.rows.add(TONIGHT, [made(0), made(1, waits="1"), made(ORIGINALS, waits="1")], {}, NOW, {ORIGINALS: 0})
    [first, *_] = ranges_of(store, store.jobs.get(TONIGHT), 1)
    store.shards.add(shard(store.jobs.get(TONIGHT), rows=SHARD), first)
    for to in (ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED):
        store.shards.move(store.shards.get(f"{TONIGHT}.001"), to)
    _built(store, SAME, 4, "same")
    store.rows.add(SAME, [made(0), made(1)], {}, NOW, {1: 0})
    _built(store, PARTED, 5, "parted")
    long = [row(0, span=Span(0, 0), parts=PARTS, max_output=9), row(1, parts=PARTS, part=1)]
    store.rows.add(PARTED, long, {}, NOW)
    store.jobs.saw_documents("tonight", [SeenDocument("row-0", "d", 1, None, "s", "c", "t.csv", 0)], NOW)
    with store._database.write() as tx:
        _copy(tx, TONIGHT, 0, f"n < {SHARD}", SHARD)
        _copy(tx, TONIGHT, 1, f"n >= {SHARD}", ORIGINALS)
        _copy(tx, TONIGHT, ORIGINALS, f"n > {ORIGINALS}", BIG, twin_of=f"n - {ORIGINALS}")
        _copy(tx, SAME, 1, "n > 1", TWINS)
        _copy(tx, PARTED, 0, f"n % {PARTS + 1} = 0", LONG)
        _copy(tx, PARTED, 1, f"n % {PARTS + 1} <> 0", LONG, part=f"n % {PARTS + 1}")
        _repeat(tx, documents, {"key": "'row-' || n", "place": "n"}, "p.place = 0", 1, BIG)


def made(seq: int, waits: str = "") -> tuple[Row, Span]:
    """A row whose marks are told by its place; `waits` makes it another request than a settled one's."""
    return row(
        seq, custom_id=f"row-{seq}", document=f"row-{seq}", fingerprint=f"f{seq}", cache_key=f"k{seq}{waits}",
        content=f"c{seq}", wording="w",
    )  # fmt: skip


def _built(store: Store, job_id: JobId, night: int, series: str) -> None:
    store.jobs.add(job(job_id, series=series, created_at=later(24 * night)), {})
    store.jobs.mark_built(job_id, NOW)


def _sharded(store: Store, job_id: JobId, rows: int, state: ShardState) -> Shard:
    batch = shard(store.jobs.get(job_id), rows=rows)
    [found] = ranges_of(store, store.jobs.get(job_id))
    store.shards.add(batch, found)
    for to in (ShardState.SUBMITTING, ShardState.SUBMITTED, state):
        store.shards.move(store.shards.get(batch.id), to)
    return store.shards.get(batch.id)


def _copy(tx: Connection, job_id: JobId, seq: int, which: str, until: int, **changes: str) -> None:
    """Copies of a row at the places that `which` tells, up to `until`, but for those of rows that are copied."""
    marks = {"custom_id": "'row-' || n", "document": "'row-' || n", "fingerprint": "'f' || n", "content": "'c' || n"}
    key = {"cache_key": f"CASE WHEN p.twin_of IS NULL THEN 'k' || n || '{job_id}' ELSE p.cache_key END"}
    place = {"seq": "n", "offset": "n * 100"}
    _repeat(
        tx, requests, {**marks, **key, **place, **changes},
        f"p.job_id = '{job_id}' AND p.seq = {seq} AND n NOT IN (0, 1, {ORIGINALS}) AND {which}", 0, until,
    )  # fmt: skip


def _repeat(tx: Connection, table: Table, changes: dict[str, str], where: str, first: int, until: int) -> None:
    quote = tx.dialect.identifier_preparer.quote
    names = [column.name for column in table.columns if column.name != "id"]
    values = ", ".join(changes.get(name, f"p.{quote(name)}") for name in names)
    if tx.dialect.name == "sqlite":
        numbers = (
            f"WITH RECURSIVE numbers(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {until})"
        )
        source = f"{table.name} p CROSS JOIN numbers"
    else:
        numbers, source = "", f"{table.name} p CROSS JOIN generate_series({first}, {until - 1}) AS numbers(n)"
    columns = ", ".join(map(quote, names))
    tx.execute(text(f"INSERT INTO {table.name} ({columns}) {numbers} SELECT {values} FROM {source} WHERE {where}"))
