"""Refusals that all rows of a kind share. These rows are held back instead of failing one by one.

A kind is the rows of one task of a job for one model at one backend. If all of them are refused alike and none was
answered, the fault lies with the request, model or backend. The rows wait and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.model import Job, JobId
from orchestrator.core.refused_fields import RefusedField
from orchestrator.core.sanitize import shortened
from orchestrator.core.shards import Shard
from orchestrator.policy import results
from orchestrator.policy.results import NOT_EXECUTED, RowRefusal
from orchestrator.policy.row_errors import BAD_ANSWERS, Disposition, RowVerdict, classify
from orchestrator.store import Store
from orchestrator.store.records import InShard, RefusalHold

FIRST_PROBE, LONGEST_PROBE = timedelta(minutes=15), timedelta(hours=6)
"""First and longest wait before orch tries one of the held rows. Each refusal doubles the wait."""
OF_CONTENT = frozenset({"context_length_exceeded", "content_filter", "invalid_image", "larger_than_rate"})
"""Refusals caused by the content of one row. Rows that share such a refusal still fail one by one."""
OF_REQUEST = frozenset({"unsupported_parameter", "model_not_found", "unsupported_region"})
"""Refusals caused by the request or the model. One refused row is enough to hold back the others."""
FEWEST = 2
"""Number of rows that must share any other refusal. With fewer, one row's content may be the cause."""
MOST_WORDS = 500
FieldOf = Callable[[InShard, RowRefusal], RefusedField | None]


class CommonRefusal(Struct, frozen=True):
    """A refusal, in the provider's words, shared by all rows of a task that were read.

    `rows` is their number; `first` is the custom_id of one of them.
    """

    code: str
    message: str
    rule: str
    rows: int
    first: str = ""

    @property
    def is_enough(self) -> bool:
        """True if these rows prove that the next row would be refused too."""
        return self.rule not in OF_CONTENT and (self.rule in OF_REQUEST or not self.is_single)

    @property
    def is_single(self) -> bool:
        """True if too few rows share the refusal, so that one row's content may be the cause."""
        return self.rows < FEWEST


def in_files(paths: Iterable[Path], rows: Mapping[str, InShard], field_of: FieldOf) -> dict[str, CommonRefusal]:
    """Return, by task, the refusal that all of a task's rows in the result files share. Raises OSError.

    Reading stops once every task has an answered row.
    """
    found: dict[str, tuple[tuple[object, ...], CommonRefusal]] = {}
    mixed: set[str] = set()
    tasks = {row.task for row in rows.values()}
    for path in paths:
        for one in results.read(path):
            row = rows.get(one.line.custom_id or "") if one.line is not None else None
            if row is None or one.line is None or row.task in mixed:
                continue
            common = None
            if results.is_refused(one.line):
                refusal = results.refusal(one.line)
                if refusal.code in NOT_EXECUTED:
                    continue
                kind = (refusal.status, refusal.code, refusal.type)
                common = _shared_so_far(row, refusal, field_of, found.get(row.task), kind)
            if common is None:
                mixed.add(row.task)
                if mixed >= tasks:
                    return {}
                continue
            found[row.task] = kind, common
    return {task: common for task, (_, common) in found.items() if task not in mixed}


def _shared_so_far(
    row: InShard,
    refusal: RowRefusal,
    field_of: FieldOf,
    before: tuple[tuple[object, ...], CommonRefusal] | None,
    kind: tuple[object, ...],
) -> CommonRefusal | None:
    if before is not None:
        first, known = before
        number = known.rows + int(row.custom_id != known.first)
        return replace(known, rows=number) if first == kind else None
    verdict = classify(refusal.status, refusal.code, refusal.type, refusal.message, field_of(row, refusal))
    common = of_verdict(verdict, refusal.code, refusal.message)
    return None if common is None else replace(common, first=row.custom_id)


def of_verdict(verdict: RowVerdict, code: str | None, message: str | None, rows: int = 1) -> CommonRefusal | None:
    """Return the refusal if other rows may share it. None if it may pass or is about the account."""
    if verdict.disposition not in (Disposition.NEVER, Disposition.ELSEWHERE):
        return None
    words = shortened(message or verdict.why, MOST_WORDS)
    return CommonRefusal(shortened(code or verdict.code, MOST_WORDS), words, verdict.rule, rows)


def is_shared(code: str) -> bool:
    """True if rows that end with this code may be held back."""
    verdict = classify(None, code, None, None)
    is_refusal = verdict.disposition in (Disposition.NEVER, Disposition.ELSEWHERE)
    return code not in BAD_ANSWERS and is_refusal and verdict.rule not in OF_CONTENT


def is_unsent_and_held(store: Store, shard: Shard) -> bool:
    """True if a shard has rows of a held kind and was made before the hold."""
    holds = [hold for hold in store.holds.of(shard.job_id) if is_about(hold, shard)]
    held = {hold.task for hold in holds if shard.created_at <= hold.held_at}
    return bool(held) and any(row.task in held for row in store.rows.of_shard(shard.id))


def apply(store: Store, shard: Shard) -> None:
    """Hold back the rows of a dissolved shard that belong to a held kind."""
    for hold in store.holds.of(shard.job_id):
        if is_about(hold, shard):
            store.holds.put(hold)


def of_shard(store: Store, shard: Shard, common: Mapping[str, CommonRefusal]) -> dict[str, CommonRefusal]:
    """Return the shared refusals, by task, of rows to hold back. Tasks with answered rows are left out."""
    if not common:
        return {}
    held = {hold.task for hold in store.holds.of(shard.job_id) if is_about(hold, shard)}
    return {
        task: one
        for task, one in common.items()
        if (task in held or one.is_enough)
        and not store.holds.has_answers(shard.job_id, None if one.is_single else shard.backend, shard.model, task)
    }


def hold_back(
    store: Store, job_id: JobId, backend: str, model: str, refused: Mapping[str, CommonRefusal], now: datetime
) -> None:
    """Hold back present and future rows of tasks that a backend refuses.

    `model` is the alias that the rows name. The rows avoid the backend until the hold is lifted.
    """
    known = {(one.backend, one.model, one.task): one.times for one in store.holds.of(job_id)}
    for task, one in refused.items():
        times = known.get((backend, model, task), 0)
        probe_at = now + min(LONGEST_PROBE, FIRST_PROBE * 2 ** min(times, 8))
        hold = RefusalHold(job_id, backend, model, task, one.code, one.message, now, probe_at, times + 1)
        store.holds.put(hold)


def is_about(hold: RefusalHold, shard: Shard) -> bool:
    return hold.backend == shard.backend and hold.model == shard.model


def lift_answered(store: Store, shard: Shard) -> None:
    """Lift each hold on this shard's rows once a row of its kind is answered."""
    holds = [hold for hold in store.holds.of(shard.job_id) if is_about(hold, shard)]
    answered = [one for one in holds if store.holds.has_answers(one.job_id, one.backend, one.model, one.task)]
    if answered:
        store.holds.lift(answered)


def tend(store: Store, job: Job, now: datetime) -> bool:
    """Try one row of each hold that is due, or end the held rows at the job's deadline. True if a row moved."""
    moved = False
    for hold in store.holds.of(job.id):
        if job.deadline_at is not None and job.deadline_at <= now:
            moved |= store.holds.end(hold, now) > 0
        elif hold.probe_at <= now:
            moved |= store.holds.probe(hold, now + LONGEST_PROBE)
    return moved
