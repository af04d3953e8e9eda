"""Traces in Phoenix, a receiver that others wrote (`make phoenix`): a job as its REST and GraphQL APIs have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config
from tests.support.phoenix import Phoenix, needs_phoenix, phoenix
from tests.support.process import wait_until

pytestmark = [pytest.mark.soak, needs_phoenix]

SPANS = 6
"""Of a job with one shard, its batch and three rows."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Phoenix]:
    folder = tmp_path / "phoenix"
    folder.mkdir()
    with phoenix(folder) as running:
        yield running


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """Three rows, the last of which fails when it is first tried."""
    path = tmp_path / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(("say a", "say b", "[[fault:status:400:1]]")):
            body = {"model": "m", "messages": [{"role": "user", "content": text}]}
            line = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return str(path)


def detail(run_orch: Orch) -> dict[str, Any]:
    """The job, as `orch status` has it."""
    newest = json.loads(run_orch("status", "--json").stdout)[0]["job"]
    found: dict[str, Any] = json.loads(run_orch("status", newest, "--json").stdout)
    return found


def arrived(receiver: Phoenix, number: int) -> list[dict[str, Any]]:
    """The spans as soon as Phoenix has written so many; they are one trace."""
    spans = wait_until(lambda: found if len(found := receiver.spans()) >= number else None)
    assert len(spans) == number
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    return spans


def test_phoenix_has_the_job_as_we_do(
    receiver: Phoenix, run_orch: Orch, rows: str, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(latency_ms=50)
    extra = f'[telemetry]\nendpoint = "{receiver.url}"\nsample = 1\ncontent = true\n'
    write_config(run_orch.home, [upstream.base_url], idle=None, cost_per_hour=36, extra=extra)
    checked = {one["check"]: one["ok"] for one in json.loads(run_orch("doctor", "--json").stdout)}
    assert checked[f"telemetry {receiver.url}"]

    assert run_orch("run", rows).returncode == 1
    ours = detail(run_orch)
    spans = {one["attributes"].get("orch.row.custom_id", one["name"]): one for one in arrived(receiver, SPANS)}
    job, shard, batch = spans["job rows"], spans["shard local"], spans["batch local"]
    answers = [spans["row-0"], spans["row-1"]]
    failed = spans["row-2"]
    assert [span["parent_id"] for span in (job, shard, batch)] == [
        None, job["context"]["span_id"], shard["context"]["span_id"],
    ]  # fmt: skip
    assert {span["parent_id"] for span in [*answers, failed]} == {batch["context"]["span_id"]}

    cost, tokens = float(ours["cost_usd"]), ours["tokens"]
    assert cost > 0
    for span in (job, shard, batch):
        assert span["attributes"]["orch.cost"] == pytest.approx(cost)
        assert span["attributes"]["orch.job.id"] == ours["job"]
    assert job["attributes"]["orch.rows.failed"] == 1
    assert [event["name"] for event in job["events"]] == [f"orch.{one['kind']}" for one in ours["events"]]
    told = batch["attributes"]
    assert told["orch.batch.id"] == ours["shards"][0]["batch_id"]
    assert (told["gen_ai.operation.name"], told["gen_ai.provider.name"]) == ("batch", "vllm")
    assert (told["orch.tokens.input"], told["orch.tokens.output"]) == (tokens["input"], tokens["output"])

    # What it translates of the conventions, and that no token is counted twice.
    assert [span["span_kind"] for span in (job, shard, batch)] == ["UNKNOWN"] * 3
    for span, said in zip(answers, ("say a", "say b"), strict=True):
        about = span["attributes"]
        assert span["span_kind"] == "LLM"
        assert (about["llm.model_name"], about["llm.system"]) == ("m", "vllm")
        assert about["llm.input_messages.0.message.content"] == said
        assert about["llm.output_messages.0.message.content"].startswith("echo:")
        assert about["llm.cost.total"] == about["gen_ai.usage.cost"] == about["orch.cost"]
    assert sum(span["attributes"]["llm.token_count.prompt"] for span in answers) == tokens["input"]
    assert sum(span["attributes"]["llm.token_count.completion"] for span in answers) == tokens["output"]
    assert sum(span["attributes"]["llm.cost.total"] for span in [*answers, failed]) == pytest.approx(cost)
    assert (failed["status_code"], failed["status_message"]) == ("ERROR", "http_400")
    assert failed["attributes"]["error.type"] == "http_400"
    shown = receiver.project("traceCount", "recordCount", "tokenCountTotal", "costSummary { total { cost } }")
    assert (shown["traceCount"], shown["recordCount"]) == (1, SPANS)
    assert shown["tokenCountTotal"] == sum(tokens.values())
    assert shown["costSummary"]["total"]["cost"] == 0, "it has a price table of its own, without this model"

    # It takes traces alone.
    assert "refuses the metrics; `metrics = false`" in (run_orch.home / "engine.log").read_text()

    # What a retry sends belongs to the same trace; of a span that it has, Phoenix keeps what came first.
    assert run_orch("retry", ours["job"], "--wait").returncode == 0
    spans_now = arrived(receiver, SPANS + 3)
    again = [span for span in spans_now if span["attributes"].get("orch.row.custom_id") == "row-2"]
    assert sorted(span["status_code"] for span in again) == ["ERROR", "UNSET"]
    assert [span for span in spans_now if span["parent_id"] is None] == [job]
