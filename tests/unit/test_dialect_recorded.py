"""The dialect against requests that real providers have accepted: none of them is told to be refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.policy.dialect import Recipient, dialect_of

RECORDED = Path(__file__).parents[3] / "shared" / "real-traffic" / "recorded.jsonl"
ENDPOINTS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "embeddings": "/v1/embeddings"}
KNOWN = {"openai", "azure", "groq", "mistral", "deepseek", "xai", "moonshot", "openrouter", "local"}

pytestmark = pytest.mark.skipif(not RECORDED.exists(), reason="the recordings are not part of the project")


def accepted() -> Iterator[dict[str, Any]]:
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        pair = json.loads(line)
        if pair["status"] == 200 and pair["kind"] in ENDPOINTS and isinstance(pair["request"], dict):
            yield pair


@pytest.mark.slow
def test_what_a_provider_has_accepted_is_no_loss_and_keeps_its_meaning() -> None:
    seen = 0
    for pair in accepted():
        provider = pair["provider"] if pair["provider"] in KNOWN else "other"
        dialect = dialect_of(Recipient(provider), str(pair["model"]), ENDPOINTS[pair["kind"]])
        body = pair["request"]
        assert dialect.losses(body) == (), pair["source"]
        assert dialect.endpoint == ENDPOINTS[pair["kind"]], pair["source"]
        written = dialect.body(body)
        # Strict schemas may be written anew; all else stays as a person wrote it.
        same = {name for name in body if name not in ("model", "response_format", "text")}
        assert {name: written.get(name) for name in same} == {name: body[name] for name in same}, pair["source"]
        seen += 1
    assert seen > 300
