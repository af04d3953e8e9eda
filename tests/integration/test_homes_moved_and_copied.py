"""A home that lost its id, was moved with its project, or was copied: no batch in flight is paid again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.core.errors import RefusedError, StorageError
from orchestrator.core.model import Job
from orchestrator.daemon.loop import Daemon
from orchestrator.pipeline.provider_calls import Inline
from orchestrator.settings.config import load
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store.home_identity import adopt, recognise
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import Orch
from tests.support.databases import new_sqlite
from tests.support.hostedjob import Desk, cost_of, desk_of, plain, row, script

ROWS = 20


@pytest.fixture(params=["sqlite", "postgres"])
def desk(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    project = tmp_path / "project"
    (project / "home").mkdir(parents=True)
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("migrated_url") if is_postgres else new_sqlite(project / "home" / "orch.db")
    with desk_of(emulator, project, monkeypatch, url) as desk:
        yield desk


def in_flight(desk: Desk) -> Job:
    job = desk.submit(plain(ROWS))
    for _ in range(50):
        if len(desk.batches()) == 1:
            return job
        desk.step(job)
    raise AssertionError(desk.said)


def paid_once(desk: Desk, job: Job) -> None:
    assert list(desk.ends(job).values()) == ["succeeded"] * ROWS
    assert len(desk.batches()) == 1
    assert set(desk.billed().values()) == {1}
    assert desk.cost(job) == cost_of(desk.provider.bill())


LOST: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_text(""),
    "zeros": lambda path: path.write_bytes(b"\0" * 12),
}


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("lost", LOST)
def test_a_home_that_lost_its_id_is_known_by_its_jobs(desk: Desk, lost: str) -> None:
    job = in_flight(desk)
    LOST[lost](desk.home.root / "home.id")
    with pytest.raises(StorageError, match="which jobs are its own"):
        desk.home.identity()
    assert recognise(desk.home, desk.store) == job.home
    again = desk.submit(desk.folder / "rows-1.jsonl")
    assert again.id == job.id
    desk.finish(job)
    paid_once(desk, job)


@pytest.mark.thinned(2)
def test_jobs_of_several_homes_are_a_question(desk: Desk) -> None:
    first = in_flight(desk)
    (desk.home.root / "home.id").write_text("another")
    second = desk.submit(plain(ROWS - 1))
    (desk.home.root / "home.id").unlink()
    with pytest.raises(RefusedError) as refused:
        recognise(desk.home, desk.store)
    assert {first.home, second.home} == {"another", first.home}
    assert f"orch adopt {first.home}" in str(refused.value.hint)
    with pytest.raises(RefusedError):
        adopt(desk.home, desk.store, "nobody")
    assert adopt(desk.home, desk.store, first.home) == first.home
    desk.finish(first)
    paid_once(desk, first)


@pytest.mark.thinned(2)
def test_a_project_that_was_moved_goes_on_with_its_job(desk: Desk) -> None:
    job = in_flight(desk)
    path = desk.folder / "rows-1.jsonl"
    place = desk.folder.parent / "moved"
    place.mkdir()
    moved = path.rename(place / path.name)
    again = desk.submit(moved)
    assert again.id == job.id
    assert again.source == str(moved)
    assert desk.submit(moved).identity == again.identity
    desk.finish(job)
    paid_once(desk, job)


@pytest.mark.thinned(2)
def test_a_copy_of_a_home_sends_nothing_beside_it_and_goes_on_in_its_place(desk: Desk) -> None:
    job = in_flight(desk)
    copy = Home(desk.folder.parent / "copy")
    shutil.copytree(desk.home.root, copy.root)
    config = load(Place(desk.folder / "orch.toml", copy.root, desk.place.database_url, 10.0))
    with pytest.raises(RefusedError, match="is a copy of the home") as refused:
        Daemon(config, desk.store)
    assert refused.value.exit_code == 3
    assert "orch adopt" in str(refused.value.hint)
    desk.start_anew()
    adopt(copy, desk.store, None)
    with pytest.raises(RefusedError, match="is a copy of the home"):
        desk.start_anew()
    with Daemon(config, desk.store):
        pass
    shutil.rmtree(copy.root)
    desk.start_anew()
    desk.finish(job)
    paid_once(desk, job)


@pytest.mark.thinned(2)
def test_a_home_that_was_moved_goes_on(desk: Desk) -> None:
    in_flight(desk)
    moved = Home(desk.folder / "elsewhere")
    shutil.copytree(desk.home.root, moved.root)
    shutil.rmtree(desk.home.root)
    config = load(Place(desk.folder / "orch.toml", moved.root, desk.place.database_url, 10.0))
    for _ in range(2):
        with Daemon(config, desk.store):
            pass


@pytest.mark.thinned(2)
def test_a_home_whose_database_is_older_than_its_jobs_gets_an_id_where_somebody_says_so(desk: Desk) -> None:
    job = in_flight(desk)
    desk.cancel(job)
    desk.finish(job)
    with desk.store.jobs._db.write() as tx:
        tx.exec_driver_sql("DELETE FROM jobs")
    (desk.home.root / "home.id").unlink()
    assert recognise(desk.home, desk.store) is None
    with pytest.raises(StorageError, match="orch adopt"):
        desk.home.identity()
    assert adopt(desk.home, desk.store, None) == desk.home.identity()
    desk.run(plain(ROWS))


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_file_that_was_edited_in_a_moved_project_supersedes_its_job(desk: Desk) -> None:
    desk.backend("openai", limits={"max_rows": 8})
    (desk.folder / "jobs").mkdir()
    path = desk.folder / "jobs" / "rows.jsonl"
    path.write_bytes(jsonl(plain(ROWS, temperature=0)))
    first = desk.submit(path)
    for _ in range(3):
        desk.step(first)
    folder = path.parent.rename(desk.folder / "moved")
    path = folder / path.name
    edited = [*plain(ROWS - 1, temperature=0), row("new", temperature=0)]
    path.write_bytes(jsonl(edited))
    second = desk.submit(path)
    desk.finish(first, second)
    assert desk.store.jobs.get(first.id).cancel_code == "superseded"
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert set(desk.billed().values()) == {1}
    assert desk.cost(first) + desk.cost(second) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
def test_a_job_whose_settings_file_was_moved_goes_on_under_it(desk: Desk) -> None:
    job = in_flight(desk)
    place = desk.folder / "elsewhere"
    place.mkdir()
    moved = (desk.folder / "orch.toml").rename(place / "orch.toml")
    config = load(Place(moved, desk.home.root, desk.place.database_url, 10.0))
    desk.provider.clock.advance(3600)
    with Daemon(config, desk.store, provider_calls=Inline()) as daemon:
        daemon.run(lambda: desk.is_over(job))
    paid_once(desk, job)
    assert desk.events(job, "revised") == [f"{desk.folder / 'orch.toml'} is gone: the job continues under {moved}"]


@pytest.mark.thinned(2)
def test_another_settings_file_is_no_moved_one(desk: Desk) -> None:
    job = in_flight(desk)
    place = desk.folder / "elsewhere"
    place.mkdir()
    other = shutil.copy(desk.folder / "orch.toml", place / "orch.toml")
    config = load(Place(Path(other), desk.home.root, desk.place.database_url, 10.0))
    rounds = iter([False, False, True])
    with Daemon(config, desk.store, provider_calls=Inline()) as daemon:
        daemon.run(lambda: next(rounds))
    assert "waits for a daemon with its settings" in desk.events(job, "waiting")[-1]


@pytest.mark.thinned(2)
def test_what_a_user_sees_of_a_lost_id(desk: Desk) -> None:
    job = in_flight(desk)
    (desk.home.root / "home.id").write_text("")
    orch = Orch(desk.home.root)
    env = {"ORCH_CONFIG": str(desk.folder / "orch.toml"), "ORCH_DATABASE_URL": desk.place.database_url}
    done = orch("adopt", "nobody", env=env)
    assert done.returncode == 3, done.stderr
    done = orch("gc", "--dry-run", env=env)
    assert done.returncode == 0, done.stderr
    assert f"by its jobs it is home {job.home}" in done.stderr
    (desk.home.root / "home.id").unlink()
    assert job.home in orch("adopt", env=env).stdout


@pytest.mark.long
@pytest.mark.parametrize("is_bare", [False, True], ids=["", "a list without metadata"])
@pytest.mark.parametrize("name", ["openai", "together", "scaleway", "xai", "fireworks", "openrouter", "cohere"])
def test_a_create_that_is_lost_adopts_no_batch_of_another_home_with_the_same_rows(
    name: str, is_bare: bool, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the file's name, nor its bytes, nor the job's name tells the two homes apart."""
    (tmp_path / "other").mkdir()
    with (
        desk_of(emulator, tmp_path, monkeypatch) as desk,
        closing(Desk(emulator, tmp_path / "other", monkeypatch)) as other,
    ):
        desk.backend(name)
        theirs = in_flight(desk)
        other.backend(name)
        script(other, "cut_before", verb="create")
        if is_bare:
            script(other, "no_metadata", verb="list", times=None)
        ours = other.run(plain(ROWS))
        assert ours.name == theirs.name
        assert len(desk.batches()) == 2
        desk.finish(theirs)
        assert sum(desk.billed().values()) == 2 * ROWS
        assert other.cost(ours) == desk.cost(theirs) == cost_of(emulator.bill()) / 2
