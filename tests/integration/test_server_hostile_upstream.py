"""Upstreams that answer what nobody should: every row has one outcome, the batch ends, and the server stays ready."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from orchestrator.core.batch_api import MAX_DEPTH
from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from tests.support.batchapi import Ended, Sdk, create, ended, health, retrieve, row, run_batch, sdk_at
from tests.support.canned import canned
from tests.support.process import wait_until
from tests.support.scripted import Answer, Asked, scripted

GOOD = b'{"id":"x","object":"chat.completion","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
MODELS = {"/v1/models": Answer({"object": "list", "data": [{"id": "test-model"}]})}
FAST: dict[str, Any] = {"retry_delay": 0.001, "request_timeout": 5.0}
# A batch for each step of a shrink would take minutes; what is drawn is printed anyhow.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
serial = count()


class Hostile:
    """An upstream that answers each row as a test says, once for each try, and then well."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.tries: Counter[str] = Counter()
        self.pages = dict(MODELS)
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Answer:
        if asked.method == "GET":
            return self.pages.get(asked.path, Answer({}, 404))
        name = json.loads(asked.body)["user"]
        with self._lock:
            self.tries[name] += 1
            left = self.answers.get(name)
            return left.pop(0) if left else Answer(GOOD)


@contextmanager
def served(folder: Path, url: str, **more: Any) -> Iterator[Sdk]:
    with ServerThread(folder, Settings(upstreams=(url,), **{**FAST, **more})) as server, sdk_at(server.socket) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sdk, Hostile]]:
    answers = Hostile()
    with scripted(answers) as upstream, served(tmp_path_factory.mktemp("s") / "s", upstream.base_url) as sdk:
        yield sdk, answers


def check(end: Ended, names: list[str]) -> None:
    """Each row once, in the file that its status belongs to; counts and files agree."""
    assert Counter(line["custom_id"] for line in (*end.output, *end.errors)) == Counter(names)
    assert end.counts == (len(names), len(end.output), len(end.errors))
    assert all(line["response"]["status_code"] < 300 for line in end.output)
    assert end.batch.status == "completed"


def is_well(sdk: Sdk) -> None:
    assert (health(sdk)["status"], health(sdk)["problem"], health(sdk)["running_batches"]) == ("ok", None, 0)
    wait_until(lambda: sdk.raw.get("/ready").status_code == 200)


def nested(depth: int, left: str = "[", right: str = "]") -> str:
    return left * depth + right * depth


NUMBERS = st.sampled_from(
    ["0", "-1", "1.5", "1e308", "1e999", "-1e999", "9" * 25, "9" * 5000, "2147483648", "true", '"7"', "null", "[]"]
)
DEEP = st.sampled_from([10, MAX_DEPTH - 3, MAX_DEPTH, 900, 960, 985, 995, 1005, 5000]).map(nested)
TEXTS = st.sampled_from(['"x"', '"\\u0000"', '"\\ud83d\\ude00"', '"' + "m" * 3000 + '"', '""'])
VALUES = NUMBERS | TEXTS | DEEP
USAGE = st.dictionaries(
    st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "cost"]), VALUES
).map(lambda found: "{" + ",".join(f'"{name}":{value}' for name, value in found.items()) + "}")
FIELDS = st.sampled_from(["model", "service_tier", "error", "usage", "choices", "id", "object", "code", "detail"])
OBJECTS = st.dictionaries(FIELDS, VALUES | USAGE, max_size=5).map(
    lambda found: ("{" + ",".join(f'"{name}":{value}' for name, value in found.items()) + "}").encode()
)
BODIES = (
    OBJECTS | VALUES.map(str.encode) | st.binary(max_size=20) | st.sampled_from([b"", b"{", b"[1]", b'{"a":"\xff"}'])
)
RETRY_AFTER = st.sampled_from(
    [
        "Mon, 01 Jan 99999999999 00:00:00 GMT", "Mon, 01 Jan 10000 00:00:00 GMT", "-1", "nan", "-inf", "0", "0.01",
        "Thu, 01 Jan 1970 00:00:00 +99999999999999", "", "9" * 400 + "x",
        "\xff\xfe",
    ]
)  # fmt: skip
RATES = st.sampled_from(["0", "1e-300", "5e-324", "1e308", "nan", "inf", "-1", "x", "\xff", "9" * 400])
RESETS = RATES | st.sampled_from(["9" * 400 + "s", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "1s"])
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Retry-After": RETRY_AFTER,
        "retry-after-ms": st.sampled_from(["0", "1", "-1", "nan", "\xff"]),
        "x-ratelimit-limit-requests": RATES,
        "x-ratelimit-remaining-requests": RATES,
        "x-ratelimit-reset-requests": RESETS,
        "anthropic-ratelimit-tokens-limit": RATES,
        "anthropic-ratelimit-tokens-reset": RESETS,
        "Content-Type": st.sampled_from(["text/html", "\xff", "application/json; charset=\xff"]),
    },
)
# Not 401 and 403: a key that is refused is waited for.
STATUS = st.sampled_from(
    [200, 200, 200, 200, 201, 299, 300, 304, 400, 404, 418, 422, 429, 500, 503, 529, 599, 799, 999]
)
ANSWERS = st.builds(Answer, BODIES, STATUS, HEADERS)


@pytest.mark.long
@settings(max_examples=25, phases=PHASES)
@given(st.lists(st.lists(ANSWERS, max_size=3), min_size=4, max_size=24))
def test_whatever_an_upstream_answers(hostile: tuple[Sdk, Hostile], scripts: list[list[Answer]]) -> None:
    sdk, upstream = hostile
    names = [f"row-{next(serial)}" for _ in scripts]
    upstream.answers.update(zip(names, map(list, scripts), strict=True))
    check(run_batch(sdk, [row(name) for name in names]), names)
    is_well(sdk)


@pytest.mark.long
@settings(max_examples=15, phases=PHASES)
@given(st.lists(ANSWERS, min_size=4, max_size=16))
def test_whatever_an_upstream_that_bills_answers(
    tmp_path_factory: pytest.TempPathFactory, answers: list[Answer]
) -> None:
    upstream, folder = Hostile(), tmp_path_factory.mktemp("paid")
    names = [f"row-{number}" for number in range(len(answers))]
    upstream.answers.update({name: [answer] for name, answer in zip(names, answers, strict=True)})
    with scripted(upstream) as where, served(folder, where.base_url, paid=True, tokens_per_minute=10**9) as sdk:
        check(run_batch(sdk, [row(name, max_tokens=10**15) for name in names]), names)
        is_well(sdk)


ODD: dict[str, bytes] = {
    "a model beyond all floats": b'{"choices":[],"model":1e999,"usage":[1]}',
    "a model of many digits": b'{"choices":[],"model":' + b"9" * 5000 + b',"usage":{"prompt_tokens":"x"}}',
    "usage of many digits": b'{"choices":[],"usage":{"prompt_tokens":' + b"9" * 5000 + b"}}",
    "a tier beyond all floats": b'{"service_tier":-1e999,"usage":7}',
    "an error beyond all floats": b'{"error":1e999,"usage":{}}',
    "as deep as may be": b'{"a":' + nested(MAX_DEPTH - 1).encode() + b"}",
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_an_odd_answer_is_paid_once(tmp_path: Path, body: bytes) -> None:
    """It is the row's answer, and a restart neither stands still at it nor asks for it again."""
    with canned(body, good_for=1) as upstream, served(tmp_path, upstream.base_url, max_concurrency=1) as sdk:
        batch = create(sdk, [row("a"), row("b")])
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 1)
        assert sdk.raw.get("/ready").status_code == 200
    with canned(body) as upstream, served(tmp_path, upstream.base_url) as sdk:
        end = ended(sdk, batch.id)
        end.check(["a", "b"])
        assert end.counts == (2, 2, 0)
        assert len(upstream.bodies) == 1
        is_well(sdk)


@pytest.mark.parametrize("depth", [MAX_DEPTH, 900, 960, 975, 985, 995, 5000])
def test_an_answer_that_is_too_deep_is_no_answer(tmp_path: Path, depth: int) -> None:
    with canned(b'{"a":' + nested(depth).encode() + b"}") as upstream, served(tmp_path, upstream.base_url) as sdk:
        end = run_batch(sdk, [row("a")])
        end.check(["a"])
        assert end.errors[0]["error"]["message"].startswith("garbled: ")
        is_well(sdk)


def test_an_answer_that_makes_no_line_is_an_error_and_not_asked_for_again(tmp_path: Path) -> None:
    """More than a line of results may have, and less than is given up on the way."""
    body = b'{"a":"' + b"x" * (40 * 1024 * 1024) + b'"}'
    with canned(body) as upstream:
        with served(tmp_path, upstream.base_url, request_timeout=60.0) as sdk:
            end = run_batch(sdk, [row("a")])
            end.check(["a"])
            assert end.errors[0]["error"]["message"].startswith("too long: ")
            assert len(upstream.bodies) == 1
        with served(tmp_path, upstream.base_url) as sdk:
            assert ended(sdk, end.batch.id).counts == (1, 0, 1)


METRICS = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
BIG = b'vllm:cache_config_info{num_gpu_blocks="%b",block_size="%b"} 1.0\n' % (b"9" * 5000, b"9" * 5000)
NEGATIVE = b"vllm:num_requests_running -5\nvllm:kv_cache_usage_perc -1\n"
ANY_MODELS = [{"id": 5}, {"id": None}, {}, {"id": ""}, {"id": "test-model", "x": {}}]
PAGES: dict[str, dict[str, Callable[[], Answer]]] = {
    "gauges beyond all floats": {"/metrics": lambda: Answer(b"vllm:num_requests_running 1e308\n" * 3)},
    "gauges below nothing": {"/metrics": lambda: Answer(NEGATIVE)},
    "a cache of many digits": {"/metrics": lambda: Answer(METRICS + BIG)},
    "a cache beyond all floats": {
        "/metrics": lambda: Answer(METRICS + BIG.replace(b"9" * 5000, b"9" * 12) * 50),
    },
    "gauges without end": {"/metrics": lambda: Answer(METRICS * 1_000_000)},
    "a page that is cut": {"/metrics": lambda: Answer(METRICS, fault="short")},
    "models of every kind": {
        "/v1/models": lambda: Answer({"data": ANY_MODELS}),
    },
    "many models": {"/v1/models": lambda: Answer({"data": [{"id": f"m{n}"} for n in range(20_000)]})},
}  # fmt: skip


@pytest.mark.thinned(10)
@pytest.mark.parametrize("pages", PAGES.values(), ids=PAGES)
def test_whatever_an_upstream_says_of_itself(tmp_path: Path, pages: dict[str, Callable[[], Answer]]) -> None:
    upstream = Hostile()
    upstream.pages.update({path: page() for path, page in pages.items()})
    names = [f"r{number}" for number in range(40)]
    with scripted(upstream) as where, served(tmp_path, where.base_url) as sdk:
        # Long and alike, so that the size of the cache is asked for.
        run_batch(sdk, [row(name, "the same words " * 200 + name) for name in names]).check(names)
        run_batch(sdk, [row(f"{name}-again", "the same words " * 200 + name) for name in names])
        is_well(sdk)
        for page in ("/v1/models", "/metrics", "/health"):
            assert sdk.raw.get(page).status_code == 200


@pytest.mark.parametrize("body", [b'{"data":[{"id":"m","created":1e999}]}', b"[" * 5000, b"<html>", b"{}"])
def test_models_that_cannot_be_read_are_an_upstream_that_is_not_well(tmp_path: Path, body: bytes) -> None:
    """It gets no rows, which is told, and is asked again: what it says wrong ends nothing for good."""
    upstream = Hostile()
    upstream.pages["/v1/models"] = Answer(body)
    with scripted(upstream) as where, served(tmp_path, where.base_url) as sdk:
        batch = create(sdk, [row("a")])
        wait_until(lambda: "not like an OpenAI-compatible server" in str(health(sdk)["upstreams"][0]["problem"]))
        assert health(sdk)["status"] == "ok"
        upstream.pages.update(MODELS)
        ended(sdk, batch.id).check(["a"])
        is_well(sdk)
