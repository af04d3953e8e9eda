"""xAI's Batch API, where it is otherwise than OpenAI's: names, counts for a status, dates, pages of results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.backends import Backend, BatchOrder, Intent, RemoteBatch
from orchestrator.backends.lenient_batches import remote_batch
from orchestrator.backends.package import BackendAccess
from orchestrator.backends.xai import PACKAGE
from orchestrator.backends.xai.batches import batch_of, result_line
from orchestrator.backends.xai.settings import XaiBackend
from orchestrator.core.errors import AccountError, BackendRefused
from tests.emulator.client import Emulator

CHAT = "/v1/chat/completions"
MODEL = "grok-4.3"
KEY = "xai-secret-0123456789"
DAY = 86_400.0
AT = datetime(2026, 8, 10, 17, 30, tzinfo=UTC)
# Recorded: crmne/ruby_llm, August 2026.
RECORDED = {
    "batch_id": "batch_6cf19793",
    "name": "ruby_llm_201e8f705b86eb67",
    "create_time": "2026-08-10",
    "expire_time": "2026-09-09",
    "cancel_time": None,
    "cancel_by_xai_message": None,
    "state": {"num_requests": 2, "num_pending": 2, "num_success": 0, "num_error": 0, "num_cancelled": 0},
}


@pytest.fixture
def backend(emulator: Emulator) -> Iterator[Backend]:
    emulator.reset(1)
    settings = XaiBackend(kind="xai", base_url=emulator.url_of("xai"), api_key_env="K")
    opened = PACKAGE.open(settings, BackendAccess("xai", KEY))
    yield opened
    opened.close()


def written(folder: Path, rows: int = 1) -> Path:
    path = folder / "shard.input.jsonl"
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say it"}]}
    lines = [{"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": body} for number in range(rows)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def sent(backend: Backend, path: Path, shard: str = "it-1.001", rows: int = 1) -> RemoteBatch:
    file_id = backend.upload(path, f"{shard}.jsonl")
    return backend.create(BatchOrder(shard, file_id, CHAT, 86_400, rows, "home", MODEL))


def read(**changes: object) -> RemoteBatch:
    return remote_batch(batch_of({**RECORDED, **changes}, AT))


def counts(pending: int = 0, success: int = 0, error: int = 0, cancelled: int = 0) -> dict[str, object]:
    total = pending + success + error + cancelled
    names = ("requests", "pending", "success", "error", "cancelled")
    return {
        f"num_{name}": count for name, count in zip(names, (total, pending, success, error, cancelled), strict=True)
    }


@pytest.mark.parametrize(
    ("changes", "status", "has_results"),
    [
        ({}, "in_progress", False),
        ({"state": counts()}, "validating", False),
        ({"state": counts(success=1, error=1)}, "completed", True),
        ({"state": counts(error=2)}, "completed", True),
        ({"state": {"num_requests": "2", "num_pending": "0", "num_success": "2"}}, "completed", True),
        ({"cancel_time": "2026-08-10", "state": counts(pending=1, success=1)}, "cancelling", False),
        ({"cancel_time": "2026-08-10", "state": counts(success=1, cancelled=1)}, "cancelled", True),
        ({"cancel_time": "2026-08-10", "state": counts()}, "cancelled", False),
        ({"cancel_time": "2026-08-10", "cancel_by_xai_message": "no", "state": counts()}, "failed", False),
        ({"cancel_by_xai_message": "no", "state": counts(success=1, cancelled=1)}, "cancelled", True),
        ({"expire_time": "2026-08-10"}, "in_progress", False),
        ({"expire_time": "2026-08-09", "state": counts(pending=1, success=1)}, "expired", True),
        ({"state": None}, "in_progress", False),
    ],
)  # fmt: skip
def test_counts_and_times_say_how_a_batch_is(changes: dict[str, object], status: str, has_results: bool) -> None:
    batch = read(**changes)
    assert (batch.status, batch.output_file_id is not None) == (status, has_results)
    assert [problem.message for problem in batch.problems] == (["no"] if status == "failed" else [])


def test_a_date_is_read_as_its_latest_moment() -> None:
    assert read().created_at == AT
    assert read(create_time="2026-08-08").created_at == datetime(2026, 8, 9, tzinfo=UTC)
    assert read(create_time="2026-08-08T10:00:00Z").created_at == datetime(2026, 8, 8, 10, tzinfo=UTC)


def test_a_recorded_result_is_openais_line() -> None:
    usage = {"prompt_tokens": 204, "completion_tokens": 1, "total_tokens": 287, "cost_in_usd_ticks": 2087200}
    body = {"id": "4a5717cc", "choices": [{"message": {"content": "4"}, "finish_reason": "stop"}], "usage": usage}
    told = {"batch_request_id": "0", "batch_result": {"response": {"chat_get_completion": body}}}
    line = json.loads(result_line(told))
    assert (line["custom_id"], line["response"]["status_code"], line["response"]["body"]) == ("0", 200, body)


@pytest.mark.parametrize(
    ("result", "status", "code"),
    [
        ({"batch_result": {"error": {"code": 3, "message": "boom"}}}, 400, None),
        ({"batch_result": {"error": {"code": 8, "message": "boom"}}}, 429, None),
        ({"error_message": "boom"}, 502, None),
        ({"batch_result": {"error": {"code": 1, "message": "boom"}}}, None, "batch_cancelled"),
        ({"batch_result": {}}, None, "unknown_result"),
    ],
)
def test_errors_of_rows(result: dict[str, object], status: int | None, code: str | None) -> None:
    line = json.loads(result_line({"batch_request_id": "r", **result}))
    response = line["response"] or {}
    assert (line["custom_id"], response.get("status_code"), (line["error"] or {}).get("code")) == ("r", status, code)
    if status is not None:
        assert response["body"]["error"]["message"] == "boom"


@pytest.mark.long
def test_every_page_of_batches_files_and_results_is_read(
    backend: Backend, emulator: Emulator, tmp_path: Path
) -> None:
    path = written(tmp_path)
    ids = [sent(backend, path, f"it-1.{number:03d}").id for number in range(102)]
    large = sent(backend, written(tmp_path, 202), "it-2.001", 202)
    emulator.clock.advance(DAY)
    assert [batch.id for batch in backend.batches()] == [large.id, *ids[::-1]]
    assert len({file.id for file in backend.files()}) == 103
    ended = backend.retrieve(large.id)
    assert ended is not None
    assert (ended.status, ended.completed, ended.shard, ended.home) == ("completed", 202, "it-2.001", "home")
    assert ended.output_file_id is not None
    backend.download(ended.output_file_id, tmp_path / "out.jsonl", path)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["custom_id"] for line in lines] == [f"r{number}" for number in range(202)]
    assert backend.size_of(ended.output_file_id) is None
    backend.forget_file(ended.output_file_id)


def test_a_batch_is_found_by_its_name_though_times_are_dates(
    backend: Backend, emulator: Emulator, tmp_path: Path
) -> None:
    path = written(tmp_path)
    batch = sent(backend, path)
    since = emulator.clock.now() - timedelta(seconds=5)
    found = backend.find(Intent("it-1.001", 1, since, path, lambda _: None))
    assert found.batch is not None
    assert found.batch.id == batch.id
    assert backend.find(Intent("it-1.002", 1, since, path, lambda _: None)).batch is None


def test_refusals_are_told_in_its_words_and_without_the_key(
    backend: Backend, emulator: Emulator, tmp_path: Path
) -> None:
    with pytest.raises(BackendRefused, match="not found"):
        backend.create(BatchOrder("it-1.001", "file_none", CHAT, 86_400, 1, "home", MODEL))
    emulator.settings(accounts={"another": "org"})
    with pytest.raises(AccountError) as caught:
        list(backend.batches())
    assert KEY not in str(caught.value)


def test_a_batch_expires_after_a_month_and_keeps_its_results(
    backend: Backend, emulator: Emulator, tmp_path: Path
) -> None:
    emulator.script({"do": "stuck_in_progress", "share": 0.5})
    batch = sent(backend, written(tmp_path, 4), rows=4)
    emulator.clock.advance(2 * DAY)
    running = backend.retrieve(batch.id)
    assert running is not None
    assert (running.status, running.completed) == ("in_progress", 2)
    emulator.clock.advance(30 * DAY)
    expired = backend.retrieve(batch.id)
    assert expired is not None
    assert expired.output_file_id is not None
    assert (expired.status, len(backend.input_ids(expired) or ())) == ("expired", 2)
    backend.download(expired.output_file_id, tmp_path / "out.jsonl", tmp_path / "shard.input.jsonl")
    assert len((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_one_row_is_asked_at_the_synchronous_endpoint(backend: Backend, tmp_path: Path) -> None:
    answer = backend.ask(CHAT, written(tmp_path).read_bytes().splitlines()[0])
    assert answer.status == 200
    assert backend.lists_model(MODEL)
