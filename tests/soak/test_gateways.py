"""Rows through gateways and servers that nobody here wrote (`make gateways`): LiteLLM's proxy, llama.cpp's server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch
from tests.support.gateway_jobs import (
    AWAY_SECONDS,
    LONGEST_RUN,
    Job,
    Json,
    answered_once,
    away_for,
    batch_file,
    questions,
    write_backend,
)
from tests.support.gateways import Budget, Running, aimock, litellm, llamacpp, needs
from tests.support.process import wait_until

pytestmark = pytest.mark.soak
needs_litellm = needs("litellm")
needs_llamacpp = needs("llamacpp")

ROWS = 600
LOCAL = {"kind": "local", "location": "local", "idle": True}
SYNC = {"kind": "sync"}
Facts = Callable[[Running], Json]
KINDS: dict[str, Facts] = {
    "local": lambda gateway: LOCAL | {"upstreams": [gateway.base_url]},
    "sync": lambda gateway: SYNC | {"base_url": gateway.base_url},
}
COOLING = {
    "cools": {},
    "retries": {"router_settings": {"disable_cooldowns": True}},
    "fails-fast": {"router_settings": {"disable_cooldowns": True, "num_retries": 0}},
}
"""LiteLLM answers 429 for some seconds after an engine's errors, unless it is told not to."""


@needs_litellm
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cooling", COOLING)
def test_an_engine_away_behind_litellm_costs_no_row(
    kind: str, cooling: str, run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    engine = make_upstream(slots=8, latency_ms=100)
    job = Job(run_orch, batch_file(tmp_path, *questions(ROWS)))
    with litellm(tmp_path, {"m": engine.base_url}, **COOLING[cooling]) as gateway:
        write_backend(run_orch.home, **KINDS[kind](gateway))
        process = job.start()
        engine.wait_for_requests(ROWS // 4)
        away_for(engine, AWAY_SECONDS)
        code = process.wait(timeout=LONGEST_RUN)
    assert code == 0, run_orch.output(process)[-3000:]
    answered_once(job, ROWS)


@needs_litellm
@pytest.mark.parametrize("kind", KINDS)
def test_a_dead_engine_behind_litellm_burns_no_row(
    kind: str, run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    engine = make_upstream(slots=8)
    job = Job(run_orch, batch_file(tmp_path, *questions(30)))
    with litellm(tmp_path, {"m": engine.base_url}) as gateway:
        write_backend(run_orch.home, patience=60, **KINDS[kind](gateway))
        engine.kill()
        begin = monotonic()
        ended = job.run()
        took = monotonic() - begin
        assert ended.startswith("exit 4"), ended
        assert took > 55, f"gave up after {took:.0f} s in spite of its patience\n{ended}"
        assert job.failed() == 0, ended
        engine.start()
        assert job.run().startswith("exit 0")
    answered_once(job, 30)


@needs_litellm
@pytest.mark.parametrize("kind", KINDS)
def test_rows_wait_for_a_spent_budget_of_litellm(
    kind: str, run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    engine = make_upstream(slots=4, latency_ms=50)
    job = Job(run_orch, batch_file(tmp_path, *questions(100)))
    budget = Budget(tmp_path)
    with litellm(tmp_path, {"m": engine.base_url}, general_settings=Budget.general) as gateway:
        write_backend(run_orch.home, patience=600, **KINDS[kind](gateway))
        process = job.start()
        engine.wait_for_requests(20)
        budget.spend()
        wait_until(lambda: "Budget has been exceeded" in gateway.log.read_text())
        budget.fill()
        if process.wait(timeout=LONGEST_RUN) != 0:
            assert job.run().startswith("exit 0"), run_orch.output(process)
    answered_once(job, 100)
    assert max(engine.counts().values()) == 1


@needs_litellm
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_begun_on_a_spent_budget_goes_on_after_a_refill(
    kind: str, run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    engine = make_upstream()
    job = Job(run_orch, batch_file(tmp_path, *questions(30)))
    budget = Budget(tmp_path)
    with litellm(tmp_path, {"m": engine.base_url}, general_settings=Budget.general) as gateway:
        write_backend(run_orch.home, patience=5, **KINDS[kind](gateway))
        budget.spend()
        ended = job.run()
        assert "Budget has been exceeded" in ended, ended
        assert job.failed() == 0, ended
        assert job.quarantined() == []
        budget.fill()
        assert job.run().startswith("exit 0")
    answered_once(job, 30)


@needs_litellm
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_litellm_does_not_have_burns_no_row(
    kind: str, run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    engine = make_upstream()
    job = Job(run_orch, batch_file(tmp_path, *questions(30), model="typo"))
    with litellm(tmp_path, {"m": engine.base_url}) as gateway:
        write_backend(run_orch.home, model="typo", **KINDS[kind](gateway))
        ended = job.run()
        assert not ended.startswith("exit 0"), ended
        assert "Invalid model name passed in model=typo" in ended, ended
        assert job.quarantined() == []
        assert job.failed() == 0, ended
    assert engine.requests() == []


FRUITS = ["apple", "cherry", "lemon", "plum"]


def fruit_job(folder: Path) -> Path:
    """A job of a schema task and a classify task over four texts."""
    texts = folder / "texts"
    texts.mkdir()
    for name in FRUITS:
        (texts / f"{name}.txt").write_text(f"This text is about a {name}.")
    color = {"type": "string", "enum": ["red", "yellow", "blue"]}
    schema = {"type": "object", "properties": {"color": color}, "required": ["color"]}
    spec = {
        "name": "fruits",
        "documents": "texts",
        "models": {"small": {"gateway": "gemma"}},
        "tasks": [
            {"id": "color", "model": "small", "prompt": "Which color is it?", "max_tokens": 40, "schema": schema},
            {"id": "taste", "model": "small", "kind": "classify", "labels": ["sweet", "sour"]},
        ],
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(spec))
    return path


CHAOS = ["--chaos-drop", "0.1", "--chaos-malformed", "0.1", "--chaos-disconnect", "0.1", "--chaos-ratelimit", "0.1"]


@needs("aimock")
@pytest.mark.parametrize(("kind", "rows"), [("local", 300), ("sync", 40)], ids=["local", "sync"])
def test_two_in_five_calls_of_aimock_fail_and_no_row_does(
    kind: str, rows: int, run_orch: Orch, tmp_path: Path
) -> None:
    job = Job(run_orch, batch_file(tmp_path, *questions(rows)))
    with aimock(tmp_path, *CHAOS) as server:
        write_backend(run_orch.home, **KINDS[kind](server))
        assert (ended := job.run()).startswith("exit 0"), ended
    answered_once(job, rows)


@needs_llamacpp
@pytest.mark.parametrize("structured", [{}, {"structured": "json_object"}], ids=["learned", "configured"])
def test_schemas_and_labels_on_a_llama_cpp_server(structured: Json, run_orch: Orch, tmp_path: Path) -> None:
    job = Job(run_orch, str(fruit_job(tmp_path)))
    with llamacpp(tmp_path) as server:
        write_backend(run_orch.home, model="gemma", **LOCAL, upstreams=[server.base_url], **structured)
        assert (ended := job.run()).startswith("exit 0"), ended
        asked = server.log.read_text().count("POST /v1/chat/completions")
        again = job.run()
        assert "nothing changed" in again, again
        assert server.log.read_text().count("POST /v1/chat/completions") == asked
    results = job.results()
    assert len(results) == 2 * len(FRUITS)
    assert {row["status"] for row in results} == {"succeeded"}
    refused = server.log.read_text().count("500 Internal Server Error")
    assert refused <= (0 if structured else len(results)), "no row is refused twice"
