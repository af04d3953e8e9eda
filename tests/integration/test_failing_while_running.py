"""What fails in a batch of our own server counts while the batch still runs: its answers are read as they come."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.core.clock import now
from orchestrator.core.model import Job, Outcome, RequestState
from orchestrator.core.shards import ShardState
from orchestrator.daemon.loop import Daemon
from orchestrator.pipeline.build.submission import Options, submit
from orchestrator.pipeline.collect import failures_so_far
from orchestrator.reports import status
from orchestrator.reports.status import JobDetail
from orchestrator.settings.config import load
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import Settled
from tests.support.cli import write_config
from tests.support.databases import new_sqlite
from tests.support.handles import handle
from tests.support.process import Upstream
from tests.support.stored import NOW, ranges, shard

JOB = """\
name: letters
documents: {{path: documents}}
tasks:
  - id: facts
    model: small
    max_tokens: 100
    prompt: What are the facts?
    schema: {{type: object, properties: {{topic: {{type: string}}}}, required: [topic]}}
    {task}
models: {{small: some-model}}
{more}
"""
PATIENCE = 120.0
"""Seconds: only a test that fails takes them."""
BAD, REFUSED, HANGS, GOOD = "[[fault:notjson]]", "[[fault:status:400]]", "[[fault:hang]]", ""


class Running:
    """A job that a daemon of this process runs, by a clock a thousand times as fast."""

    def __init__(self, folder: Path, upstream: Upstream) -> None:
        write_config(folder, [upstream.base_url], retry_delay=0.01)
        self.folder = folder
        place = Place(folder / "orch.toml", folder, f"sqlite:///{folder / 'orch.db'}", 10.0)
        self.config, self.home = load(place), Home(folder)
        self.store = Store.open(new_sqlite(folder / "orch.db"))

    def submit(self, *letters: str, task: str = "", more: str = "") -> Job:
        documents = self.folder / "documents"
        documents.mkdir(exist_ok=True)
        for number, fault in enumerate(letters):
            (documents / f"{number:02d}.txt").write_text(f"Letter {number}. {fault}", encoding="utf-8")
        path = self.folder / "job.yaml"
        path.write_text(JOB.format(task=task, more=more), encoding="utf-8")
        return submit(self.store, self.home, self.config, path, Options(), now, lambda *read: None).job

    def until(self, condition: Callable[[], bool]) -> None:
        """Be the daemon until something is so."""
        give_up = time.monotonic() + PATIENCE
        with Daemon(self.config, self.store) as daemon:
            daemon.run(lambda: condition() or time.monotonic() > give_up)
        assert condition()

    def detail(self, job: Job) -> JobDetail:
        return status.detail(self.store, self.store.jobs.get(job.id), now(), lambda shard: Decimal(0))

    def failing(self, job: Job) -> Any:
        return [one.failing for one in self.store.shards.of_job(job.id)]


@pytest.fixture
def running(tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    clock = tmp_path / "clock.json"
    clock.write_text(f'{{"at": "2026-11-21T22:00:00Z", "since": {time.time()}, "speed": 1000}}')
    monkeypatch.setenv("ORCH_CLOCK", str(clock))
    found = Running(tmp_path, upstream)
    yield found
    upstream.kill()
    found.store.close()


def test_status_and_alerts_count_what_has_failed_so_far(running: Running) -> None:
    job = running.submit(*[BAD] * 4, *[REFUSED] * 2, *[GOOD] * 24, HANGS)
    so_far = {"new": {"http_400": 2, "invalid_json": 4}, "known": {}}

    def told() -> bool:
        """Both, and the good ones too: each look may find some of them."""
        alerted = any(event.kind == "alert" for event in running.store.jobs.events(job.id))
        return alerted and running.detail(job).line.to_json()["requests"]["done"] == 30

    running.until(lambda: running.failing(job) == [so_far] and told())
    [batch] = running.store.shards.of_job(job.id)
    assert batch.state is ShardState.SUBMITTED
    line = running.detail(job).line
    assert (line.counts.pending, line.counts.failed, line.failed_so_far) == (31, 0, 6)
    told_rows = line.to_json()["requests"]
    assert told_rows["failed_so_far"] == 6
    assert (told_rows["finished_in_batches"], told_rows["done"]) == (30, 30)
    [alert] = [event.reason for event in running.store.jobs.events(job.id) if event.kind == "alert"]
    # It is told at the first look that finds enough of them: how many were read by then is a matter of moments.
    assert re.match(r"quality: [3-6] of (2\d|30) rows have failed \(\d+%\)", alert)


def test_a_canary_that_cannot_pass_any_more_ends_the_job(running: Running) -> None:
    job = running.submit(*[BAD, HANGS] * 4, *[GOOD] * 4, more="canary: {rows: 6, max_failed: 0.2}")

    def stopped() -> bool:
        return running.store.jobs.get(job.id).cancel_requested_at is not None

    running.until(stopped)
    current = running.store.jobs.get(job.id)
    # Two of six are enough; how many were read by then is a matter of moments.
    assert re.match(
        r"canary: [234] of 6 rows that went first failed \([234] invalid_json\)", current.cancel_reason or ""
    )
    assert len(running.store.shards.of_job(job.id)) == 1, "the others were never sent"


def test_an_answer_that_is_asked_for_again_has_not_failed(running: Running) -> None:
    job = running.submit(BAD, REFUSED, HANGS, task="retries: 1")
    running.until(lambda: running.failing(job) == [{"new": {"http_400": 1}, "known": {}}])


@pytest.mark.long
def test_what_failed_in_an_earlier_night_is_known_while_it_runs(running: Running) -> None:
    first = running.submit(REFUSED, GOOD)
    running.until(lambda: running.store.jobs.get(first.id).finished_at is not None)
    with running.store._database.write() as tx:  # as if it might pass, so that the next night asks again
        tx.exec_driver_sql("UPDATE requests SET error_code = 'http_500' WHERE error_code = 'http_400'")
    second = running.submit("[[fault:status:500]]", GOOD, HANGS)
    running.until(lambda: running.failing(second) == [{"new": {}, "known": {"http_500": 1}}])
    assert second.id != first.id


@pytest.mark.long
def test_rows_that_are_all_refused_alike_are_taken_back_before_the_others_are_asked(running: Running) -> None:
    job = running.submit(*[REFUSED] * 24, *[HANGS] * 2)
    running.until(lambda: running.store.holds.of(job.id) != [])
    # By this clock an hour is 4 s: a slow machine may have begun to ask again.
    first, *_ = running.store.shards.of_job(job.id)
    # How many were read by then is a matter of moments; 20 are enough.
    assert re.fullmatch(r"all of the first 2[0-4] rows were refused: http_400", first.rerouted_for or "")
    assert running.store.jobs.counts([job.id])[job.id].pending == 26


class Files:
    """A backend whose running batch has written so much."""

    def __init__(self, output: bytes = b"", error: bytes = b"") -> None:
        self.output, self.error, self.asked = output, error, 0

    def read_on(self, batch_id: str, kind: str, first: int, most: int) -> bytes:
        self.asked += 1
        return (self.output if kind == "output" else self.error)[first : first + most]


def result(name: str, text: str = "no JSON") -> bytes:
    body = f'{{"model": "m", "choices": [{{"message": {{"content": "{text}"}}, "finish_reason": "stop"}}]}}'
    return f'{{"custom_id": "{name}", "response": {{"status_code": 200, "body": {body}}}}}\n'.encode()


@pytest.mark.long
def test_a_file_is_read_on_from_where_it_was_left(running: Running) -> None:
    job = running.submit(*[GOOD] * 4)
    [found] = ranges(running.store, job)
    batch = shard(job, rows=found.rows)
    running.store.shards.add(batch, found)
    sent = replace(batch, state=ShardState.SUBMITTED, batch_id="batch_1", submitted_at=NOW)
    names = [row.custom_id for row in running.store.rows.of_shard(batch.id)]
    files, read = Files(), failures_so_far.FailuresSoFar(running.store, running.home)

    def look(seconds: float) -> Any:
        return read.look(job, sent, handle(files), lambda: False, NOW + timedelta(seconds=seconds))

    files.output = result(names[0]) + result(names[1])[:-20]
    assert (look(1), files.asked) == (None, 0), "it has only just begun"
    assert look(20) == {"new": {"invalid_json": 1}, "known": {}}
    assert look(21) is None, "it was looked at just now"
    files.output = result(names[0]) + result(names[1]) + b"no result line\n" + result("unknown")
    assert look(40) == {"new": {"invalid_json": 2}, "known": {}}
    # A line that is longer than what is read at once, and so many that one look is not enough.
    files.output += result(names[2], "x" * (failures_so_far.MOST_BYTES + 9)) + result(names[3])
    assert [look(60), look(60)] == [None, {"new": {"invalid_json": 4}, "known": {}}]
    read.forget(sent)
    # From the start again; until it has caught up, it tells nothing.
    assert [look(100) for _ in range(3)] == [None, None, {"new": {"invalid_json": 4}, "known": {}}]


def test_what_is_settled_is_not_counted_twice(running: Running) -> None:
    job = running.submit(GOOD, GOOD)
    [found] = ranges(running.store, job)
    batch = shard(job, rows=found.rows)
    running.store.shards.add(batch, found)
    for state in (ShardState.SUBMITTING, ShardState.SUBMITTED):
        running.store.shards.move(running.store.shards.get(batch.id), state)
    running.store.shards.note(running.store.shards.get(batch.id), failing={"new": {"refusal": 1}, "known": {}})
    assert running.detail(job).line.failed_so_far == 1
    running.store.shards.move(running.store.shards.get(batch.id), ShardState.ENDED)
    failed = Outcome(0, RequestState.FAILED, error_code="refusal")
    running.store.rows.settle(batch.id, job.id, "gpu", [Settled(failed, None)], NOW)
    assert running.detail(job).line.failed_so_far == 1


def test_a_batch_with_nothing_but_failures_is_no_progress_until_they_are_read(running: Running) -> None:
    job = running.submit(GOOD, GOOD)
    [found] = ranges(running.store, job)
    batch = shard(job, rows=found.rows)
    running.store.shards.add(batch, found)

    def seen(**facts: object) -> tuple[int, int]:
        if facts:
            running.store.shards.note(running.store.shards.get(batch.id), **facts)
        told = running.detail(job).line.to_json()["requests"]
        return told["done"], told["failed_so_far"]

    for state in (ShardState.SUBMITTING, ShardState.SUBMITTED):
        running.store.shards.move(running.store.shards.get(batch.id), state)
    assert seen(provider_failed=2) == (0, 0), "both may be asked again, in another spelling"
    assert seen(failing={"new": {"http_400": 2}, "known": {}}) == (2, 2)
    assert seen(failing=None, provider_completed=1, provider_failed=1) == (2, 1)
    assert seen(provider_completed=0, provider_failed=2) == (0, 0)
    running.store.shards.move(running.store.shards.get(batch.id), ShardState.ENDED)
    assert seen() == (0, 0)
