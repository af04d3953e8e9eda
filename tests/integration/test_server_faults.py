"""What a user of the Batch API sees of an upstream's faults: each row has one outcome, and counts equal files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from tests.conftest import MakeUpstream
from tests.support.answers import NOT_JSON, echo
from tests.support.batchapi import Sdk, create, ended, health, read_rows, retrieve, row, run_batch, sdk_at
from tests.support.canned import canned
from tests.support.process import Upstream, upstreams, wait_until

serial = count(1)
# No row that is answered may be taken for one that hangs, however slow the machine is.
FAST = {"retry_delay": 0.01, "request_timeout": 60.0}


@contextmanager
def served(folder: Path, *urls: str, **settings: Any) -> Iterator[Sdk]:
    """A server on `folder` in front of the upstreams, and a client of it."""
    with (
        ServerThread(folder / "server", Settings(upstreams=urls, **{**FAST, **settings})) as server,
        sdk_at(server.socket) as sdk,
    ):
        yield sdk


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sdk, Upstream]]:
    """One server in front of an upstream that does as the rows say."""
    folder = tmp_path_factory.mktemp("scripted")
    with upstreams(folder) as make:
        upstream = make(max_model_len=1000)
        with served(folder, upstream.base_url) as sdk:
            yield sdk, upstream


# What passes by itself: the row succeeds, after so many tries.
PASSING = {
    "429-with-retry-after": ("[[fault:status:429:Retry-After=0.2:2]]", 3),
    "429": ("[[fault:status:429:3]]", 4),
    "429-retry-after-is-no-number": ("[[fault:status:429:Retry-After=soon:1]]", 2),
    "429-retry-after-is-endless": (
        "[[fault:status:429:Retry-After=-inf:1]][[fault:status:503:Retry-After=nan:1]]",
        3,
    ),
    "503": ("[[fault:status:503:2]]", 3),
    "500": ("[[fault:status:500:3]]", 4),
    "500-with-retry-after": ("[[fault:status:500:Retry-After=0.1:1]]", 2),
    "html-200": ("[[fault:html:200:2]]", 3),
    "html-502": ("[[fault:html:502:2]]", 3),
    "truncated": ("[[fault:truncated:2]]", 3),
    "short": ("[[fault:short:2]]", 3),
    "cut": ("[[fault:cut:2]]", 3),
    "reset": ("[[fault:reset:2]]", 3),
    "garbage": ("[[fault:garbage:2]]", 3),
    "one-after-the-other": ("[[fault:cut:1]][[fault:status:500:1]][[fault:html:1]][[fault:status:429:1]]", 5),
    "overload-is-counted-by-itself": (
        "[[fault:status:503:Retry-After=0:9]][[fault:cut:3]][[fault:status:500:4]]",
        17,
    ),
    "slow": ("[[fault:slow:50]]", 1),
    "empty": ("[[fault:empty]]", 1),
    "length": ("[[fault:length]]", 1),
    "not-json": ("[[fault:notjson]]", 1),
}


@pytest.mark.parametrize(("text", "tries"), PASSING.values(), ids=PASSING)
def test_a_fault_that_passes(scripted: tuple[Sdk, Upstream], text: str, tries: int) -> None:
    sdk, upstream = scripted
    ids = [f"{next(serial)}" for _ in range(3)]
    end = run_batch(sdk, [row(ids[0]), row(ids[1], text), row(ids[2])])
    end.check(ids)
    assert (end.batch.status, end.counts) == ("completed", (3, 3, 0))
    content = end.by_id[ids[1]]["response"]["body"]["choices"][0]["message"]["content"]
    whole = echo(text)
    expected = {"[[fault:empty]]": "", "[[fault:notjson]]": NOT_JSON, "[[fault:length]]": whole[: len(whole) // 2]}
    assert content == expected.get(text, whole)
    assert [upstream.counts()[custom_id] for custom_id in ids] == [1, tries, 1]


def test_retry_after_is_waited_for(scripted: tuple[Sdk, Upstream]) -> None:
    sdk, upstream = scripted
    run_batch(sdk, [row("patient", "[[fault:status:429:Retry-After=0.5:1]] waits")])
    first, second = (entry["time"] for entry in upstream.requests() if entry["marker"] == "patient")
    assert second - first >= 0.5


# What stays: the row fails after so many tries, with an answer of the upstream or without one.
ANSWERED = {
    "400": ("[[fault:status:400]]", 1, 400, None, "status 400"),
    "404": ("[[fault:status:404]]", 1, 404, None, "status 404"),
    "413": ("[[fault:status:413]]", 1, 413, None, "status 413"),
    "context": ("[[fault:context]]", 1, 400, "context_length_exceeded", "maximum context length"),
    "row-too-long": ("x" * 5000, 1, 400, "context_length_exceeded", "maximum context length is 1000 tokens"),
    "500": ("[[fault:status:500]]", 5, 500, None, "status 500"),
    "502-html": ("[[fault:html:502]]", 5, 502, None, "Bad Gateway"),
    "403-html": ("[[fault:html:404]]", 1, 404, None, "Bad Gateway"),
    "429": ("[[fault:status:429:Retry-After=0]]", 20, 429, None, "status 429"),
    "503": ("[[fault:status:503:Retry-After=0]]", 20, 503, None, "status 503"),
}


@pytest.mark.parametrize(("text", "tries", "status", "code", "message"), ANSWERED.values(), ids=ANSWERED)
def test_a_row_that_the_upstream_refuses(
    scripted: tuple[Sdk, Upstream], text: str, tries: int, status: int, code: str | None, message: str
) -> None:
    sdk, upstream = scripted
    ids = [f"{next(serial)}" for _ in range(3)]
    end = run_batch(sdk, [row(ids[0]), row(ids[1], text), row(ids[2])])
    end.check(ids)
    assert (end.batch.status, end.counts) == ("completed", (3, 2, 1))
    line = end.by_id[ids[1]]
    assert (line["error"], line["response"]["status_code"]) == (None, status)
    error = line["response"]["body"]["error"]
    assert error["code"] == code
    assert message in error["message"]
    assert [upstream.counts()[custom_id] for custom_id in ids] == [1, tries, 1]


UNANSWERED = {
    "html-200": ("[[fault:html]]", 4, "garbled: the answer (text/html; charset=utf-8, "),
    "truncated": ("[[fault:truncated]]", 4, "garbled: the answer (application/json"),
    "garbage": ("[[fault:garbage]]", 4, "garbled: not HTTP"),
    "short": ("[[fault:short]]", 4, "cut: "),
    "cut": ("[[fault:cut]]", 4, "cut: "),
    "reset": ("[[fault:reset]]", 4, "cut: "),
}


@pytest.mark.parametrize(("text", "tries", "message"), UNANSWERED.values(), ids=UNANSWERED)
def test_a_row_that_gets_no_answer(scripted: tuple[Sdk, Upstream], text: str, tries: int, message: str) -> None:
    sdk, upstream = scripted
    ids = [f"{next(serial)}" for _ in range(3)]
    end = run_batch(sdk, [row(ids[0]), row(ids[1], text + "never"), row(ids[2])])
    end.check(ids)
    assert (end.batch.status, end.counts) == ("completed", (3, 2, 1))
    line = end.by_id[ids[1]]
    assert (line["response"], line["error"]["code"]) == (None, "upstream_error")
    assert line["error"]["message"].startswith(message)
    assert "never" not in line["error"]["message"], "nothing of the prompt stands in an error"
    assert [upstream.counts()[custom_id] for custom_id in ids] == [1, tries, 1]


@pytest.mark.long
def test_rows_that_hang_are_given_up_in_time(tmp_path: Path, upstream: Upstream) -> None:
    texts = {"a": None, "once": "[[fault:hang:1]]", "ever": "[[fault:hang]]", "b": None}
    with served(tmp_path, upstream.base_url, request_timeout=2.0) as sdk:
        end = run_batch(sdk, [row(name, text) for name, text in texts.items()])
    end.check(list(texts))
    assert end.counts == (4, 3, 1)
    error = end.by_id["ever"]["error"]
    assert (error["code"], error["message"]) == ("upstream_error", "timed out: no answer within 2 s")
    assert (upstream.counts()["once"], upstream.counts()["ever"]) == (2, 3)


@pytest.mark.long
def test_every_fault_in_one_batch(scripted: tuple[Sdk, Upstream]) -> None:
    sdk, _ = scripted
    texts = [text + "together" for text, *_ in (*PASSING.values(), *ANSWERED.values(), *UNANSWERED.values())]
    ids = [f"together-{number}" for number in range(len(texts) * 3)]
    lines = [row(custom_id, texts[n // 3] if n % 3 == 0 else None) for n, custom_id in enumerate(ids)]
    end = run_batch(sdk, lines)
    end.check(ids)
    assert end.counts == (len(ids), len(ids) - len(ANSWERED) - len(UNANSWERED), len(ANSWERED) + len(UNANSWERED))


ODD = {
    "usage-is-odd": (b'{"choices":[],"usage":{"prompt_tokens":1.5,"completion_tokens":"many"}}', True),
    "usage-is-a-list": (b'{"choices":[],"usage":[1]}', True),
    "model-is-a-number": (b'{"choices":[],"model":5}', True),
    "newlines-and-spaces": (b'\n{\r\n  "choices":\n []\n}\n', True),
    "nothing-in-it": (b"{}", True),
    "invalid-utf8": (b'{"choices":"\xff"}', False),
    "deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", False),
    "list": (b"[1]", False),
    "empty": (b"", False),
    "nan": (b'{"a":NaN}', False),
}


@pytest.mark.parametrize(("body", "good"), ODD.values(), ids=ODD)
def test_answers_of_odd_form(tmp_path: Path, body: bytes, good: bool) -> None:
    with canned(body) as upstream, served(tmp_path, upstream.base_url) as sdk:
        end = run_batch(sdk, [row("a"), row("b")])
        end.check(["a", "b"])
        assert end.counts == ((2, 2, 0) if good else (2, 0, 2))
        assert end.batch.usage.total_tokens == 0
        if not good:
            assert {line["error"]["message"].split(":")[0] for line in end.errors} == {"garbled"}
            assert len(upstream.bodies) == 8


def test_an_odd_answer_is_read_again_after_a_restart(tmp_path: Path) -> None:
    odd = b'{"usage":{"prompt_tokens":1.5}}'
    with canned(odd, good_for=1) as upstream, served(tmp_path, upstream.base_url, max_concurrency=1) as sdk:
        batch = create(sdk, [row("a"), row("b")])
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 1)
    with canned(odd) as upstream, served(tmp_path, upstream.base_url) as sdk:
        ended(sdk, batch.id).check(["a", "b"])
        assert len(upstream.bodies) == 1


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with (
        canned(b"{}") as elsewhere,
        canned(b"{}", 307, {"Location": f"{elsewhere.base_url}/chat/completions"}) as upstream,
        served(tmp_path, upstream.base_url) as sdk,
    ):
        end = run_batch(sdk, [row("secret")])
        end.check(["secret"])
        assert end.errors[0]["response"]["status_code"] == 307
        assert elsewhere.bodies == [], "a row went to a host that nobody declared"


def test_an_upstream_that_comes_late(tmp_path: Path, upstream: Upstream) -> None:
    upstream.stop()
    ids = [f"r{number}" for number in range(20)]
    with served(tmp_path, upstream.base_url) as sdk:
        batch = create(sdk, [row(custom_id) for custom_id in ids])
        wait_until(lambda: (health(sdk)["upstreams"][0]["problem"] or "").startswith("unreachable"))
        wait_until(lambda: retrieve(sdk, batch.id).status == "in_progress")
        assert health(sdk)["status"] == "ok"
        upstream.start()
        ended(sdk, batch.id).check(ids)
        assert health(sdk)["upstreams"][0]["problem"] is None
    assert set(upstream.counts().values()) == {1}


def test_an_upstream_that_dies_and_comes_back(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(slots=4, latency_ms=20)
    ids = [f"r{number}" for number in range(80)]
    with served(tmp_path, upstream.base_url, max_concurrency=16) as sdk:
        batch = create(sdk, [row(custom_id) for custom_id in ids])
        upstream.wait_for_requests(30)
        upstream.kill()
        wait_until(lambda: health(sdk)["upstreams"][0]["problem"])
        done = partial(sdk, batch.id)
        before = upstream.counts()
        upstream.start()
        end = ended(sdk, batch.id)
        end.check(ids)
    assert end.counts == (80, 80, 0)
    assert done, "it died before any row was done"
    assert all(upstream.counts()[custom_id] == before[custom_id] for custom_id in done)


def partial(sdk: Sdk, batch_id: str) -> set[str]:
    """The custom_ids that a running batch has answers for."""
    content = sdk.raw.get(f"/v1/batches/{batch_id}/output").content
    return {json.loads(line)["custom_id"] for line in content.splitlines()}


@pytest.mark.long
def test_a_row_that_kills_its_upstream_takes_nobody_along(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(slots=8, latency_ms=5)
    ids = [f"r{number}" for number in range(60)]
    poison = {"r7", "r31"}
    lines = [row(custom_id, f"{custom_id}[[fault:die]]" if custom_id in poison else None) for custom_id in ids]
    with served(tmp_path, upstream.base_url) as sdk:
        batch = create(sdk, lines)

        def over() -> bool:
            if not upstream.alive:
                upstream.restart()
            return bool(retrieve(sdk, batch.id).status == "completed")

        wait_until(over)
        end = ended(sdk, batch.id)
    end.check(ids)
    assert {line["custom_id"] for line in end.errors} == poison
    for line in end.errors:
        assert line["error"]["code"] == "upstream_error"
        assert line["error"]["message"].startswith("cut: ")
    # A try may end in the death of another row's making, before the upstream has seen it.
    assert all(1 <= upstream.counts()[custom_id] <= 4 for custom_id in poison)


def test_the_last_try_of_a_row_that_was_cut_is_made_alone(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(slots=8, latency_ms=30)
    ids = [f"r{number}" for number in range(150)]
    cut = {"r3", "r4"}
    lines = [row(custom_id, f"{custom_id}[[fault:cut:3]]" if custom_id in cut else None) for custom_id in ids]
    with served(tmp_path, upstream.base_url) as sdk:
        end = run_batch(sdk, lines)
    end.check(ids)
    assert end.counts == (150, 150, 0)
    log = upstream.requests()
    last_tries = [number for number, entry in enumerate(log) if entry.get("try") == 4]
    assert {log[number]["marker"] for number in last_tries} == cut
    assert last_tries[-1] < 149, "it should not have waited until nothing else was left"
    for number in last_tries:
        assert (log[number]["running"], log[number]["waiting"]) == (0, 0)
        for later in log[number + 1 : number + 2]:
            assert later["time"] - log[number]["time"] >= 0.02, "a row was sent beside it"


def test_a_key_that_is_refused_fails_no_row(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(api_key="right")
    ids = ["a", "b", "c"]
    with served(tmp_path, upstream.base_url, api_key="wrong") as sdk:
        batch = create(sdk, [row(custom_id) for custom_id in ids])
        wait_until(lambda: health(sdk)["upstreams"][0]["problem"] == "upstream refuses the API key (401)")
        assert retrieve(sdk, batch.id).request_counts.failed == 0
    assert "wrong" not in str(upstream.requests())
    with served(tmp_path, upstream.base_url, api_key="right") as sdk:
        ended(sdk, batch.id).check(ids)
    assert [entry["outcome"] for entry in upstream.requests()].count("ok") == 3


def test_a_key_that_only_the_models_page_takes_counts_as_one_outage(tmp_path: Path) -> None:
    with canned(b'{"error":{"message":"no"}}', 401) as upstream, served(tmp_path, upstream.base_url) as sdk:
        batch = create(sdk, [row("a"), row("b")])
        wait_until(lambda: health(sdk)["upstreams"][0]["problem"])
        seen = time.monotonic()
        wait_until(lambda: len(upstream.bodies) >= 7)
        known = time.monotonic() - seen
        # It was probed well and refused a row again and again: the outage is as old as its beginning.
        wait_until(lambda: health(sdk)["upstreams"][0]["problem"])
        assert health(sdk)["upstreams"][0]["problem_seconds"] >= known - 0.1
        upstream.body = b'{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}'
        upstream.status = 200
        ended(sdk, batch.id).check(["a", "b"])
        wait_until(lambda: health(sdk)["upstreams"][0]["problem"] is None)


def test_two_upstreams_of_which_one_is_away(tmp_path: Path, make_upstream: MakeUpstream) -> None:
    well, away = make_upstream(), make_upstream()
    away.stop()
    ids = [f"r{number}" for number in range(40)]
    with served(tmp_path, away.base_url, well.base_url) as sdk:
        end = run_batch(sdk, [row(custom_id) for custom_id in ids])
        end.check(ids)
    assert end.counts == (40, 40, 0)
    assert len(well.requests()) == 40


def test_the_files_of_a_batch_stay_after_a_restart(tmp_path: Path, upstream: Upstream) -> None:
    with served(tmp_path, upstream.base_url) as sdk:
        end = run_batch(sdk, [row("a"), row("b", "[[fault:status:400]]")])
    with served(tmp_path, upstream.base_url) as sdk:
        again = retrieve(sdk, end.batch.id)
        assert again == end.batch
        assert read_rows(sdk, again.output_file_id) == end.output
        assert read_rows(sdk, again.error_file_id) == end.errors


@pytest.mark.soak  # it is asked ten times before, with all the patience that there is
def test_an_upstream_that_hangs_is_asked_with_one_row_at_a_time(tmp_path: Path, upstream: Upstream) -> None:
    ids = [f"r{number}" for number in range(24)]
    with served(tmp_path, upstream.base_url, max_concurrency=12, request_timeout=2.0) as sdk:
        batch = create(sdk, [row(name, f"{name}[[fault:hang:1]]") for name in ids])
        told = wait_until(lambda: next((p for p in problems(sdk) if p and "in a row failed" in p), None))
        end = ended(sdk, batch.id)
    end.check(ids)
    assert end.counts == (24, 24, 0)
    assert "rows in a row failed: timed out" in told


def problems(sdk: Sdk) -> list[str | None]:
    return [upstream["problem"] for upstream in health(sdk)["upstreams"]]
