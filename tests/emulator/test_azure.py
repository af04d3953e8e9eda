"""Where Azure's spelling and its life of a batch differ from OpenAI's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx2
import openai
import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import DAY, HOUR, SIX, Customer, chat_line, chat_lines, jsonl, of_batch


@pytest.fixture
def azure(provider: Emulator) -> Iterator[Customer]:
    customer = Customer(provider, provider.url_azure)
    yield customer
    customer.close()


def test_statuses_are_capitalised_times_are_iso_and_counts_null(provider: Emulator, azure: Customer) -> None:
    provider.settings(validating_s=[10, 10], turnaround_s=[HOUR, HOUR])
    batch = azure.create(chat_lines(*SIX))
    assert (batch.status, batch.request_counts) == ("Validating", None)
    assert datetime.fromisoformat(batch.created_at) == provider.clock.now()
    running = azure.later(batch, 60)
    assert (running.status, running.request_counts.total) == ("In_progress", None)
    ended = azure.later(batch, 2 * HOUR)
    assert (ended.status, ended.request_counts.completed) == ("Completed", 6)


def test_a_batch_without_errors_has_a_zero_byte_error_file(azure: Customer) -> None:
    batch = azure.run(chat_lines(*SIX))
    assert batch.error_file_id is not None
    assert azure.read(batch.error_file_id) == b""
    assert len(azure.rows(batch.output_file_id)) == 6


def test_over_24_hours_and_still_running(provider: Emulator, azure: Customer) -> None:
    of_batch(provider, "turnaround", seconds=30 * HOUR)
    batch = azure.create(chat_lines(*SIX))
    assert azure.later(batch, 26 * HOUR).status == "In_progress"
    assert azure.later(batch, 5 * HOUR).status == "Completed"


def test_the_key_may_be_an_api_key_header(provider: Emulator) -> None:
    provider.settings(accounts={"k": "org-k"})
    with openai.OpenAI(
        base_url=provider.url_azure, api_key="none", default_headers={"api-key": "k"}, max_retries=0
    ) as api:
        assert api.models.with_raw_response.list().headers["openai-organization"] == "org-k"


@pytest.mark.parametrize("endpoint", ["/chat/completions", "/v1/chat/completions"])
def test_urls_without_v1_are_one_with_those_that_have_it(azure: Customer, endpoint: str) -> None:
    lines = [chat_line("a", "x") | {"url": "/chat/completions"}]
    assert azure.run(lines, endpoint=endpoint).status == "Completed"


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (chat_line("b", "x") | {"url": "/chat/completions"}, "url_mismatch"),
        (chat_line("b", "x", "other"), "model_mismatch"),
        (chat_line("a", "x"), "duplicate_custom_id"),
        (b"no JSON", "invalid_json_line"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_codes_are_azures(azure: Customer, bad: Any, code: str) -> None:
    errors = azure.run([chat_line("a", "x"), bad]).errors
    assert [(one.code, one.line) for one in errors.data] == [(code, 2)]


def test_a_byte_order_mark_is_taken_for_a_missing_model(azure: Customer) -> None:
    file = azure.api.files.create(file=("a.jsonl", b"\xef\xbb\xbf" + jsonl(chat_lines("x"))), purpose="batch")
    batch = azure.api.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    errors = azure.later(batch).errors
    [told] = errors.data
    assert (told.code, told.param) == ("invalid_request", "body.model")


def test_files_may_expire_after_14_days_and_not_before(provider: Emulator, azure: Customer) -> None:
    def upload(days: int) -> Any:
        after: Any = {"anchor": "created_at", "seconds": int(days * DAY)}
        return azure.api.files.create(file=("a.jsonl", b"{}"), purpose="batch", expires_after=after)

    assert azure.api.files.retrieve(azure.upload(chat_lines("x"))).expires_at is None
    assert upload(14).expires_at is not None
    with pytest.raises(openai.BadRequestError):
        upload(13)


@pytest.mark.long
def test_files_that_do_not_expire_are_500_at_most(provider: Emulator, azure: Customer) -> None:
    after: Any = {"anchor": "created_at", "seconds": int(14 * DAY)}
    with httpx2.Client(headers={"api-key": azure.api.api_key}) as plain:
        for _ in range(500):
            plain.post(f"{provider.url_azure}files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}")})
    with pytest.raises(openai.BadRequestError):
        azure.upload([b"{}"])
    azure.upload([b"{}"], expires_after=after)


@pytest.mark.parametrize("queues", [True, False])
def test_above_the_quota_a_batch_waits_or_fails(provider: Emulator, azure: Customer, queues: bool) -> None:
    """Some regions queue what is above the quota."""
    provider.settings(enqueued_tokens={"*": 100}, turnaround_s=[HOUR, HOUR], azure_queues=queues)
    texts = ["x" * 4 * 60]
    azure.create(chat_lines(*texts))
    provider.clock.advance(60)
    second = azure.create(chat_lines(*texts))
    assert azure.later(second, 600).status == ("Validating" if queues else "Failed")
    assert azure.later(second, HOUR).status == ("In_progress" if queues else "Failed")
