"""Fixtures for every test. Servers are real, each test's state is its own, nothing is set globally."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# `tests` is importable from here on, from the test files too, whatever the folder pytest was started in.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.cli import Orch
from tests.support.clock import HeldClock
from tests.support.databases import MigratedDatabases, new_sqlite, postgres_template, share_statements
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.process import Upstream, upstreams
from tests.support.sparing import spare_the_disk

# How long an example takes says more about the machine than about the code, and a folder may serve many examples.
settings.register_profile(
    "orch",
    deadline=None,
    max_examples=int(os.environ.get("ORCH_EXAMPLES", "5")),
    # `make test` says the same of the same code each time; `make soak` looks for new examples.
    derandomize="ORCH_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("orch")

spare_the_disk()
share_statements()

# A shell that starts us in the background has us ignore Ctrl-C, and our programs would do as we do.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("tests.support.workers",)

MakeUpstream = Callable[..., Upstream]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect tests without a garbage collection, and leave them out of every later one."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on Postgres, and the variants that `thinned(k)` keeps out of `make test`."""
    variants: dict[tuple[str, int], list[pytest.Function]] = {}
    for item in items:
        if _runs_on_postgres(item):
            item.add_marker("postgres")
        thinned = item.get_closest_marker("thinned")
        if thinned is not None and item.get_closest_marker("soak") is None:
            assert isinstance(item, pytest.Function), "it has variants"
            variants.setdefault((item.nodeid.partition("[")[0], *thinned.args), []).append(item)
    for (_, k), each in variants.items():
        for variant in _beyond_a_cover(each, most=-(-len(each) // k)):
            variant.add_marker("soak")


def _beyond_a_cover(variants: list[pytest.Function], most: int) -> list[pytest.Function]:
    """Return all but `most` variants, which have each value of each parameter among them if that can be."""
    left = [
        (variant, {(name, repr(value)) for name, value in variant.callspec.params.items()}) for variant in variants
    ]
    seen: Counter[tuple[str, str]] = Counter()
    for _ in range(most):
        best = min(left, key=lambda one: (-sum(value not in seen for value in one[1]), sum(seen[v] for v in one[1])))
        left.remove(best)
        seen.update(best[1])
    return [variant for variant, _ in left]


def _runs_on_postgres(item: pytest.Item) -> bool:
    given = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return "postgres" in given or "postgres" in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip fails what ORCH_NO_SKIPS is set for: a long run that has not run looks green otherwise."""
    report = yield
    if report.skipped and "ORCH_NO_SKIPS" in os.environ:
        report.outcome, report.longrepr = "failed", f"{item.nodeid} was skipped: {report.longrepr}"
    return report


@pytest.fixture
def make_upstream(tmp_path: Path) -> Iterator[MakeUpstream]:
    """`make_upstream(slots=4, latency_ms=20, ...)`: a running upstream with the options of its program."""
    with upstreams(tmp_path) as make:
        yield make


@pytest.fixture
def upstream(make_upstream: MakeUpstream) -> Upstream:
    return make_upstream()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server, one for each pytest process, started by the first test that asks."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A fresh, empty database."""
    with postgres.database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh, empty database of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'orch.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(scope="session")
def migrated_databases(postgres: PostgresServer) -> Iterator[MigratedDatabases]:
    with postgres_template(postgres) as name, MigratedDatabases(postgres, name) as databases:
        yield databases


@pytest.fixture
def migrated_url(migrated_databases: MigratedDatabases) -> Iterator[str]:
    """A database on Postgres that has its tables, and nothing in them."""
    with migrated_databases.one() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database of each kind in turn that has its tables."""
    if request.param == "sqlite":
        return new_sqlite(tmp_path / "orch.db")
    url: str = request.getfixturevalue("migrated_url")
    return url


@pytest.fixture
def orch_home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


@pytest.fixture
def held_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    """The time stands still until the test moves it."""
    return HeldClock(tmp_path / "clock.json", monkeypatch)


@pytest.fixture
def run_orch(orch_home: Path) -> Iterator[Orch]:
    """The command line in `orch_home`, as a process: `run_orch("status")`, `run_orch.start("up")`."""
    orch = Orch(orch_home)
    yield orch
    orch.close()
