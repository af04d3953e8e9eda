"""What calls do when they misbehave, and synchronous calls with their tiers and limits."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError

import httpx2
import openai
import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import DAY, HOUR, Customer, chat_lines, of_batch

CREATE = {"verb": "create"}
CHAT = {"verb": "chat"}
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class TestCreating:
    @pytest.mark.parametrize(("do", "made"), [("cut_before", 0), ("cut_after", 1)])
    def test_a_cut_says_nothing_of_what_was_done(
        self, provider: Emulator, customer: Customer, do: str, made: int
    ) -> None:
        """apache/airflow#72416: the create call that is sent again buys a second batch."""
        provider.script({"do": do, "match": CREATE})
        with pytest.raises(openai.APIConnectionError):
            customer.create(chat_lines("x"), metadata={"shard": "7"})
        assert [batch.metadata for batch in customer.api.batches.list()] == [{"shard": "7"}] * made
        customer.create(chat_lines("x"))
        assert provider.calls("create") == {0: 1, 200: 1}

    @pytest.mark.parametrize(("do", "made"), [("hang_before", 0), ("hang_after", 1)])
    def test_a_hanging_call_may_have_been_done(
        self, provider: Emulator, customer: Customer, do: str, made: int
    ) -> None:
        file_id = customer.upload(chat_lines("x"))
        provider.script({"do": do, "match": CREATE})
        with pytest.raises(openai.APITimeoutError):
            customer.api.with_options(timeout=0.2).batches.create(
                input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
            )
        assert len(customer.api.batches.list().data) == made

    def test_an_orphan_may_be_listed_late(self, provider: Emulator, customer: Customer) -> None:
        provider.script({"do": "cut_after", "match": CREATE}, {"do": "hidden", "seconds": 600})
        with pytest.raises(openai.APIConnectionError):
            customer.create(chat_lines("x"))
        assert not customer.api.batches.list().data
        provider.clock.advance(600)
        assert len(customer.api.batches.list().data) == 1

    def test_too_many_batches_in_an_hour(self, provider: Emulator, customer: Customer) -> None:
        provider.settings(batches_per_hour=2)
        for _ in range(2):
            customer.create(chat_lines("x"))
        with pytest.raises(openai.RateLimitError) as refused:
            customer.create(chat_lines("x"))
        assert (refused.value.code, refused.value.response.headers["retry-after"]) == ("rate_limit_exceeded", "60")
        provider.clock.advance(HOUR)
        customer.create(chat_lines("x"))

    @pytest.mark.parametrize("limit", [{"max_files": 2}, {"max_bytes": 400}])
    def test_storage_is_full(self, provider: Emulator, customer: Customer, limit: dict[str, int]) -> None:
        provider.settings(**limit)
        kept = [customer.upload(chat_lines("x")) for _ in range(2)]
        with pytest.raises(openai.BadRequestError):
            customer.upload(chat_lines("x"))
        customer.api.files.delete(kept[0])
        customer.upload(chat_lines("x"))


class TestAnyCall:
    @pytest.mark.parametrize(
        ("options", "error", "code"),
        [
            ({"status": 401}, openai.AuthenticationError, "invalid_api_key"),
            ({"status": 413}, openai.APIStatusError, None),
            ({"status": 429, "retry_after": 7}, openai.RateLimitError, "rate_limit_exceeded"),
            ({"status": 429, "code": "insufficient_quota"}, openai.RateLimitError, "insufficient_quota"),
            ({"status": 500}, openai.InternalServerError, None),
            ({"status": 503}, openai.InternalServerError, "overloaded"),
            ({"status": 403, "code": "x", "message": "m", "type": "t"}, openai.PermissionDeniedError, "x"),
            ({"status": 418}, openai.APIStatusError, None),
        ],
        ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
    )
    def test_a_status_instead_of_an_answer(
        self,
        provider: Emulator,
        customer: Customer,
        options: dict[str, Any],
        error: type[openai.APIStatusError],
        code: str | None,
    ) -> None:
        provider.script({"do": "status", "match": {"verb": "retrieve"}, "times": 2, **options})
        batch = customer.create(chat_lines("x"))
        for _ in range(2):
            with pytest.raises(error) as refused:
                customer.api.batches.retrieve(batch.id)
            assert (refused.value.status_code, refused.value.code) == (options["status"], code)
            after = options.get("retry_after")
            assert refused.value.response.headers.get("retry-after") == (str(after) if after else None)
        assert customer.api.batches.retrieve(batch.id).id == batch.id

    def test_a_502_is_html_from_somebody_in_between(self, provider: Emulator, customer: Customer) -> None:
        provider.script({"do": "status", "status": 502})
        with pytest.raises(openai.InternalServerError) as refused:
            customer.api.models.list()
        assert refused.value.response.headers["content-type"].startswith("text/html")

    def test_the_nth_call_that_matches(self, provider: Emulator, customer: Customer) -> None:
        provider.script({"do": "status", "match": {"verb": "models", "nth": 2, "flavour": "openai"}, "times": None})
        customer.api.models.list()
        customer.api.models.retrieve("m")
        for _ in range(3):
            with pytest.raises(openai.InternalServerError):
                customer.api.models.list()
        provider.clear()
        customer.api.models.list()
        assert provider.calls("models") == {200: 2, 500: 3}

    def test_a_fault_for_one_model(self, provider: Emulator, customer: Customer) -> None:
        provider.script({"do": "status", "match": {"model": "bad"}, "times": None})
        good, bad = (customer.upload(chat_lines("x", model=model)) for model in ("good", "bad"))
        batch = customer.run(chat_lines("x", model="good"))
        assert customer.read(batch.output_file_id)
        customer.read(good)
        for call in (
            lambda: customer.read(bad),
            lambda: customer.api.models.retrieve("bad"),
            lambda: customer.api.chat.completions.create(**{**ASK, "model": "bad"}),
            lambda: customer.create(chat_lines("x", model="bad")),
        ):
            with pytest.raises(openai.InternalServerError):
                call()

    def test_a_download_is_cut_in_its_middle(self, provider: Emulator, customer: Customer) -> None:
        batch = customer.run(chat_lines(*"abcdef"))
        provider.script({"do": "cut_body", "match": {"verb": "content"}})
        with pytest.raises(openai.APIConnectionError):
            customer.read(batch.output_file_id)
        assert len(customer.rows(batch.output_file_id)) == 6

    @pytest.mark.parametrize(("whole_lines", "lines"), [(False, 4), (True, 3)])
    def test_a_download_ends_too_soon(
        self, provider: Emulator, customer: Customer, whole_lines: bool, lines: int
    ) -> None:
        batch = customer.run(chat_lines(*"abcdef"))
        whole = customer.read(batch.output_file_id)
        provider.script({"do": "short_body", "share": 0.6, "whole_lines": whole_lines})
        content = customer.read(batch.output_file_id)
        assert whole.startswith(content)
        assert len(content.splitlines()) == lines
        assert content.endswith(b"\n") == whole_lines

    def test_what_is_no_route_and_no_json(self, customer: Customer) -> None:
        for path, body, status in (("/moderations", {}, 404), ("/batches", [], 400)):
            with pytest.raises(openai.APIStatusError) as refused:
                customer.api.post(path, cast_to=object, body=body)
            assert refused.value.status_code == status

    def test_the_date_is_the_clocks(self, provider: Emulator, customer: Customer) -> None:
        provider.clock.advance(DAY)
        answer = customer.api.models.with_raw_response.list()
        assert answer.headers["date"] == "Wed, 02 Dec 2026 00:00:00 GMT"
        assert answer.headers["x-request-id"]

    def test_models_are_those_that_are_set(self, provider: Emulator, customer: Customer) -> None:
        assert customer.api.models.retrieve("any").id == "any"
        provider.settings(models=["m"])
        assert [model.id for model in customer.api.models.list()] == ["m"]
        with pytest.raises(openai.NotFoundError):
            customer.api.models.retrieve("any")


class TestSynchronous:
    def ask(self, customer: Customer, text: str = "hello", **fields: Any) -> Any:
        messages: Any = [{"role": "user", "content": text}]
        return customer.api.chat.completions.create(model="m", messages=messages, **fields)

    def test_the_tier_that_is_asked_for_is_served_and_billed(self, provider: Emulator, customer: Customer) -> None:
        told = [self.ask(customer, service_tier=tier) for tier in ("flex", "priority", "auto")]
        assert [one.service_tier for one in told] == ["flex", "priority", "default"]
        lines = provider.bill()["lines"]
        assert [(line["tier"], line["rows"], line["input"]) for line in lines] == [
            ("default", 1, 2),
            ("flex", 1, 2),
            ("priority", 1, 2),
        ]
        assert sum(line["output"] for line in lines) == sum(one.usage.completion_tokens for one in told)

    def test_it_answers_as_a_batch_does(self, provider: Emulator, customer: Customer) -> None:
        batch = customer.run(chat_lines("hello"))
        [row] = customer.rows(batch.output_file_id)
        assert (
            self.ask(customer).choices[0].message.content
            == (row["response"]["body"]["choices"][0]["message"]["content"])
        )
        assert list(provider.bill(rows=True)["asked"].values()) == [2]

    @pytest.mark.parametrize("do", ["cut_after", "cut_before"])
    def test_what_was_processed_is_billed_though_nobody_saw_it(
        self, provider: Emulator, customer: Customer, do: str
    ) -> None:
        provider.script({"do": do, "match": CHAT})
        with pytest.raises(openai.APIConnectionError):
            self.ask(customer)
        self.ask(customer)
        assert provider.bill()["lines"][0]["rows"] == (2 if do == "cut_after" else 1)

    @pytest.mark.parametrize(
        ("fault", "error"), [("cut:1", openai.APIConnectionError), ("hang:1", openai.APITimeoutError)]
    )
    def test_a_row_may_ask_for_it_itself(
        self, provider: Emulator, customer: Customer, fault: str, error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            self.ask(customer, f"[[fault:{fault}]]", timeout=0.3)
        self.ask(customer, f"[[fault:{fault}]]")
        assert provider.bill()["lines"][0]["rows"] == 2

    def test_flex_may_have_no_resources(self, provider: Emulator, customer: Customer) -> None:
        for _ in range(2):
            with pytest.raises(openai.RateLimitError) as refused:
                self.ask(customer, "x [[fault:resource_unavailable:2]]", service_tier="flex")
            assert refused.value.code == "resource_unavailable"
        assert self.ask(customer, "x [[fault:resource_unavailable:2]]", service_tier="flex").service_tier == "flex"
        assert provider.bill()["lines"][0]["rows"] == 1

    def test_faults_of_rows_hold_here_too(self, provider: Emulator, customer: Customer) -> None:
        provider.script({"do": "rows", "row": "length", "match": CHAT})
        assert self.ask(customer).choices[0].finish_reason == "length"
        raw = customer.api.chat.completions.with_raw_response
        broken, quoted = (
            raw.create(model="m", messages=[{"role": "user", "content": f"[[fault:{fault}]]"}]).http_response.content
            for fault in ("broken_line", "body_string")
        )
        assert broken.startswith(b'{"id":"chatcmpl-')
        assert not broken.endswith(b"}")
        assert json.loads(json.loads(quoted))["object"] == "chat.completion"

    @pytest.mark.parametrize(
        ("limits", "refused_header"),
        [({"requests_per_minute": 2}, "requests"), ({"tokens_per_minute": 60}, "tokens")],
    )
    def test_limits_are_told_and_kept(
        self, provider: Emulator, customer: Customer, limits: dict[str, int], refused_header: str
    ) -> None:
        assert "x-ratelimit-limit-requests" not in httpx2.get(f"{provider.url_openai}/models").headers
        provider.settings(**limits)
        answer = customer.api.chat.completions.with_raw_response.create(**ASK)
        limit = next(iter(limits.values()))
        assert answer.headers[f"x-ratelimit-limit-{refused_header}"] == str(limit)
        assert int(answer.headers[f"x-ratelimit-remaining-{refused_header}"]) < limit
        assert answer.headers[f"x-ratelimit-reset-{refused_header}"].endswith("s")
        with pytest.raises(openai.RateLimitError, match="Please try again in") as refused:
            [self.ask(customer) for _ in range(20)]
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert int(refused.value.response.headers["retry-after-ms"]) >= 1
        provider.settings(**dict.fromkeys(limits))
        self.ask(customer)

    def test_it_takes_its_time(self, provider: Emulator, customer: Customer) -> None:
        provider.settings(latency_ms=60_000)
        with pytest.raises(openai.APITimeoutError):
            self.ask(customer, timeout=0.2)
        assert provider.bill()["lines"][0]["rows"] == 1, "it was being processed"

    @pytest.mark.parametrize(
        ("changed", "status"),
        [({"model": None}, 400), ({"messages": None}, 400), ({"stream": True}, 400), ({"model": "x"}, 404)],
    )
    def test_what_it_does_not_take(
        self, provider: Emulator, customer: Customer, changed: dict[str, Any], status: int
    ) -> None:
        provider.settings(models=["m"])
        with pytest.raises(openai.APIStatusError) as refused:
            customer.api.post("/chat/completions", cast_to=object, body=ASK | changed)
        assert refused.value.status_code == status


@pytest.mark.parametrize(
    "fault",
    [
        {"do": "nothing"},
        {"do": "hidden", "minutes": 1},
        {"do": "hidden", "match": {"word": "create"}},
        {"do": "rows", "row": "nonsense"},
        {"do": "rows", "row": "missing:1:2"},
    ],
)
def test_a_script_with_a_slip_is_refused(provider: Emulator, fault: dict[str, Any]) -> None:
    with pytest.raises(HTTPError, match="400"):
        provider.script(fault)
    assert provider.state()["script"] == []


def test_a_setting_with_a_slip_is_refused(provider: Emulator) -> None:
    with pytest.raises(HTTPError, match="400"):
        provider.settings(turnaround=[1, 2])


def test_the_state_tells_what_is_hidden_too(provider: Emulator, customer: Customer) -> None:
    of_batch(provider, "hidden", seconds=HOUR)
    batch = customer.create(chat_lines("x"))
    state = provider.state()
    assert [(one["id"], one["status"], one["rows"]) for one in state["batches"]] == [(batch.id, "validating", 0)]
    assert [(file["purpose"], file["is_there"]) for file in state["files"]] == [("batch", True)]
    assert state["script"][0]["seen"] == 1
