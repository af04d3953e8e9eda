"""Creation of a shard's batch so that it is paid for only once.

The intent is committed before the create request is sent. The batch carries the shard's id if its provider has a
field for it. So after any interruption, `recover` finds and adopts the batch, or learns that it does not exist. orch
sends no second create request while the batch may still appear.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct

from orchestrator.backends import BatchOrder, Intent, RemoteBatch, Sighting
from orchestrator.backends.batch_names import file_name
from orchestrator.backends.cache_marks import marks_for, write_marks
from orchestrator.backends.profiles import window_for
from orchestrator.core.engine_order import due_at
from orchestrator.core.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    InputError,
    JobFilesError,
    NotSent,
    StateConflict,
    StorageError,
    StrayUpload,
    Uncertain,
)
from orchestrator.core.model import Job
from orchestrator.core.shards import HoldCode, Shard, ShardState
from orchestrator.pipeline import lost_answers
from orchestrator.pipeline.backend_handles import BackendHandle, Models
from orchestrator.pipeline.collect.settling import abandon
from orchestrator.pipeline.dialects import LineWriter, line_writer
from orchestrator.pipeline.plan import cache_first
from orchestrator.pipeline.poll_schedule import PolledShard, SearchPhase, SendPhase
from orchestrator.policy.batch_errors import NOT_SENT, STRAY_UPLOADS, input_is_missed
from orchestrator.policy.batch_evidence import DENIALS
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.overdue import OVERRUN
from orchestrator.policy.prompt_cache import CacheMark
from orchestrator.settings.home import Home
from orchestrator.store import Store

log = logging.getLogger(__name__)

UPLOAD_SETTLES = timedelta(hours=1)
"""How long to wait for an upload that the backend does not find, before orch uploads the file again."""
MOST_UPLOADS = 2
MOST_STRAYS = 3
"""Maximum number of uploads that a backend answers with a foreign file. After that, it gets none of these rows."""
STRAY_SLACK = timedelta(minutes=5)
"""A foreign file that is older than the upload by more than this belongs to another user, and is not deleted."""


ReadLine = Callable[[bytes], tuple[str, bytes]]
"""Function that returns the id in an input line, and the digest of its request."""


def window_of(job: Job, now: datetime) -> tuple[int, str]:
    """Return the seconds until a batch made now must end (a day if the deadline has passed), and a note."""
    is_late = job.deadline_at is not None and job.deadline_at <= now
    left = math.ceil((due_at(job.deadline_at, now) - now).total_seconds())
    return left, "the deadline has passed, finishing late" if is_late else ""


class Waits(Struct, frozen=True):
    """The reason why a shard is still pending. `is_failing` is true if its backend is at fault."""

    why: str
    is_failing: bool = False

    @property
    def code(self) -> HoldCode:
        return HoldCode.UNREACHABLE if self.is_failing else HoldCode.ADMISSION


class AdmissionCheck(Struct, frozen=True):
    """Checks that admit a shard to its backend.

    `now` is the clock. One shard at a time holds `asks`, from the check to the intent. `first` returns why the shard
    must wait. `second` returns why shared budgets lack room. It runs once the intent is visible to all, because
    another process may have been faster. `note` records in the home that a batch may exist from now on, or raises
    StorageError.
    """

    now: Callable[[], datetime]
    first: Callable[[], str | None]
    second: Callable[[], str | None]
    asks: AbstractContextManager[object]
    note: Callable[[Shard], None] = lambda shard: None


def submit(
    store: Store,
    home: Home,
    job: Job,
    shard: Shard,
    handle: BackendHandle,
    models: Models,
    watched: PolledShard,
    admission: AdmissionCheck,
) -> RemoteBatch | Waits | None:
    """Create the batch of a pending shard. Its window ends at the job's current deadline.

    Returns None if the backend refused the batch permanently: the shard has ended, and its rows are handled later.
    Raises BackendError. The shard is then pending again if no batch was created, else `submitting`.
    """
    now = admission.now
    writer = writer_of(store, job, shard, handle, models, now())
    file_id = _uploaded(store, home, job, shard, handle, writer, watched, now)
    if file_id is None:
        return None
    lost_answers.forget_here(home, shard.id)
    account = handle.api.account()
    window, _ = window_of(job, now())
    intended = intend(store, home, shard, admission, account, window_for(handle.profile, window).seconds)
    if isinstance(intended, Waits):
        return intended
    try:
        admission.note(intended)
    except StorageError:
        store.shards.move(intended, ShardState.PENDING, sends=shard.sends)
        raise
    try:
        batch = handle.api.create(
            BatchOrder(shard.id, file_id, writer.endpoint, window, shard.rows, job.home, writer.model)
        )
    except (NotSent, BackendBusy, AccountError) as error:
        store.shards.move(intended, ShardState.PENDING, held=error.message, sends=shard.sends)
        raise
    except JobFilesError:
        # The uploaded file is gone and must be uploaded again.
        store.shards.move(intended, ShardState.PENDING, input_file_id=None, sends=shard.sends)
        raise
    except BackendRefused as refusal:
        return _refused_create(store, intended, refusal, watched, now())
    except Uncertain as error:
        store.shards.note(intended, held=error.message)
        raise
    if store.shards.asked_at(shard.backend, batch.id) is not None:
        # The backend returned an older batch with the same content. Our own batch may have been created too.
        held = f"{handle.name} answered the create with batch {batch.id}, which belongs to another shard"
        store.shards.note(intended, held=held)
        raise Uncertain(held)
    store.shards.move(intended, ShardState.SUBMITTED, **facts_of(batch, now()))
    if handle.is_own:
        home.shard_input(shard.id).unlink(missing_ok=True)
    return batch


def writer_of(
    store: Store, job: Job, shard: Shard, handle: BackendHandle, models: Models, now: datetime
) -> LineWriter:
    """Return the writer of a shard's lines for its backend. It leaves out fields known to be refused."""
    model = resolve_model(shard.model, shard.backend, models) or shard.model
    refused = store.refused_fields.of(shard.backend, model, shard.endpoint, now)
    return line_writer(job, handle.recipient, model, shard.endpoint, refused)


def intend(
    store: Store, home: Home, shard: Shard, admission: AdmissionCheck, account: str, window_seconds: int
) -> Shard | Waits:
    """Commit the intent to send a shard. Return the shard, or why it waits."""
    with admission.asks:
        if (held := admission.first()) is not None:
            return Waits(held)
        # From here on, a batch may exist.
        facts = {"intended_at": admission.now(), "account": account, "sends": shard.sends + 1, "held": None}
        try:
            store.shards.move(shard, ShardState.SUBMITTING, window_seconds=window_seconds, **facts)
        except StateConflict:
            _withdraw(store, home, shard)
            raise
    intended = store.shards.get(shard.id)
    if (held := admission.second()) is not None:
        store.shards.move(intended, ShardState.PENDING, sends=shard.sends)
        return Waits(held)
    return intended


def _is_marked(path: Path, marks: Sequence[CacheMark]) -> bool:
    try:
        return marks_for(path) == tuple(marks)
    except OSError as error:
        raise JobFilesError(
            f"cannot read beside {path}: {error}", hint="check the disk, then run it again"
        ) from error


def _mark(path: Path, marks: Sequence[CacheMark]) -> None:
    try:
        write_marks(path, marks)
    except OSError as error:
        raise JobFilesError(
            f"cannot write beside {path}: {error}", hint="free disk space, then run it again"
        ) from error


def _uploaded(
    store: Store,
    home: Home,
    job: Job,
    shard: Shard,
    handle: BackendHandle,
    writer: LineWriter,
    watched: PolledShard,
    now: Callable[[], datetime],
) -> str | None:
    path, rules = home.shard_input(shard.id), handle.prompt_cache
    marks = () if rules is None else cache_first.marks_of(store, job, shard, rules, now())
    # If a cache has expired, its marks would make each row pay for writing it again.
    if shard.input_file_id is not None and (rules is None or _is_marked(path, marks)):
        return shard.input_file_id
    write_input(store, home, shard, path, writer)
    if rules is not None:
        _mark(path, marks)
    file_id, began = None, now()
    try:
        owner = home.identity() if handle.profile.names_homes else ""
        file_id = handle.api.upload(path, file_name(shard.id, owner))
        store.shards.note(shard, input_file_id=file_id)
    except StrayUpload as stray:
        _forget_stray(store, shard, handle, stray, began)
        sending = watched.phase(SendPhase)
        sending.strays += 1
        if sending.strays < MOST_STRAYS:
            raise
        why = f"{stray.message}; given up after {sending.strays} uploads"
        _end_refused(store, shard, STRAY_UPLOADS, why, now())
        return None
    except BackendRefused as refusal:
        if isinstance(refusal, (BackendBusy, AccountError)):
            raise
        _end_refused(store, shard, refusal.code or f"http_{refusal.status}", refusal.message, now())
        return None
    except StateConflict:
        _withdraw(store, home, shard, file_id)
        raise
    return file_id


def _forget_stray(store: Store, shard: Shard, handle: BackendHandle, stray: StrayUpload, began: datetime) -> None:
    is_old = stray.created_at is not None and stray.created_at < began - STRAY_SLACK
    if is_old or store.shards.uses_file(shard.backend, stray.file_id):
        return
    try:
        handle.api.forget_file(stray.file_id)
    except BackendError as error:
        log.warning("%s: file %s is left behind: %s", shard.id, stray.file_id, error)


def _withdraw(store: Store, home: Home, shard: Shard, uploaded: str | None = None) -> None:
    """Clean up after a shard that was cancelled meanwhile. An `uploaded` file is recorded for deletion."""
    current = store.shards.get(shard.id)
    if current.state is not ShardState.CANCELLED:
        return
    abandon(home, current)
    if uploaded is not None:
        store.shards.note(current, input_file_id=uploaded, cleaned_at=None)


def _refused_create(
    store: Store, intended: Shard, refusal: BackendRefused, watched: PolledShard, now: datetime
) -> Waits | None:
    sending = watched.phase(SendPhase)
    since = sending.refused_since = sending.refused_since or now
    if not input_is_missed(refusal.code, refusal.message) or sending.uploads >= MOST_UPLOADS:
        _end_refused(store, intended, refusal.code or f"http_{refusal.status}", refusal.message, now)
        return None
    file_id = intended.input_file_id
    if now >= since + UPLOAD_SETTLES:
        file_id, sending.refused_since, sending.uploads = None, None, sending.uploads + 1
    store.shards.move(intended, ShardState.PENDING, input_file_id=file_id, sends=max(0, intended.sends - 1))
    return Waits(f"its upload is not usable yet: {refusal.message}", is_failing=True)


def give_up(store: Store, shard: Shard, why: str, now: datetime, code: str = NOT_SENT) -> None:
    """End a shard that cannot be sent, at all or after long retries. Its rows are rerouted or fail."""
    _end_refused(store, shard, code, why, now)


def _end_refused(store: Store, shard: Shard, code: str, why: str, now: datetime) -> None:
    if shard.state is ShardState.PENDING:
        store.shards.move(shard, ShardState.SUBMITTING, intended_at=now)
        shard = store.shards.get(shard.id)
    refused = {"provider_status": "failed", "refusal_code": code, "refusal": why}
    store.shards.move(shard, ShardState.ENDED, **refused, ended_at=now, held=None)


def facts_of(batch: RemoteBatch, now: datetime) -> dict[str, object]:
    """Return the facts that a shard records about its new batch, by column."""
    return {
        "batch_id": batch.id,
        "provider_status": batch.status,
        "status_at": now,
        "submitted_at": now,
        "seen_at": now,
        "held": None,
    }


def input_digests(
    store: Store, home: Home, shard: Shard, writer: LineWriter, sent_line: ReadLine
) -> dict[str, bytes]:
    """Return, by custom_id, the digest of each request of a shard as it is sent. Raises JobFilesError."""
    path = home.shard_input(shard.id)
    write_input(store, home, shard, path, writer)
    with path.open("rb") as file:
        rows = zip(store.rows.of_shard(shard.id), file, strict=True)
        return {row.custom_id: sent_line(line)[1] for row, line in rows}


def take_lines(source: Path, target: Path, wanted: Collection[str], sent_line: ReadLine) -> None:
    """Append the lines with these custom_ids from one input file to another. Raises JobFilesError."""
    try:
        with source.open("rb") as lines, target.open("ab") as taken:
            taken.writelines(line for line in lines if sent_line(line)[0] in wanted)
            taken.flush()
            os.fsync(taken.fileno())
    except OSError as error:
        raise JobFilesError(f"cannot write {target}: {error}", hint="free disk space, then run it again") from error


def write_input(store: Store, home: Home, shard: Shard, path: Path, writer: LineWriter) -> None:
    """Write the shard's lines in order, in its backend's dialect. Raises JobFilesError."""
    source_path = home.requests(shard.job_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a hard-linked copy of the home may share the former file
        with source_path.open("rb") as source, path.open("wb") as target:
            for row in store.rows.of_shard(shard.id):
                source.seek(row.span.offset)
                line = source.read(row.span.length)
                if len(line) != row.span.length:
                    raise InputError("is shorter than when it was built", file=source_path)
                target.write(writer.line(row.task, line) + b"\n")
            target.flush()
            os.fsync(target.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise JobFilesError(f"cannot write {path}: {error}", hint="free disk space, then run it again") from error


MOST_SENDS = 8
LONGEST_APPEAR = timedelta(hours=6)
UNDECIDED_FOR = timedelta(days=2)


class SendOutcome(Struct, frozen=True):
    """Result of the search for a shard's batch: a message, and `doubles`, other batches of the same shard."""

    why: str
    doubles: tuple[RemoteBatch, ...] = ()


def _patience(shard: Shard, handle: BackendHandle) -> timedelta:
    """Return how long a batch may be missing from lists before it counts as not created.

    Each failed search doubles this time, because another create request may bill all rows again.
    """
    return min(LONGEST_APPEAR, timedelta(seconds=handle.api.appear_seconds * 2 ** max(0, shard.sends - 1)))


def _may_appear(
    store: Store, shard: Shard, handle: BackendHandle, watched: PolledShard, seen: Sighting, now: datetime
) -> str | None:
    searching = watched.phase(SearchPhase)
    patience = _patience(shard, handle)
    told = "it was created without a confirmation"
    if seen.is_blank and shard.account is not None and store.shards.of_account(handle.name, shard.account):
        patience, told = LONGEST_APPEAR, f"{handle.name} lists no batch at all, though this account has some there"
    if searching.waited < patience:
        appears_until = now + patience - searching.waited
        return f"{told}; by {appears_until:%H:%M} UTC it shows whether the batch exists"
    if searching.lists < DENIALS and not handle.is_own:
        return f"{told}; orch reads its list once more"
    return None


def recover(
    store: Store, home: Home, shard: Shard, handle: BackendHandle, watched: PolledShard, now: datetime
) -> SendOutcome | None:
    """Adopt the batch of a shard whose create request was not answered, or make the shard pending again.

    Returns None while it is uncertain if the batch exists; `held` then says what the shard waits for. The search
    lasts at most two days. If a provider shows owners only of ended batches, it lasts the window plus `OVERRUN`.
    `watched` counts the lists without the batch. Raises BackendError.
    """
    since = min(shard.intended_at or shard.created_at, now)
    intent = Intent(
        shard.id,
        shard.rows,
        since,
        home.shard_input(shard.id),
        lambda batch_id: store.shards.asked_at(shard.backend, batch_id),
        shard.input_file_id,
    )
    # A batch that shows its shard only after its end may overrun its window.
    shows_late = handle.profile.overruns and not handle.profile.tells_shards
    window = timedelta(seconds=shard.window_seconds)
    searching = watched.phase(SearchPhase)
    patience = _patience(shard, handle)
    searching.look(now, watched.due, patience / DENIALS)
    is_over = now >= since + (window + OVERRUN if shows_late else UNDECIDED_FOR) and searching.waited >= patience
    try:
        seen = handle.api.find(intent)
    except BackendError as error:
        if isinstance(error, AccountError) or not is_over:
            raise
        seen = Sighting()
    if seen.batch is not None and (seen.undecided is None or is_over):
        store.shards.move(shard, ShardState.SUBMITTED, **facts_of(seen.batch, now))
        return SendOutcome(f"batch {seen.batch.id} belongs to this shard: adopted", seen.doubles)
    searching.lists += seen.undecided is None
    if not is_over and (held := seen.undecided or _may_appear(store, shard, handle, watched, seen, now)) is not None:
        if held != shard.held:
            store.shards.note(shard, held=held, held_code=HoldCode.UNCONFIRMED)
        return None
    if shard.sends >= MOST_SENDS:
        give_up(store, shard, f"{shard.sends} creates were not answered, and none of them made a batch", now)
        return SendOutcome("no batch belongs to this shard, and it is not submitted again")
    store.shards.move(shard, ShardState.PENDING, held=None)
    return SendOutcome("no batch belongs to this shard: it is submitted again")
