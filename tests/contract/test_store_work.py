"""What the store asks of its database: as much as the rows at hand need, whatever the database believes of them.

A database chooses its plans by what it believes. A job that was just built has 100,000 rows and no statistics, or
those of the nights before it; without autovacuum it stays so. No statement may then look at the whole job for each
row of a chunk, nor at the whole table for a few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from orchestrator.core.model import JobId, Price, RequestState, Span
from orchestrator.core.shards import ShardId
from orchestrator.policy.sharding import Range
from orchestrator.settings.model_lists import Step
from orchestrator.store import Store
from orchestrator.store.records import SeenDocument, Settled
from orchestrator.store.reduce_rows import UnaskedRow, Unmade
from tests.support.filled import (
    BIG,
    CHUNK,
    DATABASES,
    FIRST,
    LONG,
    OLD,
    ORIGINALS,
    PARTED,
    PARTS,
    SAME,
    SECOND,
    SHARD,
    TONIGHT,
    TWINS,
    fill_before,
    fill_tonight,
    made,
)
from tests.support.postgres import PostgresServer
from tests.support.stored import CHAT, NOW, failed, settle, shard, succeeded
from tests.support.work import taken

MOST = 15
"""How often a row may be looked at: by the nodes of a plan, by several statements."""
ROW = f"row-{5 * CHUNK}"
YESTERDAY = "the nights before"
INSTRUCTIONS = 60
"""Of SQLite, for each time."""


@pytest.fixture(scope="module")
def template(postgres: PostgresServer) -> Iterator[str]:
    """The name of a filled database on Postgres, which looked at it before tonight's jobs came."""
    with postgres.database() as url:
        with Store.open(url) as store:
            for name in DATABASES:
                execute(store, f"ALTER TABLE {name} SET (autovacuum_enabled = false)")
            fill_before(store)
            execute(store, "ANALYZE")
            fill_tonight(store)
        yield str(make_url(url).database)


@pytest.fixture(
    params=["sqlite", "nothing", *(pytest.param(known, marks=pytest.mark.soak) for known in (YESTERDAY, "all"))]
)
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with some thousand rows: on SQLite, and on a Postgres that knows this much of them."""
    if request.param == "sqlite":
        with Store.open(f"sqlite:///{tmp_path / 'orch.db'}") as store:
            fill_before(store)
            fill_tonight(store)
            yield store
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database(request.getfixturevalue("template")) as url, Store.open(url) as store:
        if request.param == "nothing":
            execute(store, "DELETE FROM pg_statistic")
            execute(store, "UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relkind IN ('r', 'i')")
        elif request.param == "all":
            store.rows.loaded()
        yield store


def execute(store: Store, statement: str) -> None:
    with store._database.write() as tx:
        tx.execute(text(statement))


def batch(store: Store) -> ShardId:
    return store.shards.of_job(TONIGHT)[0].id


def settled(store: Store, first: int, *, anywhere: bool = False) -> int:
    """A chunk of answers, every other one a failure; their twins end with them."""
    answers = [failed(seq) if seq % 2 else succeeded(seq) for seq in range(first, first + CHUNK)]
    return settle(store, store.shards.get(batch(store)), *answers, anywhere=anywhere)


def booked(store: Store) -> None:
    price = Price(Decimal("0.001"), "x")
    store.ledger.book(
        store.shards.get(batch(store)), "uncertain", dict.fromkeys(range(7 * CHUNK, 7 * CHUNK + CHUNK), price), NOW
    )


def escalated(store: Store, first: int) -> int:
    bad = [Settled(*succeeded(seq)) for seq in range(first, first + CHUNK)]
    return store.escalations.escalate(store.shards.get(batch(store)), bad, Step("strong", ("strong",), None), NOW)


def reasked(store: Store, first: int) -> int:
    bad = [Settled(*succeeded(seq)) for seq in range(first, first + CHUNK)]
    spans = {seq: Span(seq, 9) for seq in range(first, first + CHUNK)}
    return store.escalations.reask_rows(store.shards.get(batch(store)), bad, spans, NOW)


def added(store: Store) -> None:
    rows = [made(seq) for seq in range(BIG, BIG + CHUNK)]
    store.rows.add(TONIGHT, rows, {}, NOW)


def sharded(store: Store) -> None:
    rows = Range(CHAT, "m", SHARD, SHARD + CHUNK - 1, CHUNK, 9, 9)
    of = store.jobs.get(TONIGHT)
    store.shards.add(shard(of, 2, rows=CHUNK), rows)


def reduced(store: Store) -> int:
    places = list(range(0, LONG, PARTS + 1))
    faults = [UnaskedRow(seq, RequestState.FAILED, "part_failed", "x") for seq in places[: CHUNK // 10]]
    return store.stages.made(PARTED, {seq: Span(0, 9) for seq in places[CHUNK // 10 : CHUNK // 5]}, faults, NOW)


def released(store: Store) -> int:
    held = list(store.quarantine.held("home", lambda code: False, "nights"))
    assert len(held) == OLD // 100
    return store.quarantine.release(held, NOW)


def acknowledged(store: Store) -> int:
    found = list(store.failures.of_home("home", "nights"))
    assert len(found) == OLD // 100
    store.failures.acknowledge(found, "a note", NOW)
    return store.failures.take_back(list(store.failures.of_home("home", "nights")))


def refused(first: int) -> dict[str, str]:
    return dict.fromkeys(names(first), "refusal")


def names(first: int) -> list[str]:
    return [f"row-{seq}" for seq in range(first, first + CHUNK)]


def keys(job_id: str, first: int) -> list[str]:
    return [f"k{seq}{job_id}" for seq in range(first, first + CHUNK)]


@dataclass(frozen=True)
class Case:
    """A verb, the rows that it is about, and what it finds; each row may be looked at a few times."""

    name: str
    rows: int
    call: Callable[[Store], object]


# In this order: what a verb changes, those below it find.
CASES = [
    Case("build: rows are added", CHUNK, added),
    Case("build: an id that is there", CHUNK, lambda s: s.known.known_ids(TONIGHT, names(40 * CHUNK))),
    Case(
        "carry over: earlier outcomes", CHUNK,
        lambda s: s.known.earlier([FIRST, SECOND], {f"row-{n}": f"f{n}" for n in range(5 * CHUNK, 6 * CHUNK)}),
    ),
    Case("carry over: what rows were made of", CHUNK, lambda s: s.known.before(SECOND, names(5 * CHUNK))),
    Case("carry over: documents that went", OLD + BIG, lambda s: s.known.gone(TONIGHT, SECOND)),
    Case("carry over: the same rows", OLD, lambda s: s.known.same(SECOND, FIRST)),
    Case(
        "cache: other jobs' answers", CHUNK,
        lambda s: s.known.answers("home", keys(FIRST, 5 * CHUNK), checked=True),
    ),
    Case("cache: rows that are alike", CHUNK, lambda s: s.known.originals(TONIGHT, keys(TONIGHT, 5 * CHUNK))),
    Case("documents: seen", CHUNK, lambda s: s.jobs.saw_documents("tonight", seen(5 * CHUNK), NOW)),
    Case("documents: their marks", CHUNK, lambda s: s.jobs.marks("tonight", names(5 * CHUNK))),
    Case("documents: still there", CHUNK, lambda s: s.jobs.still_there("tonight", names(5 * CHUNK), NOW)),
    Case("documents: of a table", CHUNK, lambda s: s.jobs.of_table("tonight", "t.csv", "s", 40 * CHUNK, CHUNK)),
    Case("canary: chosen", BIG - SHARD, lambda s: s.canary.mark(TONIGHT, 100)),
    Case("canary: how it stands", 100, lambda s: s.canary.state(TONIGHT)),
    Case("canary: its waiting rows", 100, lambda s: s.rows.waiting(TONIGHT, canary=True)),
    Case("canary: the others follow", 100, lambda s: s.canary.all_follow(TONIGHT)),
    Case("waiting: whether there are any", 1, lambda s: s.rows.has_waiting(TONIGHT)),
    Case("waiting: none, among twins", 1, lambda s: s.rows.has_waiting(FIRST)),
    Case("waiting: all of them", ORIGINALS - SHARD, lambda s: s.rows.waiting(TONIGHT)),
    Case("waiting: into a shard", CHUNK, sharded),
    Case("waiting: out of it again", CHUNK, lambda s: s.shards.dissolve(s.shards.of_job(TONIGHT)[1], "x")),
    Case("planning: open work", BIG, lambda s: s.sizes.open_work(TONIGHT)),
    Case("planning: the last rows of a shard", SHARD, lambda s: s.sizes.last_work(batch(s), CHUNK)),
    Case("forecast: lengths of answers", OLD, lambda s: s.sizes.output_lengths([FIRST], "t", "v")),
    Case("forecast: lengths of prompts", OLD, lambda s: s.sizes.prompt_sizes([FIRST], "t", "v")),
    Case("forecast: answers that were cut", OLD, lambda s: s.sizes.cut_at([FIRST], "t", "v")),
    Case("forecast: a sample of requests", BIG, lambda s: s.sizes.sample(TONIGHT, "t", 100)),
    Case("forecast: the mean answer", OLD, lambda s: s.sizes.mean_outputs(FIRST)),
    Case("shard: its rows", SHARD, lambda s: s.rows.of_shard(batch(s))),
    Case("shard: who they are", SHARD, lambda s: s.rows.custom_ids(batch(s))),
    Case("show: a document's rows", BIG, lambda s: s.rows_by_document.rows(TONIGHT, ROW)),
    Case("show: a document's rows by name", 65, lambda s: s.rows_by_document.near(TONIGHT, ROW, [ROW])),
    Case("show: a row", 1, lambda s: s.rows_by_document.row(TONIGHT, ROW)),
    Case("show: whether a document is there", BIG, lambda s: s.rows_by_document.has_document(TONIGHT, ROW)),
    Case("show: documents meant", BIG, lambda s: s.rows_by_document.documents(TONIGHT, lambda key: False, 9)),
    Case("settle, with twins", CHUNK * 2, lambda s: settled(s, 0)),
    Case("settle, without twins", CHUNK, lambda s: settled(s, 45 * CHUNK)),
    Case("settle what is settled", CHUNK, lambda s: settled(s, 45 * CHUNK)),
    Case("settle: wherever they are", CHUNK, lambda s: settled(s, 46 * CHUNK, anywhere=True)),
    Case("settle: paid without an outcome", CHUNK, booked),
    Case("settle: freed", CHUNK, lambda s: s.rows.free(shard_of(s), range(2 * CHUNK, 3 * CHUNK), count_attempt=True)),
    Case("settle: to a stronger model", CHUNK, lambda s: escalated(s, 3 * CHUNK)),
    Case("settle: asked again", CHUNK, lambda s: reasked(s, 4 * CHUNK)),
    Case("settle: the rest released", SHARD, lambda s: s.rows.release(batch(s), count_attempt=True)),
    Case("long: rows whose parts are done", LONG, lambda s: s.stages.complete(PARTED, 100)),
    Case("long: how many are not made yet", LONG, lambda s: s.observations.unmade(PARTED)),
    Case("long: the parts of a row", PARTS, lambda s: s.stages.parts(PARTED, Unmade(34, "row-34", "t", PARTS, 9))),
    Case("long: requests made", CHUNK // 5, reduced),
    Case("counts", BIG, lambda s: s.jobs.counts([TONIGHT])),
    Case("counts: which were submitted", 2, lambda s: s.jobs.submitted([TONIGHT, FIRST])),
    Case("money: spent", OLD, lambda s: s.ledger.spent(FIRST)),
    Case("money: of shared budgets", OLD * 3, lambda s: s.ledger.paid(NOW, None, None)),
    Case("money: of batches that run", 10, lambda s: s.ledger.unpaid(None)),
    Case("report: by task", OLD, lambda s: s.ledger.totals("task", None, FIRST)),
    Case("report: documents", OLD, lambda s: s.ledger.documents("task", None, FIRST)),
    Case("report: tokens", BIG, lambda s: s.ledger.booked(TONIGHT)),
    Case("report: carried", OLD, lambda s: s.rows.carried(SECOND)),
    Case("report: documents of two nights", OLD * 2, lambda s: s.comparisons.documents(FIRST, SECOND)),
    Case("report: documents of a first night", BIG, lambda s: s.comparisons.documents(None, TONIGHT)),
    Case("report: answers that moved", OLD * 2, lambda s: s.comparisons.moved(FIRST, SECOND)),
    Case("report: rows of one night only", OLD * 2, lambda s: s.comparisons.only_in(SECOND, FIRST)),
    Case("report: documents of one night only", OLD * 2, lambda s: s.comparisons.removed_documents(FIRST, SECOND)),
    Case("telemetry: jobs that ended", 10, lambda s: s.telemetry.ended_jobs("home", NOW)),
    Case("telemetry: what a shard cost", OLD, lambda s: s.telemetry.booked(ShardId(f"{FIRST}.001"), (9, 99))),
    Case("telemetry: how long its rows took", SHARD, lambda s: s.telemetry.durations(batch(s), (9, 99))),
    Case("telemetry: rows that get a span", SHARD, lambda s: s.telemetry.notable_rows(batch(s), 100, 1000)),
    Case("telemetry: rows that were not sent", OLD // 100, lambda s: s.telemetry.never_sent(SECOND, 1000)),
    Case("merge", BIG, lambda s: s.rows.finished(TONIGHT)),
    Case("merge: known answers", CHUNK // 2, lambda s: s.rows.finished(TONIGHT, names(5 * CHUNK)[: CHUNK // 2])),
    Case("failures: since when they are", OLD // 100 * 3, lambda s: s.failures.trace(s.jobs.get(SECOND))),
    Case("failures: of a running batch", CHUNK, lambda s: s.failures.known(s.jobs.get(SECOND), refused(5 * CHUNK))),
    Case("failures: how many are known", OLD // 100 * 3, lambda s: s.failures.of_jobs([SECOND])),
    Case("failures: why", OLD // 100 * 3, lambda s: s.failures.reasons(SECOND)),
    # Few of them fill no more pages than an index has: then they are read whole for each failure.
    Case("failures: acknowledged and taken back", OLD, acknowledged),
    Case("shard: some of its rows", CHUNK, lambda s: s.rows.named(shard_of(s), names(5 * CHUNK))),
    Case("shard: lost rows like its own", 10, lambda s: s.lost.like(s.jobs.get(TONIGHT), shard_of(s), "big")),
    Case(
        "edited file: what goes on", CHUNK,
        lambda s: s.escalations.inherit(TONIGHT, range(5 * CHUNK, 6 * CHUNK), [SECOND]),
    ),
    Case("quarantine: held and released", OLD if CHUNK < 500 else OLD // 100 * 4, released),
    Case("house: whose answers are carried", OLD * 2 + BIG, lambda s: s.removals.carriers("home")),
    Case("house: lines that rows point to", OLD * 2 + BIG, lambda s: s.removals.result_lines("home")),
    Case("house: request files", OLD * 2 + BIG, lambda s: s.removals.request_files("home")),
    Case("house: files that rows point to", OLD * 2 + BIG, lambda s: s.removals.result_files("home")),
    Case("retry: what others have answered", BIG + OLD, lambda s: answered(s)),
    Case("retry", BIG, lambda s: s.rows.retry(TONIGHT, [RequestState.FAILED])),
    Case("end: what is open", BIG, lambda s: ended(s, TONIGHT)),
    Case("end: twins", TWINS, lambda s: ended(s, SAME)),
    Case("house: files are gone", OLD, lambda s: s.removals.clear(FIRST, "/out", NOW)),
    Case("house: a job is forgotten", OLD * 2, lambda s: s.removals.forget(FIRST)),
]  # fmt: skip


def seen(first: int) -> list[SeenDocument]:
    return [SeenDocument(name, "d", 1, None, "s2", "c2") for name in names(first)]


def shard_of(store: Store) -> object:
    return store.shards.get(batch(store))


def answered(store: Store) -> object:
    """Of the long job's rows, of which runs before have answered the first ones."""
    return store.awaited.taken(store.jobs.get(TONIGHT), [FIRST, SECOND], [], [RequestState.PENDING])


def ended(store: Store, job_id: JobId) -> int:
    return store.rows.end_open(job_id, RequestState.CANCELLED, "cancelled", "x", NOW)


@pytest.mark.slow
def test_every_verb_looks_at_no_more_rows_than_it_is_about(filled: Store) -> None:
    # One test for all: what a verb changes, those below it find, and the rows are there once.
    too_much = []
    for case in CASES:
        work = taken(case.call, filled)
        if work.rows > MOST * case.rows + 500 or work.instructions > MOST * INSTRUCTIONS * case.rows + 20_000:
            too_much.append(f"{case.name}, about {case.rows:,} rows: {work}")
    assert not too_much, "\n\n".join(too_much)
