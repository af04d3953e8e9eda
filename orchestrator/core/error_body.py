"""Reads the reason in an error's body, in any server's format. Pure.

Known shapes:
- OpenAI's error object, under `error` or as the whole body (vLLM, SGLang)
- an `error` that is a text (Ollama, TGI)
- `detail` as a text, a list or an object (FastAPI, Mistral)
- `message` as an object (Mistral), or beside an `error` that names its kind (Spring, Nest, OAuth)
- `errors` as a list (Cloudflare, Hugging Face)
- a provider's error inside a router's error (OpenRouter)
- a list of any of these shapes (Gemini)
- plain text and HTML
"""

from __future__ import annotations

import contextlib
import html
import re
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.lazy_patterns import regex
from orchestrator.core.sanitize import one_line

MAX_MESSAGE = 16_384
"""Maximum length of a message, in characters."""
MAX_PAGE = 500
"""Maximum length of the text kept from a body that is not JSON, in characters."""
_READ_BYTES = 65_536
_MAX_DEPTH = 6
_MAX_ENTRIES = 5
CONTEXT_TOO_LONG = (
    r"(?<!less than the .)context[ _-]?(length|window|limit|size)|prompt (is )?too (long|large)|reduce the length"
    r"|(input|inputs|prompt|request|messages) (is|are) too long|length of all messages is too long"
    r"|maximum (supported )?(model|sequence|input|prompt) length|input token count \(|input token count \+"
    r"|too many (input|prompt) tokens|too many tokens: size limit|tokens \+ .?max_new_tokens"
    r"|must have (less|fewer) than \d+ tokens|larger than the model input length|longer than the (maximum )?model"
    r"|exceeds? the max(imum)?( allowed)? (input|prompt|sequence) (length|tokens)"
    r"|input length \(\d+ tokens\) exceeds|input token count exceeds|input tokens exceeds? maximum length"
    r"|prompt exceeds max(imum)? length|tokens in the prompt cannot exceed|range of input length should be"
    r"|input \(\d+ tokens\) is too large"
    r"|exceeded model token limit|prompt has \d+ tokens, the model maximum|= max_seq_len \("
    r"|超长|超(过|出).{0,12}(上下文|长度)"
)
"""Pattern of messages about a prompt that is too long for its model."""
_TOO_LONG = regex(CONTEXT_TOO_LONG, re.IGNORECASE)
CONTEXT_WORDS = (
    "string_above_max_length", "request_too_large", "prompt_too_long", "model_context_window_exceeded",
    "exceed_context_size_error", "too_many_prompt_tokens", "too_many_tokens", "context_window_exceeded_error",
    "input_too_long",
)  # fmt: skip
"""Codes and types of errors about a prompt that is too long for its model."""
_CONTEXT_CODE = "context_length_exceeded"
NO_CREDIT_WORDS = (
    "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance",
    "insufficient_credits", "insufficient_funds", "arrearage", "contract_spend_limit_reached",
    "enforced_spend_limit_reached", "spend_limit_reached", "budget_exceeded", "exceeded_budget",
    "payment_required", "credits_exhausted", "out_of_credits", "exceeded_current_quota_error",
)  # fmt: skip
"""Error codes and types for an account without credit, or a gateway key without budget."""
NO_CREDIT = (
    r"credit balance is too low|insufficient (balance|credits?|funds)|billing (hard )?limit|payment required"
    r"|budget (has been )?exceeded|exceeded (your |the |its )?(monthly |daily |max )?budget|out of credits"
    r"|used all (of )?(your |its |the )?available credits|monthly spending limit|reached your specified api usage"
    r"|欠费|余额不足"
)
"""Pattern of messages about an account without credit, or a gateway key without budget."""
_OUT_OF_CREDIT = regex(NO_CREDIT, re.IGNORECASE)
BAD_KEY = r"(incorrect|invalid) api key|api key (is )?(not valid|invalid|expired|missing)"
"""Pattern of messages about a rejected key; xAI and Gemini send these with status 400."""
_BAD_KEY = regex(BAD_KEY, re.IGNORECASE)
_HIDDEN = regex(r"<(script|style|head)\b.*?</\1\s*>|<!--.*?-->", re.IGNORECASE | re.DOTALL)
_TITLE = regex(r"<title\b[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
_TAG = regex(r"<[^>]*>")
_HTML = regex(r"\s*<(!doctype|html|head|body|!--|h\d|p|div|center|title)\b", re.IGNORECASE)
_STATUS = regex(r"[1-9]\d\d")
_NAMES = (
    "error", "error_description", "errors", "detail", "message", "Message", "msg", "error_message", "error_msg",
    "errorMessage", "errmsg", "description", "fault", "faultstring", "issues", "reason", "base_resp", "status_msg",
    "title",
)  # fmt: skip
"""Names of fields that may hold a reason, in order of preference."""
_CODES = ("code", "error_code", "errorCode", "__type")
_PHRASES = frozenset(status.phrase for status in HTTPStatus)
_WORD = regex(r"\w+")
_STATUSES = ("status", "status_code", "statusCode", "http_code")
_FIRST_ERROR, _LAST_ERROR, _DIGITS = 400, 600, 6
_RPC = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INTERNAL": 500,
    "DATA_LOSS": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP statuses for Google's status names in `status` (google.rpc.Code)."""
_MINIMAX = {
    1002: 429,
    1004: 401,
    1008: 402,
    1013: 500,
    1026: 400,
    1027: 400,
    1039: 429,
    2013: 400,
    2049: 401,
    2056: 429,
}
"""HTTP statuses for MiniMax's error numbers in `base_resp` (platform.minimax.io, error codes)."""


class ErrorWords(Struct, frozen=True):
    """The reason in a server's error; fields that the error does not state are None.

    `code` is never a number. `status` is the HTTP status that the body states, in a status field or as its code.
    """

    message: str | None = None
    code: str | None = None
    type: str | None = None
    param: str | None = None
    status: int | None = None
    is_page: bool = False
    """True if the body is plain text or HTML instead of JSON."""

    @property
    def is_context_too_long(self) -> bool:
        """True if the prompt is longer than the model can read."""
        words = (plain(self.code), plain(self.type))
        return any(word in _CONTEXT for word in words) or _TOO_LONG.search(self.message or "") is not None

    @property
    def stated_status(self) -> int | None:
        """HTTP status in the error, or 400 for a known reason that retrying cannot change."""
        if self.message is None:
            return None
        if self.status is not None and self.status >= _FIRST_ERROR:
            return self.status
        is_known = self.is_context_too_long or self.says_bad_key or self.says_no_credit or self.no_credit_word
        return _FIRST_ERROR if is_known else None

    @property
    def no_credit_word(self) -> str | None:
        """Error code or type that says the account has no credit, or None."""
        return next((word for word in (self.code, self.type) if plain(word) in _NO_CREDIT), None)

    @property
    def says_no_credit(self) -> bool:
        """True if the message seems to say that the account has no credit. Not proof: a message may quote the
        request.
        """
        return _OUT_OF_CREDIT.search(self.message or "") is not None

    @property
    def says_bad_key(self) -> bool:
        """True if the message seems to say that the key was rejected. Not proof: a message may quote the request."""
        return _BAD_KEY.search(self.message or "") is not None


def read_error(body: bytes | msgspec.Raw) -> ErrorWords:
    """Return the reason in a body. Never raises."""
    try:
        value = msgspec.json.decode(body)
    except JSON_ERRORS:
        return ErrorWords(_page_text(bytes(body)[:_READ_BYTES].decode(errors="replace")), is_page=True)
    return read_error_value(value)


def read_error_value(value: Any) -> ErrorWords:
    """Return the reason in a decoded body. Never raises."""
    words = _read(value, 0)
    return words if words.message is None else replace(words, message=words.message[:MAX_MESSAGE])


def _read(value: Any, depth: int) -> ErrorWords:
    if depth > _MAX_DEPTH:
        return ErrorWords()
    if isinstance(value, str):
        return _of_text(value, depth)
    if isinstance(value, list):
        return _of_list(value, depth)
    return _of_object(value, depth) if isinstance(value, dict) else ErrorWords()


def _of_text(text: str, depth: int) -> ErrorWords:
    """Read a text: a page, an error object that a gateway has quoted, or the reason itself."""
    if _HTML.match(text):
        return ErrorWords(_page_text(text))
    if text.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(*JSON_ERRORS):
            quoted = _read(msgspec.json.decode(text), depth + 1)
            if quoted.message is not None:
                return quoted
    return ErrorWords(text.strip() or None)


def _of_object(value: dict[str, Any], depth: int) -> ErrorWords:
    own = _own_words(value)
    kind = ""
    for name in _NAMES:
        found = value.get(name)
        if name == "error" and isinstance(found, str) and _is_name(found.strip()):
            # Spring, Nest, OAuth: `error` names the kind, and another field explains it.
            kind = found.strip()
            continue
        inner = _read(found, depth + 1)
        if inner.message is not None or (name == "error" and (inner.code or inner.type)):
            if "_" in kind:
                own = replace(own, code=own.code or kind)
            return _routed(value, _merged(inner, own), depth)
    return _merged(ErrorWords(kind or None), own)


def _is_name(text: str) -> bool:
    return text in _PHRASES or _WORD.fullmatch(text) is not None


def _own_words(value: dict[str, Any]) -> ErrorWords:
    code = next((value[name] for name in _CODES if value.get(name) is not None), None)
    param = value.get("param")
    kind = next((value[name] for name in ("type", "error_type") if isinstance(value.get(name), str)), None)
    number = _STATUS.fullmatch(str(code)) if isinstance(code, str | int) and not isinstance(code, bool) else None
    status = int(number[0]) if number else next(filter(None, map(_status, map(value.get, _STATUSES))), None)
    is_word = isinstance(code, str) and code and not code.isdecimal()
    return ErrorWords(
        None,
        code if is_word else None,
        kind if kind != "error" else None,
        param if isinstance(param, str) else None,
        status,
    )


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value in _RPC:
        return _RPC[value]
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None
    number = int(value) if str(value).isdecimal() and len(str(value)) < _DIGITS else 0
    return _MINIMAX.get(number) or (number if _FIRST_ERROR <= number < _LAST_ERROR else None)


def _merged(inner: ErrorWords, outer: ErrorWords) -> ErrorWords:
    return ErrorWords(
        inner.message,
        inner.code or outer.code,
        inner.type or outer.type,
        inner.param or outer.param,
        inner.status or outer.status,
    )


def _routed(value: dict[str, Any], words: ErrorWords, depth: int) -> ErrorWords:
    """Add the reason that the provider behind a router gave, if it differs."""
    metadata = value.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    behind = _read(raw, depth + 1)
    if behind.message is None or behind.message == words.message:
        return words
    return replace(_merged(words, behind), message=f"{words.message}: {behind.message}")


def _of_list(entries: list[Any], depth: int) -> ErrorWords:
    found = [_of_entry(entry, depth) for entry in entries[:_MAX_ENTRIES]]
    said = [words for words in found if words.message is not None]
    if not said:
        return ErrorWords()
    return replace(said[0], message="; ".join(words.message or "" for words in said))


def _of_entry(entry: Any, depth: int) -> ErrorWords:
    # Read only place and message of FastAPI's entries: `input` is the row's own text.
    if not (isinstance(entry, dict) and isinstance(entry.get("msg"), str) and entry["msg"].strip()):
        return _read(entry, depth + 1) if isinstance(entry, dict | str) else ErrorWords()
    place = entry.get("loc")
    names = [str(part) for part in place if part != "body"] if isinstance(place, list | tuple) else []
    where = ".".join(names)
    return ErrorWords(f"{where}: {entry['msg']}" if where else entry["msg"], param=where or None)


def _page_text(text: str) -> str | None:
    if _HTML.match(text):
        title = _TITLE.search(text)
        shown = _TAG.sub(" ", _HIDDEN.sub(" ", text))
        head = html.unescape(_TAG.sub(" ", title[1])) if title else ""
        body = html.unescape(shown)
        text = body if one_line(body).startswith(one_line(head)) else f"{head} {body}"
    return one_line(text)[:MAX_PAGE] or None


def plain(word: str | None) -> str:
    """Normalize a word: `DeploymentNotFound`, `deployment_not_found` and `Deployment not found` become equal."""
    return re.sub(r"[^a-z0-9]", "", (word or "").lower())


_CONTEXT = frozenset(map(plain, (_CONTEXT_CODE, *CONTEXT_WORDS)))
_NO_CREDIT = frozenset(map(plain, NO_CREDIT_WORDS))


def openai_error(body: object) -> dict[str, Any]:
    """Return the reason in a decoded error body as OpenAI's error object. Empty for a page or an unknown shape."""
    words = read_error_value(body)
    if words.message is None or words.is_page:
        return {}
    return {"message": words.message, "code": words.code, "type": words.type, "param": words.param}
