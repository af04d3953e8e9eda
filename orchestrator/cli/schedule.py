"""`orch schedule`: job files that `orch up` runs every night or every hour."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import click

from orchestrator.cli.options import FILE, Dollars, fail_on_option
from orchestrator.cli.output import json_option, print_json, say, show
from orchestrator.core.clock import now
from orchestrator.core.durations import duration
from orchestrator.core.errors import InputError, UsageError
from orchestrator.core.fail_on import FailOn
from orchestrator.core.money import amount
from orchestrator.core.schedules import Misfire, Night, NightState, Overlap, Schedule
from orchestrator.core.zones import zone_of
from orchestrator.daemon.lock import running_daemon
from orchestrator.daemon.manual_actions import USER, make_due, night_words
from orchestrator.library.context import Context, opened
from orchestrator.policy import cron_expressions, schedule_times
from orchestrator.reports.listings import last_night, name_of, night_json, schedule_json
from orchestrator.settings.stored_spec import spec_of

Value = TypeVar("Value")
GRACE = "6h"
NEWEST = 20
NAMES = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"


@click.group()
def schedule() -> None:
    """Run job files on a schedule, every night or every hour; `orch up` runs them."""


NAME = click.argument("name")


@schedule.command()
@FILE
@click.option("--cron", metavar="CRON", help='When, as "minute hour day month weekday": "0 22 * * *".')
@click.option("--after", metavar="SCHEDULE", help="Instead of --cron: after each successful night of that schedule.")
@click.option("--tz", metavar="ZONE", help="Time zone, such as Europe/Berlin; default: this machine's.")
@click.option("--deadline", metavar="WHEN", help="06:00, or 8h from when a night is due; default: the job file's.")
@click.option("--budget", type=Dollars(), help="A hard cap in dollars for each night; default: the job file's.")
@click.option(
    "--misfire", type=click.Choice([rule.value for rule in Misfire]), default=Misfire.RUN.value, show_default=True,
    help="What to do with a night found late, but within its grace.",
)  # fmt: skip
@click.option("--grace", default=GRACE, show_default=True, metavar="TIME", help="A later night is missed.")
@click.option(
    "--overlap", type=click.Choice([rule.value for rule in Overlap]), default=Overlap.SKIP.value, show_default=True,
    help="What to do with a night that is due while a job of the file is still running.",
)  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the schedule; default: the job's name.")
@json_option
def add(
    file: Path, cron: str | None, after: str | None, tz: str | None, deadline: str | None, budget: Decimal | None,
    misfire: str, grace: str, overlap: str, name: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Run a job file or batch file every night, every hour, or after another schedule.

    The file is checked now, and each run reads it again.
    """
    if (cron is None) == (after is None):
        raise UsageError("give --cron, or --after with the schedule that this one follows", hint="one of them")
    if cron is not None:
        _meant("--cron", lambda: cron_expressions.check_cron(cron))
    length = _meant("--grace", lambda: cron_expressions.length(grace))
    if name is not None and not re.fullmatch(NAMES, name):
        raise UsageError(f"--name: {name!r} is not a name", hint="letters, digits, - and _, 64 of them at most")
    if deadline is not None:
        _meant("--deadline", lambda: schedule_times.check_deadline(deadline))
    with opened() as context:
        before = None if after is None else _followed(context, after)
        zone = tz or (_local_zone() if before is None else before.tz)
        _meant("--tz", lambda: zone_of(zone))
        called, at = _checked(context, file, deadline, name), now()
        made = Schedule(
            id=f"{called}-{os.urandom(4).hex()}", name=called, home=context.home.identity(),
            config=str(context.config.path), file=str(file.absolute()), cron=cron or "", tz=zone, deadline=deadline,
            budget=budget, misfire=Misfire(misfire), grace=length, overlap=Overlap(overlap), created_at=at, since=at,
            after=None if before is None else before.id,
        )  # fmt: skip
        context.store.schedules.add(made)
        _show_one(context, made, as_json)
        if not as_json:
            _say_who_runs(context)
    return 0


def _followed(context: Context, name: str) -> Schedule:
    found = _get(context, name)
    if found.home != context.home.identity():
        raise UsageError(f"--after {name}: it belongs to another home, whose jobs this home's daemon does not see")
    return found


def _meant(option: str, meaning: Callable[[], Value]) -> Value:
    try:
        return meaning()
    except InputError as error:
        raise UsageError(f"{option}: {error.message}") from None


def _local_zone() -> str:
    import tzlocal

    try:
        name: str | None = tzlocal.get_localzone_name()
    except LookupError:  # contradictory system files
        name = None
    if name is None:
        raise UsageError("--tz: this machine's time zone has no name", hint="give one, such as --tz Europe/Berlin")
    return name


def _checked(context: Context, file: Path, deadline: str | None, name: str | None) -> str:
    """Check, as far as possible, that future runs of the file will work, and return the schedule's name.

    The name defaults to the job's name. Raises InputError, and UsageError if the name is taken.
    """
    from orchestrator.pipeline.build.submission import Options, draft
    from orchestrator.pipeline.build.validate import check_file
    from orchestrator.pipeline.plan.routes import check_eligible

    job = draft(file, context.config, context.home, Options(), now())
    called = name or job.name
    context.store.schedules.check_free(called)
    finding = check_file(file, context.config, now, lambda: nullcontext(context.store))
    for warning in finding.warnings:
        say(f"orch: warning: {warning}")
    for problem in finding.problems:
        say(f"orch: {problem}")
    check_eligible(context.config, job)
    spec = spec_of(job)
    if deadline is None and spec is not None and spec.deadline is not None:
        try:
            schedule_times.check_deadline(spec.deadline)
        except InputError as error:
            hint = "or give the schedule its own with --deadline"
            raise InputError(error.message, file=file, field="deadline", hint=hint) from None
    return called


@schedule.command("list")
@json_option
def list_(as_json: bool) -> int:
    """Show all schedules, each with its next and last night."""
    with opened() as context:
        schedules = context.store.schedules.all()
        if as_json:
            print_json([schedule_json(context.store, one, now()) for one in schedules])
            return 0
        if not schedules:
            say('orch: no schedules; `orch schedule add JOB.yaml --cron "0 22 * * *"` makes one')
        for one in schedules:
            _show(context, one)
        if schedules:
            _say_who_runs(context)
    return 0


@schedule.command("nights")
@click.argument("name", required=False)
@click.option("--all", "show_all", is_flag=True, help=f"Every night, not only the newest {NEWEST}.")
@fail_on_option
@json_option
def nights_(name: str | None, show_all: bool, fail_on: FailOn | None, as_json: bool) -> int:
    """Show the nights of one schedule or of all schedules, with result and reason.

    With --fail-on, exit with 1 if a schedule's newest night failed or was missed. Also exit with 1 if that night has
    rows that --fail-on counts.
    """
    with opened() as context:
        names = {one.id: one.name for one in context.store.schedules.all()}
        found = context.store.schedules.nights(None if name is None else _get(context, name).id)
        shown = [night for night in found if night.schedule_id in names][0 if show_all else -NEWEST :]
        if as_json:
            print_json([{"schedule": names[night.schedule_id], **night_json(night)} for night in shown])
        for night in () if as_json else shown:
            show(f"{night.name}  {names[night.schedule_id]}  {night_words(night)}")
        if not found and not as_json:
            say("orch: no night was due yet")
        newest = {night.schedule_id: night for night in found if night.schedule_id in names}.values()
        return 0 if fail_on is None or all(_went_well(context, night, fail_on) for night in newest) else 1


def _went_well(context: Context, night: Night, fail_on: FailOn) -> bool:
    if night.state is not NightState.DONE:
        return night.state not in (NightState.FAILED, NightState.MISSED)
    if night.job_id is None or context.store.jobs.find(night.job_id) is None:
        return True
    return context.detail(night.job_id).is_well(fail_on)


@schedule.command()
@NAME
@json_option
def pause(name: str, as_json: bool) -> int:
    """Skip nights until the schedule is resumed. A running night continues."""
    with opened() as context:
        context.store.schedules.pause(_get(context, name).id, now())
        _show_one(context, _get(context, name), as_json)
    return 0


@schedule.command()
@NAME
@json_option
def resume(name: str, as_json: bool) -> int:
    """Resume a paused schedule. Nights skipped during the pause are not made up."""
    with opened() as context:
        context.store.schedules.resume(_get(context, name).id, now())
        _show_one(context, _get(context, name), as_json)
    return 0


@schedule.command("run")
@NAME
@json_option
def run_(name: str, as_json: bool) -> int:
    """Start the last due night now, unless it is running or done already."""
    with opened() as context:
        night = make_due(context.store, _get(context, name), USER, now())
        if as_json:
            print_json({"schedule": name, **night_json(night)})
        else:
            show(f"{name}: the night of {night.name} is due")
            _say_who_runs(context)
    return 0


@schedule.command()
@NAME
@json_option
def remove(name: str, as_json: bool) -> int:
    """Remove a schedule and its list of nights. Their jobs and results are kept."""
    with opened() as context:
        one = _get(context, name)
        if followers := [other.name for other in context.store.schedules.all() if other.after == one.id]:
            raise UsageError(
                f"{', '.join(followers)} comes after {one.name}, and would never run again", hint="remove that first"
            )
        context.store.schedules.remove(one.id)
        if as_json:
            print_json({"removed": one.name})
        else:
            show(f"{one.name}: removed; the jobs of its nights are kept")
    return 0


def _get(context: Context, name: str) -> Schedule:
    found = context.store.schedules.find(name)
    if found is None:
        known = ", ".join(one.name for one in context.store.schedules.all())
        raise UsageError(f"there is no schedule {name!r}", hint=f"known: {known or 'none'}")
    return found


def _show_one(context: Context, one: Schedule, as_json: bool) -> None:
    if as_json:
        print_json(schedule_json(context.store, one, now()))
    else:
        _show(context, one)


def _show(context: Context, one: Schedule) -> None:
    at, last = now(), last_night(context.store, one)
    if one.paused_at is not None:
        when = f"paused since {schedule_times.local(one, one.paused_at)}"
    elif one.after is not None:
        when = f"after each night of {name_of(context.store, one.after)} that finishes well"
    else:
        following = schedule_times.next_due(one, at)
        when = "no further nights" if following is None else f"next {schedule_times.ahead(one, following.at, at)}"
    show(f"{one.name}: {when} ({', '.join(filter(None, (one.cron, one.tz)))})")
    terms = [] if one.deadline is None else [f"deadline {one.deadline}"]
    terms += [] if one.budget is None else [f"budget {amount(one.budget)}"]
    grace = duration(one.grace.total_seconds())
    late = f"late nights still run, up to {grace} late" if one.misfire is Misfire.RUN else "late nights are skipped"
    overlap = "is skipped" if one.overlap is Overlap.SKIP else "waits"
    meets = f"a night {overlap} if a job from this file is still running"
    show(f"  {'; '.join([', '.join([one.file, *terms]), late, meets])}")
    if last is not None:
        show(f"  {last.name}: {night_words(last)}")
    if one.home != context.home.identity():
        show("  belongs to another home, whose daemon runs it")


def _say_who_runs(context: Context) -> None:
    holder = running_daemon(context.home)
    if holder is None or not holder.is_up:
        say("orch: `orch up` is not running; only it runs nights")
