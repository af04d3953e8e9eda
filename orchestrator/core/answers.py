"""Reads an answer's body in any server's spelling: tokens, model, tier, error and end."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from orchestrator.core.batch_api import (
    JSON_ERRORS,
    NO_BODY,
    BatchUsage,
    InputTokensDetails,
    OutputTokensDetails,
    read_json,
)
from orchestrator.core.finish_reasons import ChoiceEnd, choice_ends, error_of, first_choice, why_unfinished
from orchestrator.core.json_decoders import json_decoder

MOST_TOKENS = 10**8
_LATEST = 10**11
Tokens = Annotated[int, msgspec.Meta(ge=0, lt=MOST_TOKENS)]
"""A token count below MOST_TOKENS, which no model reaches. Larger counts are ignored."""


class _Details(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: Tokens | None = 0
    cache_write_tokens: Tokens | None = 0
    reasoning_tokens: Tokens | None = 0
    cache_write_1h_tokens: Tokens | None = 0
    cache_creation_tokens: Tokens | None = 0
    cache_read_input_tokens: Tokens | None = 0
    audio_tokens: Tokens | None = 0
    image_tokens: Tokens | None = 0
    cache_creation_token_details: dict[str, Tokens | None] | None = None


class _Searches(msgspec.Struct, frozen=True, gc=False):
    web_search_requests: Tokens | None = 0


class _AnswerUsage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    total_tokens: Any = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    # Cached tokens outside the details: Mistral, Moonshot, DeepSeek, Inception. Gateways may use Anthropic's names.
    num_cached_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    prompt_cache_hit_tokens: Tokens | None = None
    cached_input_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_creation: dict[str, Tokens | None] | None = None
    reasoning_tokens: Tokens | None = None
    # Web searches: Anthropic, OpenRouter, Perplexity.
    server_tool_use: _Searches | None = None
    server_tool_use_details: _Searches | None = None
    num_search_queries: Tokens | None = None
    service_tier: Any = None


class _Used(msgspec.Struct, frozen=True, gc=False):
    usage: _AnswerUsage | None = None


class _End(msgspec.Struct, frozen=True, gc=False):
    finish_reason: Literal["stop", "length", "tool_calls"]
    error: None = None


class _Whole(msgspec.Struct, frozen=True, gc=False):
    """An answer without any sign of an error. Every other answer is decoded as `_Answer`."""

    usage: _AnswerUsage | None = None
    choices: list[_End] | None = None
    error: None = None
    object: str | None = None
    status: Literal["completed"] | None = None
    base_resp: None = None


class _Answer(msgspec.Struct, frozen=True):
    model: Any = None
    service_tier: Any = None
    error: Any = None
    usage: _AnswerUsage | None = None
    choices: list[ChoiceEnd] | None = None
    base_resp: Any = None
    object: Any = None
    status: Any = None
    incomplete_details: Any = None
    completed_at: Any = None
    created: Any = None
    created_at: Any = None
    finish_reason: Any = None
    done: Any = None


class _Parts(msgspec.Struct, frozen=True):
    """The fields of `_Answer`, decoded one by one, so that an unreadable field does not affect the rest."""

    model: msgspec.Raw = NO_BODY
    service_tier: msgspec.Raw = NO_BODY
    error: msgspec.Raw = NO_BODY
    usage: msgspec.Raw = NO_BODY
    choices: msgspec.Raw = NO_BODY
    base_resp: msgspec.Raw = NO_BODY
    object: msgspec.Raw = NO_BODY
    status: msgspec.Raw = NO_BODY
    incomplete_details: msgspec.Raw = NO_BODY
    completed_at: msgspec.Raw = NO_BODY
    created: msgspec.Raw = NO_BODY
    created_at: msgspec.Raw = NO_BODY
    finish_reason: msgspec.Raw = NO_BODY
    done: msgspec.Raw = NO_BODY


_decode_used = json_decoder(_Used).decode
_decode_whole = json_decoder(_Whole).decode
_COMPLETE_ENDS = ("stop", "tool_calls")
_decode_usage = json_decoder(_AnswerUsage | None, strict=False).decode
_decode_parts = json_decoder(_Parts).decode
_decode_answer = json_decoder(_Answer).decode
_NO_DETAILS = _Details()
_TOTALS = _AnswerUsage.__struct_fields__.index("total_tokens") + 1
"""Number of leading fields of `_AnswerUsage` that most servers send."""
_PARTS: dict[str, type[_Details | _Searches]] = {
    "prompt_tokens_details": _Details,
    "completion_tokens_details": _Details,
    "input_tokens_details": _Details,
    "output_tokens_details": _Details,
    "server_tool_use": _Searches,
    "server_tool_use_details": _Searches,
}
_WHOLES = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
_Fields = TypeVar("_Fields", bound=msgspec.Struct)


class TokenCounts(NamedTuple):
    """Token counts of an answer. `cached` and `cache_write` are parts of `input`; `reasoning` is part of `output`.

    `cache_write_1h` is the part of `cache_write` that is cached for an hour. Audio and image tokens are parts too.
    """

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    input_audio: int = 0
    output_audio: int = 0
    input_image: int = 0
    output_image: int = 0
    web_searches: int = 0


NO_TOKENS = TokenCounts()
_NO_MORE = NO_TOKENS[3:]


class AnswerHead(NamedTuple):
    """Fields of an answer outside its text.

    `tier` is its `service_tier`. `error` is the body's error object, or the whole body if the body itself is an
    error. `not_an_answer` is the reason why a success is not an answer: the server stopped early, or the body is part
    of a stream. If `is_complete` is false, the caller must check how the text ends. `billed` are the billed tokens,
    None if they equal `tokens`. `answered_at` is the completion time that the answer states, or else the creation
    time, in Unix seconds.
    """

    tokens: TokenCounts = NO_TOKENS
    model: str | None = None
    tier: str | None = None
    error: Any = None
    not_an_answer: str | None = None
    is_complete: bool = False
    billed: TokenCounts | None = None
    answered_at: float | None = None

    @property
    def is_answer(self) -> bool:
        """True unless the body itself shows that it is not an answer."""
        return self.error is None and self.not_an_answer is None


def answer_tokens(body: bytes | msgspec.Raw) -> TokenCounts:
    """Return the tokens in an answer's body. Raises msgspec.DecodeError if the body is not a JSON object."""
    try:
        usage = _decode_used(body).usage
    except msgspec.ValidationError:
        # Usage in an unknown shape is ignored; the answer is still the row's answer.
        usage = _usage_in_text(_decode_parts(body).usage)
    return NO_TOKENS if usage is None else _token_counts(usage)


def plain_answer_tokens(body: bytes | msgspec.Raw) -> TokenCounts | None:
    """Return the tokens of an obviously complete answer, or None if only `read_answer` can decide.

    Servers call this for every row, so it is hardly slower than `answer_tokens`. Raises msgspec.DecodeError if the
    body is not JSON.
    """
    try:
        answer = _decode_whole(body)
    except msgspec.ValidationError:
        return None
    if answer.object == "error":
        return None
    if not answer.choices and answer.status is None and answer.object != "list":
        return None  # the body may be an error
    return NO_TOKENS if answer.usage is None else _token_counts(answer.usage)


def _usage_in_text(raw: msgspec.Raw) -> _AnswerUsage | None:
    """Read a usage whose numbers may be strings, skipping unreadable fields; None if the usage is not an object."""
    try:
        usage: _AnswerUsage | None = _decode_usage(raw)
    except msgspec.ValidationError:
        fields = read_json(raw)
        if not isinstance(fields, dict):
            return None
        usage = _known_fields(_AnswerUsage, fields)
        # If a total cannot be read, its parts are not trusted either.
        is_whole = all(getattr(usage, name) is not None for name in _WHOLES if fields.get(name) is not None)
        return usage if is_whole else None
    except JSON_ERRORS:
        return None
    return usage


def _known_fields(kind: type[_Fields], values: dict[str, Any]) -> _Fields:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        value = values.get(field.name)
        inner = _PARTS.get(field.name)
        if inner is not None:
            found[field.name] = _known_fields(inner, value) if isinstance(value, dict) else None
        elif value is not None:
            with suppress(msgspec.ValidationError):
                found[field.name] = msgspec.convert(value, field.type, strict=False)
    return kind(**found)


def _token_counts(usage: _AnswerUsage) -> TokenCounts:
    if not any(msgspec.structs.astuple(usage)[_TOTALS:]):
        return tuple.__new__(TokenCounts, (usage.prompt_tokens or 0, 0, usage.completion_tokens or 0, *_NO_MORE))
    taken = usage.prompt_tokens_details or usage.input_tokens_details or _NO_DETAILS
    given = usage.completion_tokens_details or usage.output_tokens_details or _NO_DETAILS
    fed = usage.prompt_tokens or usage.input_tokens or 0
    cached = (
        taken.cached_tokens
        or taken.cache_read_input_tokens
        or usage.num_cached_tokens
        or usage.cached_tokens
        or usage.prompt_cache_hit_tokens
        or usage.cached_input_tokens
        or usage.cache_read_input_tokens
        or 0
    )
    written = taken.cache_write_tokens or taken.cache_creation_tokens or usage.cache_creation_input_tokens or 0
    output = usage.completion_tokens or usage.output_tokens or 0
    thought = given.reasoning_tokens or usage.reasoning_tokens or 0
    # Perplexity, recognized by `num_search_queries`, never includes reasoning in the completion or the total.
    if thought and (usage.num_search_queries or _excludes_reasoning(usage, fed, output, thought)):
        output += thought
    thought = min(thought, output)
    if stored := cached + written:
        if _excludes_cache(usage, fed, stored, output):
            fed += stored
        cached = min(cached, fed)
        written = min(written, fed - cached)
    if not fed < MOST_TOKENS > output:
        return NO_TOKENS
    tools = usage.server_tool_use or usage.server_tool_use_details
    searches = (tools.web_search_requests if tools else usage.num_search_queries) or 0
    has_media = taken.audio_tokens or taken.image_tokens or given.audio_tokens or given.image_tokens
    by_age = usage.cache_creation or taken.cache_creation_token_details or {}
    lasting = taken.cache_write_1h_tokens or by_age.get("ephemeral_1h_input_tokens") or 0
    if not (searches or has_media or lasting):
        return TokenCounts(fed, cached, output, thought, written)
    return TokenCounts(
        fed,
        cached,
        output,
        thought,
        written,
        min(lasting, written),
        min(taken.audio_tokens or 0, fed),
        min(given.audio_tokens or 0, output),
        min(taken.image_tokens or 0, fed),
        min(given.image_tokens or 0, output),
        searches,
    )


def _billed(usage: _AnswerUsage, told: TokenCounts) -> TokenCounts | None:
    """Return the billed tokens, or None if they equal the reported tokens.

    `num_cached_tokens` is an old field of Mistral. While Mistral used it, cached tokens cost the full price.
    """
    return told._replace(cached=0) if usage.num_cached_tokens and told.cached == usage.num_cached_tokens else None


def _excludes_reasoning(usage: _AnswerUsage, fed: int, output: int, thought: int) -> bool:
    # For xAI. If the total does not decide, reasoning larger than the completion cannot be part of the completion.
    total = _total(usage)
    return total == fed + output + thought or (thought > output and not (output and total == fed + output))


def _excludes_cache(usage: _AnswerUsage, fed: int, stored: int, output: int) -> bool:
    total = _total(usage)
    if total == fed + output:
        return False
    if total == fed + stored + output:
        return True
    # Anthropic's own usage has no total, and its input tokens exclude cached and written tokens.
    is_anthropic = usage.cache_read_input_tokens is not None or usage.cache_creation_input_tokens is not None
    return stored > fed or (total is None and is_anthropic and usage.prompt_tokens is None)


def _total(usage: _AnswerUsage) -> int | None:
    """Return the reported total from a number or a text; None for anything else."""
    if type(usage.total_tokens) is int and 0 <= usage.total_tokens < MOST_TOKENS:
        return usage.total_tokens
    try:
        total: int | None = msgspec.convert(usage.total_tokens, Tokens | None, strict=False)
    except msgspec.ValidationError:
        return None
    return total


def usage_of(tokens: TokenCounts) -> BatchUsage:
    """Return the tokens as a batch's usage object."""
    return BatchUsage(
        tokens.input,
        InputTokensDetails(tokens.cached),
        tokens.output,
        OutputTokensDetails(tokens.reasoning),
        tokens.input + tokens.output,
    )


def read_answer(body: bytes | msgspec.Raw) -> AnswerHead:
    """Return an answer's fields outside its text. Raises msgspec.DecodeError if the body is not a JSON object."""
    try:
        answer = _decode_answer(body)
    except msgspec.ValidationError:
        answer = _read_parts(_decode_parts(body))
    tokens = NO_TOKENS if answer.usage is None else _token_counts(answer.usage)
    has_answer = bool(answer.choices) or answer.status == "completed" or answer.object == "list"
    is_plain = has_answer and answer.error is None and answer.base_resp is None
    # Cohere's and Ollama's own endpoints put their single choice at the top level.
    ends = answer.choices
    if answer.finish_reason is not None:
        ends = [*(ends or ()), ChoiceEnd(answer.finish_reason)]
    return AnswerHead(
        tokens,
        answer.model if isinstance(answer.model, str) else None,
        _tier(answer),
        None if is_plain else error_of(body, answer.error, answer.base_resp, is_answer=has_answer),
        why_unfinished(ends, answer.object, answer.status, answer.incomplete_details, answer.done),
        _is_complete(answer),
        None if answer.usage is None else _billed(answer.usage, tokens),
        _time(answer),
    )


def _tier(answer: _Answer) -> str | None:
    """Return the service tier. Mistral states it in the usage."""
    told = answer.service_tier
    if not isinstance(told, str):
        told = None if answer.usage is None else answer.usage.service_tier
    return told if isinstance(told, str) else None


def _time(answer: _Answer) -> float | None:
    for told in (answer.completed_at, answer.created, answer.created_at):
        if type(told) in (int, float) and 0 < told < _LATEST:
            return float(told)
    return None


def _is_complete(answer: _Answer) -> bool:
    """True if the first choice or the response ended normally. Embeddings state no end, and count as complete."""
    if choices := answer.choices:
        choice = choices[0] if len(choices) == 1 else first_choice(choices)
        return choice.finish_reason in _COMPLETE_ENDS
    return bool(answer.status == "completed" or answer.object == "list")


def _read_parts(parts: _Parts) -> _Answer:
    error = read_json(parts.error, unreadable=bytes(parts.error).decode(errors="replace"))
    return _Answer(
        read_json(parts.model),
        read_json(parts.service_tier),
        error,
        _usage_in_text(parts.usage),
        choice_ends(parts.choices),
        read_json(parts.base_resp),
        read_json(parts.object),
        read_json(parts.status),
        read_json(parts.incomplete_details),
        read_json(parts.completed_at),
        read_json(parts.created),
        read_json(parts.created_at),
        read_json(parts.finish_reason),
        read_json(parts.done),
    )
