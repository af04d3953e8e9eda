"""`orch up --replica`: the machine with the active engine is lost with its disk, or paused; another one goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.emulator.client import Emulator
from tests.support.cli import Orch, write_config
from tests.support.hosted_kills import SPEED
from tests.support.process import Upstream, wait_until
from tests.support.standby_home import HomePair
from tests.support.standby_hosted import HostedPair

ROWS, SLOTS, LATENCY_MS = 400, 8, 60
AGAIN = 208
"""All that were asked before the kill: what comes in two seconds is more than a small job has by then."""
JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: sender, model: small, max_tokens: 50, prompt: "Who wrote this?"}
models: {small: some-model}
"""


def letters(folder: Path, number: int = ROWS) -> Path:
    (folder / "documents").mkdir()
    for one in range(number):
        (folder / "documents" / f"{one:04}.txt").write_text(f"Dear {one}", encoding="utf-8")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    return folder / "job.yaml"


def in_database(kind: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Where the home's database is: in it, or a Postgres that both machines reach."""
    return {} if kind == "sqlite" else {"ORCH_DATABASE_URL": request.getfixturevalue("postgres_url")}


@pytest.fixture
def upstream(make_upstream: MakeUpstream) -> Upstream:
    return make_upstream(slots=SLOTS, latency_ms=LATENCY_MS)


@pytest.fixture(params=["sqlite", "postgres"])
def pair(request: pytest.FixtureRequest, run_orch: Orch, upstream: Upstream, tmp_path: Path) -> HomePair:
    write_config(run_orch.home, [upstream.base_url])
    environment = in_database(request.param, request)
    return HomePair(run_orch, tmp_path, f"file://{tmp_path / 'replica'}", environment)


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider", speed=SPEED) as running:
        yield running


def check(pair: HomePair, job: str) -> None:
    """The job is done, each row once."""
    assert pair.finish(job)["state"] == "completed"
    rows = pair.results(job)
    assert [row["document"] for row in rows] == [f"documents/{number:04}.txt" for number in range(ROWS)]
    assert not [row for row in rows if row["error"] is not None]


def sent_again(upstream: Upstream) -> int:
    return sum(upstream.counts().values()) - ROWS


def test_a_standby_ends_the_job_of_a_machine_that_is_gone(pair: HomePair, upstream: Upstream, tmp_path: Path) -> None:
    pair.start()
    job = pair.submit(letters(tmp_path))
    upstream.wait_for_requests(ROWS // 2)
    pair.kill_active()
    assert pair.take_over() < 30
    check(pair, job)
    assert sent_again(upstream) <= AGAIN


def test_a_paused_engine_that_wakes_up_changes_nothing(pair: HomePair, upstream: Upstream, tmp_path: Path) -> None:
    pair.start()
    job = pair.submit(letters(tmp_path))
    upstream.wait_for_requests(ROWS // 2)
    pair.pause_active()
    pair.take_over()
    check(pair, job)
    before, rows = (len(upstream.requests()), pair.generation()), pair.results(job)
    pair.wake_paused()
    assert (len(upstream.requests()), pair.generation()) == before
    assert pair.results(job) == rows
    again = pair.up("a")
    wait_until(lambda: "standing by" in pair.said(again))


def test_who_ends_well_hands_over_and_nothing_is_asked_again(
    pair: HomePair, upstream: Upstream, tmp_path: Path
) -> None:
    pair.start()
    job = pair.submit(letters(tmp_path))
    upstream.wait_for_requests(ROWS // 2)
    assert pair.stop_active() == 0
    pair.take_over()
    check(pair, job)
    assert sent_again(upstream) <= SLOTS, "what was in flight"
    assert "has not been heard of" not in pair.said(pair.standby)


def test_a_job_that_was_acknowledged_is_there(pair: HomePair, tmp_path: Path) -> None:
    pair.start()
    job = pair.submit(letters(tmp_path))
    pair.kill_active()
    pair.take_over()
    check(pair, job)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize(("harm", "calls"), [("kill", 8), ("kill", 30), ("pause", 12)])
def test_hosted_batches_are_adopted_and_paid_once(
    kind: str, harm: str, calls: int, run_orch: Orch, provider: Emulator, tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    replica = f"file://{tmp_path / 'replica'}"
    pair = HostedPair(run_orch, provider, tmp_path, replica, in_database(kind, request), seed=calls)
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
