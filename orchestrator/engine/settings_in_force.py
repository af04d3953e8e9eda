"""Which settings the engine of a home runs under, as other commands see it. Light: looking imports no more than this.

An engine keeps it in `settings.json` in its home, and keeps that true while it runs.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.atomic import durable
from orchestrator.core.events import EventKind
from orchestrator.engine.lock import Holder, running_engine
from orchestrator.settings.discovery import is_same_file
from orchestrator.settings.home import Home

if TYPE_CHECKING:
    from orchestrator.core.model import Job
    from orchestrator.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InForce:
    """The engine `pid` of a `home` runs under the settings of `file` as it was at `read_at`, when it had this digest.

    `refused` is why the file as it is now is not taken up; `restart` names what of it holds from a restart on. Where
    the file names another home by now, it is told there as well.
    """

    pid: int
    home: str
    file: str | None
    digest: str
    read_at: str
    refused: str | None = None
    restart: tuple[str, ...] = ()

    @property
    def told(self) -> list[str]:
        """What a person has to know, a line each; nothing where the file holds as it is."""
        held = f"the engine keeps the settings that it read at {self.read_at}"
        refused = [] if self.refused is None else [f"{self.refused}\n  {held}"]
        return refused + [f"{one}: takes effect when the engine restarts" for one in self.restart]


def digest_of(content: bytes) -> str:
    """What stands for what a settings file says."""
    return sha256(content.removeprefix(b"\xef\xbb\xbf")).hexdigest()[:16]


def keep(home: Home, in_force: InForce) -> None:
    """Let other commands know which settings the engine runs under."""
    try:
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with durable(home.settings) as file:
            file.write(json.dumps(asdict(in_force)).encode())
    except OSError as error:
        log.warning("%s cannot be written: %s", home.settings, error.strerror)


def _kept(home: Home) -> InForce | None:
    try:
        found: dict[str, Any] = json.loads(home.settings.read_text(encoding="utf-8"))
        return InForce(**{**found, "restart": tuple(found["restart"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def differences(home: Home, holder: Holder | None, path: Path | None) -> list[str]:
    """How the settings of the engine that runs a home differ from those that a command reads in `path`."""
    in_force = _kept(home)
    if in_force is None:
        return []
    if in_force.home != str(home.root):
        there = running_engine(Home(Path(in_force.home)))
        is_there = there is not None and there.pid == in_force.pid
        return [f"{there} still has the home {in_force.home}", *in_force.told] if is_there else []
    if holder is None or holder.pid != in_force.pid:
        return []  # that was another engine's
    if not is_same_file(in_force.file, path):
        return [f"the engine runs under {in_force.file or 'no orch.toml'}, and this command reads {path or 'none'}"]
    if in_force.refused is None and path is not None:
        try:
            digest = digest_of(path.read_bytes())
        except OSError:
            digest = ""
        if digest != in_force.digest:
            return [f"{path} was edited just now; the engine reads it within seconds", *in_force.told]
    return in_force.told


def other_settings(store: Store, job: Job, mine: Path | None, now: datetime) -> str | None:
    """Why a job waits for an engine with another settings file; None if it may run under `mine`.

    A file that is gone was moved if `mine` has its name: from then on the job is made under `mine`.
    """
    made_under = job.options.get("config", str(mine))
    if is_same_file(made_under, mine):
        return None
    if mine is None or Path(made_under).exists() or Path(made_under).name != mine.name:
        # Names of backends and models mean what that file says; another's would send rows elsewhere.
        return f"waits for an engine with its settings, {made_under}; if these were moved, submit it again"
    store.jobs.allow(job.id, config=str(mine))
    store.jobs.note(job.id, EventKind.REVISED, f"{made_under} is gone: it goes on under {mine}", now)
    return None
