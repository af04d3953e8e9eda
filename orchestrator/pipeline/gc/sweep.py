"""gc: removal of data that `[retention]` no longer keeps, and of leftovers of killed processes.

A process killed at any point loses nothing needed, and the next run removes its leftovers. A job's folder is first
marked. Then the database forgets the job's files, and the folder is renamed and removed. If the database still knows
the files of a marked folder, the process was killed before that step, and the folder stays.
"""

from __future__ import annotations

import fcntl
import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct

from orchestrator.core.errors import OrchError, RefusedError, StorageError
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, JobId
from orchestrator.pipeline import disk
from orchestrator.pipeline.build.builder import locked
from orchestrator.pipeline.gc.benches import old_benches
from orchestrator.pipeline.gc.frames import unused_frames
from orchestrator.pipeline.predecessors import AFTER
from orchestrator.policy import retention
from orchestrator.policy.retention import JobFate, Leaving, RetentionVerdict
from orchestrator.settings.config import Config, Retention
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.gc import CLEARED

log = logging.getLogger(__name__)

GOING, GONE, STAGE = ".going", ".gone.", ".backup."
LEFT_SECONDS = 3600.0
"""Seconds that a leftover is kept, because its writer may still be at work."""
EVERY = timedelta(days=1)


class Orphan(Struct, frozen=True):
    """A file or folder that is no longer needed, with its size in bytes and the reason."""

    path: Path
    bytes: int
    reason: str


class Swept(Struct, frozen=True):
    """Result of gc: what was removed, or what would be removed with `dry_run`.

    `unknown` are folders with results of unknown jobs. `held` is the reason why no job was removed, or None. `use` is
    the size of the home afterwards.
    """

    verdicts: list[RetentionVerdict]
    orphans: list[Orphan]
    unknown: list[Path]
    use: disk.Use
    dry_run: bool
    held: str | None = None

    @property
    def gone(self) -> list[RetentionVerdict]:
        """Verdicts on jobs that lose their files or are removed."""
        return [verdict for verdict in self.verdicts if verdict.fate is not JobFate.KEPT]

    @property
    def freed(self) -> int:
        """Bytes of files that were removed, or would be in a dry run."""
        return sum(verdict.bytes for verdict in self.gone) + sum(orphan.bytes for orphan in self.orphans)


@contextmanager
def gc_lock(home: Home) -> Iterator[None]:
    """Prevent gc and backups in other processes. Raises RefusedError if another process runs either."""
    with locked(home.root / "house.lock", wait=False) as mine:
        if not mine:
            raise RefusedError(
                "another `orch gc` or `orch backup` is running in this home", hint="run it again when that has ended"
            )
        yield


def gc(store: Store, home: Home, terms: Retention, now: datetime, *, dry_run: bool = False) -> Swept:
    """Remove data that retention no longer keeps. Raises RefusedError, StorageError; removals before an error are not
    undone.

    Submissions wait during the decision, because a new job may reuse answers of a job that is about to be removed.
    """
    identity = home.identity()
    if dry_run:
        verdicts, held = _decide(store, home, identity, terms, now)
        orphans, unknown = _orphans(store, home, identity, terms)
        return Swept(verdicts, orphans, unknown, disk.use(home), dry_run=True, held=held)
    with gc_lock(home):
        orphans, unknown = _orphans(store, home, identity, terms)
        for orphan in orphans:
            _remove(orphan.path)
        with locked(home.intake_lock, wait=True):
            verdicts, held = _decide(store, home, identity, terms, now)
            verdicts = _let_all_go(store, home, verdicts, now)
        for verdict in verdicts:
            if verdict.fate is not JobFate.KEPT:
                _remove_folder(home, verdict.job_id)
        return Swept(verdicts, orphans, unknown, disk.use(home), dry_run=False, held=held)


def _let_all_go(store: Store, home: Home, verdicts: list[RetentionVerdict], now: datetime) -> list[RetentionVerdict]:
    """Make the database forget the jobs' files, newest job first, so that jobs go before the source of their answers.

    If a job was resumed meanwhile, it and all older jobs stay: it needs the answers that it carries.
    """
    for number, verdict in enumerate(verdicts):
        if verdict.fate is not JobFate.KEPT and not _let_go(store, home, verdict, now):
            why = f"job {verdict.job_id} was resumed just now"
            return [*verdicts[:number], *(_kept_verdict(other, why) for other in verdicts[number:])]
    return verdicts


def _kept_verdict(verdict: RetentionVerdict, why: str) -> RetentionVerdict:
    return verdict if verdict.fate is JobFate.KEPT else RetentionVerdict(verdict.job_id, JobFate.KEPT, why)


def _decide(
    store: Store, home: Home, identity: str, terms: Retention, now: datetime
) -> tuple[list[RetentionVerdict], str | None]:
    jobs = store.removals.jobs(identity)
    building = next((job.id for job in jobs if _building(home, job)), None)
    held = None if building is None else f"job {building} is being built, and may use other jobs' answers"
    leaving = [_leaving(home, job) for job in jobs]
    used = disk.size_of(home.root) if terms.max_bytes is not None else 0
    carriers, booked = store.removals.carriers(identity), store.removals.booked_since(retention.counts_since(now))
    verdicts = retention.plan(leaving, carriers, booked, terms, now, used)
    if held is not None:
        verdicts = [_kept_verdict(verdict, held) for verdict in verdicts]
    return verdicts, held


def _building(home: Home, job: Job) -> bool:
    if job.built_at is not None or job.error is not None or job.options.get("dry_run"):
        return False
    # A job that waits for another one may stay unbuilt for days.
    return AFTER not in job.options or not _is_free(home.build_lock(job.id))


def _leaving(home: Home, job: Job) -> Leaving:
    ended = job.finished_at or (job.created_at if job.error is not None else None)
    # Undelivered rows exist only in the home.
    is_sound = job.error is None or job.is_undelivered
    # A trial of some documents does not count as a whole night.
    is_run = job.ran_to_its_end and is_sound and not job.is_limited
    cleared = CLEARED in job.options
    size = 0 if ended is None else disk.size_of(home.job(job.id))
    return Leaving(job.id, job.series, job.created_at, ended, is_run, cleared, size)


def _let_go(store: Store, home: Home, verdict: RetentionVerdict, now: datetime) -> bool:
    mark = home.job(verdict.job_id) / GOING
    has_folder = mark.parent.is_dir()
    if has_folder:
        with _translated(mark):
            mark.touch()
    if verdict.fate is JobFate.JOB:
        done = store.removals.forget(verdict.job_id)
    else:
        done = store.removals.clear(verdict.job_id, mark.parent, now)
    if done and verdict.fate is JobFate.FILES:
        store.jobs.note(verdict.job_id, EventKind.CLEARED, f"its files are removed: {verdict.reason}", now)
    if not done and has_folder:
        mark.unlink(missing_ok=True)
    return done


def _remove_folder(home: Home, job_id: JobId) -> None:
    folder = home.job(job_id)
    if folder.is_dir():
        gone = folder.with_name(f"{GONE}{folder.name}")
        with _translated(folder):
            folder.replace(gone)
        _remove(gone)


def _remove(path: Path) -> None:
    with _translated(path):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be removed: {error.strerror}", hint="check its owner and mode, then run it again"
        ) from error


def _orphans(store: Store, home: Home, identity: str, terms: Retention) -> tuple[list[Orphan], list[Path]]:
    jobs = {job.id: job for job in store.removals.jobs(identity)}
    found = [
        Orphan(path, disk.size_of(path) if path.is_dir() else path.stat().st_size, reason)
        for pattern, reason in (
            (f"{STAGE}*", "left by a killed backup"),
            (".home.id.*", "left by a killed start"),
        )
        for path in sorted(home.root.glob(pattern))
        if path.is_dir() or _is_old(path)
    ]
    found += [Orphan(path, disk.size_of(path), reason) for path, reason in old_benches(store, home, terms)]
    frames = (path for path in unused_frames(home, jobs.values()) if _is_old(path))
    found += [Orphan(path, disk.size_of(path), "asked from Python; no job has its answers") for path in frames]
    unknown: list[Path] = []
    folder = home.root / "jobs"
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.is_dir():
            continue
        job = jobs.get(JobId(path.name))
        if path.name.startswith(GONE) or ((path / GOING).exists() and (job is None or CLEARED in job.options)):
            found.append(Orphan(path, disk.size_of(path), "of a job whose files were being removed"))
        elif job is None and _holds_results(path):
            unknown.append(path)
        elif job is None:
            found += _left_by_build(path)
        else:
            found += _of_job(path, job)
    return found, unknown


def _left_by_build(path: Path) -> list[Orphan]:
    if not all(_is_old(file) for file in (path, *path.rglob("*"))):
        return []
    if not _is_free(path / "build.lock"):
        return []
    return [Orphan(path, disk.size_of(path), "left by a killed build")]


def _is_free(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def _of_job(path: Path, job: Job) -> list[Orphan]:
    over = job.finished_at is not None
    found = []
    for file, size in disk.files(path):
        if file.name == GOING:
            found.append(Orphan(file, size, "the job stays"))
        elif file.name.endswith(".partial") and _is_old(file):
            found.append(Orphan(file, size, "half written"))
        elif over and ".input.jsonl" in file.name and _is_old(file):
            found.append(Orphan(file, size, "sent long ago"))
    return found


def _holds_results(path: Path) -> bool:
    names = (file.name for file, size in disk.files(path) if size)
    return any(name.startswith("results.") or name.endswith((".output.jsonl", ".error.jsonl")) for name in names)


def _is_old(path: Path) -> bool:
    # By the machine's clock, which also sets the files' times, and not by an injected `now`.
    with suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime > LEFT_SECONDS
    return False


@dataclass(slots=True)
class Daily:
    """Runs gc at most once a day, however often `tick` is called. A file in the home records the last run."""

    store: Store
    home: Home
    terms: Retention
    _last: datetime | None = field(default=None, init=False)

    def use(self, config: Config) -> None:
        self.terms = config.retention

    def tick(self, now: datetime) -> Swept | None:
        """Run gc if it is due and return its result, else None. Errors are logged."""
        self._last = self._last or self._read()
        if self._last is not None and timedelta() <= now - self._last < EVERY:
            return None
        self._last = now
        try:
            swept = gc(self.store, self.home, self.terms, now)
            record = {"at": now.isoformat(timespec="seconds"), "freed_bytes": swept.freed}
            self._file.write_text(json.dumps(record))
        except (OrchError, OSError) as error:
            log.warning("gc: %s", error)
            return None
        log.info("gc: %s freed, the home takes %s", *map(retention.words, (swept.freed, swept.use.total)))
        return swept

    @property
    def _file(self) -> Path:
        return self.home.root / "house.json"

    def _read(self) -> datetime | None:
        try:
            return datetime.fromisoformat(json.loads(self._file.read_text())["at"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
