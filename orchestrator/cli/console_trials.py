"""Formats `orch try` as lines for a terminal: one job file, or two side by side."""

from __future__ import annotations

import re
from decimal import Decimal

from orchestrator.cli.console_rows import answer_text, messages
from orchestrator.core.counts import number_of
from orchestrator.core.durations import duration
from orchestrator.core.model import RequestState
from orchestrator.core.money import money
from orchestrator.policy.planner import Plan
from orchestrator.reports.requests_and_answers import Exchange
from orchestrator.reports.text_tables import Line, StyledText, beside, pairs, sentence
from orchestrator.reports.trials import Trial, WholeJob, paired
from orchestrator.reports.words import tokens

INDENT = StyledText("  ")
_BLANKS = re.compile(r"\s{60,}")
WIDE = 120
"""Columns for two answers side by side if the output has no width."""


def trial_lines(trial: Trial, width: int | None, most: int | None) -> list[Line]:
    """Format each row's document, prompt, answer, check, tokens and cost, then the cost of the whole job.

    `most` limits the lines of each message; None shows all lines.
    """
    lines: list[Line] = []
    for one in trial.rows:
        lines += [*_title(one, width), *_prompt(one, width, most), *_answer(one, width), ()]
    return [*lines, *_sums(trial, width)]


def trials_side_by_side(first: Trial, second: Trial, width: int | None, most: int | None) -> list[Line]:
    """Show the answers of two job files to the same documents, side by side."""
    half = ((width or WIDE) - 3) // 2
    files = [list(sentence(str(trial.file), half, "bold")) for trial in (first, second)]
    lines = [*beside(files[0], files[1], half), ()]
    for left, right in paired(first.rows, second.rows):
        lines += _both(left, right, width, half, most)
    return [*lines, *beside(_sums(first, half), _sums(second, half), half)]


def _both(
    left: Exchange | None, right: Exchange | None, width: int | None, half: int, most: int | None
) -> list[Line]:
    both = [one for one in (left, right) if one is not None]
    lines = _title(both[0], width)
    if len(both) == 2 and messages(both[0].body) == messages(both[1].body):
        lines += _prompt(both[0], width, most)
    else:
        prompts = [[] if one is None else _prompt(one, half, most) for one in (left, right)]
        lines += beside(prompts[0], prompts[1], half)
    answers = [[] if one is None else _answer(one, half) for one in (left, right)]
    return [*lines, *beside(answers[0], answers[1], half), ()]


def _title(one: Exchange, width: int | None) -> list[Line]:
    row = one.row
    part = f", part {row.part} of {row.parts}" if row.part is not None else ""
    whole = f", the answer of its {row.parts} parts" if row.stage == "reduce" else ""
    return sentence(f"{row.document}: {row.task}{part}{whole}" if row.task else row.document, width, "bold")


def _prompt(one: Exchange, width: int | None, most: int | None) -> list[Line]:
    lines: list[Line] = []
    for role, text in messages(one.body):
        lines += sentence(role, width, "underline")
        told = _indented(text, width)
        if most is not None and (more := len(told) - most) > 0:
            # Show both ends: the document comes first and the question last.
            between = (INDENT, StyledText(f"… {number_of(more, 'more line')} (--full shows them)", "dim"))
            told = [*told[: most // 2], between, *told[-(most // 2) :]]
        lines += told
    return lines


def _answer(one: Exchange, width: int | None) -> list[Line]:
    row, text = one.row, answer_text(one)
    lines = sentence("answer", width, "underline") if text is not None else []
    lines += _indented(text, width) if text is not None else []
    lines += _check(one, width)
    facts = []
    if row.backend is not None:
        facts.append(f"{one.merged['provenance']['model']} at {row.backend}")
    if row.usage.input_tokens:
        facts.append(tokens(row.usage))
    facts.append(f"{money(row.cost)}" if row.carried_from is None else "no cost: answered before (--new asks again)")
    if row.latency_ms is not None and row.carried_from is None:
        facts.append(duration(row.latency_ms / 1000) if row.latency_ms >= 1000 else f"{row.latency_ms} ms")
    return [*lines, *sentence(" · ".join(facts), width, "dim"), *_gone(one, width)]


def _gone(one: Exchange, width: int | None) -> list[Line]:
    return [line for text in one.gone for line in sentence(f"! {text}", width, "yellow")]


def _check(one: Exchange, width: int | None) -> list[Line]:
    row = one.row
    if row.error_code is not None:
        return sentence(f"✗ {row.error_code}: {row.error_message}", width, "red")
    if row.state is not RequestState.SUCCEEDED:
        return sentence(f"✗ {row.state.value}", width, "yellow")
    return sentence("✓ passes its check", width, "green")


def _indented(text: str, width: int | None) -> list[Line]:
    room = None if width is None else width - 2
    return [(INDENT, *line) for line in sentence(_BLANKS.sub(_counted, text.replace("\r\n", "\n")), room)]


def _counted(blanks: re.Match[str]) -> str:
    return f"\n… {len(blanks[0]):,} whitespace characters\n"


def _sums(trial: Trial, width: int | None) -> list[Line]:
    detail = trial.detail
    counts = detail.line.counts
    asked = f"{number_of(counts.total, 'request')}, {counts.succeeded:,} passed"
    if failed := counts.total - counts.succeeded:
        asked += f", {failed:,} did not"
    if detail.carried:
        asked += f", {detail.carried:,} answered before"
    used = filter(None, (money(detail.line.cost), tokens(detail.usage, detail.answered_itself)))
    told = [("tried", asked), ("cost", "; ".join(used))]
    if detail.quality is not None and detail.quality.share is not None:
        found = detail.quality
        told.append(
            ("quality", f"{found.share:.1%}: {found.hits:,} of {number_of(found.fields, 'known field')} right")
        )
    if trial.whole is not None:
        told += _whole(trial.whole)
    told.append(("job", detail.line.job.id))
    return pairs(told, width)


def _whole(whole: WholeJob) -> list[tuple[str, str]]:
    if whole.plan is None or whole.report is None:
        return [("whole job", whole.problem or "not known")]
    report = whole.report
    done = report.carried + report.cached
    told = f"{number_of(report.requests, 'request')} of {number_of(report.documents, 'document')}"
    if done:
        told += f", {done:,} of them answered"
    return [("whole job", told), ("would cost", _cost(whole.plan))]


def _cost(plan: Plan) -> str:
    if not plan.routes:
        return money(Decimal(0)) if plan.verdict.holds else plan.verdict.reason
    at = " and ".join(dict.fromkeys(route.backend for route in plan.routes))
    told = f"≈{money(plan.expected)} more, at most {money(plan.at_most)}, at {at}"
    return told if plan.verdict.holds else f"{told}; {plan.verdict.reason}"
