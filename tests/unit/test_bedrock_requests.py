"""Chat completions as requests of Converse, and AWS's answers as chat completions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.backends import BatchOrder
from orchestrator.backends.bedrock import PACKAGE
from orchestrator.backends.bedrock.answers import completion, result_line
from orchestrator.backends.bedrock.jobs import BucketPrefix, batch_of, creation, name_of, token_of
from orchestrator.backends.bedrock.requests import custom_id_of, record_id, record_lines, sent_line, translate
from orchestrator.backends.open import limits_of, profile_for
from orchestrator.backends.package import BackendAccess
from orchestrator.backends.s3_files import error_of, objects_of, status_of
from orchestrator.core.answers import read_answer
from orchestrator.core.errors import InputError, UsageError
from orchestrator.policy.answer_text import answer_of
from tests.support.aws import bedrock_settings

ASK = [{"role": "user", "content": "hello"}]
PIXEL = "data:image/png;base64,iVBORw0KGgo="
PLACE = BucketPrefix("night-batches", "orch")
ORDER = BatchOrder("job_a-1f.001", "orch/in/0f/job_a-1f.001.jsonl", "/v1/chat/completions", 86_400, 3, "h1", "m")
ARN = "arn:aws:bedrock:us-east-1:123456789012:model-invocation-job/abc123def456"
RECORDED = Path(__file__).resolve().parents[3] / "shared" / "real-traffic" / "recorded.jsonl"
Json = dict[str, Any]


def sent(**body: Any) -> Json:
    return translate({"model": "m", "messages": ASK, **body})


def test_a_request_has_converses_fields() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": "be kind"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PIXEL}}],
        },
        {"role": "user", "content": "and say"},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBE"}}]},
    ]
    found = sent(messages=messages, max_tokens=5, temperature=0.5, top_p=0.9, stop="x", metadata={"a": "b"})
    assert found == {
        "system": [{"text": "be brief"}, {"text": "be kind"}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"text": "see"},
                    {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}},
                    {"text": "and say"},
                ],
            },
            {"role": "assistant", "content": [{"text": "so"}]},
            {
                "role": "user",
                "content": [{"document": {"format": "pdf", "name": "document 0", "source": {"bytes": "JVBE"}}}],
            },
        ],
        "inferenceConfig": {"maxTokens": 5, "temperature": 0.5, "topP": 0.9, "stopSequences": ["x"]},
    }
    assert sent(additionalModelRequestFields={"top_k": 5})["additionalModelRequestFields"] == {"top_k": 5}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"seed": 7}, "seed"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [*ASK, {"role": "tool", "content": "21", "tool_call_id": "t"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b"}}]}]},
         "messages[0].content[0]"),
        ({"messages": []}, "messages"),
        ({"messages": [{**ASK[0], "audio": {"id": "a"}}]}, "messages[0].audio"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_named(body: Json, field: str) -> None:
    with pytest.raises(InputError) as caught:
        sent(**body)
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["plain7", "x0", "x0ff", "a b", "ünï", "r-1", "", "X0ab", "0"])
def test_an_id_comes_back_as_it_was_and_is_alphanumeric_on_the_way(name: str) -> None:
    record = record_id(name)
    assert record.isascii()
    assert record.isalnum()
    assert custom_id_of(record) == name


@pytest.mark.parametrize("record", ["x0zz", "x0f", None, 7])
def test_an_id_that_nobody_wrote_stays_as_it_is(record: object) -> None:
    assert custom_id_of(record) == record


def test_a_line_has_one_id_and_digest_here_and_in_the_bucket() -> None:
    line = json.dumps({"custom_id": "r-1", "method": "POST", "body": {"model": "m", "messages": ASK}}).encode()
    [record] = record_lines([line])
    name, digest = sent_line(line)
    assert sent_line(record) == (name, digest) == ("r-1", digest)
    assert sent_line(line.replace(b"hello", b"other"))[1] != digest
    assert sent_line(line.replace(b"r-1", b"r-2")) == ("r-2", digest)


def test_a_job_carries_its_shard_in_its_name_its_tags_and_its_results() -> None:
    job = creation(ORDER, PLACE, "arn:aws:iam::123456789012:role/batch", 24)
    assert job["clientRequestToken"] == token_of(ORDER) != token_of(BatchOrder("other.001", "", "", 1, 1, "h1"))
    assert name_of(ORDER).endswith("-job-a-1f.001")
    assert {one["key"]: one["value"] for one in job["tags"]} == {"orch_shard": "job_a-1f.001", "orch_home": "h1"}
    told = {**job, "jobArn": ARN, "status": "Submitted", "submitTime": "2026-11-28T02:00:00Z"}
    found = batch_of(told, PLACE)
    assert isinstance(found, dict)
    assert found["metadata"] == {"orch_shard": "job_a-1f.001", "orch_home": "h1"}
    assert (found["input_file_id"], found["status"]) == (ORDER.input_file_id, "validating")
    elsewhere = batch_of(told, BucketPrefix("night-batches", "theirs"))
    assert isinstance(elsewhere, dict)
    assert elsewhere["metadata"] == {}


@pytest.mark.parametrize(
    ("status", "counts", "is_read"),
    [
        ("Completed", {}, True),
        ("Completed", {"processedRecordCount": 0}, True),
        ("PartiallyCompleted", {}, True),
        ("Stopped", {}, True),
        ("Stopped", {"processedRecordCount": 0, "successRecordCount": 0}, False),
        ("Stopped", {"processedRecordCount": 2}, True),
        ("Failed", {}, False),
        ("Failed", {"errorRecordCount": 1}, True),
        ("Expired", {}, False),
        ("InProgress", {"processedRecordCount": 2}, False),
    ],
)
def test_results_are_read_where_records_were_processed(status: str, counts: Json, is_read: bool) -> None:
    job = creation(ORDER, PLACE, "arn:aws:iam::123456789012:role/batch", 24)
    found = batch_of({**job, "jobArn": ARN, "status": status, **counts}, PLACE)
    assert isinstance(found, dict)
    key = "orch/out/h1/job_a-1f.001/abc123def456/job_a-1f.001.jsonl.out"
    assert found.get("output_file_id") == (key if is_read else None)


def test_an_answer_is_a_chat_completion_with_all_its_tokens() -> None:
    content = [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
        {"text": "yes"},
        {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"at": 1}}},
        {"image": {"format": "png"}},
    ]
    usage = {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 4, "cacheWriteInputTokens": 3}
    usage |= {"totalTokens": 22, "cacheDetails": [{"ttl": "1h", "inputTokens": 2}, {"ttl": "5m", "inputTokens": 1}]}
    told = {"output": {"message": {"content": content}}, "stopReason": "tool_use", "usage": usage}
    found = completion({**told, "serviceTier": {"type": "default"}})
    [choice] = found["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "yes")
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": 1}'}
    assert choice["message"]["other_content"] == [{"image": {"format": "png"}}]
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (17, 5)
    details = {"cached_tokens": 4, "cache_write_tokens": 3, "cache_write_1h_tokens": 2}
    assert found["usage"]["prompt_tokens_details"] == details
    assert found["service_tier"] == "default"


@pytest.mark.parametrize(
    ("reason", "is_answer", "end"),
    [
        ("model_context_window_exceeded", True, "model_context_window_exceeded"),
        ("malformed_model_output", False, "malformed_response: malformed_model_output"),
        ("max_tokens", True, "length"),
    ],
)
def test_a_full_window_and_a_malformed_output_are_no_whole_answers(reason: str, is_answer: bool, end: str) -> None:
    told = {"output": {"message": {"content": [{"text": "x"}]}}, "stopReason": reason}
    body = msgspec.Raw(json.dumps(completion(told)).encode())
    assert (read_answer(body).is_answer, answer_of(body).finish_reason) == (is_answer, end)


@pytest.mark.skipif(not RECORDED.exists(), reason="the recordings are not on this machine")
def test_recorded_answers_keep_their_text_and_all_their_tokens() -> None:
    lines = [line for line in RECORDED.read_text("utf-8").splitlines() if '"kind": "converse"' in line]
    read = 0
    for told in map(json.loads, lines):
        answer = told["response"]
        if told["status"] != 200 or "usage" not in answer:
            continue
        found = completion(answer)
        blocks = answer["output"]["message"]["content"]
        text = "".join(block["text"] for block in blocks if isinstance(block.get("text"), str))
        message = found["choices"][0]["message"]
        if not any("citationsContent" in block for block in blocks):
            assert (message["content"] or "") == text, told["source"]
        assert found["usage"]["total_tokens"] == answer["usage"]["totalTokens"], told["source"]
        assert len(message.get("tool_calls", ())) == sum("toolUse" in block for block in blocks), told["source"]
        read += 1
    assert read > 30


def test_result_lines_are_openais() -> None:
    failed = json.loads(result_line(b'{"recordId": "a", "error": {"errorCode": 400, "errorMessage": "bad request"}}'))
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("a", 400)
    assert failed["response"]["body"]["error"]["message"] == "bad request"
    odd = json.loads(result_line(b'{"recordId": "b", "error": "expired"}'))
    assert (odd["response"]["status_code"], odd["response"]["body"]["error"]["message"]) == (502, "expired")
    fine = json.loads(result_line(b'{"recordId": "x0207b", "modelInput": {}, "modelOutput": {}}'))
    assert (fine["custom_id"], fine["response"]["status_code"]) == (" {", 200)
    assert json.loads(result_line(b'{"recordId": "c"}'))["error"]["code"] == "unknown_result"
    assert json.loads(result_line(b'{"modelOutput": {}}'))["custom_id"] is None
    assert result_line(b"{torn") == b"{torn"


@pytest.mark.parametrize(
    ("content", "kind", "code", "message"),
    [
        (b'{"message": "slow down"}', "ThrottlingException:http://x/", "ThrottlingException", "slow down"),
        (b'{"__type": "com.amazon#ValidationException", "Message": "no"}', "", "ValidationException", "no"),
        (b"<?xml?><Error><Code>NoSuchKey</Code><Message>a &amp; b</Message></Error>", "", "NoSuchKey", "a & b"),
        (b'{"message": "Signature expired.\\n\\nx-amz-security-token:SECRET"}', "InvalidSignatureException",
         "InvalidSignatureException", "Signature expired."),
        (b"", "ServiceUnavailableException", "ServiceUnavailableException", "ServiceUnavailableException"),
    ],
)  # fmt: skip
def test_errors_are_read_from_json_xml_and_headers(content: bytes, kind: str, code: str, message: str) -> None:
    found = error_of(content, kind)
    assert found is not None
    assert (found["code"], found["message"]) == (code, message)


@pytest.mark.parametrize("content", [b"<html>502</html>", b"", b"{}", b"[1]"])
def test_an_error_of_something_else_is_none_of_aws(content: bytes) -> None:
    assert error_of(content, "") is None


def test_statuses_say_what_other_providers_mean_by_them() -> None:
    assert status_of("ExpiredToken", 400) == status_of("ExpiredTokenException", 403) == 401
    assert status_of("ServiceQuotaExceededException", 400) == 429
    assert status_of("ConflictException", 400) == 409
    assert status_of("NoSuchBucket", 404) == 403
    assert status_of("NoSuchKey", 404) == 404


def test_a_listing_that_is_none_is_not_an_empty_bucket() -> None:
    with pytest.raises(ValueError, match="not a listing"):
        objects_of(b"<html></html>")


def test_limits_of_orch_toml_stand_before_the_profiles() -> None:
    usual, own = (
        bedrock_settings("http://127.0.0.1:1", "K"),
        bedrock_settings("http://x", "K", limits={"min_rows": 7}),
    )
    assert limits_of(usual, profile_for(usual)).min_rows == 100
    assert limits_of(own, profile_for(own)).min_rows == 7
    assert profile_for(bedrock_settings("http://x", "K", discount="0.4")).discount is not None


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("role_arn", "batch", "role_arn"),
        ("region", "Virginia", "region"),
        ("bucket", "Night_Batches", "bucket"),
        ("api_key_env", "AWS_KEY", "name a profile in `aws_profile`"),
    ],
)
def test_settings_are_checked(field: str, value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bedrock_settings("http://x", "K", **{field: value})


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UsageError, match="needs the extra `bedrock`"):
        PACKAGE.open(bedrock_settings("http://x", "K"), BackendAccess("it", ""))
