"""What becomes of failed rows and refused batches: every provider's words, and docs/reference/row-errors.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.backends import BATCH_GONE
from orchestrator.core.error_body import NO_CREDIT_WORDS
from orchestrator.core.refused_fields import FieldFault, RefusedField
from orchestrator.policy import row_errors
from orchestrator.policy.batch_errors import BatchFault, classify_batch
from orchestrator.policy.row_errors import FAILED, REFUSED, RULES, Disposition, Rule, classify
from tests.support.examples import ample

RETRY, ELSEWHERE, NEVER, WAIT, STOP = Disposition
ROOT = Path(__file__).resolve().parents[2]
QUOTA_TEXT = "You exceeded your current quota, please check your plan and billing details."
REQUEST_TOO_LARGE = (
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 36278. "
    "The input or output tokens must be reduced in order to run successfully."
)
GROQ_RATE = (
    "Rate limit reached for model `llama-3.3-70b` in organization `org_x` on tokens per minute (TPM): Limit 6000, "
    "Used 5800, Requested 500. Need more tokens? Upgrade to Dev Tier today at https://console.groq.com/settings/billing"
)
AZURE_RATE = (
    "Requests to the ChatCompletions_Create Operation under Azure OpenAI API have exceeded token rate limit of your "
    "current OpenAI S0 pricing tier. Please retry after 86400 seconds."
)

# (status, code, type, message), what becomes of it, and what we call it
ROWS = {
    "openai: a 429 without credit is not a rate limit": (
        (429, "insufficient_quota", "insufficient_quota", QUOTA_TEXT), STOP, "no_credit"),
    "openai: credit, told by the type alone": ((429, None, "insufficient_quota", QUOTA_TEXT), STOP, "no_credit"),
    "openai: hard limit": ((400, "billing_hard_limit_reached", None, "Billing hard limit has been reached"),
                           STOP, "no_credit"),
    "openai: a key": ((401, "invalid_api_key", "invalid_request_error", "Incorrect API key provided: sk-..."),
                      STOP, "bad_key"),
    "openai: a rate": ((429, "rate_limit_exceeded", "requests", "Rate limit reached"), WAIT, "rate_limited"),
    "openai: a row above the rate of a minute never fits": (
        (429, "rate_limit_exceeded", "tokens", REQUEST_TOO_LARGE), ELSEWHERE, "larger_than_rate"),
    "openai: flex has no capacity": ((429, "resource_unavailable", None, "Resource Unavailable"), WAIT, "overloaded"),
    "openai: slow down": ((503, "slow_down", "server_error", ""), WAIT, "overloaded"),
    "openai: too long": (
        (400, "context_length_exceeded", "invalid_request_error", "This model's maximum context length is 8 tokens"),
        NEVER, "context_length_exceeded"),
    "litellm: a spent budget of the gateway": (
        (422, "422", "budget_exceeded", "Budget has been exceeded! Current cost: 1.2, Max budget: 1.0"),
        STOP, "no_credit"),
    "openai: one string too long": ((400, "string_above_max_length", None, ""), NEVER, "context_length_exceeded"),
    "openai: flagged prompt": (
        (400, "invalid_prompt", None, "Invalid prompt: it was flagged as potentially violating our usage policy"),
        NEVER, "content_filter"),
    "openai: a model for no account": (
        (403, None, "invalid_request_error", "You are not allowed to sample from this model"),
        ELSEWHERE, "model_not_found"),
    "openai: no such model": ((404, "model_not_found", "invalid_request_error", "The model `x` does not exist"),
                              ELSEWHERE, "model_not_found"),
    "deepseek: its models are others": (
        (400, "invalid_request_error", "invalid_request_error",
         "The supported API model names are deepseek-v4-pro or deepseek-v4-flash, but you passed x."),
        ELSEWHERE, "model_not_found"),
    "llama.cpp: too long for a vector": (
        (500, "500", "server_error", "input (4002 tokens) is too large to process. increase the physical batch size"),
        NEVER, "context_length_exceeded"),
    "openai: no access to a model is not a missing permission": (
        (403, "model_not_found", "invalid_request_error", "Project `p` does not have access to model `x`"),
        ELSEWHERE, "model_not_found"),
    "openai: an organization that is not verified": (
        (400, None, None, "Your organization must be verified to use the model `x`."), ELSEWHERE, "model_not_found"),
    "openai: a parameter": (
        (400, "unsupported_parameter", "invalid_request_error",
         "Unsupported parameter: 'max_tokens' is not supported with this model."),
        ELSEWHERE, "unsupported_parameter"),
    "openai: a region": ((403, "unsupported_country_region_territory", "request_forbidden", ""),
                         ELSEWHERE, "unsupported_region"),
    "openai: an image": ((400, "invalid_image_format", None, ""), NEVER, "invalid_image"),
    "openai: an image that did not come": (
        (400, "invalid_image_url", None, "Timeout while downloading https://example.com/a.png."),
        RETRY, "download_failed"),
    "openai: a value": ((400, "invalid_value", "invalid_request_error", "Invalid value"), NEVER, "invalid_request"),
    "openai: a server error": ((500, "server_error", "server_error", "The server had an error"), RETRY, "http_500"),
    "azure: content filter": ((400, "content_filter", None, "The response was filtered due to the prompt triggering "
                               "Azure OpenAI's content management policy."), NEVER, "content_filter"),
    "azure: in the words of its inner error": ((400, "ResponsibleAIPolicyViolation", None, None),
                                               NEVER, "content_filter"),
    "azure: no such deployment": (
        (404, "DeploymentNotFound", None, "The API deployment for this resource does not exist."),
        ELSEWHERE, "model_not_found"),
    "azure: a rate with the status as its code": ((429, "429", None, AZURE_RATE), WAIT, "http_429"),
    "azure: an operation": (
        (400, "OperationNotSupported", None, "The chatCompletion operation does not work with the specified model"),
        ELSEWHERE, "unsupported_parameter"),
    "azure: permission": ((403, "AuthorizationFailed", None, ""), STOP, "no_permission"),
    "anthropic: bad request": ((400, None, "invalid_request_error", "max_tokens: Field required"), NEVER, "http_400"),
    "anthropic: no credit comes as a bad request": (
        (400, None, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        STOP, "no_credit"),
    "anthropic: too long comes as a bad request": (
        (400, None, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        NEVER, "context_length_exceeded"),
    "anthropic: output with the input too long": (
        (400, None, "invalid_request_error", "input length and `max_tokens` exceed context limit: 1 + 2 > 2"),
        NEVER, "context_length_exceeded"),
    "anthropic: content filter": (
        (400, None, "invalid_request_error", "Output blocked by content filtering policy"), NEVER, "content_filter"),
    "anthropic: a field": ((400, None, "invalid_request_error", "seed: Extra inputs are not permitted"),
                           ELSEWHERE, "unsupported_parameter"),
    "anthropic: an image": ((400, None, "invalid_request_error", "messages.0: Could not process image"),
                            NEVER, "invalid_image"),
    "anthropic: key": ((401, None, "authentication_error", "invalid x-api-key"), STOP, "http_401"),
    "anthropic: billing": ((402, None, "billing_error", ""), STOP, "http_402"),
    "anthropic: permission": ((403, None, "permission_error", ""), STOP, "http_403"),
    "anthropic: no such model": ((404, None, "not_found_error", "model: x"), ELSEWHERE, "http_404"),
    "anthropic: too large": ((413, None, "request_too_large", ""), NEVER, "context_length_exceeded"),
    "anthropic: rate": ((429, None, "rate_limit_error", ""), WAIT, "http_429"),
    "anthropic: error": ((500, None, "api_error", ""), RETRY, "http_500"),
    "anthropic: timeout": ((504, None, "timeout_error", ""), RETRY, "http_504"),
    "anthropic: overloaded": ((529, None, "overloaded_error", "Overloaded"), WAIT, "http_529"),
    "anthropic: a type without a status": ((None, None, "overloaded_error", "Overloaded"), WAIT, "http_529"),
    "anthropic: a type in place of the code": ((None, "invalid_request_error", None, ""), NEVER, "http_400"),
    "groq: a rate that mentions billing is not an empty account": (
        (429, "rate_limit_exceeded", "tokens", GROQ_RATE), WAIT, "rate_limited"),
    "groq: a row above the rate, as 413": (
        (413, "rate_limit_exceeded", "tokens", "Request too large for model `x` on tokens per minute (TPM): Limit 8"),
        ELSEWHERE, "larger_than_rate"),
    "groq: flex tier is full": ((498, None, None, "Flex tier capacity exceeded"), WAIT, "http_498"),
    "groq: a model that is gone": ((400, "model_decommissioned", "invalid_request_error", "x"),
                                   ELSEWHERE, "model_not_found"),
    "groq: the model's own JSON is broken": (
        (400, "json_validate_failed", "invalid_request_error", "Failed to generate JSON."), RETRY, "bad_generation"),
    "vllm: an integer code": ((404, "404", "NotFoundError", "The model `x` does not exist."),
                              ELSEWHERE, "model_not_found"),
    "vllm: an integer code without a status": ((None, "400", "BadRequestError", "bad"), NEVER, "http_400"),
    "vllm: too long": (
        (400, None, "BadRequestError", "The decoder prompt (length 9) is longer than the maximum model length of 8."),
        NEVER, "context_length_exceeded"),
    "vllm: not implemented": ((501, None, "NotImplementedError", ""), ELSEWHERE, "http_501"),
    "vllm: admission": ((503, None, "Service Unavailable", ""), WAIT, "overloaded"),
    "vllm: a plain string": ((None, None, None, "This model's maximum context length is 8 tokens."),
                             NEVER, "context_length_exceeded"),
    "gemini: its quota sentence is a rate limit": (
        (429, None, "RESOURCE_EXHAUSTED", QUOTA_TEXT), WAIT, "rate_limited"),
    "gemini: a bad key is a 400": ((400, None, None, "API key not valid. Please pass a valid API key."),
                                   STOP, "bad_key"),
    "gemini: location": ((400, None, "FAILED_PRECONDITION", "User location is not supported for the API use."),
                         ELSEWHERE, "unsupported_region"),
    "xai: a bad key is a 400": ((400, None, None, "Incorrect API key provided: xa***"), STOP, "bad_key"),
    "xai: usage guidelines are a 403": (
        (403, None, None, "Content violates usage guidelines."), NEVER, "content_filter"),
    "together: too long is a 403": (
        (403, None, None, "Input token count + max_tokens parameter must be less than the length of the model"),
        NEVER, "context_length_exceeded"),
    "bailian: content": ((400, "data_inspection_failed", None, ""), NEVER, "content_filter"),
    "own server: upstream error": ((None, "upstream_error", None, "cut: reset"), RETRY, "upstream_error"),
    "own server: expired": ((None, "batch_expired", None, ""), WAIT, "batch_expired"),
    "own server: cancelled": ((None, "batch_cancelled", None, ""), RETRY, "batch_cancelled"),
    "own server: no upstream": ((503, "no_upstream", None, ""), WAIT, "overloaded"),
    "a number that is not a status": ((None, "007", None, None), RETRY, "007"),
    "anthropic: a spending limit comes as a bad request": (
        (400, None, "invalid_request_error", "You have reached your specified API usage limits. You will regain "
         "access on 2026-12-01 at 00:00 UTC."), STOP, "no_credit"),
    "deepseek: no such model": ((400, None, "invalid_request_error", "Model Not Exist"),
                                ELSEWHERE, "model_not_found"),
    "github: a model that is not offered": (
        (400, "unavailable_model", None, "Unavailable model: o3"), ELSEWHERE, "model_not_found"),
    "bedrock: a model of profiles only": (
        (400, None, None, "Invocation of model ID m with on-demand throughput isn\u2019t supported. Retry your "
         "request with the ID or ARN of an inference profile."), ELSEWHERE, "model_not_found"),
    "bedrock: no access to a model is not a missing permission": (
        (403, None, None, "You don't have access to the model with the specified model ID."),
        ELSEWHERE, "model_not_found"),
    "hugging face: a gated model": (
        (403, None, None, "Access to model org/m is restricted and you are not in the authorized list."),
        ELSEWHERE, "model_not_found"),
    "litellm: a key for other models": (
        (401, "401", "key_model_access_denied", "key not allowed to access model. This key can only access "
         "models=['a']. Tried to access b"), ELSEWHERE, "model_not_found"),
    "openrouter: moderation is a 403": (
        (403, "403", None, "Your chosen model requires moderation and your input was flagged"),
        NEVER, "content_filter"),
    "deepseek: content": ((400, None, None, "Content Exists Risk"), NEVER, "content_filter"),
    "nim: an engine that fails comes as a bad request": (
        (400, None, None, "Function id 'f': DEGRADED function cannot be invoked"), RETRY, "upstream_error"),
    "lm studio: an engine that died comes as a bad request": (
        (400, None, None, "The model has crashed without additional information. (Exit code: 6)"),
        RETRY, "upstream_error"),
    "no valid name of a model": (
        (400, None, None, "maker/x is not a valid model ID"), ELSEWHERE, "model_not_found"),
    "a model for dedicated endpoints alone": (
        (400, None, None, "Unable to access non-serverless model maker/x."), ELSEWHERE, "model_not_found"),
    "azure: a model of a later api version": (
        (400, "BadRequest", None, "Model o1 is enabled only for api versions 2024-12-01-preview and later"),
        ELSEWHERE, "model_not_found"),
    "openai: a model that sees nothing": (
        (400, None, "invalid_request_error", "Invalid content type. image_url is only supported by certain models."),
        ELSEWHERE, "images_not_supported"),
    "vllm: a model that sees nothing": (
        (400, None, "BadRequestError", "maker/x is not a multimodal model"), ELSEWHERE, "images_not_supported"),
    "vllm: no picture at most": (
        (400, None, "BadRequestError", "At most 0 image(s) may be provided in one prompt."),
        ELSEWHERE, "images_not_supported"),
    "llama.cpp: a model that sees nothing": (
        (500, "500", "server_error", "image input is not supported - hint: you may need to provide the mmproj"),
        ELSEWHERE, "images_not_supported"),
    "ollama: a model that sees nothing": (
        (500, None, "api_error", "this model is missing data required for image input"),
        ELSEWHERE, "images_not_supported"),
    "lm studio: a model that sees nothing": (
        (400, None, None, "Model does not support images. Please use a model that does."),
        ELSEWHERE, "images_not_supported"),
    "openrouter: no model that sees": (
        (404, "404", None, "No endpoints found that support image input"), ELSEWHERE, "images_not_supported"),
    "deepseek: a model that sees nothing": (
        (400, "invalid_request_error", "invalid_request_error",
         "Failed to deserialize: messages[0]: unknown variant `image_url`, expected `text`"),
        ELSEWHERE, "images_not_supported"),
    "a picture that is broken is another matter": (
        (400, None, None, "The image is not valid: invalid image data"), NEVER, "invalid_image"),
    "a model without pictures": (
        (400, None, None, "This model does not support image inputs"), ELSEWHERE, "images_not_supported"),
    "groq: a closed organization": (
        (400, "organization_restricted", "invalid_request_error", "Organization has been restricted."),
        STOP, "no_permission"),
    "a message of two lines": ((400, None, None, "The model `x`\ndoes not exist"), ELSEWHERE, "model_not_found"),
    "a status of 0": ((0, None, None, None), RETRY, "error"),
    "nothing at all": ((None, None, None, None), RETRY, "error"),
    "a word that nobody knows": ((None, "odd_word", None, "odd"), RETRY, "odd_word"),
    "an unknown 4xx": ((418, "odd_word", "odd", "odd"), NEVER, "http_418"),
    "an unknown 5xx": ((599, None, None, None), RETRY, "http_599"),
    "a redirect is not an answer": ((307, None, None, None), RETRY, "http_307"),
    "an answer that is none": ((200, None, None, None), RETRY, "http_200"),
    "what a broken server says is not believed": ((502, None, None, "invalid api key"), RETRY, "http_502"),
    "time-out": ((408, None, None, ""), RETRY, "http_408"),
    "unprocessable": ((422, None, "UnprocessableEntityError", ""), NEVER, "http_422"),
    "unprocessable without a status": ((None, None, "UnprocessableEntityError", ""), NEVER, "http_422"),
}  # fmt: skip


@pytest.mark.parametrize(("failed", "disposition", "code"), ROWS.values(), ids=ROWS.keys())
def test_what_becomes_of_a_row(
    failed: tuple[int | None, str | None, str | None, str | None], disposition: Disposition, code: str
) -> None:
    found = classify(*failed)
    assert (found.disposition, found.code) == (disposition, code)
    assert found.why
    assert found.advice


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_each_word_and_status_of_a_rule_leads_to_it(rule: Rule) -> None:
    for word in (rule.code, *rule.words):
        assert classify(400, word, None, None).code == rule.code
        assert classify(None, None, word, None).code == rule.code
        assert classify(None, word.upper().replace("_", "-"), None, None).disposition is rule.disposition
    for status in rule.statuses:
        assert classify(status, None, None, None) == classify(None, f"http_{status}", None, None)
        assert classify(status, None, None, None).why == rule.why


WORDS = st.sampled_from([word for rule in RULES for word in (rule.code, *rule.words)]) | st.text(max_size=30)
TEXTS = st.text(max_size=60) | st.sampled_from([QUOTA_TEXT, REQUEST_TOO_LARGE, GROQ_RATE, AZURE_RATE])
STATUSES = st.none() | st.integers(-(10**6), 10**6) | st.integers(395, 605)


@pytest.mark.slow
@settings(max_examples=ample(500))
@given(STATUSES, st.none() | WORDS, st.none() | WORDS, st.none() | TEXTS)
def test_every_failure_has_a_verdict_and_its_code_alone_gives_it_again(
    status: int | None, code: str | None, kind: str | None, message: str | None
) -> None:
    found = classify(status, code, kind, message)
    again = classify(None, found.code, None, None)
    assert (again.disposition, again.code, again.why) == (found.disposition, found.code, found.why)


def test_a_long_message_is_not_read_to_its_end() -> None:
    assert classify(400, None, None, "x" * 2000 + "maximum context length").code == "http_400"
    assert classify(400, None, None, "maximum context length" + "x" * 10**6).code == "context_length_exceeded"


LINE, QUOTA, TOO_LARGE, ACCOUNT, GONE, WHOLE = BatchFault
ENQUEUED = (
    "Enqueued token limit reached for gpt-4o in organization org-x. Limit: {} enqueued tokens. Please try again."
)
DUPLICATE = "The custom_id 'x' for this request is a duplicate of another request."

# (code, message, line), what is refused, what becomes of its rows, what we call it
BATCHES = {
    "openai: invalid_json_line": (
        ("invalid_json_line", "This line is not parseable as valid JSON.", 3), LINE, NEVER, "invalid_request"),
    "openai: missing_required_parameter": (
        ("missing_required_parameter", "Missing required parameter: 'url'.", 1), LINE, NEVER, "invalid_request"),
    "openai: duplicate_custom_id": (("duplicate_custom_id", DUPLICATE, 7), LINE, NEVER, "invalid_request"),
    "openai: mismatched_model": (
        ("mismatched_model", "The model 'x' for this request does not match the rest of the batch.", 2),
        LINE, NEVER, "invalid_request"),
    "openai: streaming_unsupported": (
        ("streaming_unsupported", "Chat Completions: Streaming is not supported in the Batch API.", 1),
        LINE, NEVER, "invalid_request"),
    "openai: invalid_request of a line": (
        ("invalid_request", "Messages parameter is required.", 1), LINE, NEVER, "invalid_request"),
    "openai: one line's url speaks for all": (
        ("invalid_url", "The URL provided for this request does not match the batch endpoint.", 1),
        WHOLE, ELSEWHERE, "invalid_request"),
    "openai: one line's model speaks for all": (
        ("model_not_found", "The provided model 'x' is not supported by the Batch API.", 1),
        WHOLE, ELSEWHERE, "model_not_found"),
    "openai: an input file that is gone": (
        ("invalid_request", "Cannot find file F, or organization O does not have access to it.", None),
        WHOLE, RETRY, "input_lost"),
    "openai: token_limit_exceeded": (
        ("token_limit_exceeded", ENQUEUED.format("900,000"), None), QUOTA, WAIT, "no_room"),
    "openai: enqueued requests": (
        ("request_limit_exceeded", "Enqueued request limit reached for M. Limit: 1,000,000 enqueued requests.", None),
        QUOTA, WAIT, "no_room"),
    "openai: the text without its code": ((None, ENQUEUED.format("900,000"), None), QUOTA, WAIT, "no_room"),
    "openai: too large, as HTTP 413": (
        ("http_413", "The batch input file is larger than the 209715200 maximum for the `m` model", None),
        TOO_LARGE, WAIT, "batch_too_large"),
    "openai: too large, by its words": (
        ("invalid_request_error", "The batch input file is larger than the 209715200 maximum for `m`", None),
        TOO_LARGE, WAIT, "batch_too_large"),
    "openai: a rate at create": (("rate_limit_exceeded", "Rate limit reached", None), QUOTA, WAIT, "no_room"),
    "openai: no credit": (("insufficient_quota", QUOTA_TEXT, None), ACCOUNT, STOP, "no_credit"),
    "openai: a key": (("invalid_api_key", "Incorrect API key provided", None), ACCOUNT, STOP, "bad_key"),
    "openai: an upload that is not JSONL": (
        ("http_400", "Invalid file format for Batch API. Must be .jsonl", None), WHOLE, NEVER, "http_400"),
    "azure: too_many_tasks": (("too_many_tasks", "", None), TOO_LARGE, WAIT, "batch_too_large"),
    "azure: url_mismatch": (("url_mismatch", "", 1), WHOLE, ELSEWHERE, "invalid_request"),
    "azure: model_mismatch": (("model_mismatch", "", 2), LINE, NEVER, "invalid_request"),
    "azure: empty_file": (("empty_file", "The input file is empty.", None), WHOLE, RETRY, "empty_file"),
    "azure: empty_batch": (("empty_batch", "", None), WHOLE, RETRY, "empty_batch"),
    "azure: token_limit_exceeded": (
        ("token_limit_exceeded", "The number of enqueued tokens has surpassed the configured limit of 30K for the "
         "deployment 'gpt-4.1-batch'.", None), QUOTA, WAIT, "no_room"),
    "azure: input_modified": (("input_modified", "", None), WHOLE, RETRY, "input_lost"),
    "azure: input_no_permissions": (("input_no_permissions", "", None), ACCOUNT, STOP, "input_no_permissions"),
    "anthropic: request_too_large": (("request_too_large", "Request exceeds the maximum size", None),
                                     TOO_LARGE, WAIT, "batch_too_large"),
    "anthropic: too many requests in it": (
        (None, "requests: List should have at most a maximum of 100,000 requests", None),
        TOO_LARGE, WAIT, "batch_too_large"),
    "own: a batch that is gone": ((BATCH_GONE, "", None), GONE, RETRY, "batch_gone"),
    "a line with a word that nobody knows": (("odd_word", "odd", 4), LINE, NEVER, "http_400"),
    "a field of a line": (("unsupported_parameter", "", 4), LINE, ELSEWHERE, "unsupported_parameter"),
    "a batch with a word that nobody knows": (("odd_word", "odd", None), WHOLE, RETRY, "odd_word"),
    "nothing at all": ((None, None, None), WHOLE, RETRY, "error"),
}  # fmt: skip


@pytest.mark.parametrize(("refused", "kind", "disposition", "code"), BATCHES.values(), ids=BATCHES.keys())
def test_what_a_batch_was_refused_for(
    refused: tuple[str | None, str | None, int | None], kind: BatchFault, disposition: Disposition, code: str
) -> None:
    found = classify_batch(*refused)
    assert (found.kind, found.disposition, found.code) == (kind, disposition, code)
    assert found.why
    assert found.advice


LIMITS = {
    "openai": (ENQUEUED.format("900,000"), 900_000),
    "openai, two million": (ENQUEUED.format("2,000,000"), 2_000_000),
    "no separators": (ENQUEUED.format("90000"), 90_000),
    "requests are not tokens": ("Enqueued request limit reached. Limit: 1,000,000 enqueued requests.", None),
    "requests in short are none either": ("Enqueued request limit reached. Limit: 1M enqueued requests.", None),
    "azure": (
        "The number of enqueued tokens has surpassed the configured limit of 30K for the deployment 'd'.",
        30_000,
    ),
    "azure, millions": ("enqueued tokens ... limit of 1.5M for the deployment", 1_500_000),
    "azure, in full": ("enqueued tokens ... limit of 30000 for the deployment", 30_000),
    "a word behind the number that is not a unit": ("enqueued tokens ... limit of 30 million", None),
    "no limit": (ENQUEUED.format("0"), None),
    "no number": ("Enqueued token limit reached.", None),
    "a number beyond all reason": (ENQUEUED.format("9" * 40), None),
    "and one that a database would not take": ("enqueued tokens ... limit of 999,999,999,999,999B for d", None),
}


@pytest.mark.parametrize(("message", "limit"), LIMITS.values(), ids=LIMITS.keys())
def test_the_limit_that_a_refusal_names(message: str, limit: int | None) -> None:
    found = classify_batch("token_limit_exceeded", message)
    assert (found.kind, found.limit) == (QUOTA, limit)


@pytest.mark.slow
@settings(max_examples=ample(300))
@given(
    st.none() | WORDS, st.none() | TEXTS | st.from_regex(r"limit(: | of )[0-9,.]{1,30} ?[kmb]? ?(tokens|for)?"),
    st.none() | st.integers(1),
)  # fmt: skip
def test_every_refusal_has_a_verdict(code: str | None, message: str | None, line: int | None) -> None:
    found = classify_batch(code, message, line)
    assert found.limit is None or found.limit > 0
    assert found.kind is not LINE or line is not None
    assert (found.kind is ACCOUNT) == (found.disposition is STOP)


@given(st.integers(1, 10**12))
def test_every_limit_is_read_as_openai_writes_it(limit: int) -> None:
    assert classify_batch("token_limit_exceeded", ENQUEUED.format(f"{limit:,}")).limit == limit


DOES = {
    RETRY: "tried again",
    ELSEWHERE: "goes to another backend",
    NEVER: "fails",
    WAIT: "waits",
    STOP: "stops the backend",
}


def page_row(rule: Rule) -> str:
    said = [f"`{word}`" for word in rule.words if word != rule.code] + [f"HTTP {status}" for status in rule.statuses]
    return f"| `{rule.code}` | {DOES[rule.disposition]} | {rule.why} | {rule.advice} | {', '.join(said)} |"


def test_the_page_for_users_has_every_rule_and_no_other() -> None:
    page = (ROOT / "docs/reference/row-errors.md").read_text(encoding="utf-8")
    table = page.partition("<!-- rules -->\n")[2].partition("<!-- end -->")[0]
    told = [line for line in table.splitlines() if line.startswith("| `")]
    assert told == [page_row(rule) for rule in (*RULES, REFUSED, FAILED)]


def test_the_page_for_users_says_what_each_end_is() -> None:
    page = (ROOT / "docs/reference/row-errors.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \*\*(.+)\*\* \|", page, re.MULTILINE) == list(DOES.values())


def test_the_servers_words_for_an_account_without_credit_are_those_of_the_table() -> None:
    assert all(row_errors.is_account(None, word) for word in NO_CREDIT_WORDS)


ACCOUNTS = {
    (401, None): True, (402, None): True, (403, "odd"): True, (400, "insufficient_quota"): True,
    (429, "insufficient_quota"): True, (400, "authentication_error"): True, (429, "rate_limit_exceeded"): False,
    (400, "organization_on_hold"): True, (404, "model_not_found"): False, (400, None): False,
}  # fmt: skip


@pytest.mark.parametrize(("status", "word"), ACCOUNTS, ids=str)
def test_what_is_about_the_account(status: int, word: str | None) -> None:
    found = row_errors.is_account(status, word)
    assert found is ACCOUNTS[status, word]
    if (status, word) == (400, "authentication_error"):
        return  # of a row the status speaks; a call's account is at fault all the same
    stops = row_errors.classify(status, word, None, None).disposition is row_errors.Disposition.STOP
    assert found is stops, "a refused call and a refused row are judged by the same table"


FORBIDDEN = {
    "a field of the request": (FieldFault.FIELD, None, ELSEWHERE, "unsupported_parameter"),
    "a value that this model does not take": (FieldFault.SETTING, None, ELSEWHERE, "unsupported_parameter"),
    "a value out of range": (FieldFault.RANGE, None, NEVER, "invalid_request"),
    "the account, in the provider's own word": (FieldFault.FIELD, "permission_denied", STOP, "no_permission"),
    "nothing": (None, None, STOP, "http_403"),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_403_that_names_a_field_is_about_that_request(case: str) -> None:
    fault, code, disposition, told = FORBIDDEN[case]
    refused = None if fault is None else RefusedField("logprobs", fault)
    verdict = classify(403, code, None, "You are not allowed to request logprobs from this model", refused)
    assert (verdict.disposition, verdict.code) == (disposition, told)
    assert classify(None, verdict.code, None, None).rule == verdict.rule, "its code alone says the same"
    assert row_errors.is_account(403, code, names_field=refused is not None) is (disposition is STOP)
