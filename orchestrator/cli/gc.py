"""`orch gc` removes old jobs and leftovers; `orch backup` backs up a home."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.console_progress import progress
from orchestrator.cli.output import json_option, print_json, quiet_option, say, show
from orchestrator.core.clock import now
from orchestrator.core.counts import number_of
from orchestrator.library.context import Context, opened

if TYPE_CHECKING:
    from orchestrator.pipeline.disk import Use
    from orchestrator.pipeline.gc.backup import BackupContents
    from orchestrator.pipeline.gc.sweep import Swept

MOST_KEPT = 20
PARTS = ("results", "requests", "servers", "database", "other")


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@json_option
def gc(dry_run: bool, as_json: bool) -> int:
    """Remove old jobs as allowed by [retention] in orch.toml, and leftovers of killed processes. Name the kept jobs.

    Never removes the newest runs of a job file, or files that the rows of a kept job refer to.
    """
    from orchestrator.pipeline.gc import sweep

    with opened() as context:
        swept = sweep.gc(context.store, context.home, context.config.retention, now(), dry_run=dry_run)
        if not dry_run:
            _tidy_up(context)
    if as_json:
        print_json(swept_json(swept))
    else:
        _show(swept)
    return 0


def _tidy_up(context: Context) -> None:
    from orchestrator.daemon.lock import daemon_lock
    from orchestrator.daemon.loop import Daemon

    if not context.store.shards.unclean(context.home.identity()):
        return
    with daemon_lock(context.home) as holder:
        if holder is None:
            with Daemon(context.config, context.store, dispatch=False) as daemon:
                daemon.tidy_up()


def swept_json(swept: Swept) -> dict[str, Any]:
    """Return the stable form of a sweep, documented in docs/reference/json.md."""
    return {
        "dry_run": swept.dry_run,
        "freed_bytes": swept.freed,
        "held": swept.held,
        "use": use_json(swept.use),
        "jobs": [
            {"job": verdict.job_id, "fate": verdict.fate, "reason": verdict.reason, "bytes": verdict.bytes}
            for verdict in swept.verdicts
        ],
        "orphans": [
            {"path": str(orphan.path), "reason": orphan.reason, "bytes": orphan.bytes} for orphan in swept.orphans
        ],
        "unknown": [str(path) for path in swept.unknown],
    }


def use_json(use: Use) -> dict[str, int]:
    """Return the sizes of a home's parts in bytes, documented in docs/reference/json.md."""
    parts = {f"{name}_bytes": int(getattr(use, name)) for name in PARTS}
    return {**parts, "total_bytes": use.total, "free_bytes": use.free}


def _show(swept: Swept) -> None:
    from orchestrator.policy.retention import JobFate, words

    verb = "would go" if swept.dry_run else "gone"
    what = {JobFate.FILES: "files of", JobFate.JOB: "all of"}
    for verdict in swept.gone:
        show(f"{verb}: {what[verdict.fate]} {verdict.job_id}, {words(verdict.bytes)}: {verdict.reason}")
    for orphan in swept.orphans:
        show(f"{verb}: {orphan.path}, {words(orphan.bytes)}: {orphan.reason}")
    kept = [verdict for verdict in swept.verdicts if verdict.fate is JobFate.KEPT]
    for verdict in kept[:MOST_KEPT]:
        show(f"kept: {verdict.job_id}: {verdict.reason}")
    if len(kept) > MOST_KEPT:
        show(f"kept: {number_of(len(kept) - MOST_KEPT, 'more job')}; --json lists them all")
    for path in swept.unknown:
        say(f"orch: {path} holds results of unknown jobs: check that this is the right database")
    show(f"{words(swept.freed)} {'would be ' if swept.dry_run else ''}freed; {_use_words(swept.use)}")


def _use_words(use: Use) -> str:
    from orchestrator.policy.retention import words

    parts = ", ".join(f"{name} {words(getattr(use, name))}" for name in PARTS)
    return f"the home takes {words(use.total)} ({parts}), its disk has {words(use.free)} free"


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--check", "only_check", is_flag=True, help="Read a whole backup and verify it.")
@quiet_option
@json_option
def backup(file: Path, only_check: bool, quiet: bool, as_json: bool) -> int:
    """Back up the home to a new .tar file, even while a daemon runs. With --check, verify a backup instead.

    To restore a backup, unpack it into an empty folder and set ORCH_HOME to that folder.
    """
    from orchestrator.pipeline.gc import backup as backups

    if only_check:
        found = backups.check(file)
    else:
        with opened() as context, progress(quiet=quiet or as_json) as view:
            found = backups.make(context.store, context.home, file, now(), view.counted)
    if as_json:
        print_json(backup_json(file, found))
    else:
        _tell(file, found, only_check)
    return 1 if found.problems else 0


def backup_json(file: Path, found: BackupContents) -> dict[str, Any]:
    """Return the stable form of a backup, documented in docs/reference/json.md."""
    label = found.label
    return {
        "file": str(file),
        "made_at": label.made_at.isoformat(timespec="seconds"),
        "orch": label.orch,
        "database": label.database,
        "files": found.files,
        "bytes": found.bytes,
        "lines_checked": found.lines,
        "problems": found.problems,
    }


def _tell(file: Path, found: BackupContents, only_check: bool) -> None:
    from orchestrator.policy.retention import words

    label, checked = found.label, f", {found.lines:,} result lines read" if only_check else ""
    size = f"{number_of(found.files, 'file')}, {words(found.bytes)}"
    show(f"{file}: {size}, of {label.made_at:%Y-%m-%d %H:%M} UTC{checked}")
    if not label.database:
        say("orch: the Postgres database is not included; copy it with `pg_dump` (`orch help retention-and-backup`)")
    for problem in found.problems:
        show(f"! {problem}")
