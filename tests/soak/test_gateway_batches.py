"""Batch APIs that nobody here wrote as hosted backends (`make gateways`): LiteLLM's proxy and AIBrix's service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.emulator.client import Emulator
from tests.support.cli import Orch, kill_group
from tests.support.gateway_jobs import (
    AWAY_SECONDS,
    KEYS,
    LONGEST_RUN,
    Job,
    Json,
    answered_once,
    away_for,
    batch_file,
    questions,
    write_backend,
)
from tests.support.gateways import Budget, Running, aibrix, aimock, litellm, needs
from tests.support.hostedjob import USUAL
from tests.support.process import wait_until

pytestmark = pytest.mark.soak
needs_litellm = needs("litellm")
needs_aibrix = needs("aibrix")


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    """The provider behind LiteLLM. Ten minutes pass there in a second."""
    with Emulator(tmp_path / "provider", speed=600) as running:
        running.settings(**USUAL)
        yield running


@pytest.fixture
def litellm_batches(provider: Emulator, run_orch: Orch, tmp_path: Path) -> Iterator[Running]:
    """LiteLLM as a Batch API in front of that provider, and orch's backend for it."""
    behind = {"custom_llm_provider": "openai", "api_key": "sk-behind", "api_base": provider.url_openai}
    budget = Budget(tmp_path)
    budget.fill()
    models = {"m": provider.url_openai}
    with litellm(tmp_path, models, files_settings=[behind], general_settings=Budget.general) as gateway:
        # These tests count the rows of batches, and a preflight asks one row outside of them.
        write_backend(run_orch.home, kind="openai", base_url=gateway.base_url, poll_seconds=0.2, preflight=False)
        yield gateway


@needs_litellm
@pytest.mark.parametrize("verb", ["upload", "create", "retrieve"])
def test_a_batch_through_litellm_is_paid_once_through_a_kill(
    verb: str, litellm_batches: Running, provider: Emulator, run_orch: Orch, tmp_path: Path
) -> None:
    job = Job(run_orch, batch_file(tmp_path, *questions(50)), KEYS | provider.environment)
    process = job.start()
    wait_until(lambda: provider.calls(verb) or process.poll() is not None)
    kill_group(process)
    process.wait()
    assert (ended := job.run()).startswith("exit 0"), ended
    answered_once(job, 50)
    billed = provider.bill(rows=True)["rows"]
    assert Counter(billed.values()) == {1: 50}


@needs_litellm
def test_a_spent_budget_refuses_no_batch_for_good(
    litellm_batches: Running, provider: Emulator, run_orch: Orch, tmp_path: Path
) -> None:
    job = Job(run_orch, batch_file(tmp_path, *questions(30)), KEYS | provider.environment)
    budget = Budget(tmp_path)
    budget.spend()
    ended = job.run()
    assert "Budget has been exceeded" in ended, ended
    assert job.failed() == 0, ended
    assert job.quarantined() == []
    budget.fill()
    assert (again := job.run()).startswith("exit 0"), again
    answered_once(job, 30)


@needs_litellm
def test_a_provider_away_behind_litellm_delays_its_batch(
    litellm_batches: Running, provider: Emulator, run_orch: Orch, tmp_path: Path
) -> None:
    provider.script({"do": "cut_before", "match": {"verb": "upload"}, "times": 4})
    provider.script({"do": "cut_before", "match": {"verb": "retrieve"}, "times": 4})
    job = Job(run_orch, batch_file(tmp_path, *questions(30)), KEYS | provider.environment)
    assert (ended := job.run()).startswith("exit 0"), ended
    answered_once(job, 30)
    assert Counter(provider.bill(rows=True)["rows"].values()) == {1: 30}


@needs_aibrix
@pytest.mark.parametrize("call", ["POST /v1/files", "POST /v1/batches", "GET /v1/batches/"])
def test_a_batch_of_aibrix_runs_once_through_a_kill(
    call: str, run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    engine = make_upstream(slots=8, latency_ms=300, model="m")
    job = Job(run_orch, batch_file(tmp_path, *questions(50)))
    with aibrix(tmp_path, engine.root_url) as service:
        write_backend(run_orch.home, kind="openai", base_url=service.base_url, poll_seconds=0.2)
        process = job.start()
        wait_until(lambda: call in service.log.read_text() or process.poll() is not None)
        kill_group(process)
        process.wait()
        assert (ended := job.run()).startswith("exit 0"), ended
    answered_once(job, 50)
    assert Counter(engine.counts().values()) == {1: 50}


@needs_aibrix
def test_an_engine_away_behind_aibrix_costs_no_row(
    run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    engine = make_upstream(slots=8, latency_ms=300, model="m")
    job = Job(run_orch, batch_file(tmp_path, *questions(100)))
    with aibrix(tmp_path, engine.root_url) as service:
        write_backend(run_orch.home, kind="openai", base_url=service.base_url, poll_seconds=0.2)
        process = job.start()
        engine.wait_for_requests(20)
        away_for(engine, AWAY_SECONDS)
        code = process.wait(timeout=LONGEST_RUN)
    assert code == 0, run_orch.output(process)[-3000:]
    answered_once(job, 100)


@needs_aibrix
def test_rows_that_aibrix_fails_end_once_with_its_reason(
    run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    engine = make_upstream(slots=8, model="m")
    job = Job(run_orch, batch_file(tmp_path, *questions(10), "[[fault:status:400]]", "[[fault:status:500]]"))
    with aibrix(tmp_path, engine.root_url) as service:
        write_backend(run_orch.home, kind="openai", base_url=service.base_url, poll_seconds=0.2)
        assert (ended := job.run()).startswith("exit 1"), ended
    results = {row["custom_id"]: row for row in job.results()}
    assert len(results) == 12
    assert [name for name, row in results.items() if row["error"]] == ["row-10", "row-11"]
    assert "HTTP 400" in results["row-10"]["error"]["message"]


@needs_litellm
def test_a_create_that_litellm_sends_twice_is_seen(
    litellm_batches: Running, provider: Emulator, run_orch: Orch, tmp_path: Path
) -> None:
    provider.script({"do": "cut_after", "match": {"verb": "create"}, "times": 1})
    job = Job(run_orch, batch_file(tmp_path, *questions(20)), KEYS | provider.environment)
    assert (ended := job.run()).startswith("exit 0"), ended
    answered_once(job, 20)
    assert len(provider.state()["batches"]) == 2
    both = run_orch("reconcile", "--json", env=job.env)
    assert "double" in both.stdout, both.stdout + both.stderr


@needs("aimock")
def test_a_batch_of_aimock_is_made_once_through_a_kill_and_refused_calls(run_orch: Orch, tmp_path: Path) -> None:
    job = Job(run_orch, batch_file(tmp_path, *questions(50)))
    with aimock(tmp_path, "--chaos-ratelimit", "0.2") as service:
        write_backend(run_orch.home, kind="openai", base_url=service.base_url, poll_seconds=0.2, preflight=False)
        process = job.start()
        wait_until(lambda: batches_of(service) or process.poll() is not None, LONGEST_RUN)  # each 429 costs minutes
        kill_group(process)
        process.wait()
        assert (ended := job.run()).startswith("exit 0"), ended
        (batch,) = wait_until(lambda: batches_of(service))
    answered_once(job, 50)
    assert batch["request_counts"]["completed"] == 50


def batches_of(service: Running) -> list[Json]:
    """The batches there; none if it refuses to tell."""
    answer = service.ask("/v1/batches")
    return list(answer.body["data"]) if answer.status == 200 else []
