"""What operators look at: models, readiness, the page for Prometheus, and the log."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from orchestrator.core.replica.takeover import take_turn
from orchestrator.server import logs
from orchestrator.server.replicated_folder import LAYOUT
from orchestrator.server.settings import Settings
from tests.conftest import MakeUpstream
from tests.contract.conftest import Served, over_tcp
from tests.support.batchapi import CHAT, Sdk, create, row, run_batch, sdk_at
from tests.support.process import ROOT, wait_until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(sdk: Sdk, parse: Callable[[str], Any] = prometheus, **headers: str) -> tuple[Samples, set[str]]:
    """The samples of /metrics by name and labels, and the names of its families."""
    page = sdk.raw.get("/metrics", headers=headers)
    assert page.status_code == 200
    families = list(parse(page.text))
    names = {family.name for family in families}
    assert len(names) == len(families)
    found = [
        (sample.name, frozenset(sample.labels.items()), sample.value) for one in families for sample in one.samples
    ]
    samples = {(name, labels): value for name, labels, value in found}
    assert len(samples) == len(found)
    return samples, names


def value(sdk: Sdk, name: str, **labels: str) -> float | None:
    """The one sample of that name with at least these labels."""
    samples, _ = scraped(sdk)
    found = [number for (n, given), number in samples.items() if n == name and frozenset(labels.items()) <= given]
    assert len(found) <= 1, f"{name} is ambiguous"
    return found[0] if found else None


def ask(sdk: Sdk, text: str, **fields: Any) -> Any:
    body = {"model": "test-model", "messages": [{"role": "user", "content": text}], **fields}
    return sdk.raw.post(CHAT, json=body)


def until_ready(sdk: Sdk) -> None:
    wait_until(lambda: sdk.raw.get("/ready").status_code == 200)


def test_models_are_the_upstreams(served: Served, sdk: Sdk) -> None:
    until_ready(sdk)
    (model,) = sdk.every(lambda api: api.models.list())
    assert (model.id, model.object, model.owned_by, model.max_model_len) == ("test-model", "model", "vllm", 2000)
    assert sdk(lambda api: api.models.retrieve("test-model")) == model
    error = sdk.refused(lambda api: api.models.retrieve("org/other"))
    assert (error.status_code, error.code) == (404, "model_not_found")


def test_ready_says_what_is_in_the_way(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream()
    settings = Settings(upstreams=(upstream.base_url,), max_queued_rows=3)
    with over_tcp(tmp_path / "served", settings) as url, sdk_at(url) as sdk:
        until_ready(sdk)
        assert sdk.raw.get("/ready").json() == {"status": "ready", "reasons": []}
        batch = create(sdk, [row(f"r{number}", "[[fault:hang]]") for number in range(3)])
        waiting = wait_until(lambda: _unready(sdk))
        assert waiting.json()["reasons"] == ["3 rows wait, and 3 are allowed"]
        assert int(waiting.headers["retry-after"]) > 0
        sdk(lambda api: api.batches.cancel(batch.id))
        until_ready(sdk)
        upstream.kill()
        assert ask(sdk, "hello").status_code == 503
        (reason,) = sdk.raw.get("/ready").json()["reasons"]
        assert reason.startswith("no upstream is healthy: unreachable")
        assert value(sdk, "orch_upstream_up") == 0


def _unready(sdk: Sdk) -> Any:
    answer = sdk.raw.get("/ready")
    return answer if answer.status_code == 503 else None


def test_a_disk_that_is_full_is_not_ready(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    settings = Settings(upstreams=(make_upstream().base_url,), min_free_bytes=1 << 60)
    with over_tcp(tmp_path / "served", settings) as url, sdk_at(url) as sdk:
        reasons = wait_until(lambda: one if len(one := sdk.raw.get("/ready").json()["reasons"]) == 1 else None)
        assert "must stay free" in reasons[0]


def test_metrics_count_rows_and_tokens(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream(latency_ms=30)
    settings = Settings(upstreams=(upstream.base_url,), retry_delay=0.02, cost_per_hour=3600.0)
    with over_tcp(tmp_path / "served", settings) as url, sdk_at(url) as sdk:
        until_ready(sdk)
        assert value(sdk, "orch_row_error_ratio") is None
        prefix = "the same words " * 40
        rows = [row(f"good-{number}", f"{prefix} {number}") for number in range(8)]
        again = row("again", "[[fault:status:500:1]]")
        end = run_batch(sdk, [*rows, again, row("bad", "[[fault:status:400]]")])
        usage = end.batch.usage
        assert value(sdk, "orch_rows_total", result="succeeded", upstream=upstream.base_url) == 9
        assert value(sdk, "orch_rows_total", result="failed") == 1
        assert value(sdk, "orch_row_retries_total") == 1
        assert value(sdk, "orch_row_error_ratio") == 0.1
        assert value(sdk, "orch_input_tokens_total") == usage.input_tokens
        assert value(sdk, "orch_output_tokens_total") == usage.output_tokens
        cached = usage.input_tokens_details.cached_tokens
        assert value(sdk, "orch_cached_input_tokens_total") == cached > 0
        assert value(sdk, "orch_prefix_cache_hit_ratio") == cached / usage.input_tokens
        assert value(sdk, "orch_row_latency_seconds_count") == 10
        assert value(sdk, "orch_row_latency_seconds_bucket", le="+Inf") == 10
        assert (value(sdk, "orch_row_latency_seconds_bucket", le="0.025") or 0) <= 1
        assert 0.025 < (value(sdk, "orch_row_latency_quantile_seconds", quantile="0.5") or 0) < 30
        assert value(sdk, "orch_batches_ended_total", status="completed") == 1
        assert value(sdk, "orch_batches", status="in_progress") is None
        assert value(sdk, "orch_rows_waiting") == value(sdk, "orch_rows_in_flight") == 0
        # Rows were out for at least their 30 ms, and an hour of that costs 3600.
        cost = value(sdk, "orch_cost_total")
        assert cost is not None
        assert cost >= 0.03
        assert value(sdk, "orch_cost_per_token") == cost / usage.total_tokens
        assert (value(sdk, "orch_uploaded_bytes_total") or 0) > 1000


def test_metrics_show_what_is_going_on(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream()
    settings = Settings(upstreams=(upstream.base_url,), max_concurrency=2)
    with over_tcp(tmp_path / "served", settings) as url, sdk_at(url) as sdk:
        until_ready(sdk)
        batch = create(sdk, [row(f"r{number}", "[[fault:hang]]") for number in range(5)])
        wait_until(lambda: value(sdk, "orch_rows_in_flight") == 2)
        assert value(sdk, "orch_rows_waiting") == 3
        assert value(sdk, "orch_batches", status="in_progress") == 1
        assert value(sdk, "orch_concurrency_limit") == 2
        assert value(sdk, "orch_concurrency_limit_reason", reason="start") == 1
        assert value(sdk, "orch_upstream_up", upstream=upstream.base_url) == 1
        assert value(sdk, "orch_storage_ok") == 1
        assert value(sdk, "orch_result_backlog_bytes") == 0
        assert (value(sdk, "orch_disk_free_bytes") or 0) > 0
        sdk(lambda api: api.batches.cancel(batch.id))
        wait_until(lambda: value(sdk, "orch_batches_ended_total", status="cancelled") == 1)
        assert value(sdk, "orch_cost_total") is None


@pytest.mark.long
def test_metrics_count_interactive_requests(make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream()
    with over_tcp(tmp_path / "served", Settings(upstreams=(upstream.base_url,))) as url, sdk_at(url) as sdk:
        until_ready(sdk)
        for text in ("a", "b", "[[fault:status:400]]", "[[fault:status:500]]", "[[fault:cut]]"):
            ask(sdk, text)
        assert value(sdk, "orch_interactive_requests_total") == 5
        assert value(sdk, "orch_interactive_failures_total") == 2
        assert value(sdk, "orch_interactive_latency_seconds_count") == 5
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "[[fault:hang]]"}]}
        with sdk.raw.stream("POST", CHAT, json=body):
            assert value(sdk, "orch_interactive_in_flight") == 1
        wait_until(lambda: value(sdk, "orch_interactive_in_flight") == 0)
        assert value(sdk, "orch_rows_total", result="succeeded") == 0


def test_the_page_follows_the_conventions(served: Served, sdk: Sdk) -> None:
    until_ready(sdk)
    run_batch(sdk, [row("a")])
    plain, names = scraped(sdk)
    strict, strict_names = scraped(sdk, openmetrics, Accept="application/openmetrics-text; version=1.0.0")
    assert names == strict_names
    assert {name for name, _ in plain} <= {name for name, _ in strict} | {"process_open_fds", "process_max_fds"}
    assert {name.split("_")[0] for name in names} == {"orch", "process"}
    assert sdk.raw.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize("name", ["operations.md", "grafana.json"])
def test_what_is_told_of_metrics_is_there(make_upstream: MakeUpstream, tmp_path: Path, name: str) -> None:
    told = set(re.findall(r"orch_[a-z_]+[a-z]", (ROOT / "docs/reference/server" / name).read_text(encoding="utf-8")))
    settings = Settings(upstreams=(make_upstream().base_url,), cost_per_hour=1.0)
    (tmp_path / "served").mkdir()
    replica = take_turn(str(tmp_path / "replica"), tmp_path / "served", LAYOUT, lambda: False, [].append)
    with over_tcp(tmp_path / "served", settings, replica) as url, sdk_at(url) as sdk:
        run_batch(sdk, [row("a")])
        there = set(re.findall(r"^# TYPE (\w+)", sdk.raw.get("/metrics").text, re.MULTILINE))
    assert len(told) > 15
    assert {one.removesuffix("_bucket") for one in told} <= there


@pytest.fixture
def log_lines() -> Iterator[Callable[[str], io.StringIO]]:
    """`log_lines("json")` is where this process's log goes from then on."""
    root, own = logging.getLogger(), logging.getLogger("orchestrator")
    before = root.handlers[:], root.level, own.level

    def configured(form: str) -> io.StringIO:
        stream = io.StringIO()
        logs.configure(form, "debug", stream)
        return stream

    yield configured
    root.handlers[:], root.level, own.level = before[0], before[1], before[2]
    root.setLevel(before[1])
    own.setLevel(before[2])


SECRETS = ("the-prompts-words", "the-upstreams-key", "the-clients-key", "the-users-mark", "the-answers")


def test_the_log_tells_what_happened_and_no_secret(
    make_upstream: MakeUpstream, tmp_path: Path, log_lines: Callable[[str], io.StringIO]
) -> None:
    log = log_lines("json")
    upstream = make_upstream(api_key="the-upstreams-key")
    settings = Settings(upstreams=(upstream.base_url,), api_key="the-upstreams-key", retry_delay=0.02)
    with over_tcp(tmp_path / "served", settings) as url, sdk_at(url) as sdk:
        until_ready(sdk)
        key = {"Authorization": "Bearer the-clients-key", "api-key": "the-clients-key"}
        faults = (
            "",
            "[[fault:status:400]]",
            "[[fault:context]]",
            "[[fault:cut]]",
            "[[fault:notjson]]",
            "[[fault:html]]",
        )
        rows = [row(f"r{n}", f"the-prompts-words {fault}", user="the-users-mark") for n, fault in enumerate(faults)]
        end = run_batch(sdk, [*rows, b"{the-prompts-words"])
        assert end.batch.status == "failed"
        end = run_batch(sdk, rows)
        for fault in faults:
            ask(sdk, f"the-prompts-words {fault}", user="the-users-mark")
        sdk.raw.post(f"{CHAT}?secret=the-clients-key", content=b'{"the-prompts-words', headers=key)
        upstream.kill()
        ask(sdk, "the-prompts-words")
    text = log.getvalue()
    assert [secret for secret in SECRETS if secret in text] == []
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    mine = [line for line in lines if line.get("batch") == end.batch.id]
    assert [line["message"] for line in mine] == [
        "batch created", "batch in_progress", "batch order", "batch finalizing", "batch completed",
    ]  # fmt: skip
    assert (mine[-1]["total"], mine[-1]["completed"], mine[-1]["failed"]) == end.counts
    asked = [line for line in lines if line["message"] == "request" and line["path"] == CHAT]
    assert (asked[0]["method"], asked[0]["status"], asked[0]["tenant"]) == ("POST", 200, "")
    assert asked[0]["request_id"].startswith("req_")
    assert asked[0]["ms"] > 0
    assert [line["upstream"] for line in lines if line["message"] in ("upstream up", "upstream down")] == [
        upstream.base_url,
        upstream.base_url,
    ]


def test_prompts_are_logged_where_they_are_asked_for(
    make_upstream: MakeUpstream, tmp_path: Path, log_lines: Callable[[str], io.StringIO]
) -> None:
    log = log_lines("json")
    settings = Settings(upstreams=(make_upstream().base_url,), log_prompts=True)
    with over_tcp(tmp_path / "served", settings) as url, sdk_at(url) as sdk:
        until_ready(sdk)
        ask(sdk, "the-prompts-words")
    assert "the-prompts-words" in log.getvalue()


def test_a_path_cannot_begin_a_line_of_the_plain_log(served: Served, log_lines: Callable[[str], io.StringIO]) -> None:
    log = log_lines("text")
    with sdk_at(served.address) as sdk:
        assert sdk.raw.get("/v1/files/x%0a2026-01-01 error forged=1").status_code == 404
    (line,) = wait_until(lambda: [one for one in log.getvalue().splitlines() if "forged" in one])
    assert "orchestrator.server.access: request method=GET" in line


def test_nothing_is_logged_of_requests_above_info(served: Served, log_lines: Callable[[str], io.StringIO]) -> None:
    log = log_lines("text")
    logs.configure("text", "warning", log)
    with sdk_at(served.address) as sdk:
        assert sdk.raw.get("/v1/models").status_code == 200
    assert log.getvalue() == ""
