"""Paths under the home. Files hold the bodies of rows; the database holds the byte range of each row's body."""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from orchestrator.core.atomic import write_once
from orchestrator.core.errors import StorageError
from orchestrator.core.model import JobId
from orchestrator.core.replica.contents import MARK
from orchestrator.core.shards import ShardId

BLANK = "\0 \r\n\t"
COPIED_SECONDS = 60.0
"""A file is a copy if its change time (ctime) is more than this many seconds after its last write (mtime)."""


def new_identity() -> str:
    """Return a new id for a home."""
    return uuid.uuid4().hex[:12]


class Home(Struct, frozen=True):
    """Paths of a home. Reading a path creates nothing."""

    root: Path

    @property
    def lock(self) -> Path:
        """The daemon's lock file, with a line that identifies the daemon."""
        return self.root / "engine.lock"

    @property
    def log(self) -> Path:
        """Log of the daemons."""
        return self.root / "engine.log"

    @property
    def settings(self) -> Path:
        """Settings of the running daemon, and how they differ from orch.toml."""
        return self.root / "settings.json"

    @property
    def telemetry(self) -> Path:
        """Progress of sending this home's data to its OpenTelemetry receiver."""
        return self.root / "telemetry.json"

    @property
    def has_replica(self) -> bool:
        """True if another machine may continue the home, so that the state here may be outdated."""
        return self.mark.exists()

    @property
    def mark(self) -> Path:
        """The home's mark, a file that records how much of the replica the home holds."""
        return self.root / MARK

    @property
    def database(self) -> Path:
        """Default SQLite database."""
        return self.root / "orch.db"

    @property
    def last_creates(self) -> Path:
        """Notes about the last create call at each backend whose batch list does not show a batch's owner."""
        return self.root / "creates"

    @property
    def replica(self) -> Path:
        """Progress of the home's replica, while its daemon is active."""
        return self.root / "replica-status.json"

    @property
    def replica_asked(self) -> Path:
        """File created by a process that waits for the replica."""
        return self.root / "replica.asked"

    @property
    def replica_stage(self) -> Path:
        """Hard links of files on their way to the replica."""
        return self.root / ".replica"

    @property
    def frames(self) -> Path:
        """Job files, rows and requests of the Python interface, in a folder for each question.

        A question without a name has a folder for each frame: `QUESTION.FRAME`.
        """
        return self.root / "frames"

    def run_of(self, file: Path) -> str:
        """Return the path that identifies runs of a job file: its own path, or a path for all frames of a
        question.
        """
        real = Path(os.path.realpath(file))
        if real.parent.parent != Path(os.path.realpath(self.frames)):
            return str(real)
        return str(real.parent.with_suffix("") / real.name)

    def server(self, backend: str) -> Path:
        """Return the folder of a backend's batch server."""
        return self.root / "servers" / backend

    def bench(self, key: str) -> Path:
        """Return the folder of a benchmark: its rows, and its measured points."""
        return self.root / "bench" / key

    def job(self, job_id: JobId) -> Path:
        """Return the folder of a job."""
        return self.root / "jobs" / job_id

    def requests(self, job_id: JobId) -> Path:
        """Return the file of a job's request lines, in input order."""
        return self.job(job_id) / "requests.jsonl"

    @property
    def intake_lock(self) -> Path:
        """Lock held by a submit while it checks whether its job exists and records the job."""
        return self.root / "intake.lock"

    def build_lock(self, job_id: JobId) -> Path:
        """Return the lock of the process that builds the job."""
        return self.job(job_id) / "build.lock"

    def shard_input(self, shard_id: ShardId) -> Path:
        """Return a shard's batch input file, which exists during its submission."""
        return self._of(shard_id, "input.jsonl")

    def results(self, shard_id: str, kind: str) -> Path:
        """Return a collected result file; `kind` is `output` or `error`."""
        return self._of(shard_id, f"{kind}.jsonl")

    def merged(self, job_id: JobId, style: str) -> Path:
        """Return the file of the finished rows in input order."""
        return self.job(job_id) / ("results.jsonl" if style == "jsonl" else "results.batch.jsonl")

    def _of(self, shard_id: str, name: str) -> Path:
        job_id, _, number = shard_id.rpartition(".")
        return self.root / "jobs" / job_id / "shards" / f"{number}.{name}"

    @property
    def place(self) -> Path:
        """File with the home's path at its daemon's last run. In a copy of the home, it has the original's path."""
        return self.root / "home.place"

    @property
    def has_identity(self) -> bool:
        """True if the home has an id, because it was used before."""
        try:
            return bool(self._identity.read_text(errors="replace").strip(BLANK))
        except OSError:
            return False

    def made_at(self, otherwise: datetime) -> datetime:
        """Return when the home received its id, before all its batches. Without an id, return `otherwise`."""
        try:
            return datetime.fromtimestamp(self._identity.stat().st_mtime, UTC)
        except OSError:
            return otherwise

    @property
    def is_copy(self) -> bool:
        """True if the id's file is a copy, for example from a restored backup."""
        try:
            found = self._identity.stat()
        except OSError:
            return False
        return found.st_ctime - found.st_mtime > COPIED_SECONDS

    def adopt(self, identity: str) -> None:
        """Give the home this id unless it already has an id. Raises StorageError if the id cannot be written."""
        try:
            write_once(self._identity, identity.encode())
        except OSError as error:
            raise StorageError(f"cannot write {self._identity}: {error.strerror}", hint="free some space") from error

    def forget_identity(self, *, is_blank: bool = True) -> None:
        """Remove the id's file. With `is_blank`, remove it only if it holds no id."""
        if not (is_blank and self.has_identity):
            self._identity.unlink(missing_ok=True)

    @property
    def _identity(self) -> Path:
        return self.root / "home.id"

    def identity(self) -> str:
        """Return this home's id, created on first use. Raises StorageError if the id is lost.

        In a shared database, the id identifies the home that has a job's files.
        """
        path = self._identity
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not path.exists() and not self.job_folders():
                write_once(path, new_identity().encode())
            found = path.read_text(errors="replace").strip(BLANK) if path.exists() else ""
        except OSError as error:
            raise StorageError(
                f"{self.root} cannot be used: {error.strerror}", hint="set ORCH_HOME to a folder you may write"
            ) from error
        if not found:
            raise StorageError(
                f"{path} is empty or gone: this home does not know which jobs are its own",
                hint="run `orch adopt`, which finds the id by its jobs; or restore the id from a backup",
            )
        return found

    def job_folders(self) -> frozenset[str]:
        """Return the ids of jobs that have a folder here."""
        folder = self.root / "jobs"
        return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()
