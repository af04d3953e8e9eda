"""Tasks beyond chat: what a job file may say of them, the requests they make, and what their answers come to."""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.core.errors import InputError
from orchestrator.documents.types import Document, Picture
from orchestrator.policy import confidence
from orchestrator.policy.answer_check import check_of
from orchestrator.policy.answer_text import answer_of
from orchestrator.policy.reask_lines import mended
from orchestrator.policy.request_bodies import messages_of
from orchestrator.policy.request_limits import bounds
from orchestrator.policy.requests import Builder, reduce_line, variables
from orchestrator.settings.job_file import load
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.task_spec import Task

Json = dict[str, Any]
LABELS = {"bill": "asks for money", "billing": "", "letter": ""}
CLASSIFY = {"id": "sort", "kind": "classify", "model": "m", "labels": LABELS}
EMBED = {"id": "vec", "kind": "embedding", "model": "e"}
RESPONSES = {"id": "ask", "model": "m", "prompt": "Who?", "endpoint": "responses"}


def task(**fields: Any) -> Task:
    return Task.model_validate(fields)


def spec(*tasks: Json, **more: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "j", "documents": "d", "tasks": list(tasks), **more})


def document(text: str = "t", **more: Any) -> Document:
    return Document(
        **{"key": "d/a.txt", "name": "a.txt", "text": text, "digest": "x", "size": 9, "fields": {}, **more}
    )


def request(asked: Json, text: str = "a text", **more: Any) -> Json:
    [built] = Builder(spec(asked)).build(document(text, **more))
    found: Json = json.loads(built.line)
    assert (found["url"], found["custom_id"]) == (built.row.endpoint, built.row.custom_id)
    assert bounds(found["url"], msgspec.Raw(json.dumps(found["body"]).encode())) == (1, built.row.max_output)
    return found


def test_a_vector_is_of_the_text_and_of_nothing_else() -> None:
    found = request({**EMBED, "dimensions": 64, "extra": {"encoding_format": "base64"}})
    assert found["url"] == "/v1/embeddings"
    assert found["body"] == {"model": "e", "input": "a text", "dimensions": 64, "encoding_format": "base64"}
    assert request({**EMBED, "prompt": "query: {{ title }}"}, fields={"title": "T"})["body"]["input"] == "query: T"


def test_a_classification_has_its_labels_as_a_schema_and_in_the_question() -> None:
    body = request({**CLASSIFY, "logprobs": True})["body"]
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {"label": {"type": "string", "enum": ["bill", "billing", "letter"]}}
    assert body["logprobs"] is True
    [message] = body["messages"]
    assert message["content"].endswith("- bill: asks for money\n- billing\n- letter")
    assert message["content"].startswith("<document>\na text")


def test_the_responses_endpoint_has_names_of_its_own() -> None:
    picture = Picture(1, base64.b64encode(b"xx").decode())
    asked = {
        **RESPONSES, "system": "Be short.", "max_tokens": 9, "temperature": 0,
        "schema": {"type": "object"}, "extra": {"text": {"verbosity": "low"}},
    }  # fmt: skip
    body = request(asked, pictures=(picture,), fields={"sent_as": "page 1 as an image"})["body"]
    system, user = body.pop("input")
    assert system == {"role": "system", "content": "Be short."}
    assert [part["type"] for part in user["content"]] == ["input_image", "input_text"]
    assert user["content"][0]["image_url"].startswith("data:image/")
    form = {"type": "json_schema", "name": "ask", "schema": {"type": "object"}, "strict": True}
    assert body == {
        "model": "m", "max_output_tokens": 9, "temperature": 0, "store": False,
        "text": {"format": form, "verbosity": "low"},
    }  # fmt: skip
    labels = request({**CLASSIFY, "endpoint": "responses", "logprobs": True})["body"]
    assert labels["include"] == ["message.output_text.logprobs"]


def test_what_follows_an_answer_goes_to_the_same_endpoint() -> None:
    line = json.dumps(request(RESPONSES)).encode()
    again = json.loads(mended(line, "?", "empty_answer", ""))
    assert [one["role"] for one in again["body"]["input"]] == ["user", "assistant", "user"]
    long = task(**RESPONSES, long={"reduce": "One."}, max_tokens=5)
    made = reduce_line(long, "ask-1", 5, ["a", "b"])
    assert isinstance(made, bytes)
    found = json.loads(made)
    assert (found["url"], found["body"]["max_output_tokens"]) == ("/v1/responses", 5)
    assert "<answer>\nb\n</answer>" in found["body"]["input"][0]["content"]


def test_a_request_of_a_chat_is_what_it_was() -> None:
    [built] = Builder(spec({"id": "ask", "model": "m", "prompt": "Who?"})).build(document())
    assert (built.row.fingerprint, built.row.prompt_version, built.row.cache_key) == (
        "6e5908f3b8a3406d97f9eef974acb0a5", "1fe2b4d5dce4", "936c40be1e6bc40312cf9bf08434757e",
    )  # fmt: skip


def test_labels_and_their_meanings_make_another_question() -> None:
    def version(**more: Any) -> str:
        [built] = Builder(spec({**CLASSIFY, **more})).build(document())
        return built.row.prompt_version

    others = [version(labels=["bill", "letter"]), version(labels={**LABELS, "bill": "other"}), version(prompt="?")]
    assert len({version(), *others}) == 4


def test_a_stored_job_is_read_again_as_it_was() -> None:
    for asked in (CLASSIFY, {**CLASSIFY, "labels": ["a", "b"]}, EMBED, RESPONSES):
        first = spec(asked)
        assert JobSpec.model_validate(first.model_dump(mode="json", by_alias=True, exclude_none=True)) == first


def test_labels_are_fields_of_no_document() -> None:
    assert variables(task(**CLASSIFY)) == frozenset()


BAD: dict[str, tuple[str, str]] = {
    "no labels": ("kind: classify, model: m", "`kind: classify` needs `labels`"),
    "one label": ("kind: classify, model: m, labels: [a]", "labels: needs 2 to 500 labels"),
    "a label twice": ("kind: classify, model: m, labels: [a, a]", "labels: holds a label twice"),
    "no texts": ("kind: classify, model: m, labels: [true, 1]", "labels: labels must be text, which True is not"),
    "a list in labels": (
        "kind: classify, model: m, labels: [[a], b]", "labels: labels must be text, which ['a'] is not",
    ),
    "a template": ('kind: classify, model: m, labels: ["{{ x }}", b]', "holds Jinja2, which labels may not"),
    "an empty label": ("kind: classify, model: m, labels: [a, ' ']", "labels: holds an empty label"),
    "labels of a chat": ("prompt: q, model: m, labels: [a, b]", "labels: is for `kind: classify`"),
    "a schema beside": (
        "kind: classify, model: m, labels: [a, b], schema: {type: object}", "schema: is made from `labels`",
    ),
    "parts of a label": (
        "kind: classify, model: m, labels: [a, b], long: {reduce: x}", "long: a label is not made from the labels",
    ),
    "logprobs of a chat": ("prompt: q, model: m, logprobs: true", "logprobs: is for `kind: classify`"),
    "dimensions of a chat": ("prompt: q, model: m, dimensions: 3", "dimensions: is for `kind: embedding`"),
    "a system prompt": ("kind: embedding, model: m, system: s", "system: is only for tasks"),
    "a schema of a vector": ("kind: embedding, model: m, schema: {}", "schema: is only for tasks"),
    "retries of a vector": ("kind: embedding, model: m, retries: 1", "retries: is only for tasks"),
    "a vector by responses": ("kind: embedding, model: m, endpoint: responses", "endpoint: an embedding has"),
    "every vector alike": ("kind: embedding, model: m, prompt: hello", "prompt: uses no field of the document"),
    "an input of one's own": ("kind: embedding, model: m, extra: {input: x}", "extra: `input` is not allowed here"),
    "a seed by responses": ("prompt: q, model: m, endpoint: responses, seed: 1", "seed: the endpoint `responses`"),
    "no prompt": ("model: m", "prompt: is required"),
    "an unknown kind": ("kind: rerank, model: m, prompt: q", "kind: Input should be 'chat', 'classify' or"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "told"), BAD.values(), ids=BAD)
def test_a_task_that_cannot_be_is_told_by_line_and_field(tmp_path: Path, fields: str, told: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"name: j\ndocuments: d\ntasks:\n  - {{id: t, {fields}}}\nmodels: {{m: x}}\n")
    with pytest.raises(InputError) as raised:
        load(path)
    assert told in str(raised.value)
    assert f"{path}:4: tasks[0]" in str(raised.value)


def test_pictures_have_no_vectors_and_vectors_no_gold(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    head = "name: j\ntasks: [{id: t, kind: embedding, model: m}]\nmodels: {m: x}\n"
    path.write_text(f"{head}documents: {{path: d, render: auto}}\n")
    with pytest.raises(InputError, match="the task 't' makes vectors of text, and pictures have none"):
        load(path)
    path.write_text(f"{head}documents: d\ngold: gold.jsonl\n")
    (tmp_path / "gold.jsonl").write_text('{"document": "d/a", "task": "t", "expect": "x"}\n')
    with pytest.raises(InputError, match="the job has no task 't' that answers in text"):
        load(path)


# --- answers


def packed(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def in_base64(form: str, *numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}{form}", *numbers)).decode()


SMALL = [float(number) for number in (-10, -58, 0, 3, 60, -2, -9, 8) * 4]
FLOATS = [0.0016355514526367188, 0.0017004013061523438, -0.00565338134765625, 0.5]
DIGITS = [number / 7 - 0.5 for number in range(1, 65)]
VECTORS: dict[str, tuple[Any, int | None, list[float] | str]] = {
    "numbers": ([{"embedding": [0.5, -1]}], None, [0.5, -1.0]),
    "of the size asked for": ([{"embedding": [0.5, -1]}], 2, [0.5, -1.0]),
    "base64": ([{"embedding": packed(0.5, -1)}], 2, [0.5, -1.0]),
    "whole numbers in base64": ([{"embedding": in_base64("b", *map(int, SMALL))}], None, SMALL),
    "few whole numbers in base64": ([{"embedding": in_base64("b", *map(int, SMALL[:8]))}], 8, SMALL[:8]),
    "doubles in base64": ([{"embedding": in_base64("d", *FLOATS)}], None, FLOATS),
    "doubles of all digits": ([{"embedding": in_base64("d", *DIGITS)}], None, DIGITS),
    "floats of another size in base64": ([{"embedding": packed(*[0.5] * 32)}], 16, "the vector has 32 numbers"),
    "floats of a fourth of the size": ([{"embedding": packed(*[0.5] * 8)}], 32, "the vector has 8 numbers"),
    "another size": ([{"embedding": [0.5]}], 2, "the vector has 1 numbers, and `dimensions` is 2"),
    "none at all": ([], None, "the answer holds 0 vectors"),
    "two": ([{"embedding": [1]}, {"embedding": [2]}], None, "the answer holds 2 vectors"),
    "empty": ([{"embedding": []}], None, "the vector is empty"),
    "words": ([{"embedding": "hello!"}], None, "neither numbers nor base64"),
    "cut off": ([{"embedding": packed(1.0)[:4]}], None, "the vector is cut off"),
    "no numbers": ([{"embedding": packed(math.nan)}], None, "contains something that is not a number"),
    "a null in it": ([{"embedding": [0.5, None]}], None, "the answer contains no vector"),
    "another shape": ({"x": 1}, None, "the answer contains no vector"),
    "no data": (None, None, "the answer contains no vector"),
}


@pytest.mark.parametrize(("data", "size", "found"), VECTORS.values(), ids=VECTORS)
def test_the_vector_of_an_answer(data: Any, size: int | None, found: list[float] | str) -> None:
    check = check_of(task(**EMBED, dimensions=size))
    body = msgspec.Raw(json.dumps({"object": "list", "data": data}).encode())
    problem = check.problem(answer_of(body))
    if isinstance(found, list):
        assert problem is None
        assert check.output(answer_of(body), body) == found
    else:
        assert problem is not None
        assert problem[0] == "invalid_vector"
        assert found in problem[1]


def pieces(*parts: tuple[str, float], as_bytes: bool = True) -> list[Json]:
    return [
        {"token": text, "logprob": math.log(chance), **({"bytes": list(text.encode())} if as_bytes else {})}
        for text, chance in parts
    ]


BILL = [('{"', 0.5), ("label", 0.5), ('": "', 0.5), ("bi", 0.8), ("ll", 0.9), ('"}', 0.5)]


def chat(tokens: Any, text: str = '{"label": "bill"}') -> Json:
    other = {"index": 1, "message": {"content": "{}"}, "logprobs": None}
    return {"choices": [other, {"index": 0, "message": {"content": text}, "logprobs": tokens}]}


PROBABILITIES: dict[str, tuple[Json, float | None]] = {
    "its tokens alone": (chat({"content": pieces(*BILL)}), 0.36),
    "without bytes": (chat({"content": pieces(*BILL, as_bytes=False)}), 0.36),
    "white space around it": (chat({"content": pieces(("\n", 0.1), *BILL)}), 0.36),
    "a token that is a label and more": (
        chat({"content": pieces(('{"label": "b', 0.5), ("ill", 0.8), ('"}', 0.5))}), 0.2,
    ),
    "of a response": (
        {"output": [{"type": "reasoning"}, {"content": [
            {"type": "output_text", "text": '{"label": "bill"}', "logprobs": pieces(*BILL)},
        ]}]},
        0.36,
    ),
    "above certain": (chat({"content": [{"token": '{"label": "bill"}', "logprob": 0.1}]}), 1.0),
    "none": (chat(None), None),
    "empty": (chat({"content": []}), None),
    "of another text": (chat({"content": pieces(("hello", 0.5))}), None),
    "in another shape": (chat("yes"), None),
    "bytes that are none": (chat({"content": [{"token": "x", "logprob": -1, "bytes": [999]}]}), None),
}  # fmt: skip


@pytest.mark.parametrize(("body", "found"), PROBABILITIES.values(), ids=PROBABILITIES)
def test_the_probability_of_a_label_is_that_of_its_tokens(body: Json, found: float | None) -> None:
    raw = msgspec.Raw(json.dumps(body).encode())
    output = check_of(task(**CLASSIFY, logprobs=True)).output(answer_of(raw), raw)
    assert output == {
        "label": "bill",
        "probability": None if found is None else pytest.approx(found),
        "confidence": None,
    }


def test_a_character_may_be_cut_between_tokens() -> None:
    first, second = "ü".encode()[:1], "ü".encode()[1:]
    tokens = [
        *pieces(('{"label": "', 1.0)),
        *({"token": "?", "logprob": math.log(0.5), "bytes": list(one)} for one in (first, second)),
        *pieces(('"}', 1.0)),
    ]
    raw = msgspec.Raw(json.dumps(chat({"content": tokens}, '{"label": "ü"}'), ensure_ascii=False).encode())
    assert confidence.label_probability(raw, '{"label": "ü"}') == pytest.approx(0.25)


def test_confidence_is_the_share_that_is_right() -> None:
    """A model that says 0.99 and is right four times in five, and 0.6 and is right half the time."""
    chance = random.Random(7)
    known = [(0.99, chance.random() < 0.8) for _ in range(2000)] + [(0.6, chance.random() < 0.5) for _ in range(2000)]
    curve = confidence.fitted_curve(known)
    assert curve is not None
    assert curve.known == 4000
    assert curve.confidence(0.99) == pytest.approx(0.8, abs=0.03)
    assert curve.confidence(0.6) == pytest.approx(0.5, abs=0.03)
    assert curve.confidence(0.9) < curve.confidence(0.95) < curve.confidence(1.0) < 1


def test_what_known_answers_cannot_say_is_not_said() -> None:
    assert confidence.fitted_curve([(0.9, True)] * (confidence.ENOUGH - 1)) is None
    every = confidence.fitted_curve([(0.9 + n / 1000, True) for n in range(50)])
    assert every is not None
    assert 0.9 < every.confidence(0.99) < 1, "no number of known answers makes it certain"
    alike = confidence.fitted_curve([(0.7, n % 4 > 0) for n in range(40)])
    assert alike is not None
    assert alike.confidence(0.1) == alike.confidence(0.99) == pytest.approx(0.75, abs=0.03)
    upside_down = confidence.fitted_curve([(0.99, False)] * 30 + [(0.5, True)] * 30)
    assert upside_down is not None
    assert upside_down.confidence(0.99) == upside_down.confidence(0.5) == pytest.approx(0.5)
    apart = confidence.fitted_curve([(1.0, True)] * 30 + [(0.0, False)] * 30)
    assert apart is not None
    assert (apart.confidence(1.0) > 0.95, apart.confidence(0.0) < 0.05) == (True, True)


def test_messages_of_any_endpoint_are_told_alike() -> None:
    bodies = [{"messages": [{"role": "user", "content": "q"}]}, {"input": [{"role": "user", "content": "q"}]}]
    assert [messages_of(body) for body in bodies] == [[{"role": "user", "content": "q"}]] * 2
    assert messages_of({"input": "t", "instructions": "i"}) == [
        {"role": "instructions", "content": "i"}, {"role": "input", "content": "t"},
    ]  # fmt: skip
    assert messages_of({"input": ["a", "b"]}) == [{"role": "input", "content": ["a", "b"]}]
    assert messages_of({}) == []
