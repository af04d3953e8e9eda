"""Failed rows of a running batch, counted from the results that its backend already shows.

A backend counts only the requests that it refused. To find answers that fail their check, orch reads the results in
steps. Rows get their outcomes only when the batch is collected. The counts are kept in memory: after a restart, orch
reads the results again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from msgspec import Struct, field

from orchestrator.core.errors import BackendError
from orchestrator.core.model import Job, Outcome, RequestState
from orchestrator.core.shards import Shard
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect import reask
from orchestrator.pipeline.collect.sent_documents import SentDocuments
from orchestrator.pipeline.finish.confidences import checks_of
from orchestrator.pipeline.lost_answers import KINDS
from orchestrator.policy import results
from orchestrator.policy.reask_lines import MENDABLE
from orchestrator.policy.results import FoundLine
from orchestrator.policy.row_errors import BAD_ANSWERS
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import InShard

EVERY = timedelta(seconds=15)
MOST_BYTES = 4 << 20
"""Maximum bytes read per call of `look`. If the file has more, the next call may follow immediately."""
Failing = dict[str, dict[str, int]]


class _Read(Struct):
    """Progress in a batch's files.

    `due` is the time of the next read, and `most` its maximum bytes. `ends` counts the bytes read by file. `failing`
    counts failures as `new` or `known`, by code.
    """

    due: datetime
    most: int = MOST_BYTES
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    failing: dict[str, Counter[str]] = field(default_factory=lambda: {"new": Counter(), "known": Counter()})


class FailuresSoFar:
    def __init__(self, store: Store, home: Home) -> None:
        self._store = store
        self._home = home
        self._by_shard: dict[str, _Read] = {}

    def look(
        self, job: Job, shard: Shard, handle: BackendHandle, has_stronger: Callable[[], bool], now: datetime
    ) -> Failing | None:
        """Return the failures so far, or None if it is too early or the backend does not show results.

        `has_stronger` returns True if a row with a bad answer would go to a stronger model.
        """
        read = self._by_shard.setdefault(shard.id, _Read((shard.submitted_at or now) + EVERY))
        if shard.batch_id is None or now < read.due:
            return None
        read.due = now + EVERY
        for kind in KINDS:
            with suppress(BackendError):  # the last poll succeeded, so the next call may too
                part = handle.api.read_on(shard.batch_id, kind, read.ends[kind], read.most)
                if part is None:
                    return None
                whole = part[: part.rfind(b"\n") + 1]
                self._count(job, shard, kind, whole, read, has_stronger)
                read.ends[kind] += len(whole)
                if len(part) == read.most:
                    read.due = now
                    # A line longer than this is read whole next time.
                    read.most = MOST_BYTES if whole else read.most * 2
        is_behind = read.due == now
        return None if is_behind else {name: dict(sorted(codes.items())) for name, codes in read.failing.items()}

    def forget(self, shard: Shard) -> None:
        """Drop the counts of a batch that has ended. Collection now decides the outcomes of its rows."""
        self._by_shard.pop(shard.id, None)

    def _count(
        self, job: Job, shard: Shard, kind: str, lines: bytes, read: _Read, has_stronger: Callable[[], bool]
    ) -> None:
        found = {one.line.custom_id: one for one in results.parsed(lines) if one.line and one.line.custom_id}
        rows = self._store.rows.named(shard, found) if found else {}
        sent = SentDocuments(self._store, self._home, job.id)
        failed = {row.custom_id: outcome for row, outcome in _failed(job, kind, rows, found, sent)}
        if any(outcome.error_code in BAD_ANSWERS for outcome in failed.values()):
            retries, goes_up = reask.retries_of(job), has_stronger()
            failed = {
                name: one for name, one in failed.items() if not _will_be_reasked(rows[name], one, retries, goes_up)
            }
        codes = {name: outcome.error_code or "error" for name, outcome in failed.items()}
        known = self._store.failures.known(job, codes) if codes else frozenset()
        for name, code in codes.items():
            read.failing["known" if name in known else "new"][code] += 1


def _failed(
    job: Job, kind: str, rows: Mapping[str, InShard], found: Mapping[str, FoundLine], sent: SentDocuments
) -> Iterator[tuple[InShard, Outcome]]:
    checks = checks_of(job)
    for name, row in rows.items():
        outcome = results.outcome(row.seq, kind, found[name], checks.get(row.task), sent=partial(sent.of, row))
        if isinstance(outcome, Outcome) and outcome.state is RequestState.FAILED:
            yield row, outcome


def _will_be_reasked(row: InShard, outcome: Outcome, retries: Mapping[str, int], goes_up: bool) -> bool:
    if outcome.error_code not in BAD_ANSWERS:
        return False
    return goes_up or (outcome.error_code in MENDABLE and row.again < retries.get(row.task, 0))
