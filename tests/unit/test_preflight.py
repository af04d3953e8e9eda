"""What the row that is asked before a batch shows: sets of fields, and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.core.refused_fields import ProviderError
from orchestrator.policy.preflight import DirectAnswer, PreflightFinding, fields_of, judge

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "temperature": 0}


def line(**body: Any) -> bytes:
    return json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}).encode()


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"model": "m", "messages": []}, "messages model"),
        ({"b": 1, "a": None, "model": "m"}, "a b model"),
        ({"response_format": {"type": "json_object"}}, "response_format:json_object"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format:json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": True}}},
            "response_format:json_schema!",
        ),
        ({"text": {"format": {"type": "json_schema", "schema": {}, "strict": True}}}, "text:json_schema!"),
        ({"text": {"verbosity": "low"}}, "text:None"),
        ({"response_format": None}, "response_format:None"),
        ({"response_format": {"format": 3}}, "response_format:other"),
    ],
)
def test_a_set_of_fields_is_their_names_and_the_kind_of_the_schema(body: dict[str, Any], fields: str) -> None:
    assert fields_of(line(**body)) == fields


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b'{"body": 3}', b"{", b'{"custom_id": "a"}'])
def test_what_is_not_a_request_line_has_no_fields(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        fields_of(raw)


def refusal(status: int | None, message: str, **more: str) -> DirectAnswer:
    return DirectAnswer(status, error=ProviderError(status, message=message, **more))


@pytest.mark.parametrize(
    ("answer", "is_unlisted", "finding"),
    [
        (DirectAnswer(200, b"{}"), False, PreflightFinding.ANSWERED),
        (DirectAnswer(200, None), False, PreflightFinding.UNCLEAR),
        (DirectAnswer(200, b"[]"), False, PreflightFinding.UNCLEAR),
        (DirectAnswer(200, b'{"error": {"message": "no"}}'), False, PreflightFinding.UNCLEAR),
        (DirectAnswer(200, b'{"detail": "no worker"}'), False, PreflightFinding.UNCLEAR),
        (DirectAnswer(200, b'{"choices": [{"finish_reason": "abort"}]}'), False, PreflightFinding.UNCLEAR),
        (DirectAnswer(None), False, PreflightFinding.UNCLEAR),
        (refusal(400, "Unsupported parameter: 'max_tokens'"), False, PreflightFinding.REFUSED),
        (refusal(422, "temperature: Extra inputs are not permitted"), False, PreflightFinding.REFUSED),
        (refusal(400, "no", param="temperature"), False, PreflightFinding.REFUSED),
        (refusal(400, "the image is too large"), False, PreflightFinding.UNCLEAR),
        (refusal(403, "You may not use temperature with this model"), False, PreflightFinding.UNCLEAR),
        (refusal(429, "max_tokens is too large for your quota"), False, PreflightFinding.UNCLEAR),
        (refusal(500, "validation error for max_tokens"), False, PreflightFinding.UNCLEAR),
        (refusal(404, "The model m does not exist"), True, PreflightFinding.REFUSED),
        (refusal(404, "The model m does not exist"), False, PreflightFinding.UNCLEAR),
        (refusal(404, "no", code="model_not_found"), True, PreflightFinding.REFUSED),
        (refusal(404, "Not Found"), True, PreflightFinding.UNCLEAR),
        (refusal(401, "The model m does not exist"), True, PreflightFinding.UNCLEAR),
    ],
)
def test_only_a_refusal_of_the_request_holds_a_batch(
    answer: DirectAnswer, is_unlisted: bool, finding: PreflightFinding
) -> None:
    assert judge(answer, BODY, is_unlisted=is_unlisted) is finding
