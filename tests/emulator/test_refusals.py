"""What the emulator refuses: each line that a real provider was seen to refuse, its siblings, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import anthropic
import openai
import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import NO_TLS, Customer, chat_line
from tests.emulator.refusal_cases import (
    CHAT,
    EMBEDDINGS,
    MESSAGES,
    OPEN,
    REFUSED,
    RESPONSES,
    TAKEN,
    Json,
    as_chat,
)
from tests.emulator.refusals import refusal_of

RECORDED = Path(__file__).resolve().parents[3] / "shared/real-traffic/recorded.jsonl"
ENDPOINT_OF = {"chat": CHAT, "responses": RESPONSES, "embeddings": EMBEDDINGS, "anthropic": MESSAGES}
BETA = {"mcp_servers", "output_format", "context_management", "stream"}
"""Fields that the recordings' beta headers allow."""


def body_of(model: str, endpoint: str, asked: Json) -> Json:
    text = {"messages": [{"role": "user", "content": "x"}]} if endpoint in (CHAT, MESSAGES) else {"input": "x"}
    return {"model": model, **text, **({"max_tokens": 99} if endpoint == MESSAGES else {}), **asked}


@pytest.mark.parametrize(("flavour", "endpoint", "names", "asked", "words"), REFUSED)
def test_what_real_providers_refuse_is_refused(
    flavour: str, endpoint: str, names: str, asked: Json, words: str
) -> None:
    for model in names.split():
        found = refusal_of(flavour, endpoint, body_of(model, endpoint, asked))
        assert found is not None, model
        assert words in found.message, model
        assert 400 <= found.status < 500


@pytest.mark.parametrize(("flavour", "endpoint", "names", "asked"), TAKEN)
def test_what_they_take_is_taken(flavour: str, endpoint: str, names: str, asked: Json) -> None:
    for model in names.split():
        assert refusal_of(flavour, endpoint, body_of(model, endpoint, asked)) is None, model


@pytest.mark.skipif(not RECORDED.exists(), reason="the recordings are not here")
def test_no_request_that_was_answered_is_refused_here() -> None:
    seen = 0
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        pair = json.loads(line)
        request = pair["request"]
        if pair["status"] != 200 or pair["kind"] not in ENDPOINT_OF or not isinstance(request, dict):
            continue
        body = {name: value for name, value in request.items() if name not in BETA}
        body.setdefault("model", pair["model"])
        found = refusal_of(pair["provider"], ENDPOINT_OF[pair["kind"]], body)
        assert found is None, (pair["provider"], body["model"], found)
        seen += 1
    assert seen > 400


ROWS = [
    (CHAT, "gpt-5-nano", {"max_tokens": 9}, "max_tokens", 400),
    (CHAT, "gpt-5-nano", {"logprobs": True}, None, 403),
    (RESPONSES, "gpt-4o", {"max_output_tokens": 5}, "max_output_tokens", 400),
    (EMBEDDINGS, "text-embedding-ada-002", {"dimensions": 256}, "dimensions", 400),
]


@pytest.mark.parametrize(("endpoint", "model", "asked", "param", "status"), ROWS)
def test_a_refused_row_is_an_error_row_and_a_refused_call_an_error(
    customer: Customer, endpoint: str, model: str, asked: Json, param: str | None, status: int
) -> None:
    line = {**chat_line("bad", "x"), "url": endpoint, "body": body_of(model, endpoint, asked)}
    good = {**chat_line("good", "x"), "url": endpoint, "body": body_of(model, endpoint, {})}
    batch = customer.later(customer.create([line, good], endpoint=endpoint))
    [row] = customer.rows(batch.error_file_id)
    assert row["custom_id"] == "bad"
    assert row["response"]["status_code"] == status
    assert row["response"]["body"]["error"]["param"] == param
    assert [one["custom_id"] for one in customer.rows(batch.output_file_id)] == ["good"]
    with pytest.raises(openai.APIStatusError) as caught:
        customer.api.post(endpoint.removeprefix("/v1"), cast_to=object, body=line["body"])
    assert (caught.value.status_code, caught.value.param) == (status, param)
    told = row["response"]["body"]["error"]["message"]
    assert customer.provider.refused() == [f"{model}: {told}"]
    assert sum(line["rows"] for line in customer.provider.bill()["lines"]) == 1
    customer.api.post(endpoint.removeprefix("/v1"), cast_to=object, body=good["body"])
    assert sum(line["rows"] for line in customer.provider.bill()["lines"]) == 2


def test_a_refused_message_is_an_error_too(provider: Emulator) -> None:
    client = openai.DefaultHttpxClient(verify=NO_TLS)
    api = anthropic.Anthropic(base_url=provider.url_anthropic, api_key="sk-ant", max_retries=0, http_client=client)
    asked: Json = {"model": "claude-opus-5", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(anthropic.BadRequestError, match="`temperature` is deprecated for this model"):
        api.messages.create(**asked, extra_body={"temperature": 0})
    with pytest.raises(anthropic.BadRequestError, match="seed: Extra inputs are not permitted"):
        api.messages.create(**asked, extra_body={"seed": 0})
    assert api.messages.create(**asked).stop_reason == "end_turn"
    api.close()


@pytest.mark.parametrize(
    ("flavour", "model", "asked", "status", "shape"),
    [
        ("mistral", "mistral-small-latest", {"seed": 1}, 422, '{"detail":[{"type":"extra_forbidden"'),
        ("xai", "grok-4.6", {"stop": ["x"]}, 400, '{"code":"Client specified an invalid argument","error":"Model'),
        ("openrouter", "openai/gpt-4o", as_chat(OPEN), 400, '{"error":{"message":"Provider returned error"'),
    ],
)
def test_others_answer_in_their_own_shapes(
    provider: Emulator, flavour: str, model: str, asked: Json, status: int, shape: str
) -> None:
    customer = Customer(provider, provider.url_of(flavour))
    with pytest.raises(openai.APIStatusError) as caught:
        customer.api.post("/chat/completions", cast_to=object, body=body_of(model, CHAT, asked))
    assert caught.value.status_code == status
    assert caught.value.response.text.startswith(shape)
    customer.close()


def test_a_provider_that_takes_everything_can_be_asked_for(customer: Customer) -> None:
    customer.provider.settings(truthful=False)
    batch = customer.run([chat_line("r", "x", "gpt-5-nano", max_tokens=9)])
    assert [row["custom_id"] for row in customer.rows(batch.output_file_id)] == ["r"]
    assert customer.provider.refused() == []
