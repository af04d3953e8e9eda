"""How far long work is: with a rate and an ETA where these can be known, and within the width of the terminal."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.cli.console_jobs import EVENTS, chosen, job_detail, job_lines
from orchestrator.cli.console_progress import LiveProgress, job_view
from orchestrator.core.counts import Counts
from orchestrator.core.events import Event
from orchestrator.core.fail_on import Failing
from orchestrator.core.model import JobState, Usage
from orchestrator.core.shards import ShardState
from orchestrator.reports.progress_words import progress_words
from orchestrator.reports.status import JobDetail, JobLine
from orchestrator.reports.text_tables import Line, cell_width
from orchestrator.store.failures import FailureReason
from tests.support.stored import NOW, job, later, shard

LONG = job("a-job-with-a-name-as-long-as-it-may-be-12-12345678", name="long", created_at=NOW)


def line_of(state: JobState = JobState.RUNNING, **counts: int) -> JobLine:
    found = Counts(**counts)
    return JobLine(LONG, state, found, Failing(), found.failed, found.done, Decimal("1.5"), Decimal(0), 2.0, 30.0)


def detail(line: JobLine, **facts: Any) -> JobDetail:
    known = {"shards": [], "usage": Usage(1000, 500, 20), "carried": 0, "reasons": [], "events": [], "tags": {}}
    return JobDetail(line, **{**known, **facts})


def shown(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in line) for line in lines]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_running_job_fits_the_terminal(width: int) -> None:
    reasons = [FailureReason(f"code_{number}", "x", 7, 7, None) for number in range(6)]
    view = job_view(detail(line_of(pending=90, succeeded=10), reasons=reasons, problem="w" * 200), 2.0, "30 s", width)
    lines = shown(view)
    assert max(map(cell_width, lines)) <= width
    text = " ".join(lines)
    for words in ("10/100", "2.0 rows/s", "ETA 30 s", "7 code_0", "and 2 more reasons"):
        assert words in text
    assert "".join(lines).count("w") >= 200, "a problem is told whole"


def test_rows_that_were_cancelled_are_not_done_wherever_it_is_told() -> None:
    for state, counts, done, left in (
        (JobState.CANCELLED, {"succeeded": 6, "failed": 1, "cancelled": 13}, 7, 0),
        (JobState.CANCELLING, {"pending": 5, "succeeded": 6, "cancelled": 9}, 6, 5),
        (JobState.COMPLETED, {"succeeded": 6, "expired": 14}, 6, 0),
        (JobState.COMPLETED, {"succeeded": 19, "failed": 1}, 20, 0),
    ):
        line = line_of(state, **counts)
        told = f"{done}/20"
        assert told in shown(job_lines([line], 120))[1]
        assert told in "".join(shown(job_view(detail(line), 0.0, "—", 80))[:2])
        assert f" {told} rows, " in progress_words(detail(line), 0.0)
        assert f" {done} of 20 done, " in str(line)
        assert line.to_json()["requests"]["done"] == done
        assert line.left == left, "rows that may still be answered"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (2, "2 rows of an earlier run or another job"),
        (0, "2 rows of an earlier run or another job; 2 of them failed there"),
    ],
)
def test_reused_rows_that_failed_are_not_told_as_answers(answers: int, told: str) -> None:
    found = detail(line_of(JobState.COMPLETED, failed=2, succeeded=2), carried=2, carried_answers=answers)
    assert ["reused", told] in [text.split(maxsplit=1) for text in shown(job_detail(found, 120))]


def test_tokens_are_told_from_the_first_answer_of_the_job_itself() -> None:
    for counts, facts, told in (
        ({"pending": 3}, {}, None),
        ({"pending": 3, "failed": 1}, {"carried": 1}, None),
        ({"succeeded": 2, "failed": 1}, {"carried": 3, "carried_answers": 2}, None),
        ({"succeeded": 2, "failed": 2}, {"carried": 2, "carried_answers": 0}, "no token counts in the answers"),
        ({"pending": 3}, {"usage": Usage(5, 0, 2)}, "5 in, 2 out"),
    ):
        found = detail(line_of(**counts), **{"usage": Usage(), **facts})
        lines = [text.split(maxsplit=1) for text in shown(job_detail(found, 120))]
        assert [line[1] for line in lines if line[0] == "tokens"] == ([] if told is None else [told])
        for text in (" ".join(shown(job_view(found, 0.0, "—", 80))), progress_words(found, 0.0)):
            assert (told or "$1.50") in text
            assert told is not None or not re.search(r"token counts|\b0 in\b", text)


def test_pending_rows_that_running_batches_have_finished_are_told_beside_them() -> None:
    line = replace(line_of(pending=20, succeeded=5), done=17, failed_so_far=3)
    text = " ".join(" ".join(shown(job_detail(detail(line), 200))).split())
    assert "25: 5 succeeded, 20 pending" in text
    assert "12 pending rows finished in running batches, 3 of them failed" in text
    requests = line.to_json()["requests"]
    assert requests["done"] == requests["succeeded"] + requests["finished_in_batches"] == 17


@pytest.mark.parametrize(
    ("failed", "known", "words"), [(8, 8, "8 known"), (8, 3, "8, 3 known"), (8, 0, "8"), (0, 0, "—")]
)
def test_failures_that_are_all_known_have_one_number(failed: int, known: int, words: str) -> None:
    line = replace(line_of(succeeded=2, failed=failed), failing=Failing(new=failed - known, known=known))
    assert f"/{failed + 2}{words:>{max(6, len(words)) + 2}}  " in "\n".join(shown(job_lines([line], 160)))


def test_rows_that_a_cut_batch_reports_as_failed_are_not_done_there() -> None:
    for status, done in (("cancelled", 1), ("expired", 1), ("completed", 4)):
        facts = {"provider_status": status, "provider_completed": 1, "provider_failed": 3}
        found = detail(line_of(succeeded=4), shards=[shard(LONG, rows=4, state=ShardState.COLLECTED, **facts)])
        assert found.to_json()["shards"][0]["done"] == done
        [told] = [text.split() for text in shown(job_detail(found, 160)) if text.startswith("001")]
        assert told[told.index("4") + 1 :][:2] == [str(done), "—"], "they are asked again, and have not failed"


def test_a_batch_whose_rows_were_all_refused_says_so_beside_what_is_done() -> None:
    refused = shard(LONG, rows=26, state=ShardState.COLLECTED)
    for facts, settled in (({"provider_failed": 26}, {}), ({}, {refused.id: 26})):
        failed = {refused.id: 26}
        found = detail(line_of(failed=26), shards=[replace(refused, **facts)], settled=settled, failed_rows=failed)
        [told] = [text.split() for text in shown(job_detail(found, 80)) if text.startswith("001")]
        assert told.count("26") == 3, "rows, done, failed"


def test_an_answer_that_fails_its_check_has_failed_in_its_batch_too() -> None:
    running = shard(LONG, rows=10, state=ShardState.SUBMITTED, provider_completed=7, provider_failed=1)
    running = replace(running, failing={"new": {"schema_mismatch": 1, "status_400": 1}})
    found = detail(replace(line_of(pending=10), done=8, failed_so_far=2), shards=[running])
    assert "8 pending rows finished in running batches, 2 of them failed" in "\n".join(shown(job_detail(found, 80)))
    assert found.to_json()["shards"][0]["done_failed"] == 2


def test_a_limited_run_is_not_taken_for_a_whole_one() -> None:
    line = line_of(JobState.COMPLETED, succeeded=5)
    trial = replace(line, job=replace(line.job, options={"limit": 5}))
    states = [" (limited)" in text for text in shown(job_lines([line, trial], 160))]
    assert states == [False, False, True]


@pytest.mark.parametrize(
    ("finished", "counts", "told"),
    [
        (later(1.5), {"succeeded": 1}, "missed by 30 min"),
        (later(0.5), {"succeeded": 1}, "met with 30 min to spare"),
        (later(0.9), {"succeeded": 1, "expired": 1}, "missed: rows were given up"),
        (None, {"pending": 1}, "missed by "),
    ],
)
def test_a_job_tells_how_its_deadline_was_kept(finished: datetime | None, counts: dict[str, int], told: str) -> None:
    line = line_of(JobState.RUNNING if finished is None else JobState.COMPLETED, **counts)
    line = replace(line, job=replace(line.job, deadline_at=later(1), finished_at=finished))
    [found] = [text for text in shown(job_detail(detail(line), 120)) if text.startswith("deadline")]
    assert f"; {told}" in found


def event(number: int, kind: str) -> Event:
    return Event(later(number / 60), kind, f"reason {number}")


def test_what_changed_a_jobs_course_is_always_shown_and_the_rest_counted() -> None:
    kinds = ["built", "routed", "submitted", "rerouted", "routed", "cancel", *["held", "submitted"] * 30]
    events = [event(number, kind) for number, kind in enumerate(kinds)]
    kept = [int(one.reason.split()[1]) for one in chosen(events, EVENTS)]
    assert kept == [3, 4, 5, *range(len(kinds) - EVENTS, len(kinds))]
    view = job_detail(detail(line_of(succeeded=1), events=events), 80)
    text = " ".join(shown(view))
    assert "51 of 66 events are not shown" in text
    assert "--all` shows them" in text
    everything = " ".join(shown(job_detail(detail(line_of(succeeded=1), events=events), 80, events=None)))
    assert all(f"reason {number} " in f"{everything} " for number in range(len(kinds)))
    assert "not shown" not in everything


def test_a_model_is_shown_by_its_name() -> None:
    first = shard(LONG, 1, model="analyst", state=ShardState.SUBMITTED)
    second, third = (replace(first, id=f"x.00{n}", number=n, model="analyst@2") for n in (2, 3))
    found = detail(
        line_of(succeeded=1), shards=[first, second, third], model_names={first.id: "gpt-5-nano", second.id: "gpt-5"}
    )
    lines = shown(job_detail(found, 200))
    assert "gpt-5-nano" in next(line for line in lines if line.startswith("001"))
    assert "gpt-5 " in next(line for line in lines if line.startswith("002"))
    assert "analyst (model 2 of its list)" in next(line for line in lines if line.startswith("003"))
    assert "@2" not in " ".join(lines)
    assert [one["model_name"] for one in found.to_json()["shards"]][:2] == ["gpt-5-nano", "gpt-5"]


def test_elsewhere_than_on_a_terminal_long_work_is_told_of_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = [100.0]
    view = LiveProgress(quiet=False, clock=lambda: seconds[0])
    view.start()
    for second in range(41):
        seconds[0] = 100.0 + second
        view.counted("writing rows", second * 1000, 100_000, "rows")
    view.stop()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4, "one every ten seconds, and none of what is quick"
    assert lines[-1] == "writing rows: 40,000 of 100,000 rows, 1,000/s, ETA 1 min"
    quiet = LiveProgress(quiet=True)
    quiet.counted("writing rows", 5, 10, "rows")
    assert capsys.readouterr().err == ""


def test_work_of_unknown_length_is_told_with_the_seconds_that_it_has_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    view = LiveProgress(quiet=False, clock=lambda: now[0])
    for second in range(0, 95, 5):
        now[0] = float(second)
        view.elapsed("the engine is loading", second)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [f"the engine is loading: {seconds} s" for seconds in (0, 10, 20)]
    assert lines[-1] == "the engine is loading: 1 min 30 s"


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        (None, "reading documents: 60 read, 120 requests, 2 documents/s"),
        (180, "reading documents: 60 of 180, 120 requests, 2 documents/s, ETA 1 min"),
        (60, "reading documents: 60 of 60, 120 requests, 2 documents/s"),
    ],
)
def test_while_documents_are_read_it_tells_how_fast_and_how_long_still(
    expected: int | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    view = LiveProgress(quiet=False, clock=lambda: now[0])
    view.reading(0, 0, expected)
    now[0] = 30.0
    view.reading(60, 120, expected)
    assert capsys.readouterr().err.splitlines()[-1].rstrip() == told
