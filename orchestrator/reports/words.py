"""Phrases and table cells of reports, shared by the console and the HTML pages. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from orchestrator.core.counts import number_of
from orchestrator.core.durations import duration, span_words
from orchestrator.core.model import JobState, Usage
from orchestrator.core.money import money
from orchestrator.settings.model_lists import alias_words

if TYPE_CHECKING:
    from orchestrator.core.counts import Counts
    from orchestrator.policy.forecast_trust import Calibration
    from orchestrator.policy.night_figures import DeadlineResult
    from orchestrator.reports.cost import CostLine, CostReport, Estimate

_COST_COLUMNS = (
    "rows", "in", "cached", "out", "paid", "forecast", "list", "saved", "wasted", "per document", "per 1k tokens",
)  # fmt: skip
COST_RANKS = {
    "cached": 7, "per 1k tokens": 6, "out": 5, "in": 4, "per document": 3, "saved": 2, "forecast": 1,
}  # fmt: skip
"""Columns that a narrow table may leave out, with their ranks. The highest rank goes first."""
CALIBRATION_COLUMNS = ("forecast", "known", "open", "below p50", "below p95", "came to", "trust")
STATE_STYLE = {
    JobState.COMPLETED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "yellow",
    JobState.RUNNING: "cyan",
    JobState.STOPPED: "yellow",
    JobState.QUEUED: "blue",
}
_TRUST = {True: "yes", False: "no", None: "too few"}


def tokens(usage: Usage, answered: int = 0) -> str:
    """Describe token counts; "" before the first answer. Says so if the `answered` rows state no tokens."""
    if not usage.input_tokens and not usage.output_tokens:
        return "no token counts in the answers" if answered else ""
    sent, cached = usage.input_tokens, usage.cached_tokens
    told = f" ({cached / sent:.0%} cached)" if cached and sent else ""
    return f"{sent:,} in{told}, {usage.output_tokens:,} out"


def cost_title(report: CostReport) -> str:
    return f"Cost by {report.by}" + (f", {span_words(*report.days)}" if report.days else "")


def so_far_words(finished: int, failed: int) -> list[str]:
    """Describe how many pending rows have finished in running batches, and how many failed. Empty if no row has
    finished.
    """
    if not finished:
        return []
    told = f"{number_of(finished, 'pending row')} finished in running batches"
    return [told + (f", {failed:,} of them failed" if failed else "")]


def running_words(running: Decimal) -> list[str]:
    """Describe the cost of running batches so far: one phrase, or an empty list."""
    return [f"{money(running)} so far in running batches"] if running else []


def cost_headline(report: CostReport) -> str:
    """Summarise a cost report in a sentence, for readers who skip the table."""
    total = report.total
    about, each = "≈" if total.estimated else "", total.per_document
    by_row = total.documents == total.rows  # a row each, or rows of a batch file
    of = "" if by_row else f" of {number_of(total.documents, 'document')}"
    words = [f"{number_of(total.rows, 'row')}{of} for {about}{money(total.cost)}"]
    words += [] if each is None else [f"{money(each)} {'each' if by_row else 'a document'}"]
    if total.listed.cost and total.cost != total.listed.cost:
        times = total.cost / total.listed.cost
        share = f"{abs(times - 1):.0%} {'less' if times < 1 else 'more'} than at list price"
        words.append(share if times < 2 else f"{times:,.0f} times the list price")
    if total.wasted and total.cost:
        words.append(f"{total.wasted / total.cost:.1%} of it wasted")
    return "; ".join([", ".join(words), *running_words(report.running)])


def cost_cells(report: CostReport) -> list[tuple[str, ...]]:
    """Return a cost report as header, lines and total, without columns that are empty in every line."""
    cells = [_cost_cells(report.by, line) for line in (*report.lines, report.total)]
    columns = [place for place in range(len(cells[0])) if any(line[place] != "—" for line in cells)]
    return [tuple(line[place] for place in columns) for line in ((report.by, *_COST_COLUMNS), *cells)]


def group_words(by: str, group: str) -> str:
    """Name a group of a cost report; `no tag` for rows without a tag."""
    return group or f"no {by.removeprefix('tag:')}"


def _cost_cells(by: str, line: CostLine) -> tuple[str, ...]:
    usage = line.usage
    return (
        group_words(by, line.group),
        f"{line.rows:,}",
        f"{usage.input_tokens:,}",
        f"{usage.cached_tokens:,}",
        f"{usage.output_tokens:,}",
        estimated_words(line.cost, is_estimate=line.estimated),
        _foreseen(line.estimate),
        estimated_words(line.listed.cost, is_estimate=line.listed.estimated),
        money(line.saved),
        money(line.wasted),
        _or_dash(line.per_document),
        _or_dash(line.per_1000_tokens),
    )


def cost_notes(report: CostReport) -> list[str]:
    total = report.total
    stands_in = f" (≈ {report.compare} stands in for a model without a list price)" if total.listed.estimated else ""
    guessed = " (≈ estimated: no batch price is listed)" if total.batch.estimated else ""
    batch = estimated_words(total.batch.cost, is_estimate=total.batch.estimated)
    at_once = money(total.realtime.cost)
    told = [
        f"list: the same tokens at the list price of the model that answered, outside a batch{stands_in}",
        f"at {report.compare} these tokens cost {at_once} outside a batch, {batch} in a batch{guessed}",
    ]
    if report.relisted:
        told.insert(1, "rows from before orch booked list prices have the prices that orch.toml sets now")
    if total.estimate is not None:
        told.append(
            "forecast: what the plans expected; in brackets, how far the finished jobs were above or below it"
        )
    if total.wasted:
        told.append("wasted: failed rows, rows paid for twice, sends without an answer")
    told += [f"not in the table: {words}" for words in running_words(report.running)]
    if total.uncertain:
        vain = money(total.uncertain)
        told.append(f"{vain} of the cost is for sends without an answer, which may not be billed")
    if total.unpriced:
        told.append(unpriced_words(total.unpriced))
    if report.by == "tag":
        told.append("a job with several tags appears in several lines, but once in the total")
    return told


def unpriced_words(rows: int) -> str:
    """Say that the usage of `rows` rows is only partly priced."""
    return f"the cost leaves out something without a price in {number_of(rows, 'row')}"


def calibration_cells(line: Calibration) -> tuple[str, ...]:
    return (
        calibration_name(line),
        f"{line.known:,}",
        f"{line.open:,}" if line.open else "—",
        _share(line.below_p50),
        _share(line.below_p95),
        "—" if line.ratio is None else f"{line.ratio:.2f} × p50",
        _TRUST[line.trusted],
    )


def calibration_name(line: Calibration) -> str:
    """Return the subject of a line in a forecast report."""
    return " ".join(word for word in (line.kind, line.backend, alias_words(line.model), line.task) if word)


def estimated_words(cost: Decimal, *, is_estimate: bool) -> str:
    """Format dollars, with `≈` before an estimate."""
    return ("≈" if is_estimate else "") + money(cost)


def _foreseen(estimate: Estimate | None) -> str:
    if estimate is None:
        return "—"
    # Adding 0 turns -0.0 into 0.0, which prints as +0%.
    off = "" if estimate.off is None else f" ({round(estimate.off, 2) + 0:+.0%})"
    return money(estimate.p50) + off


def _or_dash(dollars: Decimal | None) -> str:
    return "—" if dollars is None else money(dollars)


def _share(share: float | None) -> str:
    return "—" if share is None else f"{share:.0%}"


def marked_words(counts: Counts) -> dict[str, str]:
    """Return phrases, by short name, about accepted answers that may be incomplete or differ from the request."""
    told = (
        ("cut", counts.cut, "ended at max_tokens"),
        ("odd ends", counts.odd_ends, "ended for a reason that is not known"),
        ("unverifiable", counts.unverifiable, "have quotes that cannot be checked"),
        ("repaired", counts.repaired, "had their JSON among other text"),
    )
    return {name: f"{number:,} of the answers {words}" for name, number, words in told if number}


def kept_words(due: DeadlineResult) -> str:
    """Return a phrase that says whether a deadline was met."""
    if due.met:
        return f"met with {duration(due.spare)} to spare"
    if due.met is None:
        return f"in {duration(due.spare)}"
    return f"missed by {duration(-due.spare)}" if due.spare < 0 else "missed: rows were given up"
