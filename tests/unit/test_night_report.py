"""The report of a night: fates, routes, turnarounds, the deadline, what needs a person; and how it reads."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from orchestrator.core.clock import night_of
from orchestrator.core.counts import Counts, number_of
from orchestrator.core.events import Event
from orchestrator.core.model import BookedUsage, Forecast, JobId, JobState, Usage
from orchestrator.policy.diff import ComparedRow, DocumentRun, Said, difference
from orchestrator.reports.night import DocumentFate, NightFacts, NightReport, fate_of, fates, job_report
from orchestrator.reports.night_formats import blocks, due_words, headline, markdown, page
from tests.support.stored import NOW, job, later

RUN = DocumentRun("a.pdf", 2, 2, 0, 0, 0, 0, 0, 0, None, None)
FATES = {
    "unchanged": (RUN, DocumentFate.UNCHANGED, ""),
    "new": (replace(RUN, known=0), DocumentFate.NEW, ""),
    "document changed": (replace(RUN, changed=2), DocumentFate.CHANGED, "document changed"),
    "prompt changed": (replace(RUN, changed=1, asked=1), DocumentFate.CHANGED, "prompt, schema or settings changed"),
    "prompt of one task, and the document": (
        replace(RUN, changed=2, asked=1),
        DocumentFate.CHANGED,
        "prompt, schema or settings changed, document changed",
    ),
    "model changed": (replace(RUN, changed=2, other_model=2), DocumentFate.CHANGED, "model changed"),
    "task added": (replace(RUN, known=1), DocumentFate.CHANGED, "task added"),
    "failed": (replace(RUN, failed=1, code="http_400", message="no"), DocumentFate.FAILED, "http_400: no"),
    "failed without a word": (replace(RUN, failed=1, code="http_400"), DocumentFate.FAILED, "http_400"),
    "one task of it unreadable": (
        replace(RUN, failed=2, unreadable=1, code="x", message="y"),
        DocumentFate.FAILED,
        "x: y",
    ),
    "unreadable": (
        replace(RUN, failed=2, unreadable=2, code="empty", message="no text"),
        DocumentFate.UNREADABLE,
        "empty: no text",
    ),
    "open": (replace(RUN, open=1), DocumentFate.OPEN, "without an answer yet: 1 of 2 rows"),
    "open, its only row": (replace(RUN, rows=1, open=1), DocumentFate.OPEN, "no answer yet"),
}  # fmt: skip


@pytest.mark.parametrize(("run", "fate", "why"), FATES.values(), ids=FATES.keys())
def test_the_fate_of_a_document(run: DocumentRun, fate: DocumentFate, why: str) -> None:
    assert fate_of(run) == (fate, why)


def test_all_are_counted_and_the_first_are_named() -> None:
    new = replace(RUN, known=0)
    found = fates([*(replace(new, name=f"n{i}") for i in range(5)), RUN, RUN], ["gone"], most=2)
    assert found.counts == {DocumentFate.NEW: 5, DocumentFate.UNCHANGED: 2, DocumentFate.REMOVED: 1}
    told = found.to_json()
    assert [one["name"] for one in told["new"]["first"]] == ["n0", "n1"]
    assert told["unchanged"] == {"documents": 2, "first": []}, "what is as it was needs no name"
    assert told["failed"] == {"documents": 0, "first": []}


def test_every_document_has_a_line_with_its_fate() -> None:
    known = replace(RUN, failed=1, old=1, code="empty", message="no text")
    runs = [known, *(run for run, _, _ in FATES.values())]
    told = markdown(NightReport(None, later(8), [job_report(facts(documents=fates(runs, ["gone"])), later(8))]))
    counts = re.findall(rf"^\| ({'|'.join(DocumentFate)}) \| (\d+) \|$", told, re.MULTILINE)
    assert {fate for fate, _ in counts} == {*DocumentFate}
    assert sum(int(number) for _, number in counts) == len(runs) + 1


def test_a_night_goes_from_noon_to_noon_by_local_clocks() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    noon = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)
    assert night_of(noon, berlin) == date(2026, 11, 21)
    assert night_of(noon - timedelta(seconds=1), berlin) == date(2026, 11, 20)
    assert night_of(noon + timedelta(hours=23), berlin) == date(2026, 11, 21)
    # The night in which clocks are set back is an hour longer.
    assert night_of(datetime(2026, 10, 25, 10, 59, tzinfo=UTC), berlin) == date(2026, 10, 24)


def total(backend: str, cost: str, **facts: Any) -> BookedUsage:
    given = {"rows": 4, "uncertain": Decimal(0), "wasted": Decimal(0), "estimated": False, **facts}
    return BookedUsage(
        group=backend, backend=backend, model="m", day=NOW.date(), usage=Usage(), cost=Decimal(cost), **given
    )


def forecast(kind: str, p50: float, p95: float, actual: float | None = None, backend: str = "cloud") -> Forecast:
    return Forecast(JobId("contracts-1"), kind, backend, "m", NOW, p50, p95, "prior", actual=actual)


DONE = job(built_at=NOW, finished_at=later(5), deadline_at=later(6))


def facts(**given: Any) -> NightFacts:
    known = {"job": DONE, "state": JobState.COMPLETED, "counts": Counts(succeeded=4), "documents": fates([RUN], [])}
    return NightFacts(**{**known, **given})


def test_cost_by_route_and_turnaround_against_the_forecast() -> None:
    found = job_report(
        facts(
            lines=[total("gpu", "1"), total("cloud", "2", wasted=Decimal("0.5")), total("gpu", "3", estimated=True)],
            forecasts=[
                forecast("turnaround", 60, 120, 90), forecast("turnaround", 50, 70, 100),
                forecast("turnaround", 1, 2), forecast("cost", 4.0, 8.0),
            ],
        ),
        later(7),
    )  # fmt: skip
    assert [(one.backend, one.rows, one.cost, one.wasted, one.estimated) for one in found.routes] == [
        ("gpu", 8, 4, 0, True), ("cloud", 4, 2, Decimal("0.5"), False),
    ]  # fmt: skip
    assert (found.cost, found.foreseen) == (6, (Decimal("4.0"), Decimal("8.0")))
    [took] = found.turnarounds
    assert (took.batches, took.late, took.slowest, took.p50, took.p95) == (2, 1, 100, 50, 70)


DEADLINES = {
    "met": (DONE, JobState.COMPLETED, Counts(), (True, 3600.0)),
    "met to the second": (replace(DONE, finished_at=later(6)), JobState.COMPLETED, Counts(), (True, 0.0)),
    "missed": (replace(DONE, finished_at=later(7)), JobState.COMPLETED, Counts(), (False, -3600.0)),
    "given up": (DONE, JobState.COMPLETED, Counts(expired=2), (False, 3600.0)),
    "running": (replace(DONE, finished_at=None), JobState.RUNNING, Counts(), (None, 1800.0)),
    "running late": (
        replace(DONE, finished_at=None, deadline_at=later(5)), JobState.RUNNING, Counts(), (False, -1800.0),
    ),
    "none was given": (replace(DONE, deadline_at=None), JobState.COMPLETED, Counts(), None),
    "cancelled": (DONE, JobState.CANCELLED, Counts(), None),
}  # fmt: skip


@pytest.mark.parametrize(("of", "state", "counts", "met"), DEADLINES.values(), ids=DEADLINES.keys())
def test_the_deadline(of: Any, state: JobState, counts: Counts, met: tuple[bool | None, float] | None) -> None:
    due = job_report(facts(job=of, state=state, counts=counts), later(5.5)).due
    assert (due and (due.met, due.spare)) == met
    if due is not None:
        words = {True: "was met with", None: "is in 30 min", False: "was missed"}[due.met]
        assert words in due_words(due)


RUNNING = replace(DONE, finished_at=None)
BEGUN = Event(NOW, "routed", "4 rows to gpu")
IDLE = (
    ", and nothing delayed it for long → start earlier or name a later deadline; `orch plan` shows which it can meet"
)
NEEDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing": ({}, []),
    "the job failed": (
        {"job": replace(RUNNING, error="no key"), "state": JobState.FAILED}, ["the job could not continue: no key"],
    ),
    "it was stopped": (
        {"job": replace(DONE, cancel_reason="budget night is used up"), "state": JobState.CANCELLED},
        ["the job ended before it was done: budget night is used up → `orch retry` asks the remaining rows, "
         "if you want them"],
    ),
    "it was cancelled, and one row failed before": (
        {"job": replace(DONE, cancel_reason="ended by eva"), "state": JobState.CANCELLED,
         "reasons": [("cancelled", "ended by eva", 30), ("truncated", "ended early", 1)]},
        ["the job ended before it was done: ended by eva → `orch retry` asks the remaining rows, if you want them",
         "1 row did not succeed (truncated): ended early → raise `max_tokens`, or ask for less"],
    ),
    "late": (
        {"job": replace(DONE, finished_at=later(8))},
        [f"the deadline was missed by 2 h; the job had 6 h{IDLE}"],
    ),
    "late and running": (
        {"job": replace(RUNNING, deadline_at=later(5)), "state": JobState.RUNNING, "events": [BEGUN]},
        [f"late by 30 min so far; the job had 5 h{IDLE}"],
    ),
    "given up": (
        {"counts": Counts(expired=3)},
        [f"the deadline was missed: gave up on 3 rows; the job had 6 h{IDLE}"],
    ),
    "failed rows": (
        {"reasons": [("truncated", "ended early\nmore", 1), ("encrypted", "locked", 2)]},
        ["1 row did not succeed (truncated): ended early → raise `max_tokens`, or ask for less",
         "2 rows did not succeed (encrypted) → save it without a password, or exclude it"],
    ),
    "not good enough": (
        {"withheld": "90.0% is below the threshold of 95.0%"},
        ["the output was not delivered because of known answers: 90.0% is below the threshold of 95.0% → check the "
         "answers; `orch fetch` still writes the rows"],
    ),
    "held": ({"job": RUNNING, "state": JobState.RUNNING, "held": ["no room"]}, ["waits: no room"]),
    "waiting": (
        {"job": RUNNING, "state": JobState.RUNNING, "events": [Event(NOW, "waiting", "the key is bad\n hint: x")]},
        ["cannot continue: the key is bad"],
    ),
    "waited once": ({"events": [Event(NOW, "waiting", "the key is bad")]}, []),
    "files gone": (
        {"answers": difference("a", "b", [], [], [(ComparedRow("c", "d", "t"), None, None)], 5)},
        ["1 answer could not be compared: a result file is gone"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "needs"), NEEDS.values(), ids=NEEDS.keys())
def test_what_needs_a_person(given: dict[str, Any], needs: list[str]) -> None:
    assert [str(need) for need in job_report(facts(**given), later(5.5)).needs] == needs


TRICKY = "*a*_b_ |<script>|[x](y) $z$"


def night(name: str = "a.pdf", **given: Any) -> NightReport:
    """A night with some of everything."""
    moved = [
        (ComparedRow(f"c{i}", name, "t"), Said("succeeded", {"party": 1}), Said("succeeded", {})) for i in range(3)
    ]
    known: dict[str, Any] = {
        "answers": difference("contracts-0", "contracts-1", [], [], moved, 2),
        "before": "contracts-0",
        "documents": fates([replace(RUN, known=0, name=name), RUN], [], most=1),
        "lines": [total("gpu", "1.5", wasted=Decimal("0.1"), estimated=True)],
        "forecasts": [forecast("turnaround", 60, 120, 90), forecast("cost", 1.0, 3.0)],
        "events": [Event(NOW, "rerouted", f"too late {i}") for i in range(22)],
        "job": replace(DONE, budget=Decimal(9)),
        "reasons": [("truncated", "x", 2)],
    }
    return NightReport(date(2026, 11, 21), later(8), [job_report(facts(**{**known, **given}), later(8))])


def test_a_run_that_was_repeated_counts_once_and_asks_for_nobody() -> None:
    failed = ("http_500", "no", 3)
    first, again, other, part = (
        job("a-1", series="a", built_at=NOW, created_at=NOW, error="x"),
        job("a-2", series="a", built_at=NOW, created_at=later(1)),
        job("b-1", series="b", built_at=NOW, created_at=later(1)),
        job("a-3", series="a", built_at=NOW, created_at=later(2), options={"limit": 1}),
    )
    parts = [
        job_report(facts(job=of, counts=Counts(succeeded=10, failed=3), reasons=[failed]), later(8))
        for of in (first, again, other, part)
    ]
    report = NightReport(NOW.date(), later(8), parts)
    assert report.counts == Counts(succeeded=20, failed=6), "the limited run asks rows of a-2"
    assert [name for name, _ in report.needs] == ["a-2", "b-1", "a-3"]
    assert [told["job"] for told in report.to_json()["jobs"]] == ["a-1", "a-2", "b-1", "a-3"]


def test_the_markdown_tells_all_of_it() -> None:
    told = markdown(night())
    for words in (
        "# Night of Sat 2026-11-21\n",
        "all 4 rows answered; 1 job completed; $1.50 paid; 1 item needs attention.",
        "## contracts (contracts-1), Sat 2026-11-21: completed\n",
        "- **contracts-1**: 2 rows did not succeed",
        "| new | 1 |",
        "| t.party | 3 |",
        "- 3 answers changed since contracts-0",
        "| a.pdf | t.party | 1 | — |",
        "- and 1 more",
        "| gpu | 4 | ≈$1.50 | $0.1000 |",
        "- $1.50 in total; forecast: $1.00, at most $3.00 (p95); 50% above the forecast",
        "- the budget was $9.00",
        "| cloud | 1 | 1 min 30 s | 1 min | 2 min | — |",
        "was met with 1 h to spare",
        "- a reroute saved the deadline",
        "- and 2 more times",
    ):
        assert words in told, words


def test_a_quiet_night_is_short() -> None:
    plain = NightReport(None, later(8), [job_report(facts(documents=fates([], [])), later(8))])
    told = markdown(plain)
    assert "# contracts, Sat 2026-11-21\n" in told
    assert "nothing needs attention" in headline(plain)
    assert [block.title for block in blocks(plain.jobs[0])] == ["Answers", "Cost"]
    assert "Needs attention" not in told + page(plain)
    same = facts(answers=difference("contracts-0", "contracts-1", [], [], [], 2))
    assert "- none since contracts-0" in markdown(NightReport(None, NOW, [job_report(same, NOW)]))


def test_names_are_no_markup() -> None:
    told = markdown(night(TRICKY))
    assert r"\*a\*\_b\_ \|\<script\>\|\[x\](y) $z$" in told
    assert "*a*_b_ |" not in told
    assert "<script>" not in page(night(TRICKY))
    assert "&lt;script&gt;" in page(night(TRICKY))


class Outside(HTMLParser):
    """What a page would fetch, and how often each element is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.wants: list[str] = []
        self.opened: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened[tag] = self.opened.get(tag, 0) + 1
        self.wants += [
            value or "" for name, value in attrs if name in ("src", "href") and not (value or "#").startswith("#")
        ]
        self.wants += [tag] * (tag in ("script", "link", "iframe", "img"))


def test_the_page_needs_nothing_else_and_has_its_plots() -> None:
    text = page(night())
    found = Outside()
    found.feed(text)
    assert found.wants == []
    assert found.opened["svg"] == 3
    assert 'name="viewport" content="width=device-width' in text
    assert "@import" not in text
    assert "url(http" not in text
    for words in ("Needs attention", "1 min 30 s", "≈$1.50", "forecast (p50)", "t.party"):
        assert words in text.replace("<wbr>", "")
    assert page(night()) == text, "the same night is the same page"


def test_the_json_can_be_told() -> None:
    told = json.loads(json.dumps(night().to_json()))
    assert (told["night"], told["cost_usd"], len(told["needs"])) == ("2026-11-21", "1.5", 1)
    [of] = told["jobs"]
    assert of["reroutes"]["number"] == 22
    assert len(of["reroutes"]["first"]) == 20
    assert of["deadline"] == {"at": "2026-11-22T02:00:00+00:00", "met": True, "spare_seconds": 3600.0}
    assert of["foreseen"] == {"cost_p50_usd": "1.0", "cost_p95_usd": "3.0"}
    assert of["answers"]["changed"]["first"][0]["fields"] == [{"field": "party", "before": 1}]


WHOLE: dict[str, Any] = {}
FIVE, ONE = {"limit": 5}, {"only": ["a.pdf"]}
RUNS = {
    "one": ([WHOLE], [0]),
    "again": ([WHOLE, WHOLE], [1]),
    "tried first": ([FIVE, WHOLE], [1]),
    "some again": ([WHOLE, ONE], [0]),
    "only some": ([FIVE, ONE], [0, 1]),
    "the same ones again": ([FIVE, FIVE, ONE], [1, 2]),
    "all of it": ([FIVE, WHOLE, ONE, WHOLE, FIVE], [3]),
}


@pytest.mark.parametrize(("options", "counted"), RUNS.values(), ids=RUNS)
def test_a_night_counts_each_row_once_and_says_what_it_leaves_out(
    options: list[dict[str, Any]], counted: list[int]
) -> None:
    jobs = [
        replace(DONE, id=JobId(f"contracts-{n}"), options=one, created_at=later(n)) for n, one in enumerate(options)
    ]
    known = [("http_400", "no", 2, None)]
    report = NightReport(
        date(2026, 11, 21), later(9), [job_report(facts(job=one, known=known), later(9)) for one in jobs]
    )
    told = report.to_json()
    assert [n for n, one in enumerate(told["jobs"]) if one["counted"]] == counted
    assert told["asked"] == 4 * len(counted)
    left_out = len(jobs) - len(counted)
    whose = (
        f"{left_out} jobs not counted: another run has their"
        if left_out > 1
        else "1 job not counted: another run has its"
    )
    jobs_left_out = f"{whose} rows"
    assert (jobs_left_out in headline(report)) is (left_out > 0)
    assert f"known failures: {number_of(2 * len(counted), 'row')}" in headline(report)
    headings = [line for line in markdown(report).splitlines() if line.startswith("## contracts")]
    assert ["not counted above" not in line for line in headings] == [n in counted for n in range(len(jobs))]
