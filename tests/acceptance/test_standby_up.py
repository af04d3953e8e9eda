"""`orch up --replica`: the machine with the active daemon is lost with its disk, or paused; another one goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.emulator.client import Emulator
from tests.support.cli import Orch, kill_group, write_config
from tests.support.hosted_kills import SPEED
from tests.support.process import PATIENCE, Upstream, wait_until
from tests.support.standby_home import HomePair, letters
from tests.support.standby_hosted import HostedPair

ROWS, SLOTS, LATENCY_MS = 400, 8, 60
AGAIN = 208
"""All that were asked before the kill: what comes in two seconds is more than a small job has by then."""


def in_database(kind: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Where the home's database is: in it, or a Postgres that both machines reach."""
    return {} if kind == "sqlite" else {"ORCH_DATABASE_URL": request.getfixturevalue("postgres_url")}


@pytest.fixture
def upstream(make_upstream: MakeUpstream) -> Upstream:
    return make_upstream(slots=SLOTS, latency_ms=LATENCY_MS)


@pytest.fixture
def pair(request: pytest.FixtureRequest, run_orch: Orch, upstream: Upstream, kind: str, tmp_path: Path) -> HomePair:
    write_config(run_orch.home, [upstream.base_url])
    environment = in_database(kind, request)
    return HomePair(run_orch, tmp_path, f"file://{tmp_path / 'replica'}", environment)


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider", speed=SPEED) as running:
        yield running


def sent_again(upstream: Upstream) -> int:
    return sum(upstream.counts().values()) - ROWS


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
def test_a_standby_ends_the_job_of_a_machine_that_is_gone(pair: HomePair, upstream: Upstream, tmp_path: Path) -> None:
    pair.start()
    job = pair.submit(letters(tmp_path, ROWS))
    upstream.wait_for_requests(ROWS // 2)
    pair.kill_active()
    assert pair.take_over() < 30
    pair.check(job, ROWS)
    assert sent_again(upstream) <= AGAIN


@pytest.mark.soak  # `make test` has one that ends
@pytest.mark.parametrize("kind", ["postgres", pytest.param("sqlite", marks=pytest.mark.soak)])
def test_a_paused_daemon_that_wakes_up_changes_nothing(pair: HomePair, upstream: Upstream, tmp_path: Path) -> None:
    pair.start()
    job = pair.submit(letters(tmp_path, ROWS))
    upstream.wait_for_requests(ROWS // 2)
    pair.pause_active()
    pair.take_over()
    pair.check(job, ROWS)
    before, rows = (len(upstream.requests()), pair.generation()), pair.results(job)
    pair.wake_paused()
    assert (len(upstream.requests()), pair.generation()) == before
    assert pair.results(job) == rows
    again = pair.up("a")
    wait_until(lambda: "standing by" in pair.said(again))


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
def test_who_ends_well_hands_over_and_nothing_is_asked_again(
    pair: HomePair, upstream: Upstream, tmp_path: Path
) -> None:
    pair.start()
    job = pair.submit(letters(tmp_path, ROWS))
    upstream.wait_for_requests(ROWS // 2)
    assert pair.stop_active() == 0
    pair.take_over()
    pair.check(job, ROWS)
    assert sent_again(upstream) <= 4 * SLOTS, "what was in flight"
    assert "has not been heard from" not in pair.said(pair.standby)


@pytest.mark.soak  # of a job that is acknowledged and has rows, `make test` has the other ones
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_a_job_that_was_acknowledged_is_there(pair: HomePair, tmp_path: Path) -> None:
    pair.start()
    job = pair.submit(letters(tmp_path, ROWS))
    pair.kill_active()
    pair.take_over()
    pair.check(job, ROWS)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "harm", "calls"),
    [
        ("sqlite", "kill", 8),
        pytest.param("postgres", "kill", 30, marks=pytest.mark.soak),
        pytest.param("sqlite", "pause", 12, marks=pytest.mark.soak),
        pytest.param("postgres", "pause", 12, marks=pytest.mark.soak),
    ],
)
def test_hosted_batches_are_adopted_and_paid_once(
    kind: str, harm: str, calls: int, run_orch: Orch, provider: Emulator, tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    replica = f"file://{tmp_path / 'replica'}"
    pair = HostedPair(run_orch, provider, tmp_path, replica, in_database(kind, request), seed=30)
    pair.begin(calls)
    if harm == "kill":
        pair.kill_active()
    else:
        pair.pause_active()
    assert pair.take_over() < 30
    assert pair.mistakes() == []
    if harm == "pause":
        pair.wake_paused()
        assert pair.mistakes() == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite"])
def test_only_the_active_machine_answers_commands(pair: HomePair, run_orch: Orch, tmp_path: Path) -> None:
    pair.start()
    job = pair.submit(letters(tmp_path, ROWS))
    for command in (("status",), ("submit", str(tmp_path / "job.yaml")), ("fetch", job), ("gc",)):
        refused = run_orch(*command, env=pair.env("b"))
        assert (refused.returncode, refused.stdout) == (2, ""), command
        assert "is standing by for another machine" in refused.stderr
    assert run_orch("doctor", env=pair.env("b")).returncode == 0
    assert "this machine is the active one" in run_orch("doctor", env=pair.env("a")).stdout
    following = run_orch.start("run", str(tmp_path / "job.yaml"), env=pair.env("a"))
    wait_until(lambda: "following it" in run_orch.output(following))
    pair.kill()
    assert following.wait(PATIENCE) == 2, "it does not become a daemon that knows of no replica"
    refused = run_orch("run", str(tmp_path / "job.yaml"), env=pair.env("a"))
    assert refused.returncode == 2
    assert "start `orch up --replica URL`" in refused.stderr
    refused = run_orch("up", env=pair.env("a"))
    assert refused.returncode == 2
    assert "another machine may have taken it over" in refused.stderr
    pair.take_over()
    pair.check(job, ROWS)


def test_a_home_whose_database_is_elsewhere_is_refused(run_orch: Orch, upstream: Upstream, tmp_path: Path) -> None:
    write_config(run_orch.home, [upstream.base_url])
    elsewhere = {"ORCH_DATABASE_URL": f"sqlite:///{tmp_path / 'elsewhere.db'}"}
    refused = run_orch("up", "--replica", str(tmp_path / "replica"), env=elsewhere)
    assert refused.returncode == 2
    assert "would not be on the replica" in refused.stderr


@pytest.mark.soak  # `make test` has a server that is without its replica
def test_without_its_replica_a_daemon_waits_and_then_goes_on(
    run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    upstream = make_upstream(slots=4, latency_ms=200)
    write_config(run_orch.home, [upstream.base_url])
    replica = tmp_path / "replica"
    daemon = run_orch.start("up", "--replica", str(replica))
    wait_until(lambda: "is up; Ctrl-C stops it" in run_orch.output(daemon))
    assert run_orch("submit", str(letters(tmp_path, ROWS))).returncode == 0
    upstream.wait_for_requests(SLOTS)
    replica.rename(tmp_path / "away")
    replica.touch()
    wait_until(lambda: "the replica" in run_orch.output(daemon))
    wait_until(lambda: len(upstream.requests()) == asked_in(upstream))
    asked = len(upstream.requests())
    assert asked < ROWS
    replica.unlink()
    (tmp_path / "away").rename(replica)
    wait_until(lambda: "completed" in run_orch("status").stdout, 60)
    assert set(upstream.counts().values()) == {1}
    assert daemon.poll() is None
    assert "generation 1" in run_orch("status").stdout
    kill_group(daemon)
    daemon.wait()
    again = run_orch.start("up", "--replica", str(replica))
    wait_until(lambda: "active, generation 2, from this folder" in run_orch.output(again))


def asked_in(upstream: Upstream, seconds: float = 1.0) -> int:
    """How many requests there are once so many seconds have passed."""
    time.sleep(seconds)
    return len(upstream.requests())
