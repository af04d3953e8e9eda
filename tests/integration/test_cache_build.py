"""Builds that find answers: of other jobs, and of the same question further up in the job."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.model import Job, RequestState, Span, Why
from orchestrator.pipeline.build import builder, reused_answers, submission
from orchestrator.pipeline.build.build_report import BuildReport
from orchestrator.settings.config import Config, load
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import Settled
from tests.support.databases import new_sqlite
from tests.support.stored import NOW, later, ranges, shard, succeeded

TOML = """
[models]
small = { openai = "mini", gpu = "tiny" }
strong = ["mini", "big"]

[backends.openai]
kind = "openai"
api_key_env = "NONE"

[backends.gpu]
upstreams = ["http://127.0.0.1:9/v1"]
location = "local"
idle = true

[prices.mini]
input = 1
output = 1
batch = { input = 1, output = 1 }

[prices.big]
input = 1
output = 1
batch = { input = 1, output = 1 }

[prices.other]
input = 1
output = 1
batch = { input = 1, output = 1 }
"""


def settled_ns() -> int:
    """A time at which files that were just written are taken for old."""
    return time.time_ns() + 10**10


class Works:
    """A home whose jobs are built here, and answered as a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Home(folder / "home")
        self.home.root.mkdir()
        (folder / "orch.toml").write_text(TOML)
        (folder / "docs").mkdir()
        self.place = Place(folder / "orch.toml", self.home.root, f"sqlite:///{folder / 'orch.db'}", 10.0)
        self.store = Store.open(new_sqlite(folder / "orch.db"))
        self.hours = 0

    @property
    def config(self) -> Config:
        return load(self.place)

    def documents(self, *texts: str) -> None:
        for path in (self.folder / "docs").iterdir():
            path.unlink()
        for number, text in enumerate(texts):
            (self.folder / "docs" / f"{number}.txt").write_text(text)

    def job_file(self, name: str = "a", task: dict[str, Any] | None = None, **spec: Any) -> Path:
        path = self.folder / f"{name}.yaml"
        asked = {"id": "t", "prompt": "Who signs", "model": "small", **(task or {})}
        path.write_text(json.dumps({"name": name, "documents": "docs", "tasks": [asked], **spec}))
        return path

    def batch_file(self, *bodies: dict[str, Any], name: str = "rows") -> Path:
        path = self.folder / f"{name}.jsonl"
        lines = [
            {"custom_id": f"{name}-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            for number, body in enumerate(bodies)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def build(
        self, path: Path, *, clock_ns: Callable[[], int] = time.time_ns, **options: Any
    ) -> tuple[Job, BuildReport]:
        self.hours += 1
        now = later(self.hours)
        job = submission.draft(path, self.config, self.home, submission.Options(**options), now)
        self.store.jobs.add(job, {})
        asked = reused_answers.asked_of(self.config, job)
        report = builder.build(self.store, self.home, job, now, asked=asked, clock_ns=clock_ns)
        self.store.jobs.mark_built(job.id, now)
        return self.store.jobs.get(job.id), report

    def answer(self, job: Job, backend: str = "openai", model: str | None = "mini", **facts: Any) -> Job:
        """Every row that waits is answered by one model."""
        for number, found in enumerate(ranges(self.store, job), 1):
            new = shard(job, number, backend=backend, model=found.model, rows=found.rows, bytes=found.bytes)
            self.store.shards.add(new, found)
            settled = [
                Settled(*succeeded(row.seq, "0.5", span=Span(row.seq, 9), **facts))
                for row in self.store.rows.of_shard(new.id)
            ]
            self.store.rows.settle(new.id, job.id, backend, settled, later(self.hours), model)
        return job

    def ends(self, job: Job) -> list[tuple[str, str | None]]:
        return [(row.state, row.carried_from) for row in self.store.rows.finished(job.id)]


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Works]:
    found = Works(tmp_path)
    yield found
    found.store.close()


def test_what_another_job_has_had_answered_is_not_asked_again(works: Works) -> None:
    works.documents("It was agreed.", "Nothing was.")
    first = works.answer(works.build(works.job_file("a"))[0])
    works.documents("Another.", "It was agreed.")
    second, report = works.build(works.job_file("b"))
    assert (report.requests, report.carried, report.cached, report.twins) == (2, 0, 1, 0)
    assert works.ends(second) == [("pending", None), ("succeeded", first.id)]
    assert report.input_bytes == sum(work.bytes for work in works.store.sizes.open_work(second.id))
    assert works.store.ledger.spent(second.id) == 0
    works.answer(second)
    # And so is what that job asked: by either of them, wherever it comes from.
    works.documents("Another.", "It was agreed.", "Nothing was.")
    third, report = works.build(works.job_file("c"))
    assert report.cached == report.requests == 3
    assert works.ends(third) == [("succeeded", second.id), ("succeeded", first.id), ("succeeded", first.id)]


def test_a_run_that_carries_every_row_over_is_one_of_which_nothing_changed(works: Works) -> None:
    works.documents("It was agreed.", "It was agreed.")
    path = works.job_file("a")
    first = works.answer(works.build(path)[0])
    works.store.jobs.finish(first.id, "x", NOW)
    again, report = works.build(path)
    assert (report.carried, report.cached) == (2, 0)
    assert builder.same_as(works.store, again, report) == works.store.jobs.get(first.id)


def test_a_run_that_finds_what_the_last_one_lacked_is_another_one(works: Works) -> None:
    works.documents("It was agreed.")
    path = works.job_file("a")
    first, _ = works.build(path)
    works.store.rows.end_open(first.id, RequestState.EXPIRED, "batch_expired", "late", NOW)
    works.store.jobs.finish(first.id, "x", NOW)
    works.answer(works.build(works.job_file("b"))[0])
    again, report = works.build(path)
    assert (report.carried, report.cached) == (0, 1)
    assert builder.same_as(works.store, again, report) is None


def test_another_jobs_answer_carries_over_like_any_other(works: Works) -> None:
    works.documents("It was agreed.", "Nothing was.")
    origin = works.answer(works.build(works.job_file("a"))[0])
    path = works.job_file("b")
    first, report = works.build(path)
    assert (report.cached, report.whys) == (2, {Why.NEW: 2})
    works.store.jobs.finish(first.id, "x", NOW)
    again, report = works.build(path)
    assert (report.carried, report.cached, report.whys, report.changes) == (2, 0, {Why.UNCHANGED: 2}, [])
    assert works.ends(again) == [("succeeded", origin.id)] * 2
    assert builder.same_as(works.store, again, report) == works.store.jobs.get(first.id)
    # One edit, and the others are as they were: the night after that too.
    (works.folder / "docs" / "0.txt").write_text("It was not.")
    for whys in ({Why.DOCUMENT: 1, Why.UNCHANGED: 1}, {Why.UNCHANGED: 2}):
        job, report = works.build(path)
        assert report.whys == whys
        works.answer(job)


def _renamed(folder: Path) -> None:
    (folder / "0.txt").rename(folder / "renamed.txt")


def _repriced(folder: Path) -> None:
    (folder / "rows.csv").write_text("text,price\nIt was agreed.,25\n")


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("change", "why"), [(_renamed, Why.NEW), (_repriced, Why.DOCUMENT)], ids=["a name", "a column that is not asked"]
)
def test_a_change_that_no_question_has_in_it_is_one_for_a_single_night(
    works: Works, change: Callable[[Path], None], why: Why
) -> None:
    works.documents("It was agreed.", "Nothing was.")
    (works.folder / "docs" / "rows.csv").write_text("text,price\nIt is agreed.,20\nIt was agreed.,20\n")
    path = works.job_file("a", documents={"path": "docs", "text_column": "text"})
    works.answer(works.build(path)[0])
    change(works.folder / "docs")
    second, report = works.build(path)
    works.store.jobs.finish(second.id, "x", NOW)
    assert (report.to_send, report.whys[why]) == (0, 1)
    told = [int(part.split()[0]) for part in (*report.saved, *report.changes) if "removed" not in part]
    assert sum(told) == report.requests, "each request is counted once"
    again, report = works.build(path)
    assert (report.carried, report.whys) == (report.requests, {Why.UNCHANGED: report.requests})
    assert builder.same_as(works.store, again, report) == works.store.jobs.get(second.id)


def test_files_whose_answers_are_another_jobs_are_not_read_again(works: Works) -> None:
    works.documents("It was agreed.", "Nothing was.")
    works.answer(works.build(works.job_file("a"))[0])
    path = works.job_file("b")
    works.build(path, clock_ns=settled_ns)
    assert works.build(path, clock_ns=settled_ns)[1].unread == 2


WITHDRAWN: dict[str, dict[str, Any]] = {
    "the task wants its own now": {"task": {"cache": False}},
    "that backend may not be asked now": {"allow": {"backends": ["gpu"]}},
}


@pytest.mark.parametrize("spec", WITHDRAWN.values(), ids=WITHDRAWN.keys())
@pytest.mark.parametrize("clock_ns", [time.time_ns, settled_ns], ids=["read", "not read"])
def test_another_jobs_answer_that_may_not_be_taken_now_is_asked_for(
    works: Works, spec: dict[str, Any], clock_ns: Callable[[], int]
) -> None:
    works.documents("It was agreed.")
    works.answer(works.build(works.job_file("a"))[0])
    works.build(works.job_file("b"), clock_ns=clock_ns)
    job, report = works.build(works.job_file("b", **spec), clock_ns=clock_ns)
    assert (works.ends(job), report.whys) == ([("pending", None)], {Why.UNANSWERED: 1})


def test_a_row_whose_files_are_gone_has_no_answer_and_did_not_change(works: Works) -> None:
    works.documents("It was agreed.")
    path = works.job_file("a")
    first = works.answer(works.build(path)[0])
    works.store.jobs.finish(first.id, "x", NOW)
    assert works.store.removals.clear(first.id, works.folder, NOW)
    assert works.build(path)[1].whys == {Why.UNANSWERED: 1}


CASES: dict[str, tuple[dict[str, Any], Callable[[Works], Path], dict[str, Any], bool]] = {
    "the same": ({}, lambda works: works.job_file("b"), {}, True),
    "another task's name and alias of that model": (
        {}, lambda works: works.job_file("b", {"id": "u", "model": "strong"}), {}, True,
    ),
    "a stronger model of the alias's list": (
        {"model": "big"}, lambda works: works.job_file("b", {"model": "strong"}), {}, True,
    ),
    "another model": ({"model": "big"}, lambda works: works.job_file("b"), {}, False),
    "a model whose name is not known": ({"model": None}, lambda works: works.job_file("b"), {}, False),
    "the name of another backend's model": (
        {"backend": "openai", "model": "tiny"}, lambda works: works.job_file("b"), {}, False,
    ),
    "a backend that the job may not use": (
        {}, lambda works: works.job_file("b", allow={"backends": ["gpu"]}), {}, False,
    ),
    "a backend that the command does not want": ({}, lambda works: works.job_file("b"), {"backend": "gpu"}, False),
    "another question": ({}, lambda works: works.job_file("b", {"prompt": "What"}), {}, False),
    "a task that wants its own": ({}, lambda works: works.job_file("b", {"cache": False}), {}, False),
    "--new": ({}, lambda works: works.job_file("b"), {"new": True}, False),
}  # fmt: skip


@pytest.mark.parametrize(("answered", "path", "options", "taken"), CASES.values(), ids=CASES.keys())
def test_an_answer_is_taken_where_the_job_might_have_got_it(
    works: Works, answered: dict[str, Any], path: Callable[[Works], Path], options: dict[str, Any], taken: bool
) -> None:
    works.documents("It was agreed.")
    first = works.answer(works.build(works.job_file("a"))[0], **answered)
    second, report = works.build(path(works), **options)
    assert (report.cached, works.ends(second)[0][1]) == ((1, first.id) if taken else (0, None))


def test_answers_that_no_task_has_checked_are_for_batch_files_alone(works: Works) -> None:
    works.documents("It was agreed.")
    job, _ = works.build(works.job_file("a", {"temperature": 0}))
    line = json.loads(works.home.requests(job.id).read_text())
    works.store.jobs.discard(job.id)
    body = {**line["body"], "model": "mini"}
    first = works.answer(works.build(works.batch_file(body))[0])
    assert works.build(works.job_file("b", {"temperature": 0}))[1].cached == 0
    second, report = works.build(works.batch_file(body, name="again"))
    assert (report.cached, works.ends(second)) == (1, [("succeeded", first.id)])
    # The other way round: what has passed a check will do for a file that asks for none.
    works.documents("It was not.")
    works.answer(works.build(works.job_file("c", {"temperature": 0}))[0])
    body["messages"][0]["content"] = body["messages"][0]["content"].replace("was agreed", "was not")
    assert works.build(works.batch_file(body, name="third"))[1].cached == 1


def test_the_same_question_twice_is_sent_once(works: Works) -> None:
    works.documents(*["It was agreed."] * 3, "Nothing was.", "It was agreed.")
    job, report = works.build(works.job_file("a", {"cache": True}))
    assert (report.requests, report.twins) == (5, 3)
    assert [waiting.seq for waiting in works.store.rows.waiting(job.id)] == [0, 3]
    assert report.input_bytes == sum(work.bytes for work in works.store.sizes.open_work(job.id))
    works.answer(job)
    assert works.ends(job) == [
        ("succeeded", None),
        *[("succeeded", job.id)] * 2,
        ("succeeded", None),
        ("succeeded", job.id),
    ]
    assert works.store.ledger.spent(job.id) == 1


def test_the_same_question_is_sent_as_often_as_it_stands_there_where_answers_may_differ(works: Works) -> None:
    works.documents(*["It was agreed."] * 2)
    for number, task in enumerate(({"cache": False}, {"temperature": 0.8})):
        assert works.build(works.job_file(f"a{number}", task))[1].twins == 0
    body = {"model": "mini", "messages": [{"role": "user", "content": "x"}]}
    assert works.build(works.batch_file(body, body))[1].twins == 0
    job, report = works.build(works.batch_file({**body, "temperature": 0}, {"temperature": 0, **body}, name="sure"))
    assert report.twins == 1
    assert works.ends(job) == [("pending", None)] * 2


def test_two_tasks_that_ask_the_same_are_asked_each(works: Works) -> None:
    works.documents("It was agreed.")
    path = works.job_file("a", tasks=[{"id": name, "prompt": "Who", "model": "small"} for name in "ab"])
    assert works.build(path)[1].twins == 0


@pytest.mark.long
def test_questions_are_found_again_over_all_parts_of_a_build(works: Works) -> None:
    path = works.folder / "docs" / "many.csv"
    works.documents()
    path.write_text("text\n" + "".join(f"letter {number % 700}\n" for number in range(1600)))
    job_file = works.job_file("a", documents={"path": "docs/many.csv", "text_column": "text"})
    job, report = works.build(job_file)
    assert (report.requests, report.twins) == (1600, 900)
    assert [waiting.seq for waiting in works.store.rows.waiting(job.id)] == list(range(700))
    works.answer(job)
    assert works.store.jobs.counts([job.id])[job.id].succeeded == 1600


def test_what_a_clean_up_saves_is_counted_where_it_is_sent(works: Works) -> None:
    works.documents("It   was.\n\n\n\n" * 40, "It   was.\n\n\n\n" * 40, "Short.")
    _, plain = works.build(works.job_file("a"))
    _, clean = works.build(works.job_file("b", clean={"whitespace": True}))
    assert (plain.trimmed_tokens, clean.twins) == (0, 1)
    # Of 520 bytes 358 are left, of the one that is sent.
    assert clean.trimmed_tokens == 130 - 90


def test_what_was_saved_is_told_in_words() -> None:
    report = BuildReport(documents=9, requests=2000, carried=1204, cached=310, twins=2, trimmed_tokens=41_000)
    assert report.saved == [
        "1,204 unchanged since an earlier run",
        "310 with an answer to the same request",
        "2 the same as another row",
        "41,000 tokens removed by cleaning",
    ]
    assert BuildReport(documents=9, requests=9).saved == []


@pytest.mark.long
def test_a_bound_is_learned_from_earlier_nights_and_makes_no_row_another(works: Works) -> None:
    works.documents()
    table = works.folder / "docs" / "many.csv"
    path = works.job_file("a", {"max_tokens": "auto"}, documents={"path": "docs/many.csv", "text_column": "text"})

    def night(rows: int) -> tuple[Job, BuildReport, set[int]]:
        table.write_text("text\n" + "".join(f"letter {number}\n" for number in range(rows)))
        job, report = works.build(path)
        lines = works.home.requests(job.id).read_text().splitlines()
        bounds = {json.loads(line)["body"]["max_tokens"] for line in lines}
        assert {found.max_output for found in works.store.rows.waiting(job.id)} <= bounds
        return job, report, bounds

    job, _, bounds = night(200)
    assert bounds == {512}
    works.answer(job)
    job, report, bounds = night(201)
    assert (bounds, report.carried) == ({64}, 200)
    works.answer(job)
    _, report, bounds = night(202)
    assert report.carried == 201


def test_where_rows_of_a_job_may_be_answered(works: Works) -> None:
    works.documents("x")
    job, _ = works.build(works.job_file("a"))
    asked = reused_answers.asked_of(works.config, job)
    assert asked("small") == {("openai", "mini"), ("gpu", "tiny")}
    assert asked("strong") == {("openai", "mini"), ("openai", "big"), ("gpu", "mini"), ("gpu", "big")}
    assert asked("mini") == {("openai", "mini"), ("gpu", "mini")}


@pytest.mark.parametrize("unread", [False, True], ids=["changed times", "unchanged files"])
@pytest.mark.parametrize("name", ["a", "b"], ids=["its own run", "another job"])
def test_an_aborted_answer_that_an_earlier_version_accepted_is_asked_again_and_no_other(
    works: Works, name: str, unread: bool
) -> None:
    works.documents("It was agreed.", "Nothing was.")
    clock = settled_ns if unread else time.time_ns
    first, _ = works.build(works.job_file("a"), clock_ns=clock)
    lines = [
        json.dumps(
            {"custom_id": "x", "response": {"status_code": 200, "body": {"choices": [{"finish_reason": end}]}}}
        )
        for end in ("abort", "stop")
    ]
    spans = [Span(0, len(lines[0])), Span(len(lines[0]) + 1, len(lines[1]))]
    [found] = ranges(works.store, first)
    new = shard(first, 1, backend="openai", model=found.model, rows=found.rows, bytes=found.bytes)
    works.store.shards.add(new, found)
    path = works.home.results(new.id, "output")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    rows = [Settled(*succeeded(seq, "0.5", span=spans[seq], repaired=None)) for seq in range(2)]
    works.store.rows.settle(new.id, first.id, "openai", rows, later(works.hours), "mini")
    second, report = works.build(works.job_file(name), clock_ns=clock)
    assert (report.requests, report.carried + report.cached) == (2, 1)
    assert works.ends(second) == [("pending", None), ("succeeded", first.id)]
    path.unlink()
    assert works.build(works.job_file(name), clock_ns=clock)[1].requests == 2
