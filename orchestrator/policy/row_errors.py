"""Fate of failed rows and refused batches: one table for all providers. Pure.

The provider's word (`code` or `type`) selects the rule, otherwise the message, otherwise the HTTP status. The order
of RULES matters: a 429 with the code `insufficient_quota` is an empty account, not a rate limit. The page for users
is docs/reference/row-errors.md, which a test compares with this table.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from orchestrator.core.error_body import BAD_KEY, CONTEXT_TOO_LONG, CONTEXT_WORDS, NO_CREDIT, NO_CREDIT_WORDS, plain
from orchestrator.core.lazy_patterns import regex
from orchestrator.core.model import CancelCode, Job
from orchestrator.core.refusal_words import (
    FIELD_SAYS,
    FIELD_WORDS,
    FILTER_SAYS,
    FILTER_WORDS,
    IMAGE_SAYS,
    IMAGE_WORDS,
    INVALID_WORDS,
    LARGER_THAN_RATE_SAYS,
    MODEL_SAYS,
    MODEL_WORDS,
    NO_IMAGES,
    NO_IMAGES_SAYS,
    blames_row,
)
from orchestrator.core.refused_fields import FieldFault, RefusedField

MOST_READ = 2000
"""Maximum number of characters of a message that are examined."""


class Disposition(StrEnum):
    """Next step for a failed row."""

    RETRY = "retry"  # the same backend again, as it is; counts an attempt
    ELSEWHERE = "elsewhere"  # this backend will never do the row, but another may
    NEVER = "never"  # no backend will do the row: it has failed
    WAIT = "wait"  # the backend has no room now; counts no attempt
    STOP = "stop"  # the account is at fault: nothing goes to this backend until a person fixes the account


class Rule(Struct, frozen=True):
    """One kind of failure. `code` is our name for it. `why` and `advice` are sentences for the user.

    The rule applies if the provider's word is in `words`, the message matches `says`, or the status is in `statuses`.
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
        "add credit or raise the limit at the provider; the rows wait and resume automatically",
        NO_CREDIT_WORDS,
        NO_CREDIT,
        (402,),
    ),
    Rule(
        "bad_key", Disposition.STOP, "the API key is not accepted",
        "set the right key in the variable that `api_key_env` names; the rows wait and resume automatically",
        ("invalid_api_key", "incorrect_api_key", "invalid_authentication", "expired_api_key"),
        BAD_KEY,
        (401,),
    ),
    Rule(
        "larger_than_rate", Disposition.ELSEWHERE,
        "the request alone exceeds the account's rate per minute",
        "shorten the document, raise the rate at the provider, or use its Batch API",
        says=LARGER_THAN_RATE_SAYS,
    ),
    Rule(
        "context_length_exceeded", Disposition.NEVER, "the prompt is longer than the model can read",
        "set `max_document_tokens`, lower `max_tokens`, or use a model with a longer context",
        CONTEXT_WORDS,
        CONTEXT_TOO_LONG,
        (413,),
    ),
    Rule(
        "content_filter", Disposition.NEVER, "the provider's content filter refused the text or the answer",
        "check the document; another provider may judge it differently",
        FILTER_WORDS,
        FILTER_SAYS,
    ),
    Rule(
        "unsupported_region", Disposition.ELSEWHERE, "the provider does not serve this model or account from here",
        "use another backend, or a region that the provider serves",
        ("unsupported_country_region_territory", "data_residency_mismatch"),
        r"(country|region|territory)\b.{0,40}not (supported|available)|location is not supported",
    ),
    Rule(
        "download_failed", Disposition.RETRY, "the provider could not fetch a file that the row points to",
        "check that the address is reachable from outside, or put the file into the row",
        ("failed_to_download_image",),
        r"(timeout|timed out|error|failed) while downloading|failed to download",
    ),
    Rule(
        NO_IMAGES, Disposition.ELSEWHERE, "the model sees no pictures",
        "set `render: ocr` on the source (it sends text), or use a model that sees",
        says=NO_IMAGES_SAYS,
    ),
    Rule(
        "model_not_found", Disposition.ELSEWHERE, "the backend does not have the model, or not for this account",
        "correct its name under `models` in orch.toml (at Azure it is the deployment's), or use another backend",
        MODEL_WORDS,
        MODEL_SAYS,
        (404, 405),
    ),
    Rule(
        "unsupported_parameter", Disposition.ELSEWHERE, "the backend does not accept a field of the request",
        "remove the field, or use a backend that supports it",
        FIELD_WORDS,
        FIELD_SAYS,
        (501,),
    ),
    Rule(
        "invalid_image", Disposition.NEVER, "an image of the request cannot be read",
        "check the image: its format, its size, whether it is complete",
        IMAGE_WORDS,
        IMAGE_SAYS,
    ),
    Rule(
        "bad_generation", Disposition.RETRY, "the model's answer did not have the requested form",
        "simplify the schema or use another model, if it happens often",
        ("json_validate_failed", "tool_use_failed", "output_parse_failed"),
    ),
    Rule(
        "rate_limited", Disposition.WAIT, "the account's rate limit is reached",
        "nothing: the rows wait; or raise the rate at the provider",
        ("rate_limit_exceeded", "rate_limit", "too_many_requests", "resource_exhausted", "throttling",
         "limit_requests", "token_limit_exceeded"),
        r"rate limit (is )?(reached|exceeded)|too many requests",
        (429,),
    ),
    Rule(
        "overloaded", Disposition.WAIT, "the backend has no capacity for it now",
        "nothing: the rows wait",
        ("resource_unavailable", "engine_overloaded", "server_overloaded", "model_overloaded", "slow_down",
         "capacity_exceeded", "service_unavailable", "no_upstream"),
        # Groq answers 498 if its flex tier has no room.
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
        "upstream_error", Disposition.RETRY,
        "the server closed the connection, or its answer is not complete or cannot be read",
        "nothing for a few rows; otherwise check the upstream, or the provider's status page",
        ("upstream_timeout", "internal_error", "request_timeout", "vector_store_timeout", "missing_result",
         "unfinished_answer"),
        r"degraded function|\bmodel has crashed|\bmodel (is |was )?unloaded",
        (408, 409, 425, 499),
    ),
    Rule(
        "no_permission", Disposition.STOP, "the account is not permitted to do this",
        "give the key the permission that the message names; the rows wait and resume automatically",
        ("permission_denied", "insufficient_permissions", "authorization_failed", "account_deactivated",
         "organization_deactivated", "organization_on_hold", "organization_restricted", "access_terminated",
         "cmek_key_disabled", "ip_not_authorized"),
        statuses=(403,),
    ),
    Rule(
        "invalid_request", Disposition.NEVER, "the API rejects the request",
        "fix what the message names",
        INVALID_WORDS,
    ),
)  # fmt: skip

REFUSED = Rule("http_4xx", Disposition.NEVER, "the backend refuses the request", "fix what the message names")
FAILED = Rule(
    "http_5xx", Disposition.RETRY, "the backend failed, or gave neither an answer nor a reason",
    "nothing for a few rows; otherwise check the provider's status page",
)  # fmt: skip


SWAPPED, UNPROVEN = "swapped_answer", "unproven_answer"
QUARANTINED = frozenset({SWAPPED, UNPROVEN})
"""Codes of answers that a person has to judge. Their rows are not sent again, and the model is not to blame."""
BAD_ANSWERS = {
    "truncated": ("the answer reached `max_tokens` before it was complete", "raise `max_tokens`"),
    "endless_blanks": (
        "the model wrote whitespace until `max_tokens`, as some do when a schema guides them",
        "change the prompt, the schema or the model: more tokens do not help",
    ),
    "context_full": (
        "the model's context window was full before the answer was complete",
        "set `max_document_tokens`, or use a model with a longer context",
    ),
    "refusal": ("the model refused to answer", "check the document and the prompt; another model may answer"),
    "content_filter": (
        "the provider's content filter withheld the answer, or the rest of it",
        "check the document; another provider may judge it differently",
    ),
    "empty_answer": ("the model returned an empty answer", "another model, if it happens often"),
    "invalid_json": ("the task has a schema, and the answer is not JSON", "another model, or a simpler schema"),
    "schema_mismatch": ("the answer is JSON that does not fit the schema", "another model, or a simpler schema"),
    "quote_not_found": (
        "the answer quotes text that is not in the document as it was sent",
        "set `retries`, ask for quotes word for word, or use a stronger model",
    ),
    "quote_too_short": (
        "a quote of the answer has fewer than 12 characters and fewer than three words",
        "set `retries`, or ask for whole sentences",
    ),
    "wrong_row_code": (
        "the answer does not give back the code at the end of its prompt (`check: nonce`)",
        "set `retries`, or use a stronger model",
    ),
    SWAPPED: (
        "the answer under this row's key belongs to another row, by its code or its quotes",
        "tell the provider; `orch quarantine release` asks the row again",
    ),
    UNPROVEN: (
        "its batch has answers under the wrong keys, and nothing proves that this one is not",
        "`orch quarantine release` asks the row again; `check: nonce` proves answers",
    ),
    "invalid_vector": (
        "the answer contains no vector, or a vector that does not have the requested size",
        "check that the model makes embeddings, and that it takes `dimensions`",
    ),
}
"""Faults of paid answers: (reason, advice) by the row's error code."""


class RowVerdict(Struct, frozen=True):
    """The fate of a row. `code` names the failure; classifying `code` again gives the same verdict.

    `rule` is the code of the matching rule.
    """

    disposition: Disposition
    code: str
    why: str
    advice: str
    rule: str


def plain_all(*words: str) -> frozenset[str]:
    return frozenset(map(plain, words))


_MATCHERS = tuple(
    (
        rule,
        plain_all(rule.code, *rule.words),
        regex(rule.says, re.IGNORECASE | re.DOTALL) if rule.says else None,
    )
    for rule in RULES
)
_UNSUPPORTED, _INVALID = (
    next(rule for rule in RULES if rule.code == code) for code in ("unsupported_parameter", "invalid_request")
)
_BY_STATUS = {status: rule for rule in RULES for status in rule.statuses}
# Error types of Anthropic, vLLM and OpenAI that say no more than a status does.
_STATUS_OF_TYPE = {
    plain(word): status
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


_ACCOUNT = frozenset(word for rule, words, _ in _MATCHERS if rule.disposition is Disposition.STOP for word in words)
_ACCOUNT_STATUSES = frozenset(status for status, rule in _BY_STATUS.items() if rule.disposition is Disposition.STOP)
_FORBIDDEN = 403
_PASSES = (Disposition.RETRY, Disposition.WAIT)
_OURS = frozenset({"budget_exhausted", "part_failed", "too_few_rows"})
"""Our own codes for rows that were not sent, or only in part."""


def is_account(status: int | None, *words: str | None, names_field: bool = False) -> bool:
    """True if a refusal is about the account, by its status or by the provider's words for it (code, type).

    `names_field` says that the refusal names a field of the request. A 403 is then about the request.
    """
    statuses = _ACCOUNT_STATUSES - {_FORBIDDEN} if names_field else _ACCOUNT_STATUSES
    if status in statuses:
        return True
    return any(plain(word) in _ACCOUNT or _STATUS_OF_TYPE.get(plain(word)) in statuses for word in words)


def is_passing(code: str | None) -> bool:
    """True if the cause of a failure may go away by itself. Another night should then retry the row."""
    if code is None or code in _OURS:
        return code is not None
    for rule, known, _ in _MATCHERS:
        if plain(code) in known:
            return rule.disposition in _PASSES
    found = re.fullmatch(r"http_(\d{1,9})", code)
    status = int(found[1]) if found is not None else _STATUS_OF_TYPE.get(plain(code))
    return status is not None and _rule_of(status).disposition in _PASSES


def _rule_of(status: int) -> Rule:
    """Return the rule for a status. An unknown 4xx is the row's fault; any other unknown status is the backend's."""
    return _BY_STATUS.get(status, REFUSED if 400 <= status < 500 else FAILED)


TOO_LATE = ("batch_expired", "the deadline passed before the row ran")
"""Code and message for rows that are unanswered at a missed deadline."""


def cancelled(job: Job) -> tuple[str, str]:
    """Return the code and message for unanswered rows of a cancelled job."""
    code = "budget_exhausted" if job.cancel_code == CancelCode.BUDGET else "cancelled"
    return code, job.cancel_reason or "the job was cancelled"


def classify(
    status: int | None, code: str | None, kind: str | None, message: str | None, refused: RefusedField | None = None
) -> RowVerdict:
    """Return the verdict on a row that failed with this HTTP status and error object. Never raises.

    `kind` is the error's `type`. `refused` is the field of the request that the error names, or None. If it is set,
    the request is the cause, not the account. An unknown 4xx is the row's fault; any other unknown error is the
    backend's.
    """
    words = {plain(code), plain(kind)}
    if refused is not None and not words & _ACCOUNT:
        if refused.fault is not FieldFault.RANGE:
            return _verdict(_UNSUPPORTED, _UNSUPPORTED.code)
        if status in _ACCOUNT_STATUSES:
            return _verdict(_INVALID, _INVALID.code)
    status = status or _status_in(code) or _STATUS_OF_TYPE.get(plain(code)) or _STATUS_OF_TYPE.get(plain(kind))
    # The message of a broken server is usually about the server, not about the row.
    is_about_row = status is None or status < 500 or blames_row(message)
    text = (message or "")[:MOST_READ] if is_about_row else ""
    for rule, known, says in _MATCHERS:
        if words & known or (says is not None and says.search(text)):
            return _verdict(rule, rule.code)
    if status is None:
        return _verdict(FAILED, code or "error")
    return _verdict(_rule_of(status), f"http_{status}")


def _verdict(rule: Rule, code: str) -> RowVerdict:
    return RowVerdict(rule.disposition, code, rule.why, rule.advice, rule.code)


def _status_in(code: str | None) -> int | None:
    """Return the HTTP status that a code contains, as in vLLM's `404` or our own `http_404`, or None."""
    found = re.fullmatch(r"(?:http_)?([1-9]\d\d)", code or "")
    return int(found[1]) if found else None
