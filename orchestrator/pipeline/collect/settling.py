"""Stage 5: the files of an ended batch (completed, failed, expired or cancelled) become outcomes.

Each row of the shard is handled once. A row without a result moves to a new shard or ends with a reason. A row whose
answer fails its check is re-asked as often as its task says. Then it goes to the next model of its alias.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from orchestrator.backends import BATCH_GONE
from orchestrator.core import tokens
from orchestrator.core.model import Job, Outcome, Price, RequestState, Usage
from orchestrator.core.shards import Shard, ShardState
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect import common_refusals, ids_at_backend, reask, swapped_answers
from orchestrator.pipeline.collect.common_refusals import OF_REQUEST, CommonRefusal
from orchestrator.pipeline.collect.fetch import discard
from orchestrator.pipeline.collect.learned_refusals import LearnedRefusals
from orchestrator.pipeline.collect.sent_documents import SentBounds, SentDocuments
from orchestrator.pipeline.collect.unanswered import (
    CHUNK,
    EndedShard,
    Ends,
    ShardTally,
    UnansweredRows,
    common_of_batch,
)
from orchestrator.pipeline.dialects import line_writer
from orchestrator.pipeline.lost_answers import KINDS
from orchestrator.policy import results, row_errors
from orchestrator.policy.answer_ends import Bound
from orchestrator.policy.preflight import fields_of
from orchestrator.policy.reask_lines import MENDABLE
from orchestrator.policy.results import FoundLine, NotExecuted, RowRefusal
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import rung_of
from orchestrator.settings.stored_spec import expires, tasks_of
from orchestrator.store import Store
from orchestrator.store.records import InShard, Settled

log = logging.getLogger(__name__)

REASONING_STEP = 64
"""Step, in tokens, in which providers count reasoning. An answer may end up to one step before its limit."""


def collect(store: Store, home: Home, ended: EndedShard) -> ShardTally:
    """Settle the rows with results, and decide on the others. Repeating the call after a crash changes nothing."""
    return _Settlement(store, home, ended).run()


class _Settlement:
    """Settles an ended shard's rows, a chunk at a time.

    `not_executed` rows had been sent when their batch ended. `unfinished` are incomplete answers that were billed;
    their rows are tried again. `unmatched` are result lines that match no row, each with its file's kind. They may
    belong to the `doubtful` rows. An adopted batch may contain answers that this job did not ask for. `adopted` has
    their total price, under one row's number.
    """

    def __init__(self, store: Store, home: Home, ended: EndedShard) -> None:
        self._store = store
        self._home = home
        self._ended = ended
        self._tally = ShardTally(lost=ended.fetched.lost)
        self._rows = {row.custom_id: row for row in store.rows.of_shard(ended.shard.id)}
        self._sent = SentDocuments(store, home, ended.job.id)
        self._bounds = SentBounds(home, ended.shard.id)
        self._lessons = LearnedRefusals(store, home, ended.job, ended.shard, ended.handle, ended.model, ended.now)
        self._unanswered = UnansweredRows(ended, self._tally, self._lessons, self._common())
        self._pending: list[Settled] = []
        self._escalating: list[Settled] = []
        self._reasking: list[tuple[InShard, Settled]] = []
        self._not_executed: list[tuple[InShard, NotExecuted]] = []
        self._unfinished: list[Settled] = []
        self._unmatched: list[tuple[str, FoundLine]] = []
        self._doubtful: list[InShard] = []
        self._adopted: dict[int, Price] = {}

    def run(self) -> ShardTally:
        store, ended, tally = self._store, self._ended, self._tally
        shard, step = ended.shard, ended.standing.step
        tally.escalated_to = " or ".join(step.models) if step is not None else ""
        for row, outcome in self._proven_outcomes():
            if outcome.is_answer:
                tally.answers += 1
                tally.answered.setdefault(row.task, row.custom_id)
            code = _code_to_reask(ended, outcome)
            if code in MENDABLE and row.again < ended.retries.get(row.task, 0):
                self._reasking.append((row, self._settled(row, outcome)))
                tally.reasked[code] += 1
            elif code is not None and step is not None:
                self._escalating.append(self._settled(row, outcome))
                tally.escalated[code] += 1
            else:
                self._pending.append(self._settled(row, outcome))
                tally.settled[outcome.state] += 1
            if len(self._pending) + len(self._escalating) + len(self._reasking) >= CHUNK:
                self._write()
        self._write()
        self._book_costs()
        tally.released = self._unanswered.release(store)
        if self._unanswered.held:
            common = self._unanswered.common
            common_refusals.hold_back(store, shard.job_id, shard.backend, shard.model, common, ended.now)
            tally.refused_alike = common
        elif tally.settled[RequestState.SUCCEEDED]:
            common_refusals.lift_answered(store, shard)
        if not ended.handle.is_own:
            is_lost = shard.refusal_code == BATCH_GONE
            tally.owed = tally.open if is_lost else min(tally.open, ended.fetched.short)
        return tally

    def _write(self) -> None:
        store, ended, step = self._store, self._ended, self._ended.standing.step
        shard, now = ended.shard, ended.now
        store.rows.settle(shard.id, ended.job.id, shard.backend, self._pending, now, ended.model)
        self._pending.clear()
        reask.reask_rows(store, self._home, shard, self._reasking, now)
        self._reasking.clear()
        if step is not None:
            store.escalations.escalate(shard, self._escalating, step, now)
            self._escalating.clear()

    def _common(self) -> Mapping[str, CommonRefusal]:
        store, ended = self._store, self._ended
        if ended.job.cancel_requested_at is not None:
            return {}
        if ended.shard.preflight is not None:
            return refused_tasks(store, self._home, ended, self._rows.values())
        common = common_of_batch(ended, self._rows.values()) or self._common_in_files()
        return common_refusals.of_shard(store, ended.shard, common)

    def _common_in_files(self) -> Mapping[str, CommonRefusal]:
        shard, rows, field_of = self._ended.shard, self._rows, self._lessons.field_of
        paths = [self._home.results(shard.id, kind) for kind in KINDS]
        common = common_refusals.in_files(paths, rows, field_of)
        if common:
            # Rows that a killed collection has released still count, as they did in that collection.
            gone = {name for path in paths for name in results.custom_ids(path)} - rows.keys()
            if left := self._store.rows.named(shard, gone, anywhere=True):
                common = common_refusals.in_files(paths, {**left, **rows}, field_of)
        return common

    # --- outcomes

    def _proven_outcomes(self) -> Ends:
        """Yield each row's outcome. If answers may have come under swapped keys, all outcomes are checked first."""
        ended = self._ended
        if not swapped_answers.may_show(ended, {row.task for row in self._rows.values()}):
            yield from self._outcomes()
            return
        swaps = swapped_answers.judged(self._store, self._home, ended, self._rows, list(self._outcomes()))
        self._tally.swapped = swaps.words(ended) if swaps.owners else None
        yield from swaps.outcomes

    def _outcomes(self) -> Ends:
        ended, rows, tally = self._ended, self._rows, self._tally
        told: set[str] = set()
        paths = {kind: self._home.results(ended.shard.id, kind) for kind in KINDS}
        # A shard that never sent its batch has adopted it; the batch may also ask what other jobs wanted.
        is_adopted = not ended.handle.is_own and ended.shard.sends == 0
        is_known = ended.handle.is_own or ended.fetched.is_plain
        survey = None if is_known else results.survey(paths.values(), rows)
        whose = None if survey is None else survey.recognised
        for kind, path in paths.items():
            for found in results.read(path):
                if found.line is None or (custom_id := found.line.custom_id) is None:
                    tally.broken += 1
                    continue
                name = custom_id if whose is None else whose.row(custom_id)
                if (row := rows.get(name or "")) is None:
                    tally.unknown, tally.odd = tally.unknown + 1, custom_id
                    if is_adopted:
                        self._count_adopted(kind, found)
                    elif len(self._unmatched) < len(rows):
                        self._unmatched.append((kind, found))
                    continue
                # If a row has two lines, an answer beats a failure in either order, because the answer is paid for.
                is_worse = (
                    survey is not None and row.custom_id in survey.answered and not results.is_success(found.line)
                )
                if row.custom_id in told or is_worse:
                    tally.duplicates += 1
                    if is_adopted and not ended.handle.profile.names_rows:  # of another row with the same request
                        self._count_adopted(kind, found)
                    continue
                said = self._outcome(row, kind, found)
                if isinstance(said, NotExecuted):
                    if said.upstream_seconds or said.uncertain:
                        self._not_executed.append((row, said))
                    continue  # the row counts as missing from the file, which is decided below
                told.add(row.custom_id)
                if results.stands(said):
                    yield row, said
                    continue
                refusal = results.refused(said, found.line)
                if not self._unanswered.goes_on(row, refusal):
                    yield row, self._named(row, refusal, said)
                elif said.is_answer:
                    self._unfinished.append(self._settled(row, said))
        doubtful = {} if whose is None else whose.ambiguous
        for name, odd in doubtful.items():
            yield rows[name], results.ambiguous(rows[name].seq, odd)
        missing = [row for custom_id, row in rows.items() if custom_id not in told and custom_id not in doubtful]
        tally.open = sum(row.state is RequestState.PENDING for row in missing)
        is_unmatched = whose is not None and not told and not doubtful and tally.odd is not None
        self._doubtful = [rows[name] for name in doubtful] or missing
        if is_unmatched:
            yield from self._unanswered.unrecognised(missing)
        else:
            self._unmatched = [one for one in self._unmatched if whose is not None and whose.is_doubtful(_id(one[1]))]
            yield from self._unanswered.decide(list(rows.values()), missing)

    def _outcome(self, row: InShard, kind: str, found: FoundLine) -> Outcome | NotExecuted:
        """Return the outcome of a row from its result line. An unreadable line fails only this row."""
        ended = self._ended
        try:
            bound, sent = partial(self._bound, row), partial(self._sent.of, row)
            check, by_token = ended.checks.get(row.task), not ended.handle.upstreams
            return results.outcome(row.seq, kind, found, check, bound, sent, by_token=by_token)
        except Exception as error:
            log.exception("%s: the result of row %s cannot be read", ended.shard.id, row.custom_id)
            return results.unreadable(row.seq, kind, found, f"{type(error).__name__}: {error}")

    def _bound(self, row: InShard) -> Bound | None:
        if self._ended.handle.is_own:
            return None if row.max_output is None else Bound(row.max_output)
        sent = self._bounds.of(row)
        return None if sent is None else Bound(sent, max(REASONING_STEP, sent // 10))

    def _named(self, row: InShard, refusal: RowRefusal, said: Outcome) -> Outcome:
        """Return the outcome with a refused field's error code, unless its own code already means the same."""
        refused = self._lessons.field_of(row, refusal)
        if refused is None:
            return said
        verdict = row_errors.classify(refusal.status, refusal.code, refusal.type, refusal.message, refused)
        is_told = row_errors.classify(None, said.error_code, None, None).disposition is verdict.disposition
        return said if is_told else replace(said, error_code=verdict.code)

    def _settled(self, row: InShard, outcome: Outcome) -> Settled:
        return settled(self._ended.handle, self._ended.model, row, outcome)

    def _priced(self, row: InShard, kind: str, found: FoundLine) -> Price | None:
        said = self._outcome(row, kind, found)
        return self._settled(row, said).price if isinstance(said, Outcome) else None

    def _count_adopted(self, kind: str, found: FoundLine) -> None:
        """Add the cost of an answer in an adopted batch that this job did not ask for, under the first row.

        If a killed collection has already settled all of the batch's rows, it has also booked the cost.
        """
        row = next(iter(self._rows.values()), None)
        if row is not None and (price := self._priced(row, kind, found)) is not None:
            before = self._adopted.get(row.seq)
            self._adopted[row.seq] = price if before is None else replace(before, cost=before.cost + price.cost)

    def _book_costs(self) -> None:
        ended, book, price = self._ended, self._store.ledger.book, self._ended.handle.price
        shard, model, now = ended.shard, ended.model, ended.now
        # Rows that had been sent when their batch ended cost upstream time, or attempts that may be billed.
        spent, sent = {}, {}
        for row, said in self._not_executed:
            spent[row.seq] = price.of_time(said.upstream_seconds)
            if (
                said.uncertain
                and (cost := price.of_uncertain(model, said.uncertain, _estimated_usage(row))) is not None
            ):
                sent[row.seq] = cost
        book(shard, "rerouted", spent, now)
        book(shard, "uncertain", sent, now)
        # Rows given up for a deadline at a provider that cannot cancel: the batch keeps running.
        runs_on = (
            shard.refusal_code == BATCH_GONE and shard.rerouted_at is not None and not ended.handle.profile.cancels
        )
        if ended.fetched.did_nothing or runs_on:
            # The provider says that these rows did not run, but its bill is unknown; or the rows still run.
            open_rows = [row for row in self._rows.values() if row.state is RequestState.PENDING]
            prices = {row.seq: price.of_uncertain(model, 1, _estimated_usage(row)) for row in open_rows}
            book(shard, "uncertain", {seq: one for seq, one in prices.items() if one is not None}, now)
        billed = {one.outcome.seq: one.price for one in self._unfinished if one.price is not None}
        usages = {one.outcome.seq: one.used or one.outcome.usage for one in self._unfinished}
        book(shard, "unfinished", billed, now, usages)
        # Paid answers that match no row are booked against the rows they could belong to.
        unmatched = {}
        for row, (kind, found) in zip(self._doubtful, self._unmatched, strict=False):
            if (cost := self._priced(row, kind, found)) is not None:
                unmatched[row.seq] = cost
        book(shard, "unmatched", unmatched | self._adopted, now)


def _code_to_reask(ended: EndedShard, outcome: Outcome) -> str | None:
    job = ended.job
    late = job.deadline_at is not None and job.deadline_at <= ended.now and expires(job)
    if job.cancel_requested_at is not None or late:
        return None
    code = outcome.error_code
    is_bad = outcome.is_answer and code in row_errors.BAD_ANSWERS and code not in row_errors.QUARANTINED
    return code if is_bad else None


def settled(handle: BackendHandle, model: str, row: InShard, outcome: Outcome) -> Settled:
    """Return an outcome with its cost at a backend; `model` is the backend's name for the model."""
    if outcome.span is None:
        return Settled(outcome, None)
    price, expected = handle.price, _estimated_usage(row, outcome)
    # Every row that reached the backend is booked, even if it failed there or cost nothing.
    cost, uncertain = price.of_row(model, outcome, expected), None
    if outcome.uncertain and (handle.is_own or handle.profile.is_orch):
        told = outcome.usage if outcome.usage.input_tokens else expected
        uncertain = price.of_uncertain(model, outcome.uncertain, told)
    is_guessed = cost.estimated and cost.cost > 0 and not (outcome.usage.input_tokens or outcome.usage.output_tokens)
    return Settled(outcome, cost, uncertain, expected if is_guessed else None)


def _estimated_usage(row: InShard, outcome: Outcome | None = None) -> Usage:
    output = row.max_output or 0
    if outcome is not None and outcome.answer_bytes:
        said = tokens.estimate(outcome.answer_bytes)
        output = min(output, said) if output else said
    return Usage(input_tokens=tokens.estimate(row.span.length), output_tokens=output)


def _id(found: FoundLine) -> str:
    return (found.line.custom_id if found.line is not None else None) or ""


def close(store: Store, home: Home, shard: Shard, now: datetime, owed: int = 0, answers: int = 0) -> None:
    """Close a collected shard. Its remote files are deleted later; the `owed` answers may still arrive.

    `answers` is the number of answers in its files, for providers that do not count them.
    """
    if not owed:
        remove_input(home, shard)
    discard(home, shard)
    counted = {} if shard.provider_completed or shard.provider_failed else {"provider_completed": answers}
    store.shards.move(shard, ShardState.COLLECTED, collected_at=now, held=None, owed=owed, **counted)


def remove_input(home: Home, shard: Shard) -> None:
    """Delete a collected shard's input file, and the ids of its rows at a backend."""
    home.shard_input(shard.id).unlink(missing_ok=True)
    if shard.sends == 0:
        ids_at_backend.forget(home, shard)


def abandon(home: Home, shard: Shard) -> None:
    """Delete the local files of a shard that will not be sent."""
    path = home.shard_input(shard.id)
    # a killed process may have left files that a backend made from the input
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink(missing_ok=True)


def refused_tasks(store: Store, home: Home, ended: EndedShard, rows: Iterable[InShard]) -> dict[str, CommonRefusal]:
    """Return the refusal of a row asked first, by each task that it holds back; empty if it was not refused."""
    shard = ended.shard
    if shard.refusal_code is None:
        return {}
    rule = min(OF_REQUEST)
    common = CommonRefusal(shard.refusal_code, shard.refusal or "", rule, 1)
    tasks = {row.task for row in rows} | set(_tasks_with_same_fields(store, home, ended))
    return dict.fromkeys(sorted(tasks), common)


def _tasks_with_same_fields(store: Store, home: Home, ended: EndedShard) -> Iterator[str]:
    job, shard = ended.job, ended.shard
    refused = store.refused_fields.of(shard.backend, ended.model, shard.endpoint, shard.intended_at or ended.now)
    writer = line_writer(job, ended.handle.recipient, ended.model, shard.endpoint, refused)
    for task in _asking(job, shard.model):
        for span in store.sizes.sample(job.id, task, 1):
            try:
                with home.requests(job.id).open("rb") as source:
                    source.seek(span.offset)
                    fields = fields_of(writer.line(task, source.read(span.length)))
            except (OSError, ValueError):
                continue
            if fields == shard.preflight:
                yield task


def _asking(job: Job, alias: str) -> list[str]:
    name, _ = rung_of(alias)
    return [task.id for task in tasks_of(job) if name in task.aliases.values()]
