"""`orch up`: runs the daemon of a home until stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress

import click

from orchestrator.cli.daemon_context import active_home
from orchestrator.cli.options import Address, actions_option, names_option, web_option
from orchestrator.cli.output import quiet_option, say
from orchestrator.cli.running import interruptible
from orchestrator.core.clock import now
from orchestrator.core.counts import number_of
from orchestrator.core.errors import OrchError, UsageError
from orchestrator.core.interrupts import Interrupted
from orchestrator.core.listening import bound
from orchestrator.core.model import JobId
from orchestrator.core.money import money
from orchestrator.daemon import provider_webhooks as webhooks
from orchestrator.daemon.lock import daemon_lock
from orchestrator.daemon.loop import Daemon
from orchestrator.daemon.scheduler import Scheduler
from orchestrator.library.build_processes import BuildProcesses
from orchestrator.library.context import Context, log_to, say_exposure
from orchestrator.pipeline.gc import sweep
from orchestrator.reports import status
from orchestrator.settings.config import Config
from orchestrator.settings.discovery import locate
from orchestrator.settings.home import Home

log = logging.getLogger(__name__)
MOST_JOBS = 20
"""Maximum number of jobs to report after a round, the soonest deadlines first."""


@click.command()
@click.option(
    "--webhooks",
    "address",
    type=Address(),
    metavar="HOST:PORT",
    help="Accept providers' webhooks here, at /webhooks/BACKEND.",
)
@click.option(
    "--replica",
    metavar="URL",
    help="Copy the home here all the time (s3://BUCKET/FOLDER, or a folder that other machines mount), and stand by"
    " while the daemon of another machine is active.",
)
@web_option
@names_option
@actions_option
@quiet_option
def up(
    address: tuple[str, int] | None,
    replica: str | None,
    web: tuple[str, int] | None,
    names: tuple[str, ...],
    acts: bool,
    quiet: bool,
) -> int:
    """Run the daemon until it is stopped (Ctrl-C, SIGTERM, a closed terminal). It runs queued jobs, new jobs, and
    schedules.

    With --webhooks, a provider's event that a batch ended triggers an immediate poll. With --web, the daemon serves
    pages as `orch view` does. Port 0 picks a free port. With --replica, run the daemon on two machines. One daemon
    works, and the other takes over if the first machine is lost.
    """
    place = locate()
    with interruptible() as interrupted, daemon_lock(Home(place.home)) as holder, ExitStack() as stack:
        if holder is not None:
            hint = "start `orch up` when the run's job has ended, or stop the run: `orch up` continues its job"
            raise UsageError(f"{holder} is already this home's daemon", hint=hint)
        home = active_home(place, replica, interrupted)
        if home is None:
            say("orch: stopped while standing by")
            return 0
        context = stack.enter_context(home)
        sent = context.replica
        say_exposure(context)
        log_to(context.home)
        builds = stack.enter_context(BuildProcesses(context, context.fence))
        daemon = stack.enter_context(Daemon(context.config, context.store, replica=sent, builds=builds))
        daemon.listeners.append(builds.use)
        daemon.say = lambda line: say(f"orch: {line}")
        if address is not None:
            secrets = webhooks.secrets_of(context.config)
            daemon.listeners.append(lambda config: _keep_secrets(secrets, config))
            url = stack.enter_context(webhooks.listening(*address, secrets, daemon.pipeline.polls.push))
            for name in secrets:
                say(f"orch: accepting webhooks of {name} at {url}{name}")
        rounds = _Rounds(context, daemon, builds, quiet=quiet)
        if web is not None:
            stack.enter_context(_pages(daemon, context, web, names, acts=acts))
        say(f"orch: daemon of {context.home.root} is up; Ctrl-C stops it")
        with suppress(Interrupted), nullcontext() if sent is None else sent.explained():
            # Before the first round, match the jobs of interrupted nights to their nights.
            rounds.nights()
            daemon.run(lambda: interrupted() or (sent is not None and sent.superseded is not None), rounds.tick)
    if sent is not None and sent.superseded is not None:
        raise sent.superseded
    say("orch: stopped; nothing is lost")
    return 0


def _pages(
    daemon: Daemon, context: Context, address: tuple[str, int], names: tuple[str, ...], *, acts: bool
) -> AbstractContextManager[object]:
    from orchestrator.cli.pages import PagesOptions
    from orchestrator.cli.pages_process import PagesProcess

    listener = bound(*address)
    try:
        pages = PagesProcess(context, listener, PagesOptions(address[0], names, acts))
    except OrchError:
        listener.close()
        raise
    daemon.rounds.append(pages.loop.beat)
    daemon.listeners.append(pages.use)
    return pages


class _Rounds:
    def __init__(self, context: Context, daemon: Daemon, builds: BuildProcesses, *, quiet: bool) -> None:
        self._daemon = daemon
        self._scheduler = Scheduler(context.store, context.home, context.config, now, builds)
        self._daily = sweep.Daily(context.store, context.home, context.config.retention)
        self._told = _Told(context, quiet=quiet)
        daemon.listeners += [self._scheduler.use, self._daily.use, context.use]

    def nights(self) -> None:
        with self._daemon.notices.apart("schedules"):
            self._told.say(self._scheduler.tick())

    def tick(self, daemon: Daemon) -> None:
        if daemon.may_act:
            self.nights()
            with daemon.notices.apart("gc"):
                self._daily.tick(now())
        with daemon.notices.apart("progress"):
            self._told.tick(daemon)


class _Told:
    """Terminal messages of `orch up`. Each message is printed once."""

    def __init__(self, context: Context, *, quiet: bool) -> None:
        self._context = context
        self._quiet = quiet
        self._problem = ""
        self._jobs: dict[JobId, str] = {}  # last message of each unfinished job

    def say(self, lines: Iterable[str]) -> None:
        for line in lines:
            if not self._quiet:
                say(f"orch: {line}")

    def tick(self, daemon: Daemon) -> None:
        for news in daemon.news():
            say(f"orch: {news}")
        if (daemon.problem or "") != self._problem:
            self._problem = daemon.problem or ""
            self.say([self._problem or "working again"])
        self.say(self._new_states())

    def _new_states(self) -> Iterator[str]:
        context, store = self._context, self._context.store
        # Other homes may share the database, and report their own jobs.
        going = [job for job in store.jobs.unfinished(context.home.identity()) if not job.options.get("dry_run")]
        going = going[:MOST_JOBS]
        left = self._jobs.keys() - {job.id for job in going}
        over = [job for name in sorted(left) if (job := store.jobs.find(name)) is not None]
        for line in status.lines(store, [*going, *over], now(), context.running_cost):
            text = f"{line.job.id}: {line.state}"
            if self._jobs.get(line.job.id) != text:
                yield f"{text}, {line.done:,}/{number_of(line.counts.total, 'row')}, {money(line.cost)}"
            self._jobs[line.job.id] = text
            if line.state.is_final:
                del self._jobs[line.job.id]
        for name in left - {job.id for job in over}:
            del self._jobs[name]


def _keep_secrets(secrets: dict[str, str], config: Config) -> None:
    """Update in place the table of secrets that the listening server uses."""
    try:
        found = webhooks.secrets_of(config)
    except UsageError as error:
        log.warning("webhooks are verified as before: %s", error)
        return
    secrets.update(found)
    for name in secrets.keys() - found.keys():
        del secrets[name]
