"""A real vLLM on the CPU does what the rest of the code counts on."""

from __future__ import annotations

import json
import urllib.request
from typing import Any, Protocol

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(900)]

DOCUMENT = "<document>\n" + "The quick brown fox jumps over the lazy dog. " * 12 + "\n</document>\n\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "family": {"enum": ["MIT", "BSD", "Apache-2.0", "other"]},
        "pages": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["family", "pages"],
    "additionalProperties": False,
}


class Engine(Protocol):
    base_url: str
    model: str


def chat(engine: Engine, question: str, **options: object) -> dict[str, Any]:
    body = {
        "model": engine.model,
        "messages": [{"role": "user", "content": DOCUMENT + question}],
        "temperature": 0,
        **options,
    }
    request = urllib.request.Request(
        f"{engine.base_url}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_a_chat_completion(vllm_engine: Engine) -> None:
    answer = chat(vllm_engine, "What jumps?", max_tokens=8)
    assert answer["model"] == vllm_engine.model == "tiny"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 8
    # One token a byte, and <bos> before them.
    assert answer["usage"]["prompt_tokens"] == len(DOCUMENT + "What jumps?") + 1
    again = chat(vllm_engine, "What jumps?", max_tokens=8)
    assert again["choices"][0]["message"]["content"] == answer["choices"][0]["message"]["content"]


def test_a_document_that_was_seen_comes_from_the_cache(vllm_engine: Engine) -> None:
    chat(vllm_engine, "First question", max_tokens=1)
    usage = chat(vllm_engine, "Another one", max_tokens=1)["usage"]
    assert len(DOCUMENT) - 200 < usage["prompt_tokens_details"]["cached_tokens"] <= len(DOCUMENT) + 1


def test_a_schema_holds_even_a_random_model(vllm_engine: Engine) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    choice = chat(vllm_engine, "Which?", max_tokens=200, response_format=form)["choices"][0]
    value = json.loads(choice["message"]["content"])
    assert choice["finish_reason"] == "stop"
    assert value["family"] in {"MIT", "BSD", "Apache-2.0", "other"}
    assert 1 <= len(value["pages"]) <= 2


def test_priorities_are_accepted(vllm_engine: Engine) -> None:
    assert chat(vllm_engine, "Now", max_tokens=1, priority=-5)["choices"]


def test_metrics(vllm_engine: Engine) -> None:
    chat(vllm_engine, "Anything", max_tokens=1)
    with urllib.request.urlopen(f"{vllm_engine.base_url.removesuffix('/v1')}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:prefix_cache_hits_total",
    ):
        assert f'{name}{{engine="0",model_name="tiny"}}' in text, name
