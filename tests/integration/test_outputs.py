"""Where a job's rows are to go: what cannot be delivered is known before a row is paid, and ends a job by name."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.clock import now
from orchestrator.core.errors import OutputError, OutputFault
from orchestrator.core.model import Job, JobId, JobState
from orchestrator.pipeline.build.submission import How, Options, sketch, submit
from orchestrator.pipeline.finish import delivery, own_files
from orchestrator.pipeline.finish.outputs import places
from orchestrator.pipeline.finish.outputs.faults import fault_of
from orchestrator.pipeline.predecessors import Predecessor, standing
from orchestrator.policy import alerts
from orchestrator.reports.night_reader import jobs_of, night_report
from orchestrator.settings.job_spec import JobSpec, Output
from tests.support.hostedjob import HOUR, MINUTE, Desk
from tests.support.process import wait_until
from tests.support.stored import over

Output_ = dict[str, Any]


def job_file(desk: Desk, output: Output_, text: str = "Letter.", **spec: Any) -> Path:
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    for name in ("a", "b"):
        (folder / f"{name}.txt").write_text(f"{text} {name}", encoding="utf-8")
    # A file of its own for each job: another content of the same one is an edit.
    path = desk.folder / f"{spec.get('name', 'job')}.yaml"
    given = {
        "name": "night", "documents": "documents", "models": {"m": "m"}, "output": output,
        "tasks": [{"id": "t", "prompt": "What of it?", "model": "m", "max_tokens": 60}], **spec,
    }  # fmt: skip
    path.write_text(json.dumps(given, indent=1), encoding="utf-8")
    return path


def a_folder(desk: Desk) -> Output_:
    (desk.folder / "rows.jsonl").mkdir()
    return {"path": "rows.jsonl"}


def below_a_file(desk: Desk) -> Output_:
    (desk.folder / "plain").write_text("x")
    return {"path": "plain/rows.jsonl"}


def a_loop_of_links(desk: Desk) -> Output_:
    (desk.folder / "loop").symlink_to("loop")
    return {"path": "loop"}


def a_device(_: Desk) -> Output_:
    return {"path": "/dev/null"}


def a_name_too_long(_: Desk) -> Output_:
    return {"path": "x" * 300}


def a_partition_below_a_file(desk: Desk) -> Output_:
    (desk.folder / "history").write_text("x")
    return {"path": "history", "partition": "night"}


def a_database_that_is_none(desk: Desk) -> Output_:
    (desk.folder / "rows.db").write_text("not a database, though it is long enough to be taken for one" * 40)
    return {"table": "rows", "url": "sqlite:///rows.db"}


def a_database_that_is_a_folder(desk: Desk) -> Output_:
    (desk.folder / "rows.db").mkdir()
    return {"table": "rows", "url": "sqlite:///rows.db"}


def a_table_of_other_columns(desk: Desk) -> Output_:
    with sqlite3.connect(desk.folder / "rows.db") as database:
        database.execute("CREATE TABLE rows (job TEXT, custom_id TEXT, attempt TEXT, PRIMARY KEY (job, custom_id))")
    return {"table": "rows", "url": "sqlite:///rows.db"}


def a_table_of_something_else(desk: Desk) -> Output_:
    with sqlite3.connect(desk.folder / "rows.db") as database:
        database.execute("CREATE TABLE rows (id INTEGER)")
    return {"table": "rows", "url": "sqlite:///rows.db"}


def a_refused_database(_: Desk) -> Output_:
    return {"table": "rows", "url": "postgresql://127.0.0.1:1/rows"}


def a_bucket_of_another(_: Desk) -> Output_:
    return {"path": "refusing://bucket/rows.jsonl"}


def a_file_of_somebody(desk: Desk) -> Output_:
    (desk.folder / "thesis.jsonl").write_text("years of work")
    return {"path": "thesis.jsonl"}


BAD: list[tuple[Callable[[Desk], Output_], OutputFault]] = [
    (a_folder, OutputFault.NOT_A_FILE),
    (below_a_file, OutputFault.NOT_A_FILE),
    (a_loop_of_links, OutputFault.NOT_A_FILE),
    (a_device, OutputFault.NOT_A_FILE),
    (a_name_too_long, OutputFault.NOT_A_FILE),
    (a_partition_below_a_file, OutputFault.NOT_A_FILE),
    (a_database_that_is_none, OutputFault.NOT_A_FILE),
    (a_database_that_is_a_folder, OutputFault.NOT_A_FILE),
    (a_table_of_other_columns, OutputFault.DIFFERS),
    (a_table_of_something_else, OutputFault.DIFFERS),
    (a_refused_database, OutputFault.UNREACHABLE),
    (a_bucket_of_another, OutputFault.NO_PERMISSION),
    (a_file_of_somebody, OutputFault.EXISTS),
]


@pytest.fixture
def refusing() -> Any:
    """A storage that lets nobody write, as a bucket of somebody else."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Refusing(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
        protocol = "refusing"
        allowed = False

        def pipe_file(self, path: str, value: bytes, **more: Any) -> None:
            if not Refusing.allowed:
                raise PermissionError("Access Denied")
            super().pipe_file(path, value, **more)

        def put_file(self, lpath: str, rpath: str, **more: Any) -> None:
            if not Refusing.allowed:
                raise PermissionError("Access Denied")
            super().put_file(lpath, rpath, **more)

    fsspec.register_implementation("refusing", Refusing, clobber=True)
    yield Refusing
    Refusing.store.clear()


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "home" not in path.parts}


@pytest.mark.parametrize(("make", "code"), BAD, ids=[make.__name__ for make, _ in BAD])
def test_what_cannot_be_delivered_is_refused_before_anything_is_built(
    desk: Desk, refusing: Any, make: Callable[[Desk], Output_], code: OutputFault
) -> None:
    path = job_file(desk, make(desk))
    before = listing(desk.folder)
    with pytest.raises(OutputError) as raised:
        desk.submit(path)
    assert raised.value.code is code
    assert raised.value.exit_code == (4 if code.may_pass else 2)
    line = 1 + path.read_text().splitlines().index(' "output": {')
    assert str(raised.value).startswith(f"{path}:{line}: output: ")
    assert desk.store.jobs.newest() == []
    assert listing(desk.folder) == before, "to try an output leaves nothing behind"


def test_a_good_output_is_tried_and_left_as_it_is(
    desk: Desk, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWS_URL", postgres_url)
    with sqlite3.connect(desk.folder / "rows.db") as database:
        database.execute("CREATE TABLE other (id INTEGER)")
    untouched = (desk.folder / "rows.db").read_bytes()
    good: list[Output_] = [
        {"path": "new/folder/rows.jsonl"}, {"path": "history", "partition": "night"},
        {"table": "rows", "url": "sqlite:///new.db"}, {"table": "rows", "url": "sqlite:///rows.db"},
        {"table": "rows", "url_env": "ROWS_URL"}, {"path": "memory://bucket/rows.csv", "format": "csv"},
    ]  # fmt: skip
    for output in good:
        path = job_file(desk, output)
        before = listing(desk.folder)
        spec = JobSpec.model_validate(json.loads(path.read_text()))
        delivery.require(desk.store, sketch(path, spec, desk.config, Options(), now()))
        assert listing(desk.folder) == before
    assert (desk.folder / "rows.db").read_bytes() == untouched
    from fsspec.implementations.memory import MemoryFileSystem

    assert MemoryFileSystem.store == {}


# --- at the end


def finished(desk: Desk, output: Output_, spoil: Callable[[], None], **spec: Any) -> Job:
    """A job whose output is spoilt while its rows run."""
    job = desk.submit(job_file(desk, output, **spec))
    desk.settle(job)
    spoil()
    desk.finish(job)
    return desk.store.jobs.get(job.id)


def told_at_end(desk: Desk, job: Job) -> list[alerts.Alert]:
    counts = desk.store.jobs.counts([job.id])[job.id]
    watched = alerts.MonitoredJob(job, counts, events=desk.store.jobs.events(job.id))
    return alerts.at_end(watched, desk.config.alerts, None)


def to_a_folder(desk: Desk) -> Callable[[], None]:
    return (desk.folder / "rows.jsonl").mkdir


def test_a_job_whose_rows_cannot_be_delivered_ends_by_name_and_keeps_them(desk: Desk) -> None:
    job = finished(desk, {"path": "rows.jsonl"}, to_a_folder(desk))
    detail = desk.detail(job)
    assert (detail["state"], detail["error_code"]) == (JobState.FAILED, OutputFault.NOT_A_FILE)
    assert detail["requests"]["succeeded"] == 2
    assert job.finished_at is not None
    assert [row["status"] for row in desk.rows(job).values()] == ["succeeded"] * 2
    assert job.output_path == str(desk.home.merged(job.id, "jsonl"))
    assert standing(desk.store, job)[0] is Predecessor.NOT_WELL
    [alert] = told_at_end(desk, job)
    assert alert.kind is alerts.AlertKind.OUTPUT
    assert f"orch retry {job.id}" in alert.action
    assert f"orch fetch {job.id} -o FILE" in alert.action
    report = night_report(desk.store, desk.home, None, over(desk.store, job), now())
    assert report.needs[0][1].text.startswith(
        f"the output was not delivered, {OutputFault.NOT_A_FILE}: cannot write "
    )


@pytest.mark.long
def test_the_report_of_a_night_begins_with_it(desk: Desk) -> None:
    good = desk.run(job_file(desk, {"path": "good.jsonl"}, name="good", text="[[fault:content_filter]]"))
    bad = finished(desk, {"path": "rows.jsonl"}, to_a_folder(desk), name="bad", text="Other.")
    report = night_report(desk.store, desk.home, None, over(desk.store, good, bad), now())
    assert [job for job, _ in report.needs] == [bad.id, good.id]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("way", ["retry", "the same command again"])
def test_once_mended_it_is_delivered_and_nothing_is_paid_again(desk: Desk, way: str) -> None:
    job = finished(desk, {"path": "rows.jsonl"}, to_a_folder(desk))
    billed = desk.billed()
    (desk.folder / "rows.jsonl").rmdir()
    if way == "retry":
        desk.store.jobs.reopen(job.id)
    else:
        submission = submit(
            desk.store, desk.home, desk.config, desk.folder / "job.yaml", Options(), now, lambda *_: None
        )
        assert (submission.how, submission.job.id) == (How.RESUMED, job.id)
        assert "they are delivered now" in submission.reason
    desk.finish(job)
    done = desk.store.jobs.get(job.id)
    assert (done.error, done.error_code) == (None, None)
    assert len((desk.folder / "rows.jsonl").read_text().splitlines()) == 2
    assert done.output_path == str(desk.folder / "rows.jsonl")
    assert desk.billed() == billed
    assert desk.detail(job)["state"] == JobState.COMPLETED


def test_a_job_whose_output_is_not_well_ends_when_it_is_cancelled(desk: Desk) -> None:
    job = desk.submit(job_file(desk, {"path": "rows.jsonl"}))
    desk.settle(job)
    to_a_folder(desk)()
    desk.cancel(job)
    desk.finish(job)
    assert desk.detail(job)["state"] == JobState.CANCELLED


@pytest.mark.long
def test_a_storage_that_hangs_keeps_no_other_job_and_neither_cancel_nor_the_end(desk: Desk, refusing: Any) -> None:
    refusing.allowed = True
    answers, keep = threading.Event(), refusing.put_file

    def hangs(*given: Any, **more: Any) -> None:
        answers.wait(60)
        keep(*given, **more)

    refusing.put_file = hangs
    try:
        hung = desk.submit(job_file(desk, {"path": "refusing://bucket/rows.jsonl"}))
        long = desk.submit(job_file(desk, {"path": "refusing://bucket/long.jsonl"}, name="long", text="Long."))
        for _ in range(60):
            desk.later(MINUTE, hung, long)
            if [desk.detail(job)["state"] for job in (hung, long)] == [JobState.MERGING] * 2:
                break
        else:
            raise AssertionError("they are not on their way")
        other = desk.run(job_file(desk, {"path": "fine.jsonl"}, name="fine", text="Fine."))
        assert desk.detail(other)["state"] == JobState.COMPLETED
        desk.cancel(hung)
        desk.later(MINUTE, hung)
        assert desk.detail(hung)["state"] == JobState.CANCELLED
        desk.later(3 * HOUR, long)
        assert desk.store.jobs.get(long.id).error_code == OutputFault.UNREACHABLE
        assert desk.daemon is not None
        desk.daemon.pipeline.finisher.deliver_again()
        assert sum(thread.name == f"deliver-{long.id}" for thread in threading.enumerate()) == 1, "not once more"
    finally:
        answers.set()
    wait_until(lambda: not any(thread.name.startswith("deliver-") for thread in threading.enumerate()))
    desk.daemon.pipeline.finisher.deliver_again()
    assert desk.store.jobs.get(long.id).error_code is None, "what came to its end after all counts"
    assert desk.events(long, "delivered") == ["its rows are in refusing://bucket/long.jsonl now"]


def test_what_may_be_well_again_is_tried_again_by_itself(desk: Desk, refusing: Any) -> None:
    """And is told once it is there."""

    class Away(OSError):
        pass

    def away(*_: Any, **__: Any) -> None:
        raise TimeoutError

    refusing.allowed = True
    keep, refusing.put_file = refusing.put_file, away
    job = finished(desk, {"path": "refusing://bucket/rows.jsonl"}, lambda: None)
    assert job.error_code == OutputFault.UNREACHABLE
    assert desk.daemon is not None
    finisher = desk.daemon.pipeline.finisher
    refusing.put_file = keep

    def tried() -> bool:
        finisher.deliver_again()
        return desk.store.jobs.get(job.id).error_code is None

    for _ in range(1000):
        if tried():
            break
        desk.provider.clock.advance(MINUTE)
    done = desk.store.jobs.get(job.id)
    assert (done.error, done.output_path) == (None, "refusing://bucket/rows.jsonl")
    assert desk.events(job, "delivered") == ["its rows are in refusing://bucket/rows.jsonl now"]
    [alert] = told_at_end(desk, done)
    assert alert.message == "its rows are in refusing://bucket/rows.jsonl now"


# --- before the first row


def test_a_job_that_waited_in_the_queue_is_tried_again_before_it_is_paid(desk: Desk) -> None:
    job = desk.submit(job_file(desk, {"path": "rows.jsonl"}))
    to_a_folder(desk)()
    desk.finish(job)
    assert desk.store.jobs.get(job.id).error_code == OutputFault.NOT_A_FILE
    assert desk.billed() == {}
    (desk.folder / "rows.jsonl").rmdir()
    assert desk.store.rows.retry(job.id, []) == 2, "its rows wait, and go on"
    desk.finish(job)
    assert desk.detail(job)["state"] == JobState.COMPLETED


def test_what_may_be_well_again_is_waited_for_and_then_given_up_by_name(desk: Desk, refusing: Any) -> None:
    refusing.allowed = True
    path = job_file(desk, {"path": "refusing://bucket/rows.jsonl"})
    job, other = desk.submit(path), desk.submit(job_file(desk, {"path": "fine.jsonl"}, name="fine"), new=True)

    def away(*_: Any, **__: Any) -> None:
        raise TimeoutError

    keep, refusing.pipe_file = refusing.pipe_file, away
    try:
        for _ in range(3):
            desk.later(MINUTE, job, other)
        assert desk.billed() == {}
        assert desk.store.jobs.get(job.id).error is None
        assert "cannot write refusing://bucket/rows.jsonl" in desk.said[-1]
        desk.finish(other)
        assert desk.detail(other)["state"] == JobState.COMPLETED, "others go on meanwhile"
        desk.later(HOUR, job)
        assert desk.store.jobs.get(job.id).error_code == OutputFault.UNREACHABLE
    finally:
        refusing.pipe_file = keep


# --- whose file it is


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("made", "night"),
    [("2026-11-21T22:00", "2026-11-21"), ("2026-11-22T01:30", "2026-11-21"), ("2026-11-22T14:00", "2026-11-22")],
    ids=["in the evening", "after midnight", "in the afternoon"],
)
def test_the_partition_of_a_night_has_the_date_of_its_report(desk: Desk, made: str, night: str) -> None:
    file = job_file(desk, {"path": "history", "partition": "night"})
    at = datetime.fromisoformat(made).astimezone()
    job = submit(desk.store, desk.home, desk.config, file, Options(), lambda: at, lambda *_: None).job
    desk.finish(job)
    assert listing(desk.folder / "history") == {f"night={night}", f"night={night}/{job.name}.jsonl"}
    assert [one.id for one in jobs_of(desk.store, date.fromisoformat(night))] == [job.id]


@pytest.mark.long
def test_nights_overwrite_what_they_wrote_though_somebody_edited_it(desk: Desk) -> None:
    path = job_file(desk, {"path": "rows.jsonl"})
    desk.run(path)
    (desk.folder / "rows.jsonl").write_text("edited by hand")
    again = desk.run(job_file(desk, {"path": "rows.jsonl"}, text="Another letter."))
    assert desk.store.jobs.get(again.id).error is None
    assert len((desk.folder / "rows.jsonl").read_text().splitlines()) == 2


def test_a_file_of_somebody_is_overwritten_where_the_user_says_so(desk: Desk) -> None:
    output = a_file_of_somebody(desk)
    with pytest.raises(OutputError):
        desk.submit(job_file(desk, output))
    desk.run(job_file(desk, output), overwrite=True)
    assert len((desk.folder / "thesis.jsonl").read_text().splitlines()) == 2
    (desk.folder / "other.jsonl").write_text("years of work")
    desk.run(job_file(desk, {"path": "other.jsonl", "overwrite": True}, text="Other."))
    assert len((desk.folder / "other.jsonl").read_text().splitlines()) == 2


def test_a_file_that_appears_while_the_rows_run_is_not_overwritten(desk: Desk) -> None:
    def appear() -> None:
        (desk.folder / "rows.jsonl").write_text("years of work")

    job = finished(desk, {"path": "rows.jsonl"}, appear)
    assert job.error_code == OutputFault.EXISTS
    assert (desk.folder / "rows.jsonl").read_text() == "years of work"


def test_an_empty_file_is_nobodys(desk: Desk) -> None:
    (desk.folder / "rows.jsonl").touch()
    desk.run(job_file(desk, {"path": "rows.jsonl"}))
    assert len((desk.folder / "rows.jsonl").read_text().splitlines()) == 2


def test_what_orch_wrote_by_hand_is_known_by_its_content(desk: Desk) -> None:
    home, job = desk.home.identity(), desk.run(job_file(desk, {"path": "rows.jsonl"}))
    place = desk.folder / "mine.jsonl"
    place.write_text("rows")
    assert own_files.is_foreign(desk.store, home, own_files.BY_HAND, place)
    own_files.remember(desk.store, home, own_files.BY_HAND, job.id, place, now())
    (desk.folder / "link").symlink_to("mine.jsonl")
    assert not own_files.is_foreign(desk.store, home, own_files.BY_HAND, place)
    assert not own_files.is_foreign(desk.store, home, own_files.BY_HAND, desk.folder / "link")
    place.write_text("mine")
    assert own_files.is_foreign(desk.store, home, own_files.BY_HAND, place)
    assert own_files.is_foreign(desk.store, home, job.series, place), "what -o wrote is not the job's output"


# --- codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(28, "x"), OutputFault.NO_ROOM),
        (OSError(122, "x"), OutputFault.NO_ROOM),
        (OSError(30, "x"), OutputFault.NO_PERMISSION),
        (OSError(2, "x"), OutputFault.NOT_FOUND),
        (OSError(111, "x"), OutputFault.UNREACHABLE),
        (PermissionError("Access Denied"), OutputFault.NO_PERMISSION),
        (FileNotFoundError("The specified bucket does not exist"), OutputFault.NOT_FOUND),
        (TimeoutError(), OutputFault.UNREACHABLE),
        (ModuleNotFoundError("No module named 's3fs'"), OutputFault.NOT_INSTALLED),
        (ValueError("strange"), OutputFault.FAILED),
    ],
    ids=str,
)
def test_errors_have_codes(error: Exception, code: OutputFault) -> None:
    assert fault_of(error) is code
    wrapped = RuntimeError("told otherwise")
    wrapped.__cause__ = error
    assert fault_of(wrapped) is code


def test_a_storage_that_never_answers_is_given_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(delivery, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(places, "probe", lambda place: never.wait(30))
    try:
        with pytest.raises(OutputError, match="has not answered for 0 s") as raised:
            desk.submit(job_file(desk, {"path": "rows.jsonl"}))
        assert raised.value.code is OutputFault.UNREACHABLE
    finally:
        never.set()


def test_an_output_is_one_place_and_overwrite_is_for_a_path() -> None:
    with pytest.raises(ValueError, match="`overwrite` is for a `path`"):
        Output(table="rows", url="sqlite:///x.db", overwrite=True)


def test_what_a_kill_left_of_a_file_that_was_named_by_hand_is_known_as_orchs_own(desk: Desk) -> None:
    place, home = desk.folder / "rows.jsonl", desk.home.identity()

    def is_foreign() -> bool:
        return own_files.is_foreign(desk.store, home, own_files.BY_HAND, place)

    def is_killed() -> None:
        with own_files.writing(desk.store, home, JobId("job-1"), place, now):
            place.write_text("rows")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        is_killed()
    assert not is_foreign()
    with own_files.writing(desk.store, home, JobId("job-1"), place, now):
        place.write_text("all rows")
    assert not is_foreign()
    place.write_text("all rows, and a note of mine")
    assert is_foreign()
