"""The settings of a home's running daemon, for other commands. The module imports little, for fast read-only
commands.

A daemon writes its settings to the home's `settings.json`, and keeps that file current while it runs.
"""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from orchestrator.core.atomic import durable
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.events import EventKind
from orchestrator.core.json_decoders import json_decoder
from orchestrator.daemon.lock import Holder, running_daemon
from orchestrator.settings.discovery import is_same_file
from orchestrator.settings.home import Home

if TYPE_CHECKING:
    from orchestrator.core.model import Job
    from orchestrator.store import Store

log = logging.getLogger(__name__)


class InForce(Struct, frozen=True):
    """The settings of a home's running daemon `pid`: the content of `file` with this digest, read at `read_at`.

    `refused` is why the file's current content is not applied. `restart` lists its settings that need a restart, each
    with the reason. If the file now names another home, the daemon writes this record there too.
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
        """Differences from the file, as lines for people; empty if the whole file is applied."""
        held = f"the daemon keeps the settings that it read at {self.read_at}"
        refused = [] if self.refused is None else [f"{self.refused}\n  {held}"]
        return [*refused, *self.restart]


def digest_of(content: bytes) -> str:
    # imported here, because OpenSSL takes 4 % of the time of `orch status` if no daemon runs
    from hashlib import sha256

    return sha256(content.removeprefix(b"\xef\xbb\xbf")).hexdigest()[:16]


def keep(home: Home, in_force: InForce) -> None:
    """Publish the daemon's settings for other commands."""
    try:
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with durable(home.settings) as file:
            file.write(msgspec.json.encode(in_force))
    except OSError as error:
        log.warning("%s cannot be written: %s", home.settings, error.strerror)


def _read_record(home: Home) -> InForce | None:
    try:
        return json_decoder(InForce).decode(home.settings.read_bytes())
    except (OSError, *JSON_ERRORS):
        return None


def differences(home: Home, holder: Holder | None, path: Path | None) -> list[str]:
    """Describe how the running daemon's settings differ from the command's own settings file, `path`. Empty if they
    do not.
    """
    in_force = _read_record(home)
    if in_force is None:
        return []
    if in_force.home != str(home.root):
        there = running_daemon(Home(Path(in_force.home)))
        is_there = there is not None and there.pid == in_force.pid
        return [f"{there} still has the home {in_force.home}", *in_force.told] if is_there else []
    if holder is None or holder.pid != in_force.pid:
        return []  # the record is of a daemon that has ended
    if not is_same_file(in_force.file, path):
        return [f"the daemon runs under {in_force.file or 'no orch.toml'}, and this command reads {path or 'none'}"]
    if in_force.refused is None and path is not None:
        try:
            digest = digest_of(path.read_bytes())
        except OSError:
            digest = ""
        if digest != in_force.digest:
            return [f"{path} was edited just now; the daemon reads it within seconds", *in_force.told]
    return in_force.told


def other_settings(store: Store, job: Job, mine: Path | None, now: datetime) -> str | None:
    """Return why a job waits for a daemon with another settings file, or None if it may run under `mine`.

    A missing file counts as moved if `mine` has the same name. From then on, the job belongs to `mine`.
    """
    made_under = job.options.get("config", str(mine))
    if is_same_file(made_under, mine):
        return None
    if mine is None or Path(made_under).exists() or Path(made_under).name != mine.name:
        # Names of backends and models depend on the settings file, so another file could send rows elsewhere.
        return f"waits for a daemon with its settings, {made_under}; if these were moved, submit it again"
    store.jobs.allow(job.id, config=str(mine))
    store.jobs.note(job.id, EventKind.REVISED, f"{made_under} is gone: the job continues under {mine}", now)
    return None
