"""What of finished jobs may go: tables, and properties over any history of jobs that carry each other's answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import InputError
from orchestrator.core.model import JobId
from orchestrator.policy import retention
from orchestrator.policy.retention import Carriers, JobFate, Leaving, RetentionVerdict, words
from orchestrator.settings import config
from orchestrator.settings.config import Retention, size_bytes
from orchestrator.settings.discovery import Place

NOW = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
DAY = 86_400


def terms(
    results: int | None = None, jobs: int | None = None, keep_last: int = 1, most: int | None = None
) -> Retention:
    """Days, and bytes."""
    given = {
        "results": results and f"{results}d", "jobs": jobs and f"{jobs}d", "keep_last": keep_last, "max_bytes": most,
    }  # fmt: skip
    return Retention.model_validate({name: value for name, value in given.items() if value})


def job(
    name: str, days: float, series: str = "s", *, size: int = 10, over: bool = True, run: bool = True,
    cleared: bool = False,
) -> Leaving:  # fmt: skip
    """A job that ended so many days ago."""
    at = NOW - timedelta(days=days)
    return Leaving(JobId(name), series, at, at if over else None, over and run, cleared, 0 if cleared else size)


def fates(
    jobs: list[Leaving],
    on: Retention,
    carriers: Carriers | None = None,
    booked: set[str] | None = None,
    used: int = 0,
) -> dict[str, RetentionVerdict]:
    found = retention.plan(jobs, carriers or {}, {JobId(name) for name in booked or ()}, on, NOW, used)
    return {verdict.job_id: verdict for verdict in found}


NIGHTS = [job("last", 1), job("old", 40), job("older", 80), job("ancient", 400)]


@pytest.mark.parametrize(
    ("on", "went"),
    [
        (terms(), {}),
        (terms(results=90), {"ancient": JobFate.FILES}),
        (terms(results=40), {"old": JobFate.FILES, "older": JobFate.FILES, "ancient": JobFate.FILES}),
        (terms(results=30, jobs=365), {"old": JobFate.FILES, "older": JobFate.FILES, "ancient": JobFate.JOB}),
        (terms(jobs=60), {"older": JobFate.JOB, "ancient": JobFate.JOB}),
        (terms(results=30, keep_last=3), {"ancient": JobFate.FILES}),
        (terms(results=30, keep_last=9), {}),
    ],
)
def test_what_is_over_its_time_goes(on: Retention, went: dict[str, JobFate]) -> None:
    found = fates(NIGHTS, on)
    assert {name: verdict.fate for name, verdict in found.items() if verdict.fate is not JobFate.KEPT} == went
    assert list(found) == ["last", "old", "older", "ancient"]
    assert all(verdict.reason for verdict in found.values())


def test_each_verdict_says_why() -> None:
    jobs = [
        job("running", 100, over=False), job("new", 50), job("cancelled", 60, run=False), job("mid", 70),
        job("carried", 80), job("paid", 90), job("was", 95, cleared=True), job("out", 400),
        job("young", 2, "b", run=False),
    ]  # fmt: skip
    found = fates(
        jobs, terms(30, 85), {JobId("carried"): {JobId("new"): 12, JobId("running"): 3, JobId("mid"): 9}}, {"paid"}
    )
    assert {name: (verdict.fate, verdict.reason) for name, verdict in found.items()} == {
        "young": (JobFate.KEPT, "ended 2 d ago, results are kept for 30 d"),
        "new": (JobFate.KEPT, "the newest of its job file (keep_last = 1)"),
        "cancelled": (JobFate.FILES, "ended 60 d ago, results are kept for 30 d"),
        "mid": (JobFate.FILES, "ended 70 d ago, results are kept for 30 d"),
        "carried": (JobFate.KEPT, "its answers are used by new (12 rows) and 1 other job"),
        "paid": (JobFate.FILES, "ended 90 d ago, results are kept for 30 d"),
        "was": (JobFate.JOB, "ended 95 d ago, jobs are kept for 85 d"),
        "running": (JobFate.KEPT, "it is not finished"),
        "out": (JobFate.JOB, "ended 400 d ago, jobs are kept for 85 d"),
    }
    assert fates([job("was", 95, cleared=True), job("x", 1)], terms(30, 85), booked={"was"})["was"].reason == (
        "its cost counts in this month's budgets"
    )
    assert fates([job("was", 95, cleared=True), job("x", 1)], terms(30))["was"].reason == (
        "its files are gone; its rows are kept for reports"
    )


def test_a_cap_takes_the_oldest_first_and_only_what_may_go() -> None:
    jobs = [job("d", 1), job("c", 2, size=30), job("b", 3, size=20), job("a", 4, size=10)]
    assert fates(jobs, terms(most=1000), used=1000) == fates(jobs, terms(), used=1000)
    found = fates(jobs, terms(most=1000), used=1001)
    assert [name for name, verdict in found.items() if verdict.fate is JobFate.FILES] == ["a"]
    assert found["a"] == RetentionVerdict(
        JobId("a"),
        JobFate.FILES,
        "the home takes 1.0 kB; the limit is 1.0 kB; this job is the oldest",
        10,
    )
    assert [name for name, verdict in fates(jobs, terms(most=1), used=1001).items() if verdict.bytes] == [
        "c",
        "b",
        "a",
    ]
    # What carries the oldest one's answers goes before it; what is kept for good holds it.
    held = fates(jobs, terms(most=975), {JobId("a"): {JobId("b"): 1}}, used=1000)
    assert [name for name, verdict in held.items() if verdict.bytes] == ["b", "a"]
    held = fates(jobs, terms(most=1), {JobId("a"): {JobId("b"): 1}}, used=1000)
    assert [name for name, verdict in held.items() if verdict.bytes] == ["c", "b", "a"]
    held = fates(jobs, terms(most=1), {JobId("a"): {JobId("d"): 1}}, used=1000)
    assert [name for name, verdict in held.items() if verdict.bytes] == ["c", "b"]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Leaving], Carriers]:
    """Jobs of three files over two years, each carrying answers of some that were made before it."""
    jobs: list[Leaving] = []
    carriers: dict[JobId, dict[JobId, int]] = {}
    for number in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["run", "run", "cancelled", "open", "cleared"]))
        jobs.append(
            job(
                f"j{number:02}", 720 - 60 * number, draw(st.sampled_from("abc")), size=draw(st.integers(0, 50)),
                over=kind != "open", run=kind != "cancelled", cleared=kind == "cleared",
            )
        )  # fmt: skip
        for other in draw(st.sets(st.integers(0, max(0, number - 1)), max_size=3)) - {number}:
            carriers.setdefault(JobId(f"j{other:02}"), {})[JobId(f"j{number:02}")] = 1
    return jobs, carriers


@given(
    histories(), st.sampled_from([None, 30, 200, 600]), st.sampled_from([None, 600, 700]), st.integers(1, 3),
    st.sampled_from([None, 1, 100, 300]), st.sets(st.sampled_from(["j00", "j01", "j02"])),
)  # fmt: skip
def test_what_is_needed_always_stays(
    history: tuple[list[Leaving], Carriers], results: int | None, jobs: int | None, keep_last: int, most: int | None,
    booked: set[str],
) -> None:  # fmt: skip
    all_jobs, carriers = history
    found = fates(
        all_jobs, terms(results, jobs, keep_last, most), carriers, booked, sum(one.bytes for one in all_jobs)
    )
    by_id = {one.job_id: one for one in all_jobs}
    has_files = {
        name for name, verdict in found.items() if verdict.fate is JobFate.KEPT and not by_id[JobId(name)].cleared
    }
    for one in all_jobs:
        verdict = found[one.job_id]
        if one.ended_at is None:
            assert verdict.fate is JobFate.KEPT
        if verdict.fate is not JobFate.KEPT:
            assert not has_files & set(carriers.get(one.job_id, {}))
            newer = [x for x in all_jobs if x.series == one.series and x.is_run and x.created_at > one.created_at]
            assert not one.is_run or len(newer) >= keep_last
        if verdict.fate is JobFate.JOB:
            assert one.job_id not in booked
        assert verdict.bytes == (0 if verdict.fate is JobFate.KEPT else one.bytes)


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("now", "since"),
    [("2026-11-21T20:00+00:00", "2026-10-31T23:00+00:00"), ("2026-12-01T03:00+00:00", "2026-11-29T03:00+00:00")],
    ids=["this month", "the night that began in the last"],
)
def test_what_a_running_budget_counts_reaches_back_to_its_periods_start(
    in_berlin: None, now: str, since: str
) -> None:
    assert retention.counts_since(datetime.fromisoformat(now)) == datetime.fromisoformat(since)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_499_999, "999.5 MB"),
        (10**9, "1.0 GB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_sizes_in_words(size: int, text: str) -> None:
    assert words(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500 * 10**6), ("1.5 gb", 15 * 10**8), ("2TB", 2 * 10**12), ("12", 12), (7, 7), ("1B", 1)],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert size_bytes(text) == size


def loaded(folder: Path, text: str) -> Retention:
    path = folder / "orch.toml"
    path.write_text(f"[retention]\n{text}\n")
    return config.load(Place(path, folder, "sqlite:///x", 1.0)).retention


def test_without_settings_nothing_goes(tmp_path: Path) -> None:
    assert loaded(tmp_path, "") == Retention(
        results=None, jobs=None, keep_last=2, max_bytes=None, min_free=256 * 10**6
    )
    full = loaded(tmp_path, 'results = "90d"\njobs = "365d"\nkeep_last = 7\nmax_bytes = "50GB"\nmin_free = 1000')
    assert (full.results, full.jobs, full.keep_last) == (90 * DAY, 365 * DAY, 7)
    assert (full.max_bytes, full.min_free) == (50 * 10**9, 1000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("results = 90", "results: 90 is not a time such as"),
        ('results = "3 months"', "results: '3 months' is not a time such as 90d or 36h; write 90d"),
        ('max_bytes = "lots"', "max_bytes: 'lots' is not a size such as 500MB, 50GB or 2TB"),
        ("max_bytes = true", "max_bytes: True is not a size"),
        ("min_free = 0", "min_free: 0 is not a size"),
        ("keep_last = 0", "keep_last: "),
        ('results = "90d"\njobs = "30d"', "jobs is shorter than results"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        loaded(tmp_path, text)
    assert said in str(raised.value)
    assert "orch.toml:" in str(raised.value)
