"""What is done to a row's body before it is sent, and what is left as it is."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.batch_api import LineError
from orchestrator.server.dispatch.body_changes import (
    BodyError,
    is_priority_refused,
    likely_tokens,
    prepare,
)
from orchestrator.server.memory_limits import SMALL
from tests.support.client import chat_body, post
from tests.support.process import Upstream
from tests.support.requests import CHAT, COMPLETIONS, EMBEDDINGS

RESPONSES = "/v1/responses"
SCHEMA = {"type": "object", "properties": {"answer": {"type": "boolean"}}}
KINDS = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
REMOVED = {*KINDS, "guided_decoding_backend", "guided_whitespace_pattern"}


def prepared(body: dict[str, Any], endpoint: str = CHAT, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        bytes(prepare(json.dumps(body).encode(), endpoint=endpoint, vllm=True, **more))
    )
    return found


def fault_of(raw: bytes, endpoint: str) -> LineError | None:
    try:
        prepare(raw, endpoint=endpoint, vllm=True)
    except BodyError as error:
        return error.fault
    return None


def refused(body: dict[str, Any], endpoint: str = CHAT) -> LineError:
    raw = json.dumps(body).encode()
    with pytest.raises(BodyError) as caught:
        prepare(raw, endpoint=endpoint, vllm=True)
    return caught.value.fault


class Line(msgspec.Struct):
    body: msgspec.Raw


@pytest.mark.parametrize("size", [10, 2 * SMALL])
def test_only_a_long_body_is_sent_from_the_line_that_it_was_read_from(size: int) -> None:
    body = b'{ "model": "m", "messages": ["' + b"x" * size + b'"] }'
    read = msgspec.json.decode(b'{"custom_id": "a", "body": ' + body + b" }", type=Line).body
    plain = prepare(read, endpoint=CHAT, vllm=False)
    assert isinstance(plain, memoryview) is (size > SMALL)
    assert bytes(plain) == body
    first = prepare(read, endpoint=CHAT, vllm=True, priority=5)
    assert isinstance(first, bytes)
    assert first == b'{"priority":5,' + body[1:]
    named = json.loads(bytes(prepare(read, endpoint=CHAT, vllm=False, model="n", asked="m")))
    assert named == {"model": "n", "messages": ["x" * size]}


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES, "/v1/chat/completions/batch"])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json": json.dumps(SCHEMA)}),
        ({"guided_regex": r"\d{3}"}, {"regex": r"\d{3}"}),
        ({"guided_choice": ["ja", "nein"]}, {"choice": ["ja", "nein"]}),
        ({"guided_grammar": 'root ::= "x"'}, {"grammar": 'root ::= "x"'}),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "outlines"}, {"json": SCHEMA}),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": "[ ]?"},
            {"json": SCHEMA, "whitespace_pattern": "[ ]?"},
        ),
        ({"guided_json": SCHEMA, "guided_regex": None, "structured_outputs": None}, {"json": SCHEMA}),
        ({"extra_body": {"guided_json": SCHEMA}}, {"json": SCHEMA}),
        ({"extra_body": {"guided_choice": ["a"], "guided_whitespace_pattern": None}}, {"choice": ["a"]}),
        ({"extra_body": {"structured_outputs": {"regex": "a+"}}}, {"regex": "a+"}),
        ({"guided_json": None, "extra_body": {"guided_json": SCHEMA}}, {"json": SCHEMA}),
    ],
)
def test_removed_fields_become_structured_outputs(
    endpoint: str, given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    body = {"model": "m", "temperature": 0.5}
    assert prepared({**body, **given}, endpoint) == {**body, "structured_outputs": wanted}
    assert fault_of(json.dumps({**body, **given}).encode(), endpoint) is None


def test_what_else_is_in_extra_body_stays_there() -> None:
    body = {"model": "m", "extra_body": {"top_k": 5, "guided_regex": "a", "x": [1]}}
    assert prepared(body) == {
        "model": "m",
        "extra_body": {"top_k": 5, "x": [1]},
        "structured_outputs": {"regex": "a"},
    }


def test_values_keep_their_bytes() -> None:
    schema = b'{ "maximum": 1.10000000000000000001,\n "title": "\\u00e4\\/" }'
    body = b'{"guided_json": ' + schema + b', "temperature": 1e-07, "n": 1E0}'
    sent = prepare(body, endpoint=CHAT, vllm=True)
    assert b'"structured_outputs":{"json":' + schema + b"}" in sent
    assert b"1e-07" in sent
    assert b"1E0" in sent


@pytest.mark.parametrize(
    ("body", "param", "names"),
    [
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "body.guided_regex", "'guided_json' and 'guided_regex'"),
        (
            {"guided_json": SCHEMA, "structured_outputs": {"regex": "a"}},
            "body.guided_json",
            "'structured_outputs' and 'guided_json'",
        ),
        (
            {"guided_regex": "a", "extra_body": {"structured_outputs": {"regex": "a"}}},
            "body.guided_regex",
            "'extra_body.structured_outputs' and 'guided_regex'",
        ),
        (
            {"guided_json": SCHEMA, "extra_body": {"guided_choice": ["a"]}},
            "body.extra_body.guided_choice",
            "'guided_json' and 'extra_body.guided_choice'",
        ),
        (
            {"guided_json": SCHEMA, "extra_body": {"guided_json": SCHEMA}},
            "body.extra_body.guided_json",
            "'guided_json' is given twice",
        ),
    ],
)
def test_two_wishes_for_the_form_of_the_output_are_refused(body: dict[str, Any], param: str, names: str) -> None:
    fault = refused(body)
    assert (fault.code, fault.param) == ("invalid_request", param)
    assert names in fault.message


@given(
    st.dictionaries(
        st.sampled_from([*REMOVED, "structured_outputs", "model"]), st.sampled_from([None, {}, "x", ["x"]])
    ),
    st.none()
    | st.dictionaries(st.sampled_from([*REMOVED, "structured_outputs", "top_k"]), st.sampled_from([None, "y"])),
)
def test_no_row_runs_unconstrained_that_asked_for_a_form(top: dict[str, Any], extra: dict[str, Any] | None) -> None:
    body = top if extra is None else {**top, "extra_body": extra}
    asked = [
        each[name]
        for each in (top, extra or {})
        for name in ("structured_outputs", *KINDS)
        if each.get(name) is not None
    ]
    try:
        sent = prepared(body)
    except BodyError:
        twice = [name for name in REMOVED if top.get(name) is not None and (extra or {}).get(name) is not None]
        assert len(asked) > 1 or twice
        return
    assert not REMOVED & (sent.keys() | (sent.get("extra_body") or {}).keys())
    assert len(asked) <= 1
    assert (sent.get("structured_outputs") is not None) == bool(asked)
    if asked and sent["structured_outputs"] not in asked:
        given = {kind: value for kind, value in sent["structured_outputs"].items() if kind != "whitespace_pattern"}
        assert list(given.values()) == asked
        assert given.keys() <= set(KINDS.values())


TALK = 'Explain {"guided_json": {}, "priority": 1, "model": "default", "extra_body": {"guided_regex": "a"}}'


@pytest.mark.parametrize(
    "body",
    [
        chat_body(TALK),
        chat_body("x", metadata={"guided_json": "a", "priority": 3}, tools=[{"guided_choice": ["a"]}]),
        chat_body("x", extra_body={"top_k": 5}),
        chat_body("x", extra_body=None),
        chat_body("x", extra_body="guided_json"),
        chat_body("x", extra_body=[{"guided_json": {}}]),
        chat_body("x", response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}),
        chat_body("x", structured_outputs={"json": SCHEMA}),
        b' \n{ "model" : "m" ,\t"messages":[ ] }\r\n ',
        b'{"a":1,"a":2}',
        '{"model":"m","messages":[{"role":"user","content":"guided_json — 😀\\u00e4"}]}'.encode(),
    ],
)
def test_a_body_with_nothing_to_do_is_sent_byte_for_byte(body: bytes) -> None:
    assert prepare(body, endpoint=CHAT, vllm=True) is body
    assert prepare(body, endpoint=CHAT, vllm=True, model="other") is body
    assert prepare(msgspec.Raw(body), endpoint=CHAT, vllm=True) == body


@pytest.mark.parametrize("body", [chat_body("x", guided_json=SCHEMA), chat_body("x", extra_body={"guided_json": {}})])
def test_other_upstreams_and_endpoints_get_the_body_as_it_is(body: bytes) -> None:
    assert prepare(body, endpoint=CHAT, vllm=False, priority=4) is body
    assert prepare(body, endpoint=EMBEDDINGS, vllm=True) is body
    assert prepare(body, endpoint="/v1/moderations", vllm=True, priority=4) is body
    assert prepare(b"no JSON", endpoint=CHAT, vllm=False) == b"no JSON"


def test_a_key_that_is_written_with_escapes_is_that_key() -> None:
    sent = json.loads(prepare(b'{"guided\\u005fregex":"a","prior\\u0069ty":2}', endpoint=CHAT, vllm=True, priority=9))
    assert sent == {"structured_outputs": {"regex": "a"}, "priority": 2}


def test_of_a_key_given_twice_the_last_counts_as_it_does_upstream() -> None:
    sent = json.loads(prepare(b'{"guided_regex":"a","guided_regex":"b"}', endpoint=CHAT, vllm=True))
    assert sent == {"structured_outputs": {"regex": "b"}}
    assert json.loads(prepare(b'{"guided_regex":"a","guided_regex":null}', endpoint=CHAT, vllm=True)) == {}


@pytest.mark.parametrize("vllm", [True, False])
def test_the_default_model_is_replaced_and_another_is_not(vllm: bool) -> None:
    def sent(body: bytes) -> Any:
        return json.loads(prepare(body, endpoint=CHAT, vllm=vllm, model="Qwen/Q äß"))

    assert sent(b'{"model":"default","x":{"model":"default"}}') == {"model": "Qwen/Q äß", "x": {"model": "default"}}
    assert sent(b'{"model":"def\\u0061ult"}') == {"model": "Qwen/Q äß"}
    assert sent(b'{"model":"default-2","x":"default"}') == {"model": "default-2", "x": "default"}
    assert sent(b'{"model":["default"]}') == {"model": ["default"]}
    assert sent(b'{"x":1}') == {"x": 1}


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS])
def test_priority_is_put_in_front_and_no_other_byte_changes(endpoint: str) -> None:
    body = chat_body(TALK)
    sent = prepare(b" \n" + body, endpoint=endpoint, vllm=True, priority=-3)
    assert sent == b' \n{"priority":-3,' + body[1:]


@pytest.mark.parametrize("own", [b"0", b"7", b"null"])
def test_a_row_keeps_its_own_priority(own: bytes) -> None:
    body = b'{"model":"m", "priority": ' + own + b"}"
    assert prepare(body, endpoint=CHAT, vllm=True, priority=5) is body


def test_priority_and_the_other_changes_go_together() -> None:
    body = {"model": "default", "guided_choice": ["a"], "service_tier": "priority"}
    assert prepared(body, model="m", priority=2) == {
        "model": "m",
        "structured_outputs": {"choice": ["a"]},
        "service_tier": "priority",
        "priority": 2,
    }
    assert json.loads(prepare(b"{ }", endpoint=CHAT, vllm=True, priority=2)) == {"priority": 2}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SPACE = st.text(" \t\r\n", max_size=3).map(str.encode)


@given(
    st.dictionaries(st.sampled_from(["model", "priority", "input", "extra_body"]) | st.text(), JSON, max_size=6),
    st.booleans(),
    SPACE,
    SPACE,
    st.integers(-(2**63), 2**63 - 1),
)
def test_any_object_keeps_its_meaning(
    body: dict[str, Any], ascii_only: bool, before: bytes, behind: bytes, priority: int
) -> None:
    text = before + json.dumps(body, ensure_ascii=ascii_only).encode() + behind
    sent = json.loads(prepare(text, endpoint=CHAT, vllm=True, model="m", priority=priority))
    expected = {"priority": priority, **body}
    if body.get("model") == "default":
        expected["model"] = "m"
    assert sent == expected


PIECES = st.sampled_from(
    [
        b"{",
        b"}",
        b'"guided_json"',
        b'"extra_body"',
        b'"priority"',
        b":",
        b",",
        b"null",
        b'"',
        b"\\",
        b"\xff",
        b"[",
        b"1",
    ]
)


@given(st.binary() | st.lists(PIECES, max_size=14).map(b"".join), st.booleans(), st.none() | st.integers(0, 9))
@example(b'{"extra_body":{"guided_json":1}', True, None)
@example(b'{"extra_body":{"\xff":1}}', True, None)
@example(b'{"model":"\\ud800","guided_json":"\\ud800"}', True, None)
@example(b'{"model":' + b"[" * 50_000 + b"]" * 50_000 + b"}", True, None)
@example(b'{"guided_json":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", True, None)
@example(b'{"guided_json":' + b"9" * 5_000 + b',"model":' + b"9" * 5_000 + b"}", True, 1)
@example(b"[1]", True, 1)
@example(b"", True, 1)
def test_no_bytes_raise_anything_but_a_body_error(body: bytes, vllm: bool, priority: int | None) -> None:
    for endpoint in (CHAT, EMBEDDINGS):
        with contextlib.suppress(BodyError):
            assert isinstance(prepare(body, endpoint=endpoint, vllm=vllm, model="m", priority=priority), bytes)
        fault = fault_of(body, endpoint)
        assert fault is None or fault.code == "invalid_request"
    assert not is_priority_refused(400, body)


@pytest.mark.slow
def test_a_constraint_reaches_the_upstream(upstream: Upstream) -> None:
    body = chat_body("north or south?", guided_choice=["north", "south"])
    assert post(upstream, body).content.startswith("echo:")
    sent = prepare(body, endpoint=CHAT, vllm=True, priority=3)
    assert post(upstream, sent).content in ("north", "south")


def error(message: str, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "param": None, **more}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "is_refusal"),
    [
        (400, error("Got priority 3 but Priority scheduling is not enabled.", code=400), True),
        (400, error("Got priority -1 but Priority scheduling is not enabled."), True),
        (400, error("V1 does not support priority yet."), True),
        (400, b'{"object":"error","message":"V1 does not support priority yet.","code":400}', True),
        (400, error("Unrecognized request argument supplied: priority", type="invalid_request_error"), True),
        (400, error("Unknown parameter: 'priority'.", param="priority"), True),
        (422, b'{"detail":[{"type":"extra_forbidden","loc":["body","priority"],"msg":"no"}]}', True),
        (422, b'{"detail":[{"type":"missing","loc":["body","messages"],"msg":"priority"}]}', False),
        (422, b'{"detail":[{"type":"int_type","loc":["body","priority"],"msg":"no"}]}', False),
        (
            400,
            error("1 validation error: {'type': 'less_than_equal', 'loc': 'body.priority'}", param="priority"),
            False,
        ),
        (400, error("Bad role: 'Got priority 3 but Priority scheduling is not enabled.'"), False),
        (422, b'{"detail":["priority"]}', False),
        (400, error("The model's maximum context length is 512 tokens."), False),
        (400, error("'My support ticket has priority' is not a role"), False),
        (400, b'{"error":"priority"}', False),
        (400, b"priority scheduling is not enabled", False),
        (500, error("Got priority 3 but Priority scheduling is not enabled."), False),
        (200, error("Got priority 3 but Priority scheduling is not enabled."), False),
    ],
)
def test_a_refusal_of_priority_is_known(status: int, body: bytes, is_refusal: bool) -> None:
    assert is_priority_refused(status, body) is is_refusal


def test_a_fault_is_worded_for_the_one_who_wrote_the_row() -> None:
    raw = chat_body("x", guided_json=SCHEMA, guided_regex="a")
    with pytest.raises(BodyError, match="both set the output format") as caught:
        prepare(raw, endpoint=CHAT, vllm=True)
    assert caught.value.field == "body.guided_regex"
    assert fault_of(b"{", CHAT) == LineError("invalid_request", "The body must be a JSON object.", "body")


TIERS = {
    "names none": (b'{"model":"m"}', CHAT, {"model": "m", "service_tier": "flex"}),
    "names null": (b'{"service_tier":null,"model":"m"}', CHAT, {"model": "m", "service_tier": "flex"}),
    "names its own": (b'{"model":"m","service_tier":"priority"}', CHAT, {"model": "m", "service_tier": "priority"}),
    "responses": (b'{"input":"x"}', "/v1/responses", {"input": "x", "service_tier": "flex"}),
    "an endpoint without tiers": (b'{"input":"x"}', EMBEDDINGS, {"input": "x"}),
}


@pytest.mark.parametrize(("body", "endpoint", "sent"), TIERS.values(), ids=TIERS)
@pytest.mark.parametrize("vllm", [True, False])
def test_a_row_that_names_no_tier_gets_one(body: bytes, endpoint: str, sent: dict[str, Any], vllm: bool) -> None:
    assert json.loads(prepare(body, endpoint=endpoint, vllm=vllm, tier="flex")) == sent
    assert prepare(body, endpoint=endpoint, vllm=vllm) == body


LIKELY = {
    "text alone": (b'{"messages":"%b"}' % (b"x" * 400), 103),
    "max_tokens": (b'{"max_tokens":1000}', 1004),
    "max_completion_tokens goes first": (b'{"max_tokens":7,"max_completion_tokens":1000}', 1011),
    "max_output_tokens": (b'{"max_output_tokens":1000}', 1006),
    "a number of nothing": (b'{"max_tokens":"many","max_completion_tokens":true}', 12),
    "less than none": (b'{"max_tokens":-5}', 4),
    "no JSON": (b"form=data", 2),
}


@pytest.mark.parametrize(("body", "tokens"), LIKELY.values(), ids=LIKELY)
def test_what_a_body_is_likely_to_count(body: bytes, tokens: int) -> None:
    assert likely_tokens(body) == tokens
