"""Codes and messages of errors that refuse a request, and the HTTP status that each means. Pure."""

from __future__ import annotations

import re

from orchestrator.core.error_body import ErrorWords, plain
from orchestrator.core.lazy_patterns import regex
from orchestrator.core.refused_fields import MOST_READ, ProviderError, names_request_field, says_it_passes

MODEL_WORDS = (
    "model_not_available", "model_not_supported", "unsupported_model", "unknown_model", "invalid_model",
    "model_decommissioned", "model_not_active", "deployment_not_found", "unavailable_model",
    "key_model_access_denied", "team_model_access_denied",
)  # fmt: skip
"""Codes and types for a model that a provider does not have."""
MODEL_SAYS = (
    r"\binvalid model\b|\b(no such|unknown|unavailable) model\b|\bmodel not exist\b|\bon-demand throughput\b"
    r"|\bnot a valid model\b|\bunable to access (the )?(non-serverless )?model\b"
    r"|(\bnot|n['\u2019]t) have access to (the )?model\b|\bnot allowed to (sample|generate \w+) from this model\b"
    r"|\baccess to (the )?model\b.{0,120}\brestricted\b"
    r"|\bmodel\b.{0,120}\b(does not exist|not found|is not supported|not available|decommissioned)"
    r"|\bmodel\b.{0,80}\bis enabled only for api versions"
    r"|\bsupported (api )?model names are\b|deployment\b.{0,80}does not exist|must be verified to use"
)
"""Pattern of messages about a model that a provider does not have."""
FIELD_WORDS = (
    "unsupported_value", "unknown_parameter", "unsupported_field", "unsupported_endpoint", "unsupported_operation",
    "operation_not_supported", "not_implemented",
)  # fmt: skip
"""Codes and types for a rejected field."""
FIELD_SAYS = (
    r"\bunsupported (parameter|value|field)|unrecognized request argument|extra inputs are not permitted"
    r"|\b(audio|file|video)(_url|s| inputs?)? (is|are) (only supported by certain models|not supported\b)"
    r"|\bdoes not support (audio|video)\b"
)
"""Pattern of messages about a rejected field."""
NO_IMAGES = "images_not_supported"
"""orch's error code for rows that were refused because the model cannot see pictures."""
NO_IMAGES_SAYS = (
    r"\bimages?(_url| inputs?)? (is|are) (only supported by certain models|not (supported|enabled)\b)"
    r"|\b(does not|doesn['\u2019]t) support (images?|vision|multimodal)\b|\bnot a (multimodal|vision) model\b"
    r"|\bmissing data required for image input|\bno endpoints found that support image|\bat most 0 image"
    r"|\bunknown variant [`'\"]image_url"
)
"""Pattern of messages saying that a model cannot see pictures.

From vLLM, llama.cpp, Ollama, LM Studio, OpenAI, OpenRouter and DeepSeek.
"""
FILTER_WORDS = (
    "content_policy_violation", "responsible_ai_policy_violation", "moderation_blocked", "invalid_prompt",
    "image_content_policy_violation", "bio_policy", "misalignment_policy_violation", "data_inspection_failed",
)  # fmt: skip
"""Codes and types for a text that a content filter refused."""
FILTER_SAYS = (
    r"content (management|filter)|content polic|usage (polic|guidelines)|flagged as potentially|input was flagged"
    r"|content exists risk"
)
"""Pattern of messages about a text that a content filter refused."""
IMAGE_WORDS = (
    "invalid_image_format", "invalid_base64_image", "invalid_image_url", "image_too_large", "image_too_small",
    "image_parse_error", "invalid_image_mode", "image_file_too_large", "unsupported_image_media_type",
    "empty_image_file", "image_file_not_found",
)  # fmt: skip
"""Codes and types for an image that cannot be read."""
IMAGE_SAYS = r"(could not|failed to|unable to) (process|decode|parse|read) (the |this )?image|invalid image"
"""Pattern of messages about an image that cannot be read."""
INVALID_WORDS = (
    "bad_request", "invalid_value", "invalid_type", "invalid_parameter", "missing_required_parameter",
    "invalid_json_line", "duplicate_custom_id", "mismatched_model", "model_mismatch", "invalid_url", "url_mismatch",
    "streaming_unsupported",
)  # fmt: skip
"""Codes and types for requests that are rejected for any other reason."""
LARGER_THAN_RATE_SAYS = r"request too large for"
"""Pattern of messages about a single request above the account's rate limit. Waiting does not help, whatever the
status.
"""
_BAD_REQUEST, _NOT_FOUND = 400, 404
_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY, _SERVER_ERROR = 401, 403, 429, 500
_REJECTED = (
    "model_not_found", "unsupported_parameter", NO_IMAGES, "content_filter", "invalid_image", "invalid_request",
    "invalid_request_error", "BadRequestError", "UnprocessableEntityError", *FIELD_WORDS, *FILTER_WORDS, *IMAGE_WORDS,
    *INVALID_WORDS,
)  # fmt: skip
_REJECTS = regex(f"{FIELD_SAYS}|{NO_IMAGES_SAYS}|{FILTER_SAYS}|{IMAGE_SAYS}", re.IGNORECASE)
_TOO_LARGE = regex(r"\binput \(\d+ tokens\) is too large\b", re.IGNORECASE)
_SEES_NOTHING = regex(NO_IMAGES_SAYS, re.IGNORECASE)
_ABOUT_REQUEST = regex(
    r"\binvalid\b|\bmalformed|\bbad request|\bvalidation (error|failed)|\bmissing (required )?(field|param|argument)"
    r"|\b(field|param\w*|argument) (is )?(required|missing)|\bnot (supported|allowed|permitted)\b|\bunsupported\b",
    re.IGNORECASE,
)
_ABOUT_SERVER = regex(
    r"\binternal\b|\bworkers?\b|\bengines?\b|\bbackend|\bupstream|\breplicas?\b|\bcapacity|\bconnection|time[d -]?out"
    r"|\bresponse from\b|\bcuda|\bgpu\b",
    re.IGNORECASE,
)
_LACKS_MODEL = regex(MODEL_SAYS, re.IGNORECASE | re.DOTALL)
_FILTERED = regex(FILTER_SAYS, re.IGNORECASE)
_LARGER_THAN_RATE = regex(LARGER_THAN_RATE_SAYS, re.IGNORECASE)


_REJECTED_PLAIN = frozenset(map(plain, _REJECTED))
_MODEL_PLAIN = frozenset(map(plain, ("model_not_found", "not_found_error", *MODEL_WORDS)))
_ROW_PLAIN = _MODEL_PLAIN | frozenset(map(plain, ("content_filter", *FILTER_WORDS)))


def status_meant(words: ErrorWords) -> int | None:
    """Return the HTTP status that fits an error sent with a success status. None if the error does not refuse the
    request.

    Temporary states and unknown words do not refuse a request: the row is tried again.
    """
    if (status := words.stated_status) is not None or words.message is None:
        return status
    text = words.message[:MOST_READ]
    if says_it_passes(text):
        return None
    told = {plain(words.code), plain(words.type)}
    if told & _MODEL_PLAIN or _LACKS_MODEL.search(text):
        return _NOT_FOUND
    error = ProviderError(_BAD_REQUEST, words.code, words.type, words.param, words.message)
    is_rejected = (
        told & _REJECTED_PLAIN
        or _REJECTS.search(text)
        or names_request_field(error)
        or (_ABOUT_REQUEST.search(text) and not _ABOUT_SERVER.search(text))
    )
    return _BAD_REQUEST if is_rejected else None


def refuses_images(message: str | None) -> bool:
    """True if a message says that the model cannot see pictures."""
    return _SEES_NOTHING.search((message or "")[:MOST_READ]) is not None


def blames_row(message: str | None) -> bool:
    """True if an error with status 500 is about the row: llama.cpp and Ollama answer 500 to pictures and long
    inputs.
    """
    return refuses_images(message) or _TOO_LARGE.search((message or "")[:MOST_READ]) is not None


def refuses_request(status: int, words: ErrorWords) -> bool:
    """True if an error is about the request although its status usually means an account, rate or server problem."""
    text = (words.message or "")[:MOST_READ]
    if words.is_page:
        return False
    if status == _TOO_MANY:
        return _LARGER_THAN_RATE.search(text) is not None
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        is_about_row = not _ROW_PLAIN.isdisjoint((plain(words.code), plain(words.type)))
        if is_about_row or (status == _FORBIDDEN and (_LACKS_MODEL.search(text) or _FILTERED.search(text))):
            return True
    if status not in (_FORBIDDEN, _SERVER_ERROR):
        return False
    if blames_row(text):
        return True
    return names_request_field(ProviderError(status, words.code, words.type, words.param, words.message))
