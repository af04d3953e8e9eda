"""Asks the user about an unfinished job whose file was edited."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from msgspec.structs import replace

from orchestrator.cli.console_progress import LiveProgress
from orchestrator.cli.output import say
from orchestrator.core.clock import now
from orchestrator.core.counts import number_of
from orchestrator.core.model import Job
from orchestrator.core.shards import AT_BACKEND, batches_words
from orchestrator.library.context import Context
from orchestrator.pipeline.backend_set import unstoppable
from orchestrator.pipeline.build.submission import How, Options, Submission, earlier_content
from orchestrator.pipeline.succession import Edited

_FINISH = "finish"


def of_edited(context: Context, file: Path, options: Options, view: LiveProgress) -> Options | Submission:
    """Return the options with the user's choice, or the unfinished job if the user chooses to continue it.

    Do not ask without a terminal, or if the options already decide.
    """
    asks = options.edited is None and sys.stdin.isatty() and sys.stderr.isatty()
    if not asks and options.edited is not Edited.SUPERSEDE:
        return options
    found = earlier_content(context.store, context.home, context.config, file, options, now())
    if found is None:
        return options
    left = unstoppable(context.store, context.config, found)
    if not asks:
        if left is not None:
            say(f"orch: job {found.id}, which is superseded: {left}")
        return options
    view.stop()
    say(f"orch: job {found.id} of this file is unfinished, and the file was edited since")
    say(f"orch: {_under_way(context, found)}")
    say("orch: supersede: the new job takes over what is the same and under way; the rest of the other is cancelled")
    if left is not None:
        say(f"orch: {left} whatever you choose")
    say("orch: finish: the other job continues, and nothing new is started")
    say("orch: beside: both are finished; what is the same and under way is asked once")
    choice = click.prompt(
        "orch: what should happen to it?",
        type=click.Choice([Edited.SUPERSEDE.value, _FINISH, Edited.BESIDE.value]),
        default=Edited.SUPERSEDE.value,
        err=True,
    )
    if choice == _FINISH:
        reason = f"job {found.id} of the file before its edit continues; nothing new was started"
        return Submission(found, How.RESUMED, reason)
    return replace(options, edited=Edited(choice))


def _under_way(context: Context, job: Job) -> str:
    counts = context.store.jobs.counts([job.id])[job.id]
    sent = [shard for shard in context.store.shards.of_job(job.id) if shard.state in AT_BACKEND]
    at = batches_words(sent) if sent else "no batch"
    return f"{at} under way; without an answer yet: {counts.pending:,} of {number_of(counts.total, 'row')}"
