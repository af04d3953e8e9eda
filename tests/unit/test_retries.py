"""The request that shows a model what was wrong with its answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.policy.reask_lines import MENDABLE, MOST_ANSWER, mended
from orchestrator.policy.row_errors import BAD_ANSWERS

LINE: dict[str, Any] = {
    "custom_id": "t-1", "method": "POST", "url": "/v1/chat/completions",
    "body": {
        "model": "m", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q é"}],
        "max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {"schema": {"b": 1, "a": 2}}},
    },
}  # fmt: skip
RAW = json.dumps(LINE).encode()


@pytest.mark.parametrize(
    ("answer", "code", "message", "said", "fault"),
    [
        ('{"x": 1}', "schema_mismatch", "x: 1 is not of type 'string'", '{"x": 1}', "x: 1 is not of type 'string'"),
        ("hm\n", "invalid_json", "the answer is not JSON: no.", "hm", "the answer is not JSON: no"),
        ('{"a', "truncated", "raise max_tokens", '{"a', "it was cut off before its end, so it must be shorter"),
        (None, "empty_answer", "nothing", "(no answer)", "it was empty"),
        (" ", "empty_answer", "nothing", "(no answer)", "it was empty"),
        ("x" * 9000, "invalid_json", "no", "x" * MOST_ANSWER, "no"),
    ],
)
def test_the_answer_and_its_fault_come_below_the_question(
    answer: str | None, code: str, message: str, said: str, fault: str
) -> None:
    found = json.loads(mended(RAW, answer, code, message))
    *question, assistant, user = found["body"].pop("messages")
    assert question == LINE["body"]["messages"]
    assert assistant == {"role": "assistant", "content": said}
    assert user["role"] == "user"
    assert user["content"].startswith(f"Your answer was not accepted: {fault}.\n")
    rest = {**LINE, "body": {name: value for name, value in LINE["body"].items() if name != "messages"}}
    assert json.dumps(found) == json.dumps(rest)  # the schema's order too


def test_only_what_a_model_can_mend_is_shown_to_it() -> None:
    unmendable = {"context_full", "refusal", "content_filter", "invalid_vector", "swapped_answer", "unproven_answer"}
    assert set(BAD_ANSWERS) - MENDABLE == unmendable
