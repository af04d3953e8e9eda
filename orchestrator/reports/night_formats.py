"""The night report as Markdown, and as a self-contained HTML page. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.clock import day
from orchestrator.core.counts import Counts, number_of
from orchestrator.core.durations import day_words, duration, moment_words
from orchestrator.core.model import JobId, JobState
from orchestrator.core.money import money
from orchestrator.core.sanitize import one_line
from orchestrator.documents.ignored import told
from orchestrator.policy.diff import Difference, RowChange, shown
from orchestrator.policy.night_figures import DeadlineResult
from orchestrator.reports.bars import Bar, bars
from orchestrator.reports.night import DocumentFate, Fates, JobReport, NightReport
from orchestrator.reports.pages import LIST, PAID, template
from orchestrator.reports.quote_words import total_words
from orchestrator.reports.words import kept_words, marked_words, running_words, so_far_words, unpriced_words

MOST_FIELDS = 12
"""Maximum changed fields that a page lists. `--json` lists all of them."""
Row = tuple[str, ...]
Moment = Callable[[datetime], str]

_ORDER = (
    DocumentFate.FAILED,
    DocumentFate.UNREADABLE,
    DocumentFate.OPEN,
    DocumentFate.CHANGED,
    DocumentFate.NEW,
    DocumentFate.REMOVED,
    DocumentFate.KNOWN,
    DocumentFate.UNCHANGED,
)
"""Order in which fates are listed. Fates that may need a person come first."""


class Block(Struct, frozen=True):
    """A section of the report: a plot (SVG, on pages only), a table if `columns` is not empty, then sentences."""

    title: str
    columns: Row = ()
    rows: Sequence[Row] = ()
    notes: Sequence[str] = ()
    plot: str = ""


def title_of(report: NightReport) -> str:
    """Return the title: the night, or the jobs with their nights."""
    if report.night is not None:
        return f"Night of {day_words(report.night)}"
    return ", ".join(f"{job.facts.job.name}, {job.facts.title}" for job in report.jobs)


def headline(report: NightReport) -> str:
    """Summarise the night in one line, most important facts first."""
    states: dict[JobState, int] = {}
    for job in report.jobs:
        states[job.facts.state] = states.get(job.facts.state, 0) + 1
    jobs = ", ".join(f"{number_of(number, 'job')} {state}" for state, number in states.items())
    needs = len(report.needs)
    see_to = (
        "nothing needs attention"
        if not needs
        else f"{needs} {'item needs' if needs == 1 else 'items need'} attention"
    )
    answered = [answered_words(report.counts), *marked_words(report.counts).values()]
    answered += so_far_words(*report.finished_in_batches)
    paid = [f"{money(report.cost)} paid", *running_words(report.running)]
    return "; ".join([*answered, jobs, *_left_out(report), *paid, see_to, *known_words(report)])


def _left_out(report: NightReport) -> list[str]:
    if not (number := len(report.jobs) - len(report.counted)):
        return []
    return [f"{number_of(number, 'job')} not counted: another run has {'its' if number == 1 else 'their'} rows"]


def known_words(report: NightReport) -> list[str]:
    """Describe known failures: one phrase, or an empty list."""
    known = [one for job in report.counted for one in job.facts.known]
    if not known:
        return []
    rows, began = sum(rows for _, _, rows, _ in known), [since for *_, since in known if since is not None]
    since = f" since {day(min(began))}" if began else ""
    return [f"known failures: {number_of(rows, 'row')}{since}"]


def answered_words(counts: Counts) -> str:
    if counts.total and counts.succeeded == counts.total:
        return f"{'all ' if counts.total > 1 else ''}{number_of(counts.total, 'row')} answered"
    rest = [(name, getattr(counts, name)) for name in ("failed", "cancelled", "expired", "pending")]
    told = ", ".join(f"{number:,} {name}" for name, number in rest if number)
    return f"{counts.succeeded:,} of {number_of(counts.total, 'row')} answered" + (f" ({told})" if told else "")


def subject_of(report: NightReport) -> str:
    """Return a mail subject or page title: the night, and its most important facts."""
    told = [answered_words(report.counts)]
    told[:0] = sorted({job.facts.state.value for job in report.jobs} - {JobState.COMPLETED.value})
    if any(job.due is not None and job.due.met is False for job in report.jobs):
        told.append("deadline missed")
    if any(job.facts.withheld is not None for job in report.jobs):
        told.append("output not delivered")
    told.append(
        f"{len(report.needs)} {'needs' if len(report.needs) == 1 else 'need'} attention"
        if report.needs
        else "nothing to do"
    )
    return f"{title_of(report)}: {', '.join(told)}"


def job_title(job: JobReport, *, dated: bool = True) -> str:
    """Return a job's heading: its name, its night if `dated`, and its state."""
    facts = job.facts
    limits = "" if facts.job.limited_to is None else f", limited to {facts.job.limited_to}"
    night = f", {facts.title}" if dated and facts.title else ""
    return f"{facts.job.name} ({facts.job.id}){night}: {facts.state}{limits}"


def note_of(report: NightReport, job: JobReport) -> str:
    """Return a suffix for a job's heading. It says if the headline leaves out the job's rows."""
    return "" if job in report.counted else ", not counted above: another run has its rows"


def blocks(job: JobReport, moment: Moment = moment_words) -> list[Block]:
    """Return the sections of a job's report. `moment` formats times."""
    documents = job.facts.documents
    found = [_rows(job, moment), _documents(documents, told(job.facts.job.ignored)), _which(documents)]
    if job.facts.answers is not None:
        found += _answers(job.facts.answers)
    return [block for block in [*found, _known(job), _money(job), _time(job, moment)] if block.rows or block.notes]


def _rows(job: JobReport, moment: Moment) -> Block:
    facts = job.facts
    notes = [answered_words(facts.counts), *marked_words(facts.counts).values()]
    notes += so_far_words(facts.finished_in_batches, facts.failed_in_batches)
    if facts.quotes:
        notes.append(total_words(facts.quotes))
    if job.due is not None:
        notes.append(due_words(job.due, moment))
    return Block("Answers", notes=notes)


def _documents(documents: Fates, ignored: str) -> Block:
    rows = [(fate.value, f"{documents.counts[fate]:,}") for fate in _ORDER if documents.counts.get(fate)]
    notes = [ignored] if ignored else []
    return Block("Documents", ("outcome", "documents"), rows, notes)


def _which(documents: Fates) -> Block:
    rows = [(fate.value, one.name, one.reason) for fate in _ORDER for one in documents.first.get(fate, ())]
    left = [
        f"{documents.counts[fate] - len(named):,} more {fate.value}"
        for fate, named in documents.first.items()
        if fate is not DocumentFate.UNCHANGED and documents.counts[fate] > len(named)
    ]
    return Block("Which documents", ("outcome", "document", "why"), rows, [f"and {', '.join(left)}"] if left else [])


def _known(job: JobReport) -> Block:
    rows = [
        (f"{rows:,}", code, "—" if since is None else day(since), message)
        for code, message, rows, since in job.facts.known
    ]
    return Block("Known failures", ("rows", "code", "since", "what"), rows)


def _answers(answers: Difference) -> list[Block]:
    if not answers.changed:
        return [Block("Answers that changed", notes=[f"none since {answers.before}"])]
    fields = list(answers.by_field.items())
    rows = [(name, f"{number:,}") for name, number in fields[:MOST_FIELDS]]
    what = "answer" if answers.changed == 1 else "answers"
    notes = [f"{answers.changed:,} {what} changed since {answers.before}"]
    if len(fields) > MOST_FIELDS:
        notes.append(f"and {number_of(len(fields) - MOST_FIELDS, 'more field')}")
    cells = [cell for change in answers.first for cell in change_cells(change)]
    told = [f"and {answers.changed - len(answers.first):,} more"] if answers.changed > len(answers.first) else []
    return [
        Block("Answers that changed", ("field", "answers"), rows, notes),
        Block("Changed answers", ("document", "field", "before", "after"), cells, told),
    ]


def change_cells(change: RowChange) -> list[Row]:
    """Return a changed row as cells, one line per field."""
    task = f"{change.asked.task}." if change.asked.task else ""
    return [
        (change.asked.document, f"{task}{one.field}", shown(one.before), shown(one.after)) for one in change.fields
    ]


def _money(job: JobReport) -> Block:
    rows = [
        (
            route.backend,
            f"{route.rows:,}",
            ("≈" if route.estimated else "") + money(route.cost),
            money(route.wasted) if route.wasted else "—",
        )
        for route in job.routes
    ]
    running = job.facts.running
    notes = [] if rows else [f"nothing was paid{' yet' if running else ''}"]
    notes += running_words(running)
    if job.foreseen is not None:
        p50, p95 = job.foreseen
        off = round(float(job.cost / p50) - 1, 2) if p50 and job.facts.state.is_final else 0
        beside = f"; {abs(off):.0%} {'above' if off > 0 else 'below'} the forecast" if off else ""
        total = money(job.cost + running)
        notes.append(f"{total} in total; forecast: {money(p50)}, at most {money(p95)} (p95){beside}")
    if unpriced := sum(route.unpriced for route in job.routes):
        notes.append(unpriced_words(unpriced))
    if job.facts.job.budget is not None:
        notes.append(f"the budget was {money(job.facts.job.budget)}")
    return Block("Cost", ("backend", "rows", "paid", "wasted"), rows, notes)


def _time(job: JobReport, moment: Moment) -> Block:
    rows = [
        (
            one.backend,
            f"{one.batches:,}",
            duration(one.slowest),
            duration(one.p50),
            duration(one.p95),
            f"{one.late:,}" if one.late else "—",
        )
        for one in job.turnarounds
    ]
    reroutes = [f"{moment(event.at)}: {event.reason}" for event in job.reroutes]
    if job.rerouted > len(reroutes):
        reroutes.append(f"and {number_of(job.rerouted - len(reroutes), 'more time')}")
    if reroutes and job.due is not None and job.due.met:
        reroutes.insert(
            0, "a reroute saved the deadline: batches were cancelled in time and their rows went elsewhere"
        )
    columns = ("backend", "batches", "slowest", "forecast (p50)", "at most (p95)", "later than p95")
    return Block("Time", columns, rows, reroutes)


def due_words(due: DeadlineResult, moment: Moment = moment_words) -> str:
    """Describe in a sentence whether a deadline was met."""
    return f"the deadline of {moment(due.at)} {'is' if due.met is None else 'was'} {kept_words(due)}"


def markdown(report: NightReport) -> str:
    """Render the report as GitHub Markdown with tables."""
    lines = [f"# {_md(title_of(report))}", "", f"{_md(headline(report))}.", ""]
    if report.needs:
        lines += ["## Needs attention", ""]
        lines += [f"- **{_md(job)}**: {_md(str(need))}" for job, need in report.needs]
        lines.append("")
    for job in report.jobs:
        lines += [f"## {_md(job_title(job) + note_of(report, job))}", ""]
        for block in blocks(job):
            lines += [f"### {block.title}", "", *_block(block)]
    lines.append(f"made {moment_words(report.made_at)}")
    return "\n".join(lines) + "\n"


def _block(block: Block) -> list[str]:
    lines = []
    if block.rows:
        lines += [_row(block.columns), "|" + " --- |" * len(block.columns), *map(_row, block.rows), ""]
    if block.notes:
        lines += [*(f"- {_md(note)}" for note in block.notes), ""]
    return lines


def _row(cells: Row) -> str:
    return "| " + " | ".join(map(_md, cells)) + " |"


def _md(text: str) -> str:
    """Escape Markdown on one line. An underscore within a word is not markup, so it stays."""
    return re.sub(r"([\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w))", r"\\\1", one_line(text))


def page(report: NightReport) -> str:
    return template("night_file.html").render(
        title=title_of(report),
        subject=subject_of(report),
        headline=headline(report),
        made=moment_words(report.made_at),
        needs=report.needs,
        jobs=sections(report, dated=report.night is None),
        links=False,
    )


class JobSection(Struct, frozen=True):
    """A job on a page: a note, then its blocks with their plots."""

    id: JobId
    title: str
    parts: Sequence[Block]
    note: str = ""


def sections(
    report: NightReport,
    notes: Mapping[str, str] = MappingProxyType({}),
    moment: Moment = moment_words,
    *,
    dated: bool,
) -> list[JobSection]:
    return [
        JobSection(
            job.facts.job.id,
            job_title(job, dated=dated) + note_of(report, job),
            [replace(block, plot=_plot(block, job)) for block in blocks(job, moment)],
            notes.get(job.facts.job.id, ""),
        )
        for job in report.jobs
    ]


_COLOURS = {
    DocumentFate.NEW: PAID,
    DocumentFate.CHANGED: "#6b8fc7",
    DocumentFate.UNCHANGED: LIST,
    DocumentFate.REMOVED: "#8a94a3",
    DocumentFate.FAILED: "#c53030",
    DocumentFate.UNREADABLE: "#dd6b20",
    DocumentFate.KNOWN: "#b08968",
    DocumentFate.OPEN: "#d69e2e",
}


def _plot(block: Block, job: JobReport) -> str:
    match block.title:
        case "Documents":
            counts = {fate: job.facts.documents.counts.get(fate, 0) for fate in _ORDER}
            found = [Bar(fate.value, Decimal(number), _COLOURS[fate]) for fate, number in counts.items() if number]
            return bars(found, lambda number: f"{number:,.0f}")
        case "Cost" if job.routes:
            paid = [Bar(route.backend, route.cost, PAID) for route in job.routes]
            plan = [] if job.foreseen is None else [Bar("forecast (p50)", job.foreseen[0], LIST)]
            return bars([*paid, *plan], money)
        case "Time" if job.turnarounds:
            took = [
                bar
                for one in job.turnarounds
                for bar in (
                    Bar(one.backend, Decimal(repr(one.slowest)), PAID),
                    Bar("forecast (p50)", Decimal(repr(one.p50)), LIST),
                )
            ]
            return bars(took, lambda seconds: duration(float(seconds)))
        case _:
            return ""
