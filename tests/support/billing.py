"""What is left of a hosted job: our books and the provider's, and every way in which they must agree."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from typing import Any

from sqlalchemy import text

from orchestrator.core.model import PICO, FinishedRow, Job, Usage
from orchestrator.core.shards import Shard, ShardState
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.emulator.rowfaults import Tokens
from tests.emulator.world import PURPOSES
from tests.support.schedules import ATTEMPTS, Given, Schedule

RATES = {
    "standard": {"input": Decimal(4), "output": Decimal(16)},
    "batch": {"input": Decimal(2), "output": Decimal(8), "cached": Decimal("0.5"), "cache_write": Decimal("2.5")},
}
"""Dollars for a million tokens."""

_KINDS = ("input", "cached", "cache_write", "output", "reasoning")
_KEPT = ("requests.jsonl", "results.batch.jsonl", ".output.jsonl", ".error.jsonl", ".late.jsonl", "build.lock")


@dataclass(frozen=True, slots=True)
class Books:
    """Everything that is compared. `asked` counts how often the provider billed each text, by its digest."""

    jobs: int
    rows: dict[str, FinishedRow]
    shards: list[Shard]
    merged: list[str]
    left_here: list[str]
    ledger: Usage
    cost: Decimal
    uncertain: Decimal
    lines: list[dict[str, Any]]
    asked: dict[str, int]
    batches: list[dict[str, Any]]
    files: list[dict[str, Any]]

    @classmethod
    def read(cls, store: Store, home: Home, provider: Emulator, job: Job) -> Books:
        totals = store.ledger.totals("job", job_id=job.id)
        bill, state = provider.bill(rows=True), provider.state()
        assert job.output_path is not None
        with open(job.output_path, encoding="utf-8") as merged:  # noqa: PTH123
            ids = [json.loads(line)["custom_id"] for line in merged]
        folder = home.job(job.id)
        paths = (path for path in folder.rglob("*") if path.is_file())
        # Those of shards whose late answers are looked for are needed still; a look may be under way.
        late = [one.id for one in store.shards.of_job(job.id) if one.owed]
        owed = tuple(path.name for one in late for path in (home.shard_input(one), home.results(one, "late")))
        paths = [path for path in paths if not (owed and path.name.startswith(owed))]
        return cls(
            jobs=len(store.jobs.newest()),
            rows={row.custom_id: row for row in store.rows.finished(job.id)},
            shards=store.shards.of_job(job.id),
            merged=ids,
            left_here=[str(path.relative_to(folder)) for path in paths if not path.name.endswith(_KEPT)],
            ledger=_sum(total.usage for total in totals),
            cost=sum((total.cost for total in totals), Decimal(0)),
            uncertain=sum(booked_twice(store, job).values(), Decimal(0)),
            lines=bill["lines"],
            asked=bill["asked"],
            batches=state["batches"],
            files=[file for file in state["files"] if file["is_there"]],
        )

    @property
    def bill_rows(self) -> int:
        return sum(line["rows"] for line in self.lines)

    @property
    def unexplained(self) -> int:
        """Rows that the provider billed and returned in no file."""
        return self.bill_rows - sum(row.usage != Usage() for row in self.rows.values())


def _sum(parts: Iterator[Usage]) -> Usage:
    given = [
        (one.input_tokens, one.cached_tokens, one.output_tokens, one.reasoning_tokens, one.cache_write_tokens)
        for one in parts
    ]
    return Usage(*(sum(column) for column in zip(*given, strict=True))) if given else Usage()


def mistakes(schedule: Schedule, books: Books, *, kills: int) -> Iterator[str]:
    """Every promise that was not kept, in words."""
    ids = [row.custom_id for row in schedule.rows]
    if books.jobs != 1:
        yield f"{books.jobs} jobs were made of one file"
    if books.merged != ids:
        yield f"the output has {len(books.merged)} rows, {len(set(books.merged))} of them different: {books.merged}"
    for row in schedule.rows:
        yield from _of_row(schedule, row, books)
    yield from _of_bill(schedule, books)
    yield from _of_batches(books)
    yield from _left(schedule, books, kills)


def _of_row(schedule: Schedule, row: Given, books: Books) -> Iterator[str]:
    found = books.rows[row.custom_id]
    name = f"{row.custom_id} ({row.mark.text or 'plain'})"
    if found.state not in allowed(schedule, row):
        yield f"{name} is {found.state} ({found.error_code}: {found.error_message}), attempt {found.attempt}"
    answered = found.state == "succeeded"
    usage = usage_of(row.tokens) if answered else Usage()
    if found.usage != usage:
        yield f"{name} is {found.state} with {found.usage} where {usage} is right"
    lost = books.asked.get(row.digest, 0) - answered
    # What a provider loses again and again may be lost once more in each batch that expires, which costs no attempt:
    # at Anthropic that is one with a row that does.
    expired = sum(blow.fault["do"] in ("expires", "stuck_in_progress") for blow in schedule.blows)
    expired += sum(other.mark.text == "expired:1" for other in schedule.rows) if "claude" in schedule.order else 0
    most = row.mark.lost + sum(blow.lost for blow in schedule.blows) + (expired if row.mark.lost else 0)
    if not 0 <= lost <= most:
        yield f"{name} is {found.state} and was billed {lost + answered} times, where {most} answers may be lost"


def allowed(schedule: Schedule, row: Given) -> set[str]:
    """How a row may end."""
    states = {row.mark.state}
    if row.mark.attempts + sum(blow.attempts for blow in schedule.blows) >= ATTEMPTS:
        states.add("failed")
    if any(blow.fault["do"] == "fails" for blow in schedule.blows):
        states.add("failed")
    if schedule.cancel_at < inf:
        # Nothing is tried again for a job that is to end.
        states |= {"cancelled", "failed"} if row.mark.text or schedule.blows else {"cancelled"}
    return states


def usage_of(tokens: Tokens) -> Usage:
    return Usage(tokens.input, tokens.cached, tokens.output, tokens.reasoning, tokens.cache_write)


def cost_of(used: Usage) -> Decimal:
    """What these tokens cost in a batch, in dollars."""
    rates = RATES["batch"]
    plain = used.input_tokens - used.cached_tokens - used.cache_write_tokens
    parts = {
        "input": plain,
        "cached": used.cached_tokens,
        "cache_write": used.cache_write_tokens,
        "output": used.output_tokens,
    }
    return sum((tokens * rates[kind] for kind, tokens in parts.items()), Decimal(0)) / 1_000_000


def booked_twice(store: Store, job: Job) -> dict[int, Decimal]:
    """What is booked as uncertain, by the place of its row."""
    query = text("SELECT seq, cost FROM ledger WHERE job_id = :job AND kind = 'uncertain'")
    with store._database.read() as tx:
        return {seq: Decimal(cost) * PICO for seq, cost in tx.execute(query, {"job": job.id})}


_TELL_ONE_END = frozenset({"mistral", "together"})
"""Providers whose batches have one time for every end."""


def _of_bill(schedule: Schedule, books: Books) -> Iterator[str]:
    """The bill is the ledger, with what was billed and never returned: each token of it."""
    lost: Counter[str] = Counter()
    for row in schedule.rows:
        times = books.asked.get(row.digest, 0) - (books.rows[row.custom_id].state == "succeeded")
        for kind in _KINDS:
            lost[kind] += times * getattr(row.tokens, kind)
    for kind in _KINDS:
        billed = sum(line[kind] for line in books.lines)
        booked = getattr(books.ledger, f"{kind}_tokens")
        if booked + lost[kind] != billed:
            yield f"{billed} {kind} tokens are billed, {booked} booked and {lost[kind]} lost at the provider"
    cost = cost_of(books.ledger)
    faults = {blow.fault["do"] for blow in schedule.blows}
    # Under an unknown word, their failed batch looks like one that ended without a row, which may have run.
    is_hidden = {"fails", "new_status"} <= faults and not _TELL_ONE_END.isdisjoint(schedule.order)
    booked = books.cost - (books.uncertain if is_hidden else 0)
    if booked != cost:
        yield f"the ledger says ${booked}, its tokens cost ${cost}"


def _of_batches(books: Books) -> Iterator[str]:
    """Each batch that was made is one shard's, and no shard has two."""
    ours = Counter(shard.batch_id for shard in books.shards if shard.batch_id is not None)
    # One that vanished before its creation was told has left nothing that could be found.
    there = [batch for batch in books.batches if batch["status"] != "gone" or batch["id"] in ours]
    theirs = {batch["id"] for batch in there}
    if ours.keys() != theirs or ours.total() != len(theirs):
        yield f"batches at the provider: {sorted(theirs)}; by our shards: {sorted(ours.elements())}"
    named = Counter((batch["metadata"] or {"orch_shard": batch["id"]})["orch_shard"] for batch in there)
    if twice := [shard for shard, times in named.items() if times > 1]:
        yield f"more than one batch was made for {twice}"
    if open_shards := [(shard.id, shard.state) for shard in books.shards if not shard.state.is_final]:
        yield f"the job is over, but not {open_shards}"


def _left(schedule: Schedule, books: Books, kills: int) -> Iterator[str]:
    if books.left_here:
        yield f"files are left here that nobody needs: {books.left_here}"
    known = {
        file_id
        for shard in books.shards
        for file_id in (shard.input_file_id, shard.output_file_id, shard.error_file_id)
        if not shard.owed
    }
    owed = tuple(shard.batch_id for shard in books.shards if shard.owed and shard.batch_id is not None)
    still = {shard.input_file_id for shard in books.shards if shard.owed}
    # What was uploaded and then not sent is deleted once, or not at all.
    if any(blow.fault["match"]["verb"] == "delete_file" for blow in schedule.blows):
        known -= {shard.input_file_id for shard in books.shards if shard.state is ShardState.CANCELLED}
    gone = tuple(batch["id"] for batch in books.batches if batch["status"] == "gone")
    there = [one for one in books.files if not one["name"].startswith((*gone, *owed)) and one["id"] not in still]
    kept = [file for file in there if file["id"] in known or file["purpose"] not in PURPOSES]
    if len(kept) > sum(blow.kept_files for blow in schedule.blows):
        yield f"files that we know of are left at the provider: {kept}"
    # An upload whose answer was lost: nobody knows of it but the provider, and it goes away by itself.
    unknown = [file["id"] for file in there if file not in kept]
    deletions = sum(blow.fault["match"]["verb"] == "delete_file" for blow in schedule.blows)
    if len(unknown) > kills + sum(blow.uploads for blow in schedule.blows) + 2 * deletions:
        yield f"{len(unknown)} input files are left at the provider: {unknown}"
