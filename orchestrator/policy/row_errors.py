"""What becomes of a row that failed, and of a batch that was refused: one table for all providers. Pure.

A rule is found by the provider's word (`code` or `type`), else by what its message says, else by the HTTP status. The
order of RULES matters: a 429 whose code is `insufficient_quota` is an empty account and no rate limit. The page for
users is docs/reference/row-errors.md, which a test holds to this table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

MOST_READ = 2000
"""Characters of a message that are looked at."""


class Disposition(StrEnum):
    """What becomes of a row that failed."""

    RETRY = "retry"  # the same backend again, as it is; counts an attempt
    ELSEWHERE = "elsewhere"  # this backend will never do it, another may
    NEVER = "never"  # no backend will: the row has failed
    WAIT = "wait"  # there is no room for it now; counts no attempt
    STOP = "stop"  # the account is at fault, not the row: nothing goes to this backend until that is mended


class BatchFault(StrEnum):
    """What a backend refused a batch for."""

    LINE = "line"  # one line; the others go on without it
    QUOTA = "quota"  # no room now
    TOO_LARGE = "too_large"  # more rows, bytes or inputs than one batch may have
    ACCOUNT = "account"  # the key, the credit or a permission
    GONE = "gone"  # the backend has lost it
    WHOLE = "whole"  # the batch as such


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of failure. `code` is what we call it; `why` and `advice` are for people.

    It holds where the provider's word is in `words`, the message fits `says`, or the status is in `statuses`.
    """

    code: str
    disposition: Disposition
    why: str
    advice: str
    words: tuple[str, ...] = ()
    says: str = ""
    statuses: tuple[int, ...] = ()


RULES = (
    Rule(
        "no_credit", Disposition.STOP, "the account has no credit left, or has reached its spending limit",
        "add credit or raise the limit at the provider; the rows wait and go on by themselves",
        ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance",
         "insufficient_credits", "insufficient_funds", "arrearage"),
        r"credit balance is too low|insufficient (balance|credits?|funds)|billing (hard )?limit|payment required",
        (402,),
    ),
    Rule(
        "bad_key", Disposition.STOP, "the API key is not accepted",
        "set the right key in the variable that `api_key_env` names; the rows wait and go on by themselves",
        ("invalid_api_key", "incorrect_api_key", "invalid_authentication", "expired_api_key"),
        r"(incorrect|invalid) api key|api key (is )?(not valid|invalid|expired|missing)",
        (401,),
    ),
    Rule(
        "larger_than_rate", Disposition.ELSEWHERE,
        "the request alone is larger than what the account may send in a minute",
        "shorten the document, raise the rate at the provider, or take its Batch API",
        says=r"request too large for",
    ),
    Rule(
        "context_length_exceeded", Disposition.NEVER, "the prompt is longer than the model can read",
        "set `max_document_tokens`, lower `max_tokens`, or take a model with a longer context",
        ("string_above_max_length", "request_too_large", "prompt_too_long", "model_context_window_exceeded"),
        r"maximum context length|context (length|window|limit)|prompt is too long|reduce the length"
        r"|maximum (model|sequence|input) length|input token count \+",
        (413,),
    ),
    Rule(
        "content_filter", Disposition.NEVER, "the provider's content filter refused the text or the answer",
        "look at the document; another provider may judge it differently",
        ("content_policy_violation", "responsible_ai_policy_violation", "moderation_blocked", "invalid_prompt",
         "image_content_policy_violation", "bio_policy", "misalignment_policy_violation", "data_inspection_failed"),
        r"content (management|filter)|content polic|usage (polic|guidelines)|flagged as potentially",
    ),
    Rule(
        "unsupported_region", Disposition.ELSEWHERE, "the provider does not serve this model or account from here",
        "take another backend, or a region that the provider serves",
        ("unsupported_country_region_territory", "data_residency_mismatch"),
        r"(country|region|territory)\b.{0,40}not (supported|available)|location is not supported",
    ),
    Rule(
        "download_failed", Disposition.RETRY, "the provider could not fetch a file that the row points to",
        "see that the address answers from outside, or put the file into the row",
        ("failed_to_download_image",),
        r"(timeout|timed out|error|failed) while downloading|failed to download",
    ),
    Rule(
        "model_not_found", Disposition.ELSEWHERE, "the backend does not have the model, or not for this account",
        "correct its name under `models` in orch.toml (at Azure it is the deployment's), or take another backend",
        ("model_not_available", "model_not_supported", "unsupported_model", "unknown_model", "invalid_model",
         "model_decommissioned", "model_not_active", "deployment_not_found"),
        r"\bmodel\b.{0,120}\b(does not exist|not found|is not supported|not available|decommissioned)"
        r"|deployment\b.{0,80}does not exist|must be verified to use",
        (404, 405),
    ),
    Rule(
        "unsupported_parameter", Disposition.ELSEWHERE, "the backend does not take a field of the request",
        "take the field out, or take a backend that knows it",
        ("unsupported_value", "unknown_parameter", "unsupported_field", "unsupported_endpoint",
         "unsupported_operation", "operation_not_supported", "not_implemented"),
        r"\bunsupported (parameter|value|field)|unrecognized request argument|extra inputs are not permitted",
        (501,),
    ),
    Rule(
        "invalid_image", Disposition.NEVER, "an image of the request cannot be read",
        "look at the image: its format, its size, whether it is whole",
        ("invalid_image_format", "invalid_base64_image", "invalid_image_url", "image_too_large", "image_too_small",
         "image_parse_error", "invalid_image_mode", "image_file_too_large", "unsupported_image_media_type",
         "empty_image_file", "image_file_not_found"),
        r"(could not|failed to|unable to) (process|decode|parse|read) (the |this )?image|invalid image",
    ),
    Rule(
        "bad_generation", Disposition.RETRY, "the model's answer was not of the form that was asked for",
        "a schema with fewer demands, or another model, if it happens often",
        ("json_validate_failed", "tool_use_failed", "output_parse_failed"),
    ),
    Rule(
        "rate_limited", Disposition.WAIT, "the account may not send more for now",
        "nothing: the rows wait; or raise the rate at the provider",
        ("rate_limit_exceeded", "too_many_requests", "resource_exhausted", "throttling", "limit_requests",
         "token_limit_exceeded"),
        r"rate limit (is )?(reached|exceeded)|too many requests",
        (429,),
    ),
    Rule(
        "overloaded", Disposition.WAIT, "the backend has no capacity for it now",
        "nothing: the rows wait",
        ("resource_unavailable", "engine_overloaded", "server_overloaded", "model_overloaded", "slow_down",
         "capacity_exceeded", "service_unavailable", "no_upstream"),
        # 498 is Groq's for its flex tier.
        statuses=(498, 503, 529),
    ),
    Rule(
        "batch_expired", Disposition.WAIT, "the batch's window ended before the row ran",
        "nothing: it goes into another batch; or give the job more time",
    ),
    Rule(
        "batch_cancelled", Disposition.RETRY, "the batch was cancelled before the row ran",
        "nothing: it goes into another batch",
    ),
    Rule(
        "upstream_error", Disposition.RETRY, "the server broke off, or gave no answer that can be read",
        "nothing, if it is a few rows; else look at the upstream, or at the provider's status page",
        ("upstream_timeout", "internal_error", "request_timeout", "vector_store_timeout", "missing_result"),
        statuses=(408, 409, 425, 499),
    ),
    Rule(
        "no_permission", Disposition.STOP, "the account may not do this",
        "give the key the permission that the message names; the rows wait and go on by themselves",
        ("permission_denied", "insufficient_permissions", "authorization_failed", "account_deactivated",
         "organization_deactivated", "ip_not_authorized"),
        statuses=(403,),
    ),
    Rule(
        "invalid_request", Disposition.NEVER, "the request is not one that the API takes",
        "correct what the message names",
        ("bad_request", "invalid_value", "invalid_type", "invalid_parameter", "missing_required_parameter",
         "invalid_json_line", "duplicate_custom_id", "mismatched_model", "model_mismatch", "invalid_url",
         "url_mismatch", "streaming_unsupported"),
    ),
)  # fmt: skip

REFUSED = Rule("http_4xx", Disposition.NEVER, "the backend refuses the request", "correct what the message names")
FAILED = Rule(
    "http_5xx", Disposition.RETRY, "the backend failed, or gave neither an answer nor a reason",
    "nothing, if it is a few rows; else look at the provider's status page",
)  # fmt: skip


BAD_ANSWERS = {
    "truncated": ("the answer ended at `max_tokens` before it was complete", "raise `max_tokens`"),
    "refusal": ("the model refused to answer", "look at the document and the prompt; another model may answer"),
    "content_filter": (
        "the provider's content filter withheld the answer, or its rest",
        "look at the document; another provider may judge it differently",
    ),
    "empty_answer": ("the model answered with nothing", "another model, if it happens often"),
    "invalid_json": ("the task has a schema, and the answer is no JSON", "another model, or a simpler schema"),
    "schema_mismatch": ("the answer is JSON that does not fit the schema", "another model, or a simpler schema"),
}
"""What may be wrong with an answer that came and was paid for: why, and what to do, by the row's error code."""


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """What becomes of a row. `code` names the failure, and classified by itself it gives the same again.

    `rule` is the code of the rule that it fell under.
    """

    disposition: Disposition
    code: str
    why: str
    advice: str
    rule: str


@dataclass(frozen=True, slots=True)
class BatchVerdict:
    """What a batch was refused for, and what becomes of the rows concerned: of that line, or of all.

    `limit` is how many tokens may be enqueued, where a refusal for want of room says so.
    """

    kind: BatchFault
    disposition: Disposition
    code: str
    why: str
    advice: str
    limit: int | None = None


def _plain(word: str | None) -> str:
    """A word as it is compared: `DeploymentNotFound`, `deployment_not_found` and `Deployment not found` are one."""
    return re.sub(r"[^a-z0-9]", "", (word or "").lower())


def _plain_all(*words: str) -> frozenset[str]:
    return frozenset(map(_plain, words))


_MATCHERS = tuple(
    (
        rule,
        _plain_all(rule.code, *rule.words),
        re.compile(rule.says, re.IGNORECASE | re.DOTALL) if rule.says else None,
    )
    for rule in RULES
)
_BY_STATUS = {status: rule for rule in RULES for status in rule.statuses}
# Types that say no more than a status does: Anthropic's, vLLM's, OpenAI's.
_STATUS_OF_TYPE = {
    _plain(word): status
    for status, words in {
        400: ("invalid_request_error", "BadRequestError"),
        401: ("authentication_error", "AuthenticationError"),
        402: ("billing_error",),
        403: ("permission_error", "PermissionDeniedError"),
        404: ("not_found_error", "NotFoundError"),
        422: ("UnprocessableEntityError",),
        429: ("rate_limit_error", "RateLimitError"),
        500: ("api_error", "server_error", "InternalServerError"),
        501: ("NotImplementedError",),
        503: ("ServiceUnavailableError",),
        504: ("timeout_error",),
        529: ("overloaded_error",),
    }.items()
    for word in words
}  # fmt: skip


def classify(status: int | None, code: str | None, kind: str | None, message: str | None) -> RowVerdict:
    """The verdict on a row that failed with this HTTP status and error object, as far as known. Never raises.

    `kind` is the error's `type`. What nobody knows is the row's fault with a status of 4xx, and else the backend's.
    """
    words = {_plain(code), _plain(kind)}
    status = status or _status_in(code) or _STATUS_OF_TYPE.get(_plain(code)) or _STATUS_OF_TYPE.get(_plain(kind))
    # What a server says that broke is about itself.
    text = (message or "")[:MOST_READ] if status is None or status < 500 else ""
    for rule, known, says in _MATCHERS:
        if words & known or (says is not None and says.search(text)):
            return _verdict(rule, rule.code)
    if status is None:
        return _verdict(FAILED, code or "error")
    fallback = REFUSED if 400 <= status < 500 else FAILED
    return _verdict(_BY_STATUS.get(status, fallback), f"http_{status}")


def _verdict(rule: Rule, code: str) -> RowVerdict:
    return RowVerdict(rule.disposition, code, rule.why, rule.advice, rule.code)


def _status_in(code: str | None) -> int | None:
    """The status that stands in place of a word: vLLM's `404`, our own `http_404`."""
    found = re.fullmatch(r"(?:http_)?([1-9]\d\d)", code or "")
    return int(found[1]) if found else None


INPUT_LOST = "input_lost"
"""The code of a batch whose input file its backend cannot find."""
NOT_SENT = "not_sent"
"""The code of a batch that could not be made for too long."""
_GONE = _plain_all("batch_gone")
_UNSENT = _plain_all(NOT_SENT)
_LOST = _plain_all("input_modified", "file_not_found")
_LOST_SAYS = re.compile(r"cannot find file|no such file", re.IGNORECASE)
_MISSED = re.compile(r"file_?(id_?)?(not|un|missing|pending|processing)", re.IGNORECASE)
_MISSED_SAYS = re.compile(
    r"cannot find file|no such file|\bfile\b.{0,120}\b(not found|does not exist|cannot be (found|used)|pending"
    r"|(not|still)( yet)?( been| being)? (ready|processed|uploaded|available|usable))",
    re.IGNORECASE | re.DOTALL,
)
_QUOTA = _plain_all("token_limit_exceeded", "request_limit_exceeded", "quota_exceeded")
_QUOTA_SAYS = re.compile(r"enqueued (token|request)", re.IGNORECASE)
_LARGE = _plain_all("too_many_tasks", "file_too_large", "batch_too_large", "request_too_large", "http_413")
_LARGE_SAYS = re.compile(
    r"larger than the .{0,40}maximum|too many (lines|rows|tasks|inputs)"
    r"|exceeds? the maximum (number|size|file size)|maximum of [\d,]+ (requests|rows|lines|inputs)",
    re.IGNORECASE,
)
_MODEL = _plain_all("model_not_found")
_URL = _plain_all("invalid_url", "url_mismatch", "unsupported_endpoint")
_NO_ACCESS = _plain_all("input_no_permissions")
_LIMIT = re.compile(
    r"\blimit(?::| of)\s*((?>\d{1,3}(?:,\d{3}){1,5}|\d{1,15})(?:\.\d{1,6})?)"
    r"\s*(?:([kmb])\b(?!\s+enqueued\s+request)|(?=(?:enqueued\s+)?tokens\b|for\b))",
    re.IGNORECASE | re.ASCII,
)
_UNIT = {None: 1, "k": 10**3, "m": 10**6, "b": 10**9}


def classify_batch(code: str | None, message: str | None, line: int | None = None) -> BatchVerdict:
    """The verdict on a batch that was refused, at its creation or by its validation, for this problem. Never raises.

    All rows of a batch of ours are for one model and endpoint, so a line that is refused for either speaks for all.
    """
    word, text = _plain(code), (message or "")[:MOST_READ]
    row = classify(None if line is None else 400, code, None, message)
    if word in _GONE:
        why, advice = "the backend has lost the batch", "nothing: its rows go into another one"
        return BatchVerdict(BatchFault.GONE, Disposition.RETRY, "batch_gone", why, advice)
    if word in _LOST or _LOST_SAYS.search(text):
        why, advice = "the backend cannot find the batch's input file", "nothing: it is uploaded again"
        return BatchVerdict(BatchFault.WHOLE, Disposition.RETRY, INPUT_LOST, why, advice)
    if word in _UNSENT:
        why, advice = "the backend took no batch of it for days", "look at the backend; `orch retry` sends it again"
        return BatchVerdict(BatchFault.WHOLE, Disposition.ELSEWHERE, NOT_SENT, why, advice)
    if word in _QUOTA or _QUOTA_SAYS.search(text) or row.disposition is Disposition.WAIT:
        why = "the backend has no room for more of this model now"
        advice = "nothing: the rows wait; or raise the quota at the provider"
        return BatchVerdict(BatchFault.QUOTA, Disposition.WAIT, "no_room", why, advice, _limit_in(text))
    if word in _LARGE or _LARGE_SAYS.search(text):
        why = "the batch is larger than the backend takes"
        advice = "nothing: it is cut; or set `limits` for this backend in orch.toml"
        return BatchVerdict(BatchFault.TOO_LARGE, Disposition.WAIT, "batch_too_large", why, advice)
    if word in _NO_ACCESS or row.disposition is Disposition.STOP:
        kind, disposition = BatchFault.ACCOUNT, Disposition.STOP
    elif word in _URL:
        kind, disposition = BatchFault.WHOLE, Disposition.ELSEWHERE
    else:
        is_whole = line is None or _plain(row.code) in _MODEL
        kind, disposition = BatchFault.WHOLE if is_whole else BatchFault.LINE, row.disposition
    return BatchVerdict(kind, disposition, row.code, row.why, row.advice)


def input_is_missed(code: str | None, message: str | None) -> bool:
    """Whether a create was refused because its input file is not there, or not ready: it may be a moment later."""
    return bool(_MISSED.search(code or "") or _MISSED_SAYS.search((message or "")[:MOST_READ]))


def _limit_in(message: str) -> int | None:
    """The tokens in `Limit: 900,000 enqueued tokens` (OpenAI) or `limit of 30K for` (Azure); None without them."""
    found = _LIMIT.search(message)
    if found is None:
        return None
    limit = int(float(found[1].replace(",", "")) * _UNIT[found[2] and found[2].lower()])
    return limit if 0 < limit < 2**63 else None
