"""`orch try`: runs a few documents now, to show prompts, answers and cost before the night."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.console import out
from orchestrator.cli.console_progress import LiveProgress, progress
from orchestrator.cli.console_trials import trial_lines, trials_side_by_side
from orchestrator.cli.failed_commands import CommandInterrupted, name_as_typed
from orchestrator.cli.options import FILE, Dollars
from orchestrator.cli.output import json_option, print_json, quiet_option, say
from orchestrator.core.clock import now
from orchestrator.core.errors import BackendError, OrchError, RefusedError, UsageError
from orchestrator.core.model import JobKind
from orchestrator.library.context import Context, ready, say_exposure
from orchestrator.pipeline.build.rehearsal import rehearse
from orchestrator.pipeline.build.submission import Options, draft, kind_of, read_spec
from orchestrator.pipeline.build.submission import submit as take_in
from orchestrator.pipeline.plan.synchronous_backends import at_once
from orchestrator.pipeline.selection import Scope, sampled
from orchestrator.reports.plans import plan_json
from orchestrator.reports.trials import Trial, WholeJob, trial_rows

DOCUMENTS = 5
MOST = 100
PROMPT_LINES = 12
LOOK_SECONDS = 0.3


@click.command("try")
@FILE
@click.argument("documents", metavar="[DOC]...", nargs=-1)
@click.option(
    "-n", "--limit", type=click.IntRange(1, MOST), metavar="N",
    help=f"Only the first N documents (default: {DOCUMENTS}; with DOC: all of those).",
)  # fmt: skip
@click.option(
    "--sample", type=click.IntRange(1, MOST), metavar="N",
    help="N documents of all kinds and lengths, instead of the first ones.",
)  # fmt: skip
@click.option("--task", "tasks", metavar="ID", multiple=True, help="Only this task; may be given several times.")
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="FILE",
    help="Another job file over the same documents (other prompt, other model): show both answers side by side.",
)  # fmt: skip
@click.option("--backend", metavar="NAME", help="Use this backend only.")
@click.option("--budget", type=Dollars(), help="A hard cap in dollars, for each job file.")
@click.option("--new", is_flag=True, help="Ask again, even what was answered before.")
@click.option("--no-estimate", is_flag=True, help="Do not read all documents to tell what the whole job would cost.")
@click.option("--full", is_flag=True, help=f"Show prompts in full; otherwise {PROMPT_LINES} lines of each message.")
@click.option("--watch", is_flag=True, help="Try again whenever a job file is saved, until Ctrl-C.")
@quiet_option
@json_option
def try_job(
    file: Path, documents: tuple[str, ...], limit: int | None, tasks: tuple[str, ...], against: Path | None,
    backend: str | None, budget: Decimal | None, new: bool, no_estimate: bool, full: bool, watch: bool, quiet: bool,
    as_json: bool, sample: int | None,
) -> int:  # fmt: skip
    """Run a few documents now, and show prompts, answers, checks, tokens and cost.

    The rows go to the cheapest backend that answers at once. Without such a backend, orch starts its engines. Answers
    are kept, so the whole job does not send these rows again. Rows of other jobs are not sent. DOC is a document's
    name, the end of it, or a pattern such as '*.pdf'.
    """
    if watch and as_json:
        raise UsageError("give --watch or --json, not both")
    if sample is not None and (documents or limit is not None):
        raise UsageError("--sample chooses the documents: name none, and leave out -n")
    files = [file] if against is None else [file, against]
    if against is not None and os.path.realpath(file) == os.path.realpath(against):
        raise UsageError(f"--against {against}: is the same file")

    def once() -> int:
        with ready() as context, progress(quiet=quiet or as_json) as view:
            say_exposure(context)
            for one in files:  # first, so that mistakes are reported even if no backend answers
                draft(one, context.config, context.home, Options(at_once=()), now())
            named = documents if sample is None else _sampled(context, file, sample)
            scope = Scope(limit or (None if named else DOCUMENTS), named, tasks)
            options = _options(context, scope, backend, budget, new=new)
            found = [_tried(context, one, options, view, estimate=not no_estimate) for one in files]
            view.stop()
        _show(found, as_json, None if full else PROMPT_LINES)
        return 0 if all(trial.is_well for trial in found) else 1

    return _watch(files, once) if watch else once()


def _sampled(context: Context, file: Path, number: int) -> tuple[str, ...]:
    if kind_of(file) is JobKind.BATCH:
        raise UsageError("--sample is for documents", hint="-n takes the first lines of a batch file")
    spec = read_spec(file, context.config)
    return sampled(spec, file.absolute().parent, number, context.config.documents)


def _options(context: Context, scope: Scope, backend: str | None, budget: Decimal | None, *, new: bool) -> Options:
    found = at_once(context.config, backend)
    if context.config.backends and not found.names:
        told = "".join(f"\n  {name}: {why}" for name, why in found.others.items())
        kind = BackendError if found.may_pass else RefusedError
        raise kind(f"no backend answers at once:{told}", hint=found.hint)
    if found.starts:
        why = "no other backend answers now" if backend is None else "--backend asks for it"
        say(f"orch: {' or '.join(found.starts)} starts its engine first, as `orch run` does: {why}")
    return Options(scope=scope, backend=backend, budget=budget, new=new, at_once=found.names)


def _tried(context: Context, file: Path, options: Options, view: LiveProgress, *, estimate: bool) -> Trial:
    from orchestrator.cli.running import finish

    store, home, config = context.store, context.home, context.config
    submission = take_in(store, home, config, file, options, now, view.reading)
    view.say(f"orch: {file}: {submission.reason}")
    detail = finish(context, submission.job, view, alone=True)
    rows = trial_rows(store, home, detail.line.job)
    return Trial(file, detail, rows, _whole(context, file, view) if estimate else None)


def _whole(context: Context, file: Path, view: LiveProgress) -> WholeJob:
    try:
        found = rehearse(context.store, context.home, context.config, file, Options(), now, view.reading)
    except OrchError as error:
        name_as_typed(error, [str(file)])
        return WholeJob(problem=": ".join(filter(None, (error.where, error.message))))
    return WholeJob(found.plan, found.report)


def _show(found: Sequence[Trial], as_json: bool, most: int | None) -> None:
    if as_json:
        first, *others = [_json(trial) for trial in found]
        print_json({**first, "against": others[0] if others else None})
    elif len(found) == 1:
        out().print(trial_lines(found[0], out().width, most))
    else:
        out().print(trials_side_by_side(found[0], found[1], out().width, most))


def _json(trial: Trial) -> dict[str, Any]:
    whole = trial.whole
    report = None if whole is None else whole.report
    return {
        "file": str(trial.file),
        **trial.detail.to_json(),
        "rows": [one.to_json() for one in trial.rows],
        "whole": None if whole is None else {
            "documents": None if report is None else report.documents,
            "requests": None if report is None else report.requests,
            "answered": None if report is None else report.carried + report.cached,
            "plan": None if whole.plan is None else plan_json(whole.plan),
            "problem": whole.problem,
        },
    }  # fmt: skip


def _watch(files: Sequence[Path], once: Callable[[], int]) -> int:
    """Repeat the trial whenever a file changes, until Ctrl-C. If a file is saved during a trial, repeat the trial."""
    try:
        while True:
            seen = [_stamp(file) for file in files]
            try:
                once()
            except OrchError as error:
                name_as_typed(error, [*map(str, files)])
                say(f"orch: {error}")
            say(f"orch: waiting for a change of {' or '.join(map(str, files))} (Ctrl-C ends the watch)")
            while [_stamp(file) for file in files] == seen:
                time.sleep(LOOK_SECONDS)  # however an editor saves, the file's stamp changes
    except KeyboardInterrupt:
        raise CommandInterrupted("the watch has ended") from None


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None  # an editor is replacing the file
    return found.st_ino, found.st_mtime_ns, found.st_size
