"""What a batch's files say: wire-format A7, usage, and what our server does beyond OpenAI's."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from tests.conftest import MakeUpstream
from tests.contract.conftest import Served
from tests.support.answers import echo
from tests.support.batchapi import Sdk, create, ended, retrieve, row, run_batch, sdk_at
from tests.support.clock import HeldClock
from tests.support.process import wait_until


def test_a_row_that_succeeds(sdk: Sdk) -> None:
    (line,) = run_batch(sdk, [row("a", "hello")]).output
    assert set(line) == {"id", "custom_id", "response", "error"}
    assert re.fullmatch(r"batch_req_[0-9a-f]{24}", line["id"])
    assert set(line["response"]) == {"status_code", "request_id", "body"}
    assert line["response"]["status_code"] == 200
    body = line["response"]["body"]
    assert body["choices"][0]["message"]["content"] == echo("hello")
    assert body["model"] == "test-model"
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


REJECTED = {
    "400": ("[[fault:status:400]]", 400, "BadRequestError", None, "scripted fault: status 400"),
    "404": ("[[fault:status:404]]", 404, "NotFoundError", None, "scripted fault: status 404"),
    "422": ("[[fault:status:422]]", 422, "UnprocessableEntityError", None, "scripted fault: status 422"),
    "500": ("[[fault:status:500]]", 500, "InternalServerError", None, "scripted fault: status 500"),
    "429": ("[[fault:status:429:Retry-After=0]]", 429, "RateLimitError", None, "scripted fault: status 429"),
    "html": ("[[fault:html:404]]", 404, "invalid_request_error", None, "Bad Gateway"),
    "context": ("[[fault:context]]", 400, "BadRequestError", "context_length_exceeded", "maximum context length"),
    "too-long": ("x" * 9000, 400, "BadRequestError", "context_length_exceeded", "maximum context length is 2000"),
}


@pytest.mark.parametrize(("text", "status", "kind", "code", "message"), REJECTED.values(), ids=REJECTED)
def test_a_row_that_the_upstream_rejects(
    sdk: Sdk, text: str, status: int, kind: str, code: str | None, message: str
) -> None:
    end = run_batch(sdk, [row("good"), row("bad", text)])
    end.check(["good", "bad"])
    assert end.batch.status == "completed"
    line = end.by_id["bad"]
    assert set(line) == {"id", "custom_id", "response", "error"}
    assert line["error"] is None
    assert line["response"]["status_code"] == status
    assert set(line["response"]["body"]) == {"error"}
    error = line["response"]["body"]["error"]
    # vLLM's codes are the status as an integer; OpenAI's are words or null.
    assert (error["type"], error["code"]) == (kind, code)
    assert message in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_a_row_that_is_never_answered(sdk: Sdk) -> None:
    end = run_batch(sdk, [row("good"), row("cut", "[[fault:cut]]")])
    end.check(["good", "cut"])
    line = end.by_id["cut"]
    assert line["response"] is None
    assert line["error"]["code"] == "upstream_error"
    assert line["error"]["message"].startswith("cut: ")


@pytest.mark.slow
def test_a_batch_in_which_all_rows_fail_has_no_output(sdk: Sdk) -> None:
    end = run_batch(sdk, [row(custom_id, "[[fault:status:400]]") for custom_id in "abc"])
    end.check(list("abc"))
    assert (end.batch.status, end.counts) == ("completed", (3, 0, 3))
    assert end.batch.output_file_id is None
    assert end.batch.usage.total_tokens == 0


def test_usage_is_the_sum_of_the_rows(sdk: Sdk) -> None:
    # The second row of each text finds its blocks in the prefix cache.
    texts = [letter * 400 for letter in "abc" for _ in range(2)] + ["[[fault:status:400]]"]
    end = run_batch(sdk, [row(f"{number}", text) for number, text in enumerate(texts)])
    usages = [line["response"]["body"]["usage"] for line in end.output]
    assert len(usages) == 6
    found = end.batch.usage
    assert found.input_tokens == sum(usage["prompt_tokens"] for usage in usages) > 0
    assert found.output_tokens == sum(usage["completion_tokens"] for usage in usages) > 0
    assert found.input_tokens_details.cached_tokens == sum(
        usage["prompt_tokens_details"]["cached_tokens"] for usage in usages
    )
    assert found.input_tokens_details.cached_tokens > 0
    assert found.output_tokens_details.reasoning_tokens == 0
    assert found.total_tokens == found.input_tokens + found.output_tokens


def test_the_default_model_is_the_upstreams(sdk: Sdk) -> None:
    end = run_batch(sdk, [row("a", "hello", model="default", temperature=0.5)])
    (line,) = end.output
    assert line["response"]["body"]["model"] == "test-model"
    assert line["response"]["body"]["choices"][0]["message"]["content"] == echo("hello")


def test_a_model_that_the_upstream_does_not_have(sdk: Sdk) -> None:
    (line,) = run_batch(sdk, [row("a", model="other")]).errors
    assert line["response"]["status_code"] == 404
    assert line["response"]["body"]["error"]["message"] == "The model `other` does not exist."
    assert line["response"]["body"]["error"]["code"] is None


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/embeddings", {"model": "test-model", "input": ["one", "two"]}, "list"),
        ("/v1/completions", {"model": "test-model", "prompt": "say"}, "text_completion"),
    ],
)
def test_other_endpoints(sdk: Sdk, endpoint: Any, body: dict[str, Any], kind: str) -> None:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    end = run_batch(sdk, [line], endpoint=endpoint)
    end.check(["a"])
    assert end.output[0]["response"]["body"]["object"] == kind
    assert end.batch.usage.input_tokens > 0


def test_provenance_stands_in_the_rows_of_a_batch_that_asks_for_it(sdk: Sdk, served: Served) -> None:
    # The upstream counts the tries of a body: each client has its own.
    lines = [row("a"), row("b", f"{sdk.client}[[fault:status:500:2]]"), row("c", "[[fault:cut]]")]
    end = run_batch(sdk, lines, extra_body={"include_provenance": True})
    end.check(["a", "b", "c"])
    for custom_id, attempts in (("a", 1), ("b", 3), ("c", 4)):
        orch = end.by_id[custom_id]["orch"]
        assert (orch["upstream"], orch["attempts"]) == (served.upstream.base_url, attempts)
        assert orch["latency_ms"] >= 0
        assert orch["upstream_seconds"] > 0


@pytest.mark.slow
def test_what_a_running_batch_has_done(sdk: Sdk) -> None:
    lines = [row("a"), row("b"), row("bad", "[[fault:status:400]]"), row("c", "[[fault:hang]]")]
    batch = create(sdk, lines)
    wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 2)
    wait_until(lambda: retrieve(sdk, batch.id).request_counts.failed == 1)
    assert retrieve(sdk, batch.id).status == "in_progress"
    for kind, custom_ids in (("output", {"a", "b"}), ("error", {"bad"})):
        part = sdk.raw.get(f"/v1/batches/{batch.id}/{kind}")
        assert {json.loads(line)["custom_id"] for line in part.content.splitlines()} == custom_ids
    assert sdk.raw.get(f"/v1/batches/{batch.id}/other").status_code == 404
    assert sdk.raw.get("/v1/batches/batch_no/output").status_code == 404
    sdk(lambda api: api.batches.cancel(batch.id))
    end = ended(sdk, batch.id)
    whole = sdk.raw.get(f"/v1/batches/{batch.id}/error")
    assert len(whole.content.splitlines()) == len(end.errors) == 2


def test_expiry_keeps_what_is_done(sdk: Sdk, held_clock: HeldClock) -> None:
    done = ["a", "b", "c"]
    # Refused for ever, and waiting between their tries.
    late = ["late-1", "late-2"]
    lines = [row(custom_id) for custom_id in done] + [row(c, "[[fault:status:503:Retry-After=1]]") for c in late]
    batch = create(sdk, lines, "1s")
    wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == len(done))
    held_clock.move(seconds=2)
    end = ended(sdk, batch.id)
    end.check([*done, *late])
    assert (end.batch.status, end.counts) == ("expired", (5, 3, 2))
    assert end.batch.expired_at >= end.batch.expires_at
    assert {line["custom_id"] for line in end.output} == set(done)
    assert end.batch.usage.output_tokens > 0
    for line in end.errors:
        assert line["response"] is None
        assert line["error"] == {
            "code": "batch_expired",
            "message": "This request could not be executed before the completion window expired.",
        }
    assert retrieve(sdk, end.batch.id) == end.batch


@pytest.mark.long
def test_a_window_that_ends_over_a_hanging_upstream(
    make_upstream: MakeUpstream, tmp_path: Any, held_clock: HeldClock
) -> None:
    upstream = make_upstream()
    with (
        ServerThread(tmp_path / "s", Settings(upstreams=(upstream.base_url,))) as server,
        sdk_at(server.socket) as sdk,
    ):
        lines = [row("a"), row("hangs", "[[fault:hang]]"), row("slow", "[[fault:slow:2500]]")]
        batch = create(sdk, lines, "1s")
        upstream.wait_for_requests(3)
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 1)
        held_clock.move(seconds=2)
        end = ended(sdk, batch.id)
        end.check(["a", "hangs", "slow"])
        # What was in flight was let end for a while: the slow row's answer was paid for.
        assert {line["custom_id"] for line in end.output} == {"a", "slow"}
        assert end.by_id["hangs"]["error"]["code"] == "batch_expired"
        assert upstream.counts() == {"a": 1, "hangs": 1, "slow": 1}
