"""Processes that build: places, deadlines, what comes of an order, and a daemon that another has taken over from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.core.errors import OutputError, OutputFault
from orchestrator.library import build_processes
from orchestrator.library.build_processes import BuildProcesses
from orchestrator.library.context import Context
from orchestrator.pipeline.build.build_orders import BuildDied
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.daemon_fence import DaemonFence
from tests.support.builds import Discard, Fail, Wait
from tests.support.cli import write_config
from tests.support.databases import new_sqlite
from tests.support.process import wait_until
from tests.support.stored import job


def context_of(folder: Path, url: str | None = None) -> Context:
    (folder / "home").mkdir()
    path = write_config(folder / "home", ["http://127.0.0.1:9/v1"])
    url = url or new_sqlite(folder / "orch.db")
    return Context(Place(path, folder / "home", url, 10.0), Store.open(url))


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    found = context_of(tmp_path)
    yield found
    found.store.close()


def test_the_soonest_deadline_is_built_first_and_what_takes_long_gives_way(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_processes, "GIVES_WAY_SECONDS", 1e9)
    monkeypatch.setattr(build_processes, "PLACES", 1)
    due = {"first": None, "late": datetime(2027, 1, 2, tzinfo=UTC), "soon": datetime(2027, 1, 1, tzinfo=UTC)}
    with BuildProcesses(context) as builds:

        def begun_of(*names: str) -> list[bool]:
            for name in names:
                if not builds.is_busy(name):
                    builds.begin(name, Wait(tmp_path / f"{name}.begun", tmp_path / "go"), due[name])
            return [builds.is_busy(name) for name in names]

        assert begun_of(*due, *due) == [True, False, False] * 2
        monkeypatch.setattr(build_processes, "GIVES_WAY_SECONDS", 0.0)
        assert begun_of("late") == [False], "the other waits as well"
        assert begun_of("soon", "late") == [True, True]
        wait_until(lambda: all((tmp_path / f"{name}.begun").exists() for name in due))
        (tmp_path / "go").touch()
        pids = {wait_until(lambda name=name: builds.look(name)).value for name in due}
    assert len(pids) == len(due)


def test_there_are_never_more_than_so_many(context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_processes, "GIVES_WAY_SECONDS", 0.0)
    monkeypatch.setattr(build_processes, "MOST", 2)
    with BuildProcesses(context) as builds:
        for name in "abc":
            builds.begin(name, Wait(tmp_path / name, tmp_path / "go"), None)
        assert [builds.is_busy(name) for name in "abc"] == [True, True, False]
        builds.end("a")
        builds.begin("c", Wait(tmp_path / "c", tmp_path / "go"), None)
        assert [builds.is_busy(name) for name in "abc"] == [False, True, True]


@pytest.mark.long
def test_what_an_order_raises_is_raised(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_processes, "GIVES_WAY_SECONDS", 0.0)
    told = {
        "output": "no room there",
        "storage": "the database is locked",
        "defect": "KeyError: 'x'",
        "exit": "the process that built it ended with code 3",
    }
    with BuildProcesses(context) as builds:
        for how in told:
            builds.begin(how, Fail(how), None)
        for how, words in told.items():
            with pytest.raises(OutputError if how == "output" else BuildDied, match=re.escape(words)) as raised:
                wait_until(lambda how=how: builds.look(how))
            assert not builds.is_busy(how)
            if isinstance(raised.value, OutputError):
                assert (raised.value.code, raised.value.hint) == (OutputFault.NO_ROOM, "make some")


@pytest.mark.long
def test_a_daemon_that_was_taken_over_from_builds_nothing_more(postgres_url: str, tmp_path: Path) -> None:
    """A build that is under way at the take-over, and one that is begun behind it."""
    context = context_of(tmp_path, postgres_url)
    made = job("built-1", home=Home(context.place.home).identity())
    context.store.jobs.add(made, {})
    fences = [DaemonFence(made.home, "replica", number) for number in (1, 2)]
    context.store.daemon_fences.take(fences[0])
    with BuildProcesses(context, fences[0]) as builds:
        order = Discard(tmp_path / "begun", tmp_path / "go", made.id)
        builds.begin("under way", order, None)
        wait_until((tmp_path / "begun").exists)
        context.store.daemon_fences.take(fences[1])
        (tmp_path / "go").touch()
        builds.begin("later", order, None)
        for key in ("under way", "later"):
            with pytest.raises(BuildDied, match="has taken over as generation 2"):
                wait_until(lambda key=key: builds.look(key))
    assert context.store.jobs.find(made.id) is not None
    context.store.daemon_fences.take(fences[1])
    context.store.close()
