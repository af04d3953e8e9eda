"""Where things lie under ORCH_HOME. Bodies are in files; the database says which bytes of them belong to a row."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.core.atomic import write_once
from orchestrator.core.errors import StorageError
from orchestrator.core.model import JobId
from orchestrator.core.replica.contents import MARK
from orchestrator.core.shards import ShardId

BLANK = "\0 \r\n\t"


def new_identity() -> str:
    """An id for a home that has none."""
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, slots=True)
class Home:
    """Paths of one home. Nothing is made by asking for a path."""

    root: Path

    @property
    def lock(self) -> Path:
        """Held by the engine; holds a line that says who that is."""
        return self.root / "engine.lock"

    @property
    def log(self) -> Path:
        """What engines had to say."""
        return self.root / "engine.log"

    @property
    def settings(self) -> Path:
        """Which settings the engine runs under, and what of orch.toml it does not."""
        return self.root / "settings.json"

    @property
    def telemetry(self) -> Path:
        """What of this home was sent to its OpenTelemetry receiver."""
        return self.root / "telemetry.json"

    @property
    def has_replica(self) -> bool:
        """Whether another machine may go on with it: then what is here may be old."""
        return self.mark.exists()

    @property
    def mark(self) -> Path:
        """What the home knows of its replica."""
        return self.root / MARK

    @property
    def database(self) -> Path:
        """Its SQLite database, where it has no other."""
        return self.root / "orch.db"

    @property
    def replica(self) -> Path:
        """How far the home's replica is, while its engine is the active one."""
        return self.root / "replica-status.json"

    @property
    def replica_asked(self) -> Path:
        """Made by who waits for the replica."""
        return self.root / "replica.asked"

    @property
    def replica_stage(self) -> Path:
        """Second names of files that are on their way to the replica."""
        return self.root / ".replica"

    def server(self, backend: str) -> Path:
        """The folder of the batch server that stands for a backend."""
        return self.root / "servers" / backend

    def bench(self, key: str) -> Path:
        """The folder of a bench: the rows that it asks, and the points that it has measured."""
        return self.root / "bench" / key

    def job(self, job_id: JobId) -> Path:
        """The folder of a job."""
        return self.root / "jobs" / job_id

    def requests(self, job_id: JobId) -> Path:
        """Every request line of a job, in input order."""
        return self.job(job_id) / "requests.jsonl"

    @property
    def intake_lock(self) -> Path:
        """Held for the moment in which a submit looks whether its job is there, and records it."""
        return self.root / "intake.lock"

    def build_lock(self, job_id: JobId) -> Path:
        """Held by the process that builds the job."""
        return self.job(job_id) / "build.lock"

    def shard_input(self, shard_id: ShardId) -> Path:
        """A shard's batch input file, while it is being submitted."""
        return self._of(shard_id, "input.jsonl")

    def results(self, shard_id: str, kind: str) -> Path:
        """A collected result file; `kind` is `output` or `error`."""
        return self._of(shard_id, f"{kind}.jsonl")

    def merged(self, job_id: JobId, style: str) -> Path:
        """The finished rows in input order."""
        return self.job(job_id) / ("results.jsonl" if style == "jsonl" else "results.batch.jsonl")

    def _of(self, shard_id: str, name: str) -> Path:
        job_id, _, number = shard_id.rpartition(".")
        return self.root / "jobs" / job_id / "shards" / f"{number}.{name}"

    @property
    def place(self) -> Path:
        """Where the home is, as its engine saw it last: a copy has the place of the home that it is a copy of."""
        return self.root / "home.place"

    @property
    def has_identity(self) -> bool:
        """Whether the home was used before, and knows its id."""
        try:
            return bool(self._identity.read_text(errors="replace").strip(BLANK))
        except OSError:
            return False

    def made_at(self, otherwise: datetime) -> datetime:
        """When the home got its id: no batch of it is older. `otherwise`, where it has none."""
        try:
            return datetime.fromtimestamp(self._identity.stat().st_mtime, UTC)
        except OSError:
            return otherwise

    def adopt(self, identity: str) -> None:
        """Give the home this id, unless it has one by now. Raises StorageError."""
        try:
            write_once(self._identity, identity.encode())
        except OSError as error:
            raise StorageError(f"cannot write {self._identity}: {error.strerror}", hint="free some space") from error

    def forget_identity(self, *, is_blank: bool = True) -> None:
        """Remove the file of its id; with `is_blank`, only if it is there and has none in it."""
        if not (is_blank and self.has_identity):
            self._identity.unlink(missing_ok=True)

    @property
    def _identity(self) -> Path:
        return self.root / "home.id"

    def identity(self) -> str:
        """This home's id, made at its first use: on a shared database it says whose files a job's bodies are in."""
        path = self._identity
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not path.exists() and not self._has_jobs():
                write_once(path, new_identity().encode())
            found = path.read_text(errors="replace").strip(BLANK) if path.exists() else ""
        except OSError as error:
            raise StorageError(
                f"{self.root} cannot be used: {error.strerror}", hint="set ORCH_HOME to a folder you may write"
            ) from error
        if not found:
            raise StorageError(
                f"{path} is empty or gone: this home does not know which jobs are its own",
                hint="run `orch adopt`, which finds the id by its jobs; or put the id from a backup back",
            )
        return found

    def _has_jobs(self) -> bool:
        return bool(self.job_folders())

    def job_folders(self) -> frozenset[str]:
        """The ids of jobs that have a folder here."""
        folder = self.root / "jobs"
        return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()
