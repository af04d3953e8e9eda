"""The reason in an upstream's own words reaches the row, whatever its shape: one bad row among others, by the CLI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Orch, write_config
from tests.support.letters import counts, documents, gateway, job_file, run
from tests.support.scripted import Answer

ROWS = 4
SGLANG = "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens). Use a shorter input."
VLLM = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."
TOO_LONG: dict[str, tuple[str, Any]] = {
    "sglang": (SGLANG, {"object": "error", "message": SGLANG, "type": "BadRequestError", "code": 400}),
    "fastapi": (VLLM, {"detail": [{"loc": ["body", "messages"], "msg": VLLM, "input": "Letter 2."}]}),
    "vllm, nested": (VLLM, {"error": {"error": {"message": VLLM, "type": "BadRequestError", "code": 400}}}),
    "openrouter": (VLLM, {"error": {"message": "Provider returned error", "code": 400,
                                    "metadata": {"raw": json.dumps({"error": {"message": VLLM}})}}}),
    "text": (VLLM, VLLM.encode()),
    "html": (VLLM, b"<html><head><title>Bad Request</title></head><body><p>%b</p></body></html>" % VLLM.encode()),
}  # fmt: skip


@pytest.mark.thinned(2)
@pytest.mark.parametrize("shape", TOO_LONG)
def test_a_prompt_that_is_too_long_fails_its_row_in_the_servers_words(
    run_orch: Orch, orch_home: Path, shape: str
) -> None:
    words, body = TOO_LONG[shape]
    with gateway() as at:
        write_config(orch_home, [at.url], retry_delay=0.01)
        documents(orch_home, ROWS)
        job_file(orch_home)
        at.refuses = lambda asked: Answer(body, 400) if "Letter 2." in json.dumps(asked) else None
        assert run(run_orch, orch_home)[0] == 1
        assert counts(run_orch, orch_home) == {"pending": 0, "succeeded": ROWS - 1, "failed": 1}
        assert len(at.bodies) == ROWS, "it is not asked again"
    rows = map(json.loads, run_orch("fetch", "letters", cwd=orch_home).stdout.splitlines())
    [error] = [row["error"] for row in rows if row["error"]]
    assert error["code"] == "context_length_exceeded"
    assert words in error["message"]
    assert "<" not in error["message"]
