"""Orders that a builder's process carries out for a test."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import OutputError, OutputFault, StorageError
from orchestrator.core.model import JobId
from orchestrator.pipeline.build.build_orders import BuildSite
from tests.support.process import wait_until


@dataclass(frozen=True, slots=True)
class Wait:
    """Leave a file, and wait until there is another."""

    begun: Path
    until: Path

    def carry_out(self, site: BuildSite) -> int:
        self.begun.touch()
        wait_until(self.until.exists)
        return os.getpid()


@dataclass(frozen=True, slots=True)
class Discard:
    """Write to the database once there is a file."""

    begun: Path
    until: Path
    job: JobId

    def carry_out(self, site: BuildSite) -> bool:
        self.begun.touch()
        wait_until(self.until.exists)
        return site.store.jobs.discard(self.job)


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise what a build may raise."""

    how: str

    def carry_out(self, site: BuildSite) -> None:
        os.write(1, b"what a library prints is not what is told")
        match self.how:
            case "output":
                raise OutputError(OutputFault.NO_ROOM, "no room there", hint="make some")
            case "storage":
                raise StorageError("the database is locked")
            case "defect":
                raise KeyError("x")
            case _:
                os._exit(3)
