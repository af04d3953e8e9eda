"""`orch gc` over a home with years of runs: what goes, what stays, what a kill may leave."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, event

from orchestrator.core.counts import Counts
from orchestrator.core.engines import EngineRates
from orchestrator.core.errors import RefusedError, StorageError
from orchestrator.core.model import CancelCode, JobId, RequestState
from orchestrator.pipeline import disk
from orchestrator.pipeline.build import builder
from orchestrator.pipeline.build.build_report import BuildReport
from orchestrator.pipeline.gc import sweep
from orchestrator.pipeline.gc.benches import note_applied
from orchestrator.pipeline.gc.frames import unused_frames
from orchestrator.policy.retention import JobFate
from orchestrator.settings.config import Retention
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.database import Database
from orchestrator.store.gc import CLEARED, Removals
from tests.support.stored import NOW
from tests.support.years import Years

ALL = Retention.model_validate({"results": "30d", "jobs": "300d", "keep_last": 1})


@pytest.fixture
def years(tmp_path: Path, store_url: str) -> Iterator[Years]:
    with Store.open(store_url) as store:
        yield Years(tmp_path, store, store_url)


@pytest.fixture
def sqlite_years(tmp_path: Path) -> Iterator[Years]:
    url = f"sqlite:///{tmp_path / 'home' / 'orch.db'}"
    with Store.open(url) as store:
        yield Years(tmp_path, store, url)


def fates(swept: sweep.Swept) -> dict[str, JobFate]:
    return {verdict.job_id: verdict.fate for verdict in swept.verdicts}


@pytest.mark.long
def test_what_is_old_goes_and_what_others_carry_stays(years: Years) -> None:
    """`one` is unchanged since the first night; the other documents came and went."""
    first = years.run(400, "one", "two")
    second = years.run(350, "one", "three")
    third = years.run(100, "one", "four")
    last = years.run(1, "one", "five")
    answers = years.outputs(last)
    assert answers["one"].startswith(first.id)
    fetched = years.outputs(first)

    told = sweep.gc(years.store, years.home, ALL, NOW, dry_run=True)
    expected = {last.id: JobFate.KEPT, third.id: JobFate.FILES, second.id: JobFate.JOB, first.id: JobFate.KEPT}
    assert fates(told) == expected
    assert len(years.folders()) == 4
    swept = sweep.gc(years.store, years.home, ALL, NOW)
    assert fates(swept) == expected
    assert swept.verdicts == told.verdicts
    assert (
        swept.freed == told.freed == told.use.results + told.use.requests - swept.use.results - swept.use.requests > 0
    )
    assert {verdict.job_id: verdict.reason for verdict in swept.verdicts}[first.id] == (
        f"its answers are used by {last.id} (1 row)"
    )

    assert years.folders() == {first.id, last.id}
    assert years.outputs(last) == answers
    assert years.outputs(first) == fetched
    # The rows and the ledger of what is only cleared stay for reports; nothing of it is sent again.
    assert years.store.jobs.counts([third.id])[third.id] == Counts(succeeded=2)
    assert years.store.ledger.spent(third.id) == years.store.ledger.spent(first.id) / 2
    assert years.store.rows.retry(third.id, [RequestState.SUCCEEDED]) == 0
    assert [event.kind for event in years.store.jobs.events(third.id)] == ["cleared"]
    assert years.store.jobs.find(second.id) is None
    assert years.store.jobs.get(third.id).output_path is None
    assert years.store.jobs.get(last.id).output_path == str(years.home.merged(last.id, "jsonl"))
    assert not sweep.gc(years.store, years.home, ALL, NOW).gone


def test_answers_that_went_are_asked_for_again_and_others_carried(years: Years) -> None:
    years.run(100, "one", "two")
    years.run(50, "two")
    sweep.gc(years.store, years.home, ALL, NOW)  # the first stays: its answer to two is carried
    years.run(40, "three")
    years.run(35, "three")
    last = years.run(5, "three")
    sweep.gc(years.store, years.home, ALL, NOW)
    new = years.run(0, "one", "two", "three")
    outputs = years.outputs(new)
    assert outputs["one"].startswith(new.id)
    assert outputs["two"].startswith(new.id)
    assert outputs["three"] == years.outputs(last)["three"]


def test_a_run_of_which_all_is_gone_is_not_taken_for_the_same(years: Years) -> None:
    """The same documents again, after the files of their run went: that run must not be shown in its place."""
    old = years.run(100, "one")
    years.run(1, "two")
    sweep.gc(years.store, years.home, ALL, NOW)
    again = years.build(0, "one", built=False)
    report = BuildReport(requests=1, carried=1)
    assert builder.same_as(years.store, replace(again, identity=old.identity), report) is None


def test_while_a_job_is_built_none_goes(years: Years) -> None:
    old, last = years.run(100, "one"), years.run(1, "two")
    building = years.build(0, "one", built=False)
    swept = sweep.gc(years.store, years.home, ALL, NOW)
    assert swept.held == f"job {building.id} is being built, and may use other jobs' answers"
    assert set(fates(swept).values()) == {JobFate.KEPT}
    years.store.jobs.mark_built(building.id, NOW)
    assert sweep.gc(years.store, years.home, ALL, NOW).gone == []  # it carries the old one's answer
    years.store.jobs.fail(building.id, "broken")
    years.store.removals.forget(building.id)
    assert fates(sweep.gc(years.store, years.home, ALL, NOW)) == {last.id: JobFate.KEPT, old.id: JobFate.FILES}


def test_no_job_comes_between_the_decision_and_its_end(sqlite_years: Years) -> None:
    """A submit records its job under the intake lock: gc holds that from its look at who carries what to its end."""
    sqlite_years.run(100, "one")
    sqlite_years.run(1, "two")
    free: list[bool] = []

    class Watched(Removals):
        def carriers(self, home: str) -> dict[JobId, dict[JobId, int]]:
            self._look()
            return super().carriers(home)

        def clear(self, job_id: JobId, folder: Path, now: datetime) -> bool:
            done = super().clear(job_id, folder, now)
            self._look()
            return done

        def _look(self) -> None:
            with builder.locked(sqlite_years.home.intake_lock, wait=False) as mine:
                free.append(mine)

    sqlite_years.store.removals = Watched(Database(sqlite_years.place.database_url))
    assert len(sweep.gc(sqlite_years.store, sqlite_years.home, ALL, NOW).gone) == 1
    assert free == [False, False]


def test_a_job_that_is_tried_again_stays_with_all_that_is_older(years: Years) -> None:
    old, mid, last = years.run(100, "one"), years.run(90, "one", "two"), years.run(1, "three")
    assert years.store.removals.clear(years.build(0, "x", name="b").id, Path("/x"), NOW) is False
    decided = sweep.gc(years.store, years.home, ALL, NOW, dry_run=True).verdicts
    assert [verdict.fate for verdict in decided] == [JobFate.KEPT, JobFate.KEPT, JobFate.FILES, JobFate.FILES]
    years.store.rows.retry(mid.id, [RequestState.SUCCEEDED])
    after = sweep._let_all_go(years.store, years.home, decided, NOW)
    assert [(verdict.job_id, verdict.fate) for verdict in after[1:]] == [
        (last.id, JobFate.KEPT), (mid.id, JobFate.KEPT), (old.id, JobFate.KEPT),
    ]  # fmt: skip
    assert after[3].reason == f"job {mid.id} was resumed just now"
    assert not list(years.home.root.rglob(sweep.GOING))


def test_failed_and_cancelled_jobs_go_by_age_and_do_not_count_as_the_newest(years: Years) -> None:
    good = years.run(200, "one")
    failed, cancelled = years.build(150, "two"), years.build(120, "three")
    years.store.jobs.fail(failed.id, "no such folder")
    years.store.jobs.request_cancel(cancelled.id, CancelCode.USER, "enough", NOW - timedelta(days=120))
    years.store.jobs.finish(cancelled.id, "x", NOW - timedelta(days=120))
    swept = sweep.gc(years.store, years.home, ALL, NOW)
    assert fates(swept) == {cancelled.id: JobFate.FILES, failed.id: JobFate.FILES, good.id: JobFate.KEPT}
    assert years.folders() == {good.id}


def test_a_cap_lets_the_oldest_go_first(years: Years) -> None:
    first, second, last = years.run(3, "one"), years.run(2, "two"), years.run(1, "three")
    size = disk.use(years.home).total
    capped = Retention.model_validate({"keep_last": 1, "max_bytes": size - 1})
    assert "takes" in (disk.shortage(years.home, capped) or "")
    assert fates(sweep.gc(years.store, years.home, capped, NOW)) == {
        last.id: JobFate.KEPT, second.id: JobFate.KEPT, first.id: JobFate.FILES,
    }  # fmt: skip
    assert disk.shortage(years.home, capped) is None


def test_another_homes_jobs_are_left_alone(years: Years, tmp_path: Path) -> None:
    mine = years.run(100, "one")
    years.run(1, "two")
    other = (
        Years(tmp_path / "other", years.store, years.place.database_url)
        if (tmp_path / "other").mkdir() is None
        else years
    )
    other.run(100, "one")
    other.run(1, "two")
    assert fates(sweep.gc(years.store, years.home, ALL, NOW))[mine.id] is JobFate.FILES
    assert len(other.folders()) == 2


def old(path: Path) -> Path:
    """A file or folder that nobody has touched for two hours."""
    past = time.time() - 2 * sweep.LEFT_SECONDS
    for each in sorted(path.rglob("*")) if path.is_dir() else []:
        os.utime(each, (past, past))
    os.utime(path, (past, past))
    return path


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_what_kills_leave_is_found_and_what_is_at_work_is_not(sqlite_years: Years) -> None:
    home, job = sqlite_years.home, sqlite_years.run(1, "one")
    jobs, folder = home.root / "jobs", home.job(job.id)
    goes = [
        old(put(jobs / "built-1" / "requests.jsonl").parent),
        put(jobs / ".gone.x" / "requests.jsonl").parent,
        put(jobs / "going-1" / ".going").parent,
        put(home.root / ".backup.1" / "orch.db").parent,
        old(put(home.root / ".home.id.1")),
        old(put(folder / ".results.jsonl.partial")),
        old(put(folder / "shards" / "001.output.jsonl.partial")),
        old(put(folder / "shards" / "001.input.jsonl")),
        put(folder / ".going"),
    ]
    put(jobs / "going-1" / "shards" / "001.output.jsonl")
    claimed = put(jobs / "built-2" / "build.lock")
    stays = [
        put(jobs / "built-3" / "requests.jsonl"), old(claimed.parent), put(folder / ".results.batch.jsonl.partial"),
        put(home.root / ".home.id.2"), put(jobs / "stray"), old(put(home.root / "mine.txt")),
    ]  # fmt: skip
    unknown = old(put(jobs / "restored-1" / "shards" / "001.output.jsonl").parents[1])
    with builder.locked(claimed, wait=False):
        old(claimed.parent)
        told = sweep.gc(sqlite_years.store, home, Retention(), NOW, dry_run=True)
        assert all(path.exists() for path in goes)
        swept = sweep.gc(sqlite_years.store, home, Retention(), NOW)
    assert {orphan.path for orphan in swept.orphans} == {orphan.path for orphan in told.orphans} == set(goes)
    assert not any(path.exists() for path in goes)
    assert all(path.exists() for path in [*stays, unknown])
    assert swept.unknown == [unknown]
    assert sqlite_years.outputs(job)["one"].startswith(job.id)
    swept = sweep.gc(sqlite_years.store, home, Retention(), NOW)
    assert [orphan.path for orphan in swept.orphans] == [claimed.parent]


def test_only_one_keeps_house_at_a_time(sqlite_years: Years) -> None:
    sqlite_years.run(1, "one")
    with sweep.gc_lock(sqlite_years.home), pytest.raises(RefusedError, match="another `orch gc` or `orch backup`"):
        sweep.gc(sqlite_years.store, sqlite_years.home, ALL, NOW)


def test_once_a_day(sqlite_years: Years) -> None:
    store, home = sqlite_years.store, sqlite_years.home
    first = sqlite_years.run(100, "one")
    sqlite_years.run(1, "two")
    daily = sweep.Daily(store, home, ALL)
    swept = daily.tick(NOW)
    assert swept is not None
    assert fates(swept)[first.id] is JobFate.FILES
    assert daily.tick(NOW + timedelta(hours=23)) is None
    assert sweep.Daily(store, home, ALL).tick(NOW + timedelta(hours=23)) is None  # a restart
    assert daily.tick(NOW + timedelta(hours=24)) is not None
    assert daily.tick(NOW) is not None  # the clock was set back
    (home.root / "house.json").write_text("{")
    assert sweep.Daily(store, home, ALL).tick(NOW) is not None
    with sweep.gc_lock(home):
        assert daily.tick(NOW + timedelta(days=3)) is None
    assert daily.tick(NOW + timedelta(days=3, hours=1)) is None  # it is tried again a day later
    assert daily.tick(NOW + timedelta(days=4)) is not None


def test_what_cannot_be_removed_is_told(sqlite_years: Years) -> None:
    old_job = sqlite_years.run(100, "one")
    sqlite_years.run(1, "two")
    folder = sqlite_years.home.root / "jobs"
    (folder / f".gone.{old_job.id}").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be removed: Not a directory"):
        sweep.gc(sqlite_years.store, sqlite_years.home, ALL, NOW)


def test_sizes_are_told_by_kind(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for name, size in {
        "orch.db": 1, "orch.db-wal": 2, "jobs/a/requests.jsonl": 4, "jobs/a/shards/001.input.jsonl": 8,
        "jobs/a/shards/001.output.jsonl": 16, "jobs/a/results.jsonl": 32, "servers/gpu/server.db": 64,
        "serve/files/x": 128, "engine.log": 256,
    }.items():  # fmt: skip
        put(tmp_path / name, "x" * size)
    (tmp_path / "jobs" / "a" / "link").symlink_to("requests.jsonl")
    found = disk.use(home)
    assert (found.database, found.requests, found.results, found.servers, found.other) == (3, 12, 48, 192, 256)
    assert found.total == 511
    assert found.free > 0
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        disk.use(Home(tmp_path / "nowhere"))


WRITES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "shutil.rmtree"}


def killed_at(point: int, act: Callable[[], Any]) -> bool:
    """Do it in a process of its own, ended by SIGKILL at its n-th change of a file or before its n-th commit.

    False where it came to its end first.
    """
    child = os.fork()
    if child == 0:
        left = point

        def step(name: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if name in WRITES or writes or name == "commit":
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

        code = 1
        try:
            event.listen(Engine, "commit", lambda connection: step("commit", ()))
            sys.addaudithook(step)
            act()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def state(store: Store, home: Home) -> tuple[dict[str, bool], set[str]]:
    """The jobs, with whether their files went, and every file of the home but locks and the database."""
    jobs = {job.id: "cleared_at" in job.options for job in store.removals.jobs(home.identity())}
    names = {path.relative_to(home.root).as_posix() for path, _ in disk.files(home.root)}
    return jobs, {name for name in names if not name.endswith(".lock") and not name.startswith("orch.db")}


@pytest.mark.long
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_a_kill_anywhere_loses_nothing_and_leaves_nothing(sqlite_years: Years, tmp_path: Path, step: int) -> None:
    first = sqlite_years.run(400, "one", "two")
    for days, text in ((350, "three"), (100, "four")):
        sqlite_years.run(days, "one", text)
    last = sqlite_years.run(1, "one", "six")
    put(sqlite_years.home.root / "jobs" / ".gone.x" / "shards" / "001.output.jsonl")
    wanted = [(job, sqlite_years.outputs(job)) for job in (first, last)]
    sqlite_years.store.close()

    def fresh(name: str) -> Years:
        folder = tmp_path / name
        shutil.copytree(tmp_path / "home", folder / "home")
        url = f"sqlite:///{folder / 'home' / 'orch.db'}"
        return Years(folder, Store(url), url)

    def clean(copy: Years) -> sweep.Swept:
        with Store.open(copy.place.database_url) as store:
            return sweep.gc(store, copy.home, ALL, NOW)

    whole = fresh("whole")
    assert sorted(fates(clean(whole)).values()) == ["files", "job", "kept", "kept"]
    end = state(whole.store, whole.home)
    whole.store.close()
    point, struck = 0, True
    while struck:
        copy = fresh(f"at-{point}")
        copy.store.close()
        struck = killed_at(point, lambda copy=copy: clean(copy))
        for job, outputs in wanted:
            assert copy.outputs(job) == outputs
        clean(copy)
        assert state(copy.store, copy.home) == end, f"killed at {point}"
        copy.store.close()
        shutil.rmtree(copy.folder)
        point += step
    assert point > 20


def test_what_python_asked_goes_with_the_last_job_that_has_answers(years: Years) -> None:
    def folder(name: str, age: float = 10 * 86_400) -> Path:
        made = years.home.frames / name
        made.mkdir(parents=True)
        (made / "job.yaml").write_text("{}")
        os.utime(made, (time.time() - age,) * 2)
        return made

    used, planned, new = folder("used"), folder("planned"), folder("new", 0)
    job = replace(years.run(1, "one"), source=str(used / "job.yaml"))
    assert [*unused_frames(years.home, [job])] == [new, planned]
    gone = replace(job, options={**job.options, CLEARED: "2026-11-21"})
    assert [*unused_frames(years.home, [gone, job])] == [new, planned], "a later run has answers"
    assert [*unused_frames(years.home, [gone])] == [new, planned, used]

    swept = sweep.gc(years.store, years.home, ALL, NOW)

    assert [orphan.path for orphan in swept.orphans] == [planned, used]
    assert [*years.home.frames.iterdir()] == [new], "a call may be about to submit it"


def test_old_benches_go_but_for_the_one_that_plans_go_by(years: Years) -> None:
    """`first` and `second` were applied, the second after the first; `old` was not, and `young` is of today."""
    home, store = years.home, years.store
    rates = EngineRates(
        home.identity(), "gpu", "small", "", "", "", 40_000.0, None, 1_000.0, 0.0, 256, None, None, NOW
    )
    for number, key in enumerate(("first", "second", "old", "young")):
        folder = home.bench(key)
        folder.mkdir(parents=True)
        (folder / "rows.jsonl").write_text("{}\n")
        if key in ("first", "second"):
            applied = replace(rates, measured_at=NOW + timedelta(hours=number))
            note_applied(folder, applied)
            store.engine_rates.put(applied)
        if key != "young":
            days = time.time() - 40 * 86_400
            for path in (*folder.iterdir(), folder):
                os.utime(path, (days, days))

    def left() -> set[str]:
        return {path.name for path in (home.root / "bench").iterdir()}

    sweep.gc(store, home, Retention(), NOW)
    assert left() == {"first", "second", "old", "young"}, "nothing goes unless orch.toml says so"
    told = sweep.gc(store, home, ALL, NOW, dry_run=True)
    assert [orphan.path.name for orphan in told.orphans] == ["first", "old"]
    assert {orphan.reason for orphan in told.orphans} == {"of a bench 40 d ago; results are kept for 30 d"}
    assert sweep.gc(store, home, ALL, NOW).orphans == told.orphans
    assert left() == {"second", "young"}
