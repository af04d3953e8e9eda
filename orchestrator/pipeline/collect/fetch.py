"""Result files of an ended batch, read until they are complete or no longer grow.

The best copy of a file is kept beside its final path, because a later copy may be shorter. An accepted copy is moved
to that path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.backends import BATCH_GONE, Download
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import AccountError, BackendError, BackendRefused, StorageError
from orchestrator.core.shards import Shard
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect import ids_at_backend
from orchestrator.pipeline.lost_answers import GONE, KINDS
from orchestrator.pipeline.poll_schedule import BestReading, FilesPhase
from orchestrator.policy import batch_evidence, results
from orchestrator.policy.batch_evidence import FileReading
from orchestrator.policy.results import Survey
from orchestrator.settings.home import Home


class FetchedFiles(Struct, frozen=True):
    """Result files that can be used.

    `lost` has the kinds of files that the backend names but no longer has. `short` is how many rows of the batch's
    count are missing. `did_nothing` is true if a batch reported as completed ran no row. `is_plain` is as in
    `results.Survey`.
    """

    lost: tuple[str, ...] = ()
    short: int = 0
    did_nothing: bool = False
    is_plain: bool = False


class FilesAwaited(Struct, frozen=True):
    """Result files that are not complete yet. `why` says what orch waits for."""

    why: str


def fetch(
    home: Home,
    shard: Shard,
    handle: BackendHandle,
    rows: Callable[[], Collection[str]],
    known: FilesPhase,
    until: datetime,
    now: datetime,
    nothing_until: Callable[[], datetime],
) -> FetchedFiles | FilesAwaited:
    """Download a batch's result files, or return what orch waits for.

    `rows` returns the ids of the shard's rows. `nothing_until` returns when to stop waiting for the files of a batch
    that ran no row. Raises AccountError, StorageError, and BackendError if our own server fails.
    """
    if handle.is_own:
        for kind, file_id in _files_to_download(home, shard):
            download(home, shard, handle, file_id, home.results(shard.id, kind))
        return FetchedFiles()
    expected = expected_rows(shard)
    reading, is_plain = _read(home, shard, handle, rows(), known.best, is_last=now >= until)
    if reading.rows < expected and not reading.absent and reading.cut is None and now < until:
        told = _stated_size(handle, _files_to_download(home, shard))
        reading = replace(reading, told=told, has_grown=known.has_grown(told))
    if reading.is_more_than(known.whole):
        known.whole, known.unchanged_since = reading, now
    is_gone = shard.refusal_code == BATCH_GONE  # the batch is unknown there, so its counts cannot be asked for
    did_nothing = expected > 0 and reading.is_empty and not is_gone and _did_nothing(handle, shard)
    if did_nothing:
        verdict = batch_evidence.nothing(shard.backend, shard.rows, min(until, nothing_until()), now)
    elif lacks_names(shard):
        verdict = batch_evidence.unnamed(shard.provider_status, until, now)
    else:
        verdict = batch_evidence.whole(reading, expected, known.unchanged_since or now, until, now)
    if verdict.why is not None:
        return FilesAwaited(verdict.why)
    for kind in KINDS:
        path = home.results(shard.id, kind)
        with suppress(FileNotFoundError):
            _beside(path).replace(path)
    return FetchedFiles(reading.absent, max(0, expected - reading.rows), did_nothing, is_plain)


def _did_nothing(handle: BackendHandle, shard: Shard) -> bool:
    """True if the backend's current counts say that no row of a completed batch ran."""
    batch = None if shard.batch_id is None else handle.api.retrieve(shard.batch_id)
    if batch is None or batch.status is not BatchStatus.COMPLETED or not batch.is_counted:
        return False
    return not (batch.completed or batch.failed or batch.input_tokens or batch.output_tokens)


def expected_rows(shard: Shard) -> int:
    """Return how many rows the files must have: all if the batch completed, else as many as the backend counted."""
    if shard.provider_status == BatchStatus.COMPLETED:
        return shard.rows
    if shard.refusal_code == BATCH_GONE and shard.output_file_id is None and shard.error_file_id is None:
        return 0  # orch gave the batch up before the batch named a file: nothing can be read
    return min(shard.rows, shard.provider_completed + shard.provider_failed)


def lacks_names(shard: Shard) -> bool:
    """True if an ended batch should have answers but names no file; false for a shard of synchronous rows."""
    is_named = shard.output_file_id is not None or shard.error_file_id is not None
    return shard.batch_id is not None and not is_named and expected_rows(shard) > 0


def discard(home: Home, shard: Shard) -> None:
    """Delete copies of result files that were not accepted, also copies that a killed process left."""
    for kind in KINDS:
        path = home.results(shard.id, kind)
        for left in path.parent.glob(f"{path.name}.*"):
            left.unlink(missing_ok=True)


def _files_to_download(home: Home, shard: Shard) -> list[tuple[str, str]]:
    named = zip(KINDS, (shard.output_file_id, shard.error_file_id), strict=True)
    return [(kind, name) for kind, name in named if name is not None and not home.results(shard.id, kind).exists()]


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.came")


def _read(
    home: Home,
    shard: Shard,
    handle: BackendHandle,
    rows: Collection[str],
    best: dict[str, BestReading],
    *,
    is_last: bool,
) -> tuple[FileReading, bool]:
    """Read each file again and keep its best copy. Return the combined reading, and True if all lines are plain.

    Raises AccountError, unless `is_last`.
    """
    absent, cut, wanted = [], None, _files_to_download(home, shard)
    surveys: dict[Path, Survey] = {}
    for kind, file_id in wanted:
        path = home.results(shard.id, kind)
        try:
            best[kind] = _bring(home, shard, handle, file_id, path, rows, best.get(kind), surveys)
        except BackendError as error:
            if isinstance(error, AccountError) and not is_last:
                raise
            is_gone = isinstance(error, BackendRefused) and error.status in GONE
            if is_gone and kind not in best:
                absent.append(kind)
            else:
                cut = error.message
    paths = [path for kind in KINDS for path in (home.results(shard.id, kind), _beside(home.results(shard.id, kind)))]
    is_surveyed = {path for path in paths if path.exists()} == surveys.keys()
    found = results.together([*surveys.values()]) if is_surveyed else None
    if found is None:
        found = results.survey(paths, rows)
    is_completed = shard.provider_status == BatchStatus.COMPLETED
    brought = [best[kind] for kind, _ in wanted if kind in best]
    cut = cut or next((one.cut for one in brought if one.cut is not None), None)
    has = len(found.told if is_completed else found.executed)
    return FileReading(has, sum(one.bytes for one in brought), cut=cut, absent=tuple(absent)), found.is_plain


def _bring(
    home: Home,
    shard: Shard,
    handle: BackendHandle,
    file_id: str,
    path: Path,
    rows: Collection[str],
    before: BestReading | None,
    surveys: dict[Path, Survey],
) -> BestReading:
    """Read a file, and keep the earlier copy if it has more rows. Raises BackendError, StorageError.

    The survey of a new copy is added to `surveys`, by path.
    """
    brought = path.with_name(f"{path.name}.next")
    came = download(home, shard, handle, file_id, brought)
    survey = results.survey([brought], rows)
    found = BestReading(came.bytes, len(survey.told), came.cut)
    if before is not None and _beside(path).exists() and before.rows > found.rows:
        brought.unlink()
        return before
    brought.replace(_beside(path))
    surveys[_beside(path)] = survey
    return found


def download(home: Home, shard: Shard, handle: BackendHandle, file_id: str, path: Path) -> Download:
    """Download a result file of a shard, with our row ids in its lines. Raises BackendError, StorageError."""
    try:
        found = handle.api.download(file_id, path, home.shard_input(shard.id))
        if shard.sends == 0 and path.exists():
            ids_at_backend.put_ours(home, shard, path)
        return found
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}", hint="free disk space and run it again"
        ) from error


def _stated_size(handle: BackendHandle, files: list[tuple[str, str]]) -> int | None:
    sizes = []
    for _, file_id in files:
        try:
            sizes.append(handle.api.size_of(file_id))
        except AccountError:
            raise
        except BackendError:
            return None
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
