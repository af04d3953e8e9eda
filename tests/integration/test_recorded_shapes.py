"""Rows whose answers come in the shapes that were recorded at real providers: each ends right, and once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.emulator.driving import jsonl
from tests.support.hostedjob import MODEL, Desk, row

Json = dict[str, Any]

WHOLE = "content_parts content_thinks finish_null finish_empty finish_eos flat_cached cost_ticks audio_tokens".split()
NO_ANSWER = "finish_abort finish_error finish_resource choice_error".split()


def response(custom_id: str, shape: str = "") -> Json:
    text = f"what of {custom_id}?" + (f" [[fault:{shape}]]" if shape else "")
    body = {"model": MODEL, "input": [{"role": "user", "content": text}], "max_output_tokens": 60}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}


def test_an_answer_in_any_shape_is_an_answer(desk: Desk) -> None:
    job = desk.run([row(shape, shape) for shape in WHOLE])
    assert desk.ends(job) == dict.fromkeys(WHOLE, "succeeded")
    assert all(str(found["output"]).startswith("answer ") for found in desk.rows(job).values()), desk.rows(job)
    assert desk.billed() == dict.fromkeys(WHOLE, 1)


def test_a_200_that_is_no_answer_is_asked_again(desk: Desk) -> None:
    job = desk.run([row(shape, f"{shape}:1") for shape in NO_ANSWER])
    assert desk.ends(job) == dict.fromkeys(NO_ANSWER, "succeeded")
    assert desk.attempts(job) == dict.fromkeys(NO_ANSWER, 2)
    assert all(str(found["output"]).startswith("answer ") for found in desk.rows(job).values())


def test_a_refusal_is_no_text(desk: Desk) -> None:
    folder = desk.folder / "in"
    folder.mkdir()
    (folder / "no.txt").write_text("[[fault:says_no]]", encoding="utf-8")
    (folder / "yes.txt").write_text("A letter.", encoding="utf-8")
    task = {"id": "ask", "prompt": "What?", "model": "m", "max_tokens": 60}
    path = desk.folder / "job.yaml"
    path.write_text(json.dumps({"name": "shapes", "documents": "in", "tasks": [task], "models": {"m": MODEL}}))
    job = desk.run(path)
    assert sorted(desk.ends(job).values()) == ["failed: refusal", "succeeded"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("shape", ["response_thinks", "response_phases", "response_in_two"])
def test_only_what_a_response_says_is_its_answer(desk: Desk, shape: str) -> None:
    job = desk.run(desk.written(jsonl([response("plain"), response("odd", shape)])))
    assert desk.ends(job) == {"plain": "succeeded", "odd": "succeeded"}
    found = {name: "".join(str(one["output"]).split()) for name, one in desk.rows(job).items()}
    assert all(text.startswith("answer") and len(text) == len("answer") + 16 for text in found.values()), found


def test_a_cache_for_an_hour_is_read(desk: Desk) -> None:
    desk.backend("claude")
    job = desk.run([row("hour", "hour_cache"), row("plain")])
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.cost(job) > 0
