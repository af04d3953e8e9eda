"""Rows that share a request, and that each gets the answer that it would have had alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from orchestrator.server.dispatch.packing import (
    MAX_INPUTS,
    MAX_TOKENS,
    Pack,
    Packable,
    PackError,
    combine,
    read,
    shares,
    split,
)
from tests.support import answers
from tests.support.client import post
from tests.support.engine import count_tokens
from tests.support.process import Upstream
from tests.support.requests import EMBEDDINGS

MODERATIONS = "/v1/moderations"
Json = dict[str, Any]


def body_of(given: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "input": given, **more}).encode()


def row(given: Any, endpoint: str = EMBEDDINGS, **more: Any) -> Packable:
    found = read(endpoint, body_of(given, **more))
    assert found is not None
    return found


def answer_to(body: bytes) -> bytes:
    """What an upstream says: a vector for each input that depends on this input alone, and the sum of the tokens."""
    asked = json.loads(body)
    return json.dumps(
        answers.embeddings("name", asked["model"], 17, answers.inputs_of(asked["input"]), asked)
    ).encode()


def tokens_of(answer: bytes) -> int:
    return int(json.loads(answer)["usage"]["prompt_tokens"])


def without_usage(answer: bytes) -> Json:
    """An answer but for what cannot be the same: usage is an estimate, and ids are distinct."""
    return {name: value for name, value in json.loads(answer).items() if name not in ("usage", "id")}


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
TOKENS = st.lists(st.integers(0, 50_000), min_size=1, max_size=12)
TEXT_ROWS = st.lists(TEXT | st.lists(TEXT, min_size=1, max_size=4), min_size=1, max_size=8)
TOKEN_ROWS = st.lists(TOKENS | st.lists(TOKENS, min_size=1, max_size=4), min_size=1, max_size=8)


@given(TEXT_ROWS | TOKEN_ROWS, st.sampled_from([{}, {"encoding_format": "base64"}, {"dimensions": 3, "user": "ä"}]))
def test_rows_get_from_a_pack_what_each_gets_alone(inputs: list[Any], more: Json) -> None:
    rows = [row(each, **more) for each in inputs]
    assert len({each.key for each in rows}) == 1
    whole = answer_to(combine(rows))
    found = split(whole, rows)
    assert [without_usage(each) for each in found] == [without_usage(answer_to(each.body)) for each in rows]
    assert sum(map(tokens_of, found)) == tokens_of(whole)
    assert len({json.loads(each)["id"] for each in found}) == len(rows)
    for each in found:
        used = json.loads(each)["usage"]
        assert used["total_tokens"] == used["prompt_tokens"]
        assert used["prompt_tokens_details"] is None


def test_rows_get_through_http_what_each_gets_alone(upstream: Upstream) -> None:
    inputs: list[Any] = ["Guten Tag", ["eins", "zwei", "drei"], '日本語 " \\ \n', ["vier"]]
    rows = [row(each, encoding_format="base64") for each in inputs]
    pack = Pack(rows[0])
    assert all(pack.add(each) for each in rows[1:])
    together = pack.split(post(upstream, pack.body(), EMBEDDINGS).body)
    alone = [post(upstream, each.body, EMBEDDINGS).body for each in rows]
    for one, other in zip(together, alone, strict=True):
        mine, wanted = json.loads(one), json.loads(other)
        assert (mine["data"], mine["object"], mine["model"]) == (wanted["data"], wanted["object"], wanted["model"])
    assert sum(map(tokens_of, together)) == sum(
        count_tokens(text) for each in inputs for text in answers.inputs_of(each)
    )


def test_one_bad_row_has_the_whole_pack_refused_and_none_of_the_others_alone(upstream: Upstream) -> None:
    rows = [row(each) for each in ("good", "bad [[fault:status=400]]", "fine")]
    assert post(upstream, combine(rows), EMBEDDINGS).status == 400
    assert [post(upstream, each.body, EMBEDDINGS).status for each in rows] == [200, 400, 200]


def test_a_row_alone_keeps_its_body_and_its_answer_byte_for_byte() -> None:
    body = b' { "input" : "x" , "model":"m" } '
    alone = read(EMBEDDINGS, body)
    assert alone is not None
    assert combine([alone]) == body
    assert split(b" anything ", [alone]) == [b" anything "]


def test_numbers_of_a_vector_keep_their_bytes() -> None:
    vectors = [b"[1.10000000000000000001, -0.0, 1e-07]", b'"AAAAgD8="', b"[ ]"]

    def items(*entries: tuple[bytes, int]) -> bytes:
        data = b",".join(b'{"object":"embedding","embedding":%s,"index":%d}' % each for each in entries)
        return b'{"object":"list","data":[' + data + b'],"model":"m","x":2.50}'

    whole = items((vectors[0], 0), (vectors[1], 1), (vectors[2], 2))
    alone = [items((vectors[0], 0), (vectors[1], 1)), items((vectors[2], 0))]
    assert split(whole, [row(["a", "b"]), row("c")]) == alone


def test_moderations_are_packed_too() -> None:
    rows = [row("a", MODERATIONS), row(["b", "c"], MODERATIONS)]
    assert json.loads(combine(rows)) == {"model": "m", "input": ["a", "b", "c"]}
    results = [{"flagged": flag, "categories": {}, "category_scores": {"x": 1e-05}} for flag in (True, False, True)]
    found = split(json.dumps({"id": "modr-1", "model": "m", "results": results}).encode(), rows)
    assert [json.loads(each) for each in found] == [
        {"id": "modr-1-0", "model": "m", "results": results[:1]},
        {"id": "modr-1-1", "model": "m", "results": results[1:]},
    ]


def test_rows_have_one_key_if_they_differ_in_nothing_but_their_input() -> None:
    key = row("a", dimensions=3, user="u").key
    same = read(EMBEDDINGS, b'{"user": "u", "dimensions": 3, "input": ["b"], "model": "m"}')
    assert same is not None
    assert same.key == key
    others = [
        row("a", dimensions=4, user="u"),
        row("a", dimensions=3, user="v"),
        row("a", dimensions=3),
        row("a", dimensions=3, user="u", encoding_format="base64"),
        row([1, 2], dimensions=3, user="u"),
        row("a", MODERATIONS, dimensions=3, user="u"),
    ]
    assert len({key, *(each.key for each in others)}) == 7


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", body_of("x", prompt=["x"])),
        ("/v1/chat/completions", body_of("x")),
        ("/v1/score", body_of("x")),
        ("/v1/rerank", body_of("x")),
        (EMBEDDINGS, b'{"model":"m"}'),
        (EMBEDDINGS, body_of("")),
        (EMBEDDINGS, body_of([])),
        (EMBEDDINGS, body_of(["a", ""])),
        (EMBEDDINGS, body_of([[1], []])),
        (EMBEDDINGS, body_of(["a", 1])),
        (EMBEDDINGS, body_of(["a", [1]])),
        (EMBEDDINGS, body_of([1, [1]])),
        (EMBEDDINGS, body_of(None)),
        (EMBEDDINGS, body_of({"a": 1})),
        (EMBEDDINGS, body_of(True)),
        (EMBEDDINGS, body_of(7)),
        (EMBEDDINGS, body_of([{"role": "user", "content": "x"}])),
        (EMBEDDINGS, body_of("x", encoding_format="bytes")),
        (EMBEDDINGS, body_of("x", request_id="mine")),
        (EMBEDDINGS, body_of("x", messages=[])),
        (MODERATIONS, body_of([1, 2])),
        (MODERATIONS, body_of([[1], [2]])),
        (MODERATIONS, body_of([{"type": "text", "text": "x"}, {"type": "image_url"}])),
    ],
)
def test_what_cannot_be_packed(endpoint: str, body: bytes) -> None:
    assert read(endpoint, body) is None


def test_a_pack_takes_rows_until_it_is_full() -> None:
    pack = Pack(row("first"))
    assert not pack.add(row("another model", model="n"))
    assert [pack.add(row("x")) for _ in range(MAX_INPUTS)] == [True] * (MAX_INPUTS - 1) + [False]
    assert len(json.loads(pack.body())["input"]) == MAX_INPUTS == len(pack.rows)

    pack = Pack(row(["a", "b"]), max_inputs=4)
    assert [pack.add(row(["c", "d", "e"])), pack.add(row(["c", "d"])), pack.add(row("e"))] == [False, True, False]

    pack = Pack(row("x" * 4 * (MAX_TOKENS - 2)))
    assert [pack.add(row("y" * 9)), pack.add(row("y" * 8)), pack.add(row("z"))] == [False, True, False]

    pack = Pack(row(list(range(10))), max_tokens=12)
    assert [pack.add(row([1, 2, 3])), pack.add(row([1, 2])), pack.add(row([1]))] == [False, True, False]

    large = row(["many"] * 3_000)
    assert not Pack(large).add(row("one more"))
    assert Pack(large).body() == large.body


def entry(index: Any, **more: Any) -> Json:
    return {"object": "embedding", "embedding": [0.5], "index": index, **more}


def reply(*data: Any, **more: Any) -> bytes:
    return json.dumps({"object": "list", "data": list(data), "model": "m", **more}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        reply(entry(0)),
        reply(entry(0), entry(1), entry(2)),
        reply(entry(1), entry(0)),
        reply(entry(0), entry(0)),
        reply(entry(1), entry(2)),
        reply(entry(0), entry(None)),
        reply(entry(0), entry("1")),
        reply(entry(0), {"object": "embedding", "embedding": [0.5]}),
        reply(entry(0), {"object": "embedding", "index": 1}),
        reply(entry(0), 1),
        b'{"object":"list","data":{"0":1}}',
        b'{"object":"list"}',
        b'{"data":null}',
        b"[1]",
        b'{"data":[',
        b"",
        b"<html>",
        b'{"\xff":1}',
        b'{"data":[],"usage":' + b'{"a":' * 950 + b"1" + b"}" * 950 + b"}",
    ],
)
def test_an_answer_that_does_not_fit_its_pack_is_told(answer: bytes) -> None:
    with pytest.raises(PackError):
        split(answer, [row("a"), row("b")])


@pytest.mark.parametrize(
    "usage", [b"[1]", b"5", b'{"prompt_tokens":1e999}', b'{"prompt_tokens":' + b"9" * 5000 + b"}"]
)
def test_a_usage_that_cannot_be_shared_out_costs_no_answer(usage: bytes) -> None:
    answer = reply(entry(0), entry(1))[:-1] + b',"usage":' + usage + b"}"
    first, second = (json.loads(each) for each in split(answer, [row("a"), row("b")]))
    assert ("usage" in first, "usage" in second) == (False, False)
    assert [first["data"][0]["index"], second["data"][0]["index"]] == [0, 0]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "usage", "id", "index", "embedding", "prompt_tokens"]), inner)
    ),
    max_leaves=20,
)
ANSWERS = st.fixed_dictionaries({"data": st.just([entry(0), entry(1)])}, optional={"usage": VALUES, "id": VALUES})


@given(st.binary() | (VALUES | ANSWERS).map(lambda value: json.dumps(value).encode()))
def test_no_answer_raises_anything_but_a_pack_error(answer: bytes) -> None:
    rows = [row("a"), row("b")]
    try:
        found = split(answer, rows)
    except PackError:
        return
    assert [len(json.loads(each)["data"]) for each in found] == [1, 1]


PIECES = [b"{", b"}", b'"input"', b":", b",", b"[", b"]", b'"a"', b"1", b"\xff", b'""', b" ", b"-"]


@given(
    st.binary(max_size=40)
    | st.lists(st.sampled_from(PIECES), max_size=12).map(lambda all_: b"{" + b"".join(all_) + b"}")
)
@example(b'{"input":[1,"a"]}')
@example(b'{"input":[[1,"a"],["b"]]}')
@example(b'{"input":"\\ud800"}')
@example(b'{"input":"\xff"}')
@example(b'{"input":' + b"[" * 50_000 + b"]" * 50_000 + b"}")
@example(b'{"input":["a"],"x":' + b'{"a":' * 990 + b"1" + b"}" * 990 + b"}")
def test_no_body_raises_anything(body: bytes) -> None:
    for endpoint in (EMBEDDINGS, MODERATIONS):
        found = read(endpoint, body)
        if found is not None:
            assert combine([found]) == body
            assert combine([found, found]).startswith(b"{")


def test_tokens_of_token_lists_are_exact_and_those_of_texts_go_by_length() -> None:
    used = {
        "prompt_tokens": 10,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 7},
        "cost": 1.0,
        "x": "y",
    }
    found = split(reply(entry(0), entry(1), usage=used), [row([5]), row(list(range(9)))])
    assert [json.loads(each)["usage"] for each in found] == [
        {"prompt_tokens": 1, "total_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}, "cost": 0.1, "x": "y"},
        {"prompt_tokens": 9, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 6}, "cost": 0.9, "x": "y"},
    ]
    used = {"prompt_tokens": 12, "estimated": True}
    found = split(reply(entry(0), entry(1), usage=used), [row("a" * 30), row("b" * 10)])
    assert [json.loads(each)["usage"] for each in found] == [used | {"prompt_tokens": 9}, used | {"prompt_tokens": 3}]


@given(st.lists(st.text("ab", min_size=1, max_size=200), min_size=2, max_size=20), st.integers(0, 2_000), st.data())
def test_shares_of_usage_add_up_and_hold_together(texts: list[str], prompt: int, data: st.DataObject) -> None:
    cached = data.draw(st.integers(0, prompt))
    used = {
        "prompt_tokens": prompt,
        "total_tokens": prompt,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    rows = [row(text) for text in texts]
    parts = [json.loads(each)["usage"] for each in split(reply(*map(entry, range(len(rows))), usage=used), rows)]
    assert sum(each["prompt_tokens"] for each in parts) == prompt
    assert sum(each["prompt_tokens_details"]["cached_tokens"] for each in parts) == cached
    for each in parts:
        assert each["total_tokens"] == each["prompt_tokens"]
        assert each["completion_tokens"] == 0
        assert 0 <= each["prompt_tokens_details"]["cached_tokens"] <= each["prompt_tokens"]
        assert each["prompt_tokens"] >= 1 or prompt < len(rows)


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**6), min_size=1, max_size=30))
def test_shares_add_up_and_are_fair(total: int, weights: list[int]) -> None:
    found = shares(total, weights)
    assert sum(found) == total
    assume(sum(weights) > 0)
    assert all(
        abs(share * sum(weights) - total * weight) < sum(weights)
        for share, weight in zip(found, weights, strict=True)
    )
