"""Backups of a home in one file, made while a daemon works in the home, and the check of a backup.

The copy must contain every file that the copied databases name, even if files are written and removed meanwhile. So
the databases are copied first. Then each file gets a hard link; a server's files are linked right after its database.
If a file vanished in between, the copy starts again. Result files only grow, so extra bytes that the database does
not know do no harm.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec
from msgspec import Struct, field

from orchestrator.core.atomic import durable
from orchestrator.core.counts import number_of
from orchestrator.core.errors import InputError, StorageError, UsageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.version import __version__
from orchestrator.pipeline.disk import DATABASE, SERVERS, files
from orchestrator.pipeline.gc.sweep import GOING, GONE, STAGE, gc_lock
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.gc import check_sqlite, copy_sqlite, served_files

LABEL = "backup.json"
"""Name of the file that describes the archive. It comes last, so an archive without it is truncated."""
SERVER_DATABASE = "server.db"
TRIES = 5
MOST_TOLD = 20
MEGABYTE = 10**6
Progress = Callable[[str, int, int, str], None]


class Label(Struct, frozen=True):
    """Label of a backup: its time, the version of orch, the home's id, and if the database is included."""

    made_at: datetime
    orch: str
    home: str
    database: bool


class BackupContents(Struct):
    """Contents of a backup: numbers of files, bytes and lines that rows refer to, and the problems found."""

    label: Label
    files: int = 0
    bytes: int = 0
    lines: int = 0
    problems: list[str] = field(default_factory=list)


def make(
    store: Store, home: Home, target: Path, now: datetime, progress: Progress = lambda what, done, total, unit: None
) -> BackupContents:
    """Write a backup to a new file, whole or not at all.

    Anything missing in the home itself is reported as a problem and left out. `progress` gets the activity, the
    amount done, the total and the unit. Raises RefusedError, StorageError, UsageError.
    """
    if target.exists():
        raise UsageError(f"{target} already exists", hint="name a new file: a backup never overwrites another")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"{target}: there is no such folder", hint="create it, or name another file")
    label = Label(now.replace(microsecond=0), __version__, home.identity(), store.removals.has_file)
    stage = home.root / f"{STAGE}{uuid.uuid4().hex}"
    with gc_lock(home):
        try:
            problems = _staged(store, home, stage)
            found = BackupContents(label, problems=problems)
            with durable(target) as file:
                _pack(stage, file, found, progress)
        except OSError as error:
            raise StorageError(
                f"cannot write {target}: {error.strerror or error}", hint="free some space, or name a file elsewhere"
            ) from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return found


def _staged(store: Store, home: Home, stage: Path) -> list[str]:
    missing: list[str] = []
    for _ in range(TRIES):
        before = missing
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(mode=0o700)
        store.removals.copy_to(stage / DATABASE)
        linked: set[Path] = set()
        for database in _server_databases(home.root):
            copy_sqlite(database, _with_folder(stage / database.relative_to(home.root)))
            # Linked at once: while other files are copied, a server may remove files that the copy names.
            _link(database.parent, home.root, stage, linked)
            linked.add(database.parent)
        for top in ("jobs", *SERVERS):
            _link(home.root / top, home.root, stage, linked)
        shutil.copyfile(home.root / "home.id", stage / "home.id")
        sizes = {path.relative_to(stage).as_posix(): size for path, size in files(stage)}
        missing = list(_lacking(stage, home.identity(), sizes))
        if not missing or missing == before:
            break
    return missing[:MOST_TOLD]


def _server_databases(root: Path) -> list[Path]:
    return sorted(path for top in SERVERS for path in (root / top).rglob(SERVER_DATABASE))


def _with_folder(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _link(top: Path, root: Path, stage: Path, linked: Collection[Path]) -> None:
    """Hard-link each file below a folder into the stage, which then keeps the file even if the original is removed.

    Folders in `linked` are left out.
    """
    for parent, folders, names in os.walk(top):
        if Path(parent) in linked:
            folders.clear()
            continue
        folders[:] = [name for name in folders if is_kept(name)]
        to = stage / Path(parent).relative_to(root)
        to.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = Path(parent, name)
            if is_kept(name) and path.is_file() and not path.is_symlink():
                with suppress(FileNotFoundError, FileExistsError):
                    os.link(path, to / name)


def is_kept(name: str) -> bool:
    """True if a file or folder of this name below jobs and servers belongs in a copy of the home."""
    is_passing = name.endswith((".partial", ".lock")) or name.startswith((SERVER_DATABASE, GONE)) or name == GOING
    return not is_passing


def _lacking(folder: Path, home: str, sizes: dict[str, int]) -> Iterator[str]:
    here = Home(Path())
    if (folder / DATABASE).exists():
        with Store.open(f"sqlite:///{folder / DATABASE}") as store:
            for lines in store.removals.result_files(home):
                name = here.results(lines.shard, lines.kind).as_posix()
                if (size := sizes.get(name, 0)) < lines.ends:
                    rows = number_of(lines.rows, "row")
                    yield f"{name}: has {size:,} of the {lines.ends:,} bytes that {rows} refer to"
            for job_id, ends in store.removals.request_files(home):
                name = here.requests(job_id).as_posix()
                if (size := sizes.get(name, 0)) < ends:
                    yield f"{name}: has {size:,} of {ends:,} bytes that its rows point to"
    for database in _server_databases(folder):
        for path in served_files(database):
            name = (database.parent / path).relative_to(folder).as_posix()
            if name not in sizes:
                yield f"{name}: is not there, and {database.relative_to(folder)} names it"


def _pack(stage: Path, file: BinaryIO, found: BackupContents, progress: Progress) -> None:
    total = sum(size for _, size in files(stage))
    # Hard links are stored as files: a link in the archive has no bytes of its own.
    with tarfile.open(fileobj=file, mode="w", dereference=True) as archive:
        for path in sorted(stage.rglob("*")):
            info = archive.gettarinfo(path, path.relative_to(stage).as_posix())
            info.uname = info.gname = ""
            info.mode &= 0o777
            if path.is_dir():
                archive.addfile(info)
                continue
            with path.open("rb") as source:
                # Limited to the size just read, because the file may grow.
                archive.addfile(info, source)
            found.files += 1
            found.bytes += info.size
            progress("backing up", found.bytes // MEGABYTE, total // MEGABYTE, "MB")
        text = json.dumps(
            {
                "made_at": found.label.made_at.isoformat(timespec="seconds"),
                "orch": found.label.orch,
                "home": found.label.home,
                "database": found.label.database,
            }
        ).encode()
        label = stage / LABEL
        label.write_bytes(text)
        archive.add(label, LABEL)


def check(path: Path) -> BackupContents:
    """Check that a backup is complete: its databases, and each line that a row refers to. Raises InputError."""
    with _opened(path) as (archive, file), tempfile.TemporaryDirectory(prefix="orch-check-") as name:
        members = {member.name: member for member in archive.getmembers() if member.isreg()}
        packed = [member.size for member in members.values() if member.name != LABEL]
        found = BackupContents(_label(path, archive), len(packed), sum(packed))
        found.problems += filter(None, map(_danger, archive.getmembers()))
        folder = Path(name)
        for member in () if found.problems else members.values():
            if member.name == DATABASE or Path(member.name).name == SERVER_DATABASE:
                archive.extract(member, folder, filter="data")
                if (wrong := check_sqlite(folder / member.name)) is not None:
                    found.problems.append(f"{member.name}: {wrong}")
        if not found.problems and found.label.database and DATABASE not in members:
            found.problems.append(f"{DATABASE} is not there")
        if not found.problems:
            sizes = {member.name: member.size for member in members.values()}
            found.problems += _lacking(folder, found.label.home, sizes)
        if not found.problems and found.label.database:
            found.problems += _broken_lines(folder, file, members, found)
    del found.problems[MOST_TOLD:]
    return found


def _danger(member: tarfile.TarInfo) -> str | None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        return f"{member.name}: would be unpacked outside the folder"
    if not (member.isreg() or member.isdir()):
        return f"{member.name}: is a link, a device or a pipe; a backup has files and folders only"
    if member.mode & stat.S_ISUID or (member.isreg() and member.mode & stat.S_ISGID):
        return f"{member.name}: would run with the rights of its owner or group"
    return None


@contextmanager
def _opened(path: Path) -> Iterator[tuple[tarfile.TarFile, BinaryIO]]:
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            yield archive, file
    except tarfile.TarError as error:
        raise InputError(
            f"is not a backup, or is truncated: {error}", file=path, hint="`orch backup FILE` makes one"
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None


def _label(path: Path, archive: tarfile.TarFile) -> Label:
    try:
        source = archive.extractfile(LABEL)
        return json_decoder(Label).decode(source.read() if source else b"")
    except (KeyError, msgspec.MsgspecError):
        raise InputError(f"has no {LABEL}: it is not a backup, or is truncated", file=path) from None


def _broken_lines(
    folder: Path, file: BinaryIO, members: dict[str, tarfile.TarInfo], found: BackupContents
) -> Iterable[str]:
    here = Home(Path())
    with Store.open(f"sqlite:///{folder / DATABASE}") as store:
        for shard, kind, span in store.removals.result_lines(found.label.home):
            name = here.results(shard, kind).as_posix()
            line = os.pread(file.fileno(), span.length, members[name].offset_data + span.offset)
            found.lines += 1
            try:
                msgspec.json.decode(line)
            except msgspec.MsgspecError as error:
                yield f"{name}: the line at {span.offset:,} is not a result: {error}"
