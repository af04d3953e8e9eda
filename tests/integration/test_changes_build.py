"""Nights of which little changed: why each row is asked, what is not read again, and that it makes no difference."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.core.model import Job, JobId, RequestState, Why
from orchestrator.documents import versions
from orchestrator.pipeline.build import builder, submission
from orchestrator.pipeline.build.build_report import BuildReport
from orchestrator.settings.config import load
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import Settled
from tests.support.databases import new_sqlite
from tests.support.office import RTF, zipped
from tests.support.stored import NOW, failed, later, ranges, shard, succeeded

TOML = """
[models]
small = "tiny"
large = "big"

[backends.gpu]
upstreams = ["http://127.0.0.1:9/v1"]
location = "local"
idle = true
"""
ANSWERS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "good": succeeded,
    "bad": failed,
    "passing": lambda seq: failed(seq, "http_500"),
}


def settled_ns() -> int:
    """A time at which files that were just written are taken for old."""
    return time.time_ns() + 10**10


class Nights:
    """A job file over a folder, built night after night."""

    def __init__(self, folder: Path, url: str) -> None:
        """`url`: a database of its own that has its tables."""
        self.folder = folder
        (folder / "orch.toml").write_text(TOML)
        self.docs = folder / "docs"
        self.docs.mkdir()
        self.home = Home(folder / "home")
        self.home.root.mkdir()
        place = Place(folder / "orch.toml", self.home.root, url, 10.0)
        self.config = load(place)
        self.store = Store.open(url)
        self.hours = 0
        self.source: dict[str, Any] = {"path": "docs"}
        self.task: dict[str, Any] = {"id": "t", "prompt": "Who signs", "model": "small"}
        self.more: list[dict[str, Any]] = []

    def write(self, **texts: str) -> None:
        for name, text in texts.items():
            (self.docs / f"{name}.txt").write_text(text)

    def draft(self, *, verify: bool = False, **options: Any) -> Job:
        path = self.folder / "job.yaml"
        path.write_text(json.dumps({"name": "n", "documents": self.source, "tasks": [self.task, *self.more]}))
        job = submission.draft(path, self.config, self.home, submission.Options(**options), later(self.hours))
        job = replace(job, options={**job.options, "verify": verify})
        self.store.jobs.add(job, {})
        return job

    def build(self, job: Job, **how: Any) -> BuildReport:
        return builder.build(self.store, self.home, job, later(self.hours), **{"clock_ns": settled_ns, **how})

    def night(self, **options: Any) -> tuple[Job, BuildReport]:
        """A build that counts."""
        self.hours += 1
        job = self.draft(**options)
        report = self.build(job)
        self.store.jobs.mark_built(job.id, later(self.hours))
        return job, report

    def answered(self, *answers: str, **options: Any) -> tuple[Job, BuildReport]:
        """A night whose rows are answered: all well, or the first ones as it is said."""
        job, report = self.night(**options)
        self.answer(job, *answers)
        return job, report

    def answer(self, job: Job, *answers: str) -> None:
        kinds = iter(answers)
        for number, found in enumerate(ranges(self.store, job), 1):
            new = shard(job, number, model=found.model, rows=found.rows, bytes=found.bytes)
            self.store.shards.add(new, found)
            outcomes = [ANSWERS[next(kinds, "good")](row.seq) for row in self.store.rows.of_shard(new.id)]
            settled = [Settled(*outcome) for outcome in outcomes]
            self.store.rows.settle(new.id, job.id, "gpu", settled, later(self.hours), "tiny")

    def rows(self, job: Job) -> list[tuple[object, ...]]:
        """All that counts of a job's rows."""
        before = self.store.known.before(job.id, [row.custom_id for row in self.store.rows.finished(job.id)])
        return [
            (row.seq, row.custom_id, row.document, row.task, row.model, row.prompt_version, row.cut_from_tokens,
             row.state, row.error_code, row.carried_from, row.result, row.why, before[row.custom_id])
            for row in self.store.rows.finished(job.id)
        ]  # fmt: skip

    def whys(self, job: Job) -> dict[str, str | None]:
        return {row.document.removeprefix("docs/"): row.why for row in self.store.rows.finished(job.id)}


@contextmanager
def nights_in(migrated: Path) -> Iterator[Nights]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(migrated, Path(folder) / "orch.db")
        found = Nights(Path(folder), new_sqlite(Path(folder) / "orch.db"))
        try:
            yield found
        finally:
            found.store.close()


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "orch.db"
    Store.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def nights(migrated: Path) -> Iterator[Nights]:
    with nights_in(migrated) as found:
        yield found


def test_each_row_says_why_it_is_asked(nights: Nights) -> None:
    nights.write(a="one", b="two", c="three", d="four")
    first, report = nights.answered("good", "bad", "passing")
    assert set(nights.whys(first).values()) == {Why.NEW}
    assert (report.unread, report.changes) == (0, [])
    nights.write(d="five", e="six")
    (nights.docs / "a.txt").unlink()
    second, report = nights.answered()
    assert nights.whys(second) == {
        "b.txt": Why.UNCHANGED, "c.txt": Why.FAILED, "d.txt": Why.DOCUMENT, "e.txt": Why.NEW,
    }  # fmt: skip
    assert (report.removed, report.gone) == (1, ["docs/a.txt"])
    assert report.changes == ["1 new", "1 of changed documents", "1 failed before", "1 document removed"]
    assert str(report) == f"4 requests of 4 documents, 1 unchanged since an earlier run, {', '.join(report.changes)}"


TASKS: dict[str, tuple[dict[str, Any], Why]] = {
    "another question": ({"prompt": "Who pays"}, Why.PROMPT),
    "another system prompt": ({"system": "Be short"}, Why.PROMPT),
    "another bound": ({"max_tokens": 9}, Why.PARAMETERS),
    "another schema": ({"schema": {"type": "object"}}, Why.PARAMETERS),
    "another model": ({"model": "large"}, Why.MODEL),
    "another task": ({"id": "u"}, Why.NEW),
}


@pytest.mark.parametrize(("task", "why"), TASKS.values(), ids=TASKS.keys())
def test_a_question_that_changed_is_told_apart(nights: Nights, task: dict[str, Any], why: Why) -> None:
    nights.write(a="one")
    nights.answered()
    nights.task |= task
    second, report = nights.answered()
    assert set(nights.whys(second).values()) == {why}
    assert (report.unread, report.carried, report.removed) == (0, 0, 0)
    # And back again: the answer is still here, and the file need not be read for it.
    if why is not Why.NEW:
        nights.task = {"id": "t", "prompt": "Who signs", "model": "small"}
        third, report = nights.night()
        assert set(nights.whys(third).values()) == {Why.UNCHANGED}
        assert report.unread == 1


def test_new_asks_for_what_did_not_change(nights: Nights) -> None:
    nights.write(a="one", b="two", c="three")
    nights.answered("good", "bad")
    nights.write(c="four")
    job, report = nights.night(new=True)
    assert nights.whys(job) == {"a.txt": Why.ASKED, "b.txt": Why.FAILED, "c.txt": Why.DOCUMENT}
    assert report.unread == 0


def test_rows_that_nobody_answered_are_asked_again(nights: Nights) -> None:
    nights.write(a="one")
    first, _ = nights.night()
    nights.store.rows.end_open(first.id, RequestState.CANCELLED, "cancelled", "enough", later(1))
    job, _ = nights.night()
    assert nights.whys(job) == {"a.txt": Why.UNANSWERED}


def test_a_document_that_can_no_longer_be_read_has_changed(nights: Nights) -> None:
    nights.write(a="one", b="two")
    nights.answered()
    (nights.docs / "a.txt").write_text("")
    job, _ = nights.night()
    assert nights.whys(job) == {"a.txt": Why.DOCUMENT, "b.txt": Why.UNCHANGED}
    # What is wrong with it is looked at each time.
    job, report = nights.night()
    assert nights.whys(job) == {"a.txt": Why.UNCHANGED, "b.txt": Why.UNCHANGED}
    assert (report.unread, [problem[0] for problem in report.problems]) == (1, ["docs/a.txt"])


@pytest.mark.parametrize("task", [task for task, why in TASKS.values() if why is not Why.NEW])
def test_a_document_that_cannot_be_read_does_not_change_with_the_question(
    nights: Nights, task: dict[str, Any]
) -> None:
    nights.write(a="", b="two")
    first, _ = nights.answered()
    nights.task |= task
    second, _ = nights.answered()
    assert nights.whys(second)["a.txt"] == Why.UNCHANGED
    [failed, _] = nights.store.rows.finished(second.id)
    assert (failed.error_code, failed.carried_from) == ("empty", first.id)
    nights.write(a="now it says something")
    assert nights.whys(nights.night()[0]) == {"a.txt": Why.DOCUMENT, "b.txt": Why.UNCHANGED}


def test_what_keeps_a_document_from_being_read_is_told_as_it_is_now(nights: Nights) -> None:
    nights.write(a="one two three")
    nights.source["max_bytes"] = 3
    nights.answered()
    nights.write(a="one two three and four")
    job, report = nights.night()
    [row] = nights.store.rows.finished(job.id)
    assert (report.carried, row.error_code, row.error_message) == (1, "too_large", report.problems[0][2])
    nights.source["max_bytes"] = 100
    (nights.docs / "a.txt").write_bytes(b"\xff\xfe\x00")
    assert nights.whys(nights.night()[0]) == {"a.txt": Why.DOCUMENT}


def test_a_file_that_did_not_move_is_not_read(nights: Nights) -> None:
    nights.write(a="one", b="two words", c="three")
    nights.task["max_document_tokens"] = 1
    first, _ = nights.answered("good", "bad")
    second, report = nights.night()
    # The failure holds, and keeps its request: `orch retry` may want to send it.
    assert (report.unread, report.carried) == (2, 3)
    lengths = [work.bytes for work in nights.store.sizes.open_work(second.id)]
    assert (lengths, nights.store.rows.retry(second.id, [RequestState.FAILED])) == ([], 1)
    assert [row[6] for row in nights.rows(second)] == [row[6] for row in nights.rows(first)] != [None] * 3
    assert nights.build(nights.draft(verify=True), remember=False).unread == 0


def test_a_file_that_changed_just_now_is_read_once_more(nights: Nights) -> None:
    nights.write(a="one")
    nights.hours = 1
    job = nights.draft()
    nights.build(job, clock_ns=time.time_ns)
    nights.store.jobs.mark_built(job.id, later(1))
    nights.answer(job)
    assert nights.night()[1].unread == 0
    assert nights.night()[1].unread == 1


def test_an_edit_that_leaves_size_and_mtime_is_seen(nights: Nights) -> None:
    nights.write(a="one")
    nights.answered()
    path = nights.docs / "a.txt"
    times = path.stat()
    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert nights.whys(nights.night()[0]) == {"a.txt": Why.DOCUMENT}


def test_another_way_of_reading_reads(nights: Nights) -> None:
    nights.write(a="one")
    nights.answered()
    nights.source["encoding"] = "utf-8"
    job, report = nights.night()
    # It gives the same text, so nothing is asked.
    assert (report.unread, nights.whys(job)) == (0, {"a.txt": Why.UNCHANGED})


@pytest.mark.long
def test_another_text_out_of_the_same_bytes_is_the_readers(nights: Nights) -> None:
    (nights.docs / "a.txt").write_bytes("caf\u00e9".encode("cp1252"))
    nights.write(b="one")
    nights.source["encoding"] = "cp1252"
    nights.answered()
    nights.source["encoding"] = "cp1250"
    assert nights.whys(nights.night()[0]) == dict.fromkeys(("a.txt", "b.txt"), Why.UNCHANGED)
    nights.source["encoding"] = "cp1251"
    assert nights.whys(nights.night()[0]) == {"a.txt": Why.READER, "b.txt": Why.UNCHANGED}


@pytest.mark.long
def test_of_a_container_too(nights: Nights) -> None:
    data = "caf\u00e9".encode("cp1252")
    (nights.docs / "a.zip").write_bytes(zipped({"x.txt": data, "y.txt": b"one"}))
    nights.source["encoding"] = "cp1252"
    nights.answered()
    nights.source["encoding"] = "cp1251"
    assert nights.whys(nights.night()[0]) == {"a.zip#x.txt": Why.READER, "a.zip#y.txt": Why.UNCHANGED}
    (nights.docs / "a.zip").write_bytes(zipped({"x.txt": data, "y.txt": b"two"}))
    nights.source["encoding"] = "cp1252"
    assert nights.whys(nights.night()[0])["a.zip#y.txt"] == Why.DOCUMENT


@pytest.mark.parametrize("name", ["a.txt", "a.zip#x.txt"])
@pytest.mark.parametrize(("before", "after"), [("ascii", "cp1252"), ("cp1252", "ascii")])
def test_the_same_file_that_only_now_or_no_longer_can_be_read_is_the_readers(
    nights: Nights, name: str, before: str, after: str
) -> None:
    data = "caf\u00e9".encode("cp1252")
    (nights.docs / name[:5]).write_bytes(zipped({"x.txt": data}) if "#" in name else data)
    nights.write(b="one")
    nights.hours = (datetime.now(UTC) - NOW) // timedelta(hours=1) + 1  # files are older than the first night
    nights.source["encoding"] = before
    nights.answered()
    nights.source["encoding"] = after
    assert nights.whys(nights.night()[0]) == {name: Why.READER, "b.txt": Why.UNCHANGED}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["text", "rtf"])
def test_a_newer_reader_reads_its_own_kind_again(nights: Nights, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    nights.write(a="one")
    (nights.docs / "b.rtf").write_bytes(RTF)
    nights.answered()
    monkeypatch.setattr(versions, "READERS", {**versions.READERS, kind: 99})
    job, report = nights.night()
    assert report.unread == 1
    assert set(nights.whys(job).values()) == {Why.UNCHANGED}, "the same text is the same document"


def table_of(rows: int, **changed: str) -> str:
    return "text\n" + "".join(f"{changed.get(f'r{number}', f'letter {number}')}\n" for number in range(1, rows + 1))


@pytest.mark.long
def test_a_table_that_did_not_move_is_not_read(nights: Nights) -> None:
    table = nights.docs / "many.csv"
    nights.source = {"path": "docs/many.csv", "text_column": "text"}
    table.write_text(table_of(1100))
    nights.answered()
    second, report = nights.night()
    assert (report.documents, report.unread, report.carried) == (1100, 1100, 1100)
    assert report.removed == 0
    # A row that lacks its answer has it read from there on, by parts of five hundred.
    nights.more = [{"id": "u", "prompt": "Who pays", "model": "small"}]
    nights.answered(*["good"] * 600, "bad")
    third, report = nights.night()
    assert (report.documents, report.unread, report.carried) == (1100, 500, 2200)
    assert [row[1] for row in nights.rows(third)][::2] == [row[1] for row in nights.rows(second)]
    # A row that went, and one that changed.
    table.write_text(table_of(1099, r7="other"))
    fourth, report = nights.night()
    assert (report.unread, report.gone) == (0, ["docs/many.csv#1100"])
    assert Counter(nights.whys(fourth).values()) == {Why.UNCHANGED: 1098, Why.DOCUMENT: 1}


@pytest.mark.long
def test_a_table_of_which_a_part_was_recorded_is_read_whole(nights: Nights) -> None:
    table = nights.docs / "many.csv"
    nights.source = {"path": "docs/many.csv", "text_column": "text"}
    table.write_text(table_of(1100))
    nights.answered()
    table.write_text(table_of(1100, r2="other", r1050="another"))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    cut = nights.draft()
    with pytest.raises(KeyboardInterrupt):
        nights.build(cut, progress=stop)
    builder.discard(nights.store, nights.home, cut)
    report = nights.night()[1]
    assert (report.unread, report.whys[Why.DOCUMENT]) == (0, 2)


def test_a_sample_of_a_table_is_drawn_from_the_table(nights: Nights) -> None:
    nights.source = {"path": "docs", "text_column": "text", "sample": 3}
    (nights.docs / "many.csv").write_text(table_of(9))
    nights.write(a="one", b="two")
    first, _ = nights.answered()
    second, report = nights.night()
    assert [row[1] for row in nights.rows(second)] == [row[1] for row in nights.rows(first)]
    assert report.unread == sum(row.document.endswith(".txt") for row in nights.store.rows.finished(first.id))


def test_a_ready_file_says_what_changed_too(nights: Nights) -> None:
    path = nights.folder / "rows.jsonl"

    def line(name: str, text: str) -> str:
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
        return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"

    def night(*lines: str) -> tuple[JobId, BuildReport]:
        nights.hours += 1
        path.write_text("".join(lines))
        job = submission.draft(path, nights.config, nights.home, submission.Options(), later(nights.hours))
        nights.store.jobs.add(job, {})
        report = nights.build(job)
        nights.store.jobs.mark_built(job.id, later(nights.hours))
        nights.answer(job)
        return job.id, report

    night(line("a", "x"), line("b", "y"), line("c", "z"))
    _, report = night(line("a", "x"), line("b", "w"), line("d", "v"))
    assert report.whys == {Why.UNCHANGED: 1, Why.DOCUMENT: 1, Why.NEW: 1}
    assert report.gone == ["c"]


NAMES = st.sampled_from("abcd")
TEXTS = st.sampled_from(["one", "two", "six", "a longer one", ""])
PROMPTS = st.sampled_from(["Who signs", "Who pays", "{{ 1 // (size - 3) }}?"])
EDITS = st.one_of(
    st.tuples(st.just("write"), NAMES, TEXTS),
    st.tuples(st.just("touch"), NAMES, st.just("")),
    st.tuples(st.just("delete"), NAMES, st.just("")),
    st.tuples(st.just("row"), st.sampled_from("123"), TEXTS),
    st.tuples(st.just("prompt"), st.just("prompt"), PROMPTS),
    st.tuples(st.just("model"), st.just("model"), st.sampled_from(["small", "large"])),
    st.tuples(st.just("encoding"), st.sampled_from(["utf-8", "utf-16"]), st.just("")),
)
ONE_NIGHT = st.tuples(
    st.lists(EDITS, max_size=3), st.lists(st.sampled_from(list(ANSWERS)), max_size=4), st.booleans()
)


def edit(nights: Nights, rows: dict[str, str], kind: str, name: str, value: str) -> None:
    path = nights.docs / f"{name}.txt"
    match kind:
        case "write":
            path.write_text(value)
        case "touch" if path.exists():
            path.touch()
        case "delete":
            path.unlink(missing_ok=True)
        case "row":
            rows[name] = value
            listed = "".join(json.dumps({"id": key, "text": text}) + "\n" for key, text in sorted(rows.items()))
            (nights.docs / "rows.jsonl").write_text(listed)
        case "prompt" | "model":
            nights.task[name] = value
        case "encoding":
            nights.source["encoding"] = name


@pytest.mark.long
@settings(deadline=None)
@given(st.lists(ONE_NIGHT, min_size=2, max_size=5))
def test_the_rows_are_those_of_a_build_that_reads_everything(
    migrated: Path, plan: list[tuple[list[tuple[str, str, str]], list[str], bool]]
) -> None:
    with nights_in(migrated) as nights:
        nights.source |= {"text_column": "text", "id_column": "id"}
        nights.write(z="always here")
        rows: dict[str, str] = {}
        for edits, answers, is_answered in plan:
            for step in edits:
                edit(nights, rows, *step)
            nights.hours += 1
            whole = nights.draft(verify=True)
            expected = nights.build(whole, remember=False)
            found = nights.rows(whole)
            builder.discard(nights.store, nights.home, whole)
            job, report = nights.night()
            assert nights.rows(job) == found
            assert expected.unread == 0
            for name in ("documents", "requests", "carried", "twins", "whys", "gone", "removed", "problems"):
                assert getattr(report, name) == getattr(expected, name), name
            if is_answered:
                nights.answer(job, *answers)
