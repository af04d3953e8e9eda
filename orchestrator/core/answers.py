"""What an answer's body says of itself: its tokens, model, tier, error and end, however its server spells them."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from orchestrator.core.unfinished import ChoiceEnd, choice_ends, why_unfinished
from orchestrator.core.wire import JSON_ERRORS, NO_BODY, BatchUsage, InputTokensDetails, OutputTokensDetails

MOST_TOKENS = 10**8
_LATEST = 10**11
Tokens = Annotated[int, msgspec.Meta(ge=0, lt=MOST_TOKENS)]
"""No model reads or writes as many; a usage that says so says nothing."""


class _Details(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: Tokens | None = 0
    cache_write_tokens: Tokens | None = 0
    reasoning_tokens: Tokens | None = 0
    cache_write_1h_tokens: Tokens | None = 0
    cache_creation_tokens: Tokens | None = 0
    audio_tokens: Tokens | None = 0
    image_tokens: Tokens | None = 0


class _Searches(msgspec.Struct, frozen=True, gc=False):
    web_search_requests: Tokens | None = 0


class _AnswerUsage(msgspec.Struct, frozen=True, gc=False):
    """Usage under either of its two spellings: chat completions' and responses'."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    total_tokens: Any = None
    # Cached tokens beside the details: Mistral, Moonshot, DeepSeek; Anthropic's names, as gateways pass them on.
    num_cached_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    prompt_cache_hit_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    reasoning_tokens: Tokens | None = None
    # Web searches: Anthropic, OpenRouter, Perplexity.
    server_tool_use: _Searches | None = None
    server_tool_use_details: _Searches | None = None
    num_search_queries: Tokens | None = None


class _Used(msgspec.Struct, frozen=True, gc=False):
    usage: _AnswerUsage | None = None


class _End(msgspec.Struct, frozen=True, gc=False):
    finish_reason: str | None = None
    error: None = None


class _Whole(msgspec.Struct, frozen=True, gc=False):
    """An answer without a trace of an error; any other is read in full."""

    usage: _AnswerUsage | None = None
    choices: list[_End] | None = None
    error: None = None
    object: str | None = None
    status: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    model: Any = None
    service_tier: Any = None
    error: Any = None
    usage: _AnswerUsage | None = None
    choices: list[ChoiceEnd] | None = None
    object: Any = None
    status: Any = None
    incomplete_details: Any = None
    completed_at: Any = None
    created: Any = None
    created_at: Any = None


class _Parts(msgspec.Struct, frozen=True):
    """The same, each part to be read by itself: one that cannot be represented leaves the others readable."""

    model: msgspec.Raw = NO_BODY
    service_tier: msgspec.Raw = NO_BODY
    error: msgspec.Raw = NO_BODY
    usage: msgspec.Raw = NO_BODY
    choices: msgspec.Raw = NO_BODY
    object: msgspec.Raw = NO_BODY
    status: msgspec.Raw = NO_BODY
    incomplete_details: msgspec.Raw = NO_BODY
    completed_at: msgspec.Raw = NO_BODY
    created: msgspec.Raw = NO_BODY
    created_at: msgspec.Raw = NO_BODY


_decode_used = msgspec.json.Decoder(_Used).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode
_USUAL_ENDS = frozenset({"stop", "length", "tool_calls"})
_COMPLETE_ENDS = ("stop", "tool_calls")
_decode_usage = msgspec.json.Decoder(_AnswerUsage | None, strict=False).decode
_decode_parts = msgspec.json.Decoder(_Parts).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_NO_DETAILS = _Details()
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
    """An answer's tokens: `cached` and `cache_write` are parts of `input`, `reasoning` of `output`.

    `cache_write_1h` is the part of `cache_write` that stays for an hour. Sound and pictures are parts, too.
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


class AnswerHead(NamedTuple):
    """What an answer says of itself.

    `tier` is its `service_tier`. `error` is the body's error object. `not_an_answer` says why a body with the status
    of an answer is not an answer, in words: its server stopped in between, or it is a piece of a stream. Unless it
    `is_complete`, the end of its text has yet to be looked at. `billed` is what is paid for,
    None if that is `tokens`. `answered_at` is its time as it tells it, in Unix seconds: of its end, or else of its
    beginning.
    """

    tokens: TokenCounts = NO_TOKENS
    model: str | None = None
    tier: str | None = None
    error: Any = None
    not_an_answer: str | None = None
    is_complete: bool = False
    billed: TokenCounts | None = None
    answered_at: float | None = None


def answer_tokens(body: bytes | msgspec.Raw) -> TokenCounts:
    """What an answer's body says of its tokens. Raises msgspec.DecodeError where it is not a JSON object."""
    try:
        usage = _decode_used(body).usage
    except msgspec.ValidationError:
        # Usage in an unknown shape is ignored; the answer is still the row's answer.
        usage = _usage_in_text(_decode_parts(body).usage)
    return NO_TOKENS if usage is None else _counted(usage)


def plain_answer_tokens(body: bytes | msgspec.Raw) -> TokenCounts | None:
    """The tokens of a body that is plainly a whole answer; None if `read_answer` must tell.

    It costs little more than `answer_tokens`, and a server asks it of every row. Raises msgspec.DecodeError for a
    body that is not JSON.
    """
    try:
        answer = _decode_whole(body)
    except msgspec.ValidationError:
        return None
    if answer.status not in (None, "completed") or answer.object == "error":
        return None
    for choice in answer.choices or ():
        if choice.finish_reason not in _USUAL_ENDS:
            return None
    return NO_TOKENS if answer.usage is None else _counted(answer.usage)


def _usage_in_text(raw: msgspec.Raw) -> _AnswerUsage | None:
    """A usage whose numbers may be told as text, or whose odd fields are left out; None if it is not an object."""
    try:
        usage: _AnswerUsage | None = _decode_usage(raw)
    except msgspec.ValidationError:
        fields = _read(raw)
        if not isinstance(fields, dict):
            return None
        usage = _known_fields(_AnswerUsage, fields)
        # Of a whole that cannot be counted the parts say nothing.
        is_whole = all(getattr(usage, name) is not None for name in _WHOLES if fields.get(name) is not None)
        return usage if is_whole else None
    except JSON_ERRORS:
        return None
    return usage


def _known_fields(kind: type[_Fields], values: dict[str, Any]) -> _Fields:
    """The fields that can be read, each by itself."""
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


def _counted(usage: _AnswerUsage) -> TokenCounts:
    taken = usage.prompt_tokens_details or usage.input_tokens_details or _NO_DETAILS
    given = usage.completion_tokens_details or usage.output_tokens_details or _NO_DETAILS
    fed = usage.prompt_tokens or usage.input_tokens or 0
    cached = (
        taken.cached_tokens
        or usage.num_cached_tokens
        or usage.cached_tokens
        or usage.prompt_cache_hit_tokens
        or usage.cache_read_input_tokens
        or 0
    )
    written = taken.cache_write_tokens or taken.cache_creation_tokens or usage.cache_creation_input_tokens or 0
    output = usage.completion_tokens or usage.output_tokens or 0
    thought = given.reasoning_tokens or usage.reasoning_tokens or 0
    # xAI counts thoughts beside the completion, which the total shows; what is more than a whole is not a part of it.
    if thought and (thought > output or _total(usage) == fed + output + thought):
        output += thought
    if stored := cached + written:
        if _is_beside(usage, fed, stored, output):
            fed += stored
        cached = min(cached, fed)
        written = min(written, fed - cached)
    if not fed < MOST_TOKENS > output:
        return NO_TOKENS
    tools = usage.server_tool_use or usage.server_tool_use_details
    searches = (tools.web_search_requests if tools else usage.num_search_queries) or 0
    has_media = taken.audio_tokens or taken.image_tokens or given.audio_tokens or given.image_tokens
    if not (searches or has_media or taken.cache_write_1h_tokens):
        return TokenCounts(fed, cached, output, thought, written)
    return TokenCounts(
        fed,
        cached,
        output,
        thought,
        written,
        min(taken.cache_write_1h_tokens or 0, written),
        min(taken.audio_tokens or 0, fed),
        min(given.audio_tokens or 0, output),
        min(taken.image_tokens or 0, fed),
        min(given.image_tokens or 0, output),
        searches,
    )


def _billed(usage: _AnswerUsage, told: TokenCounts) -> TokenCounts | None:
    """The tokens that are paid for, None where they are those that the usage tells.

    Mistral's early name for cached tokens is from a time when it had no price for them.
    """
    return told._replace(cached=0) if usage.num_cached_tokens and told.cached == usage.num_cached_tokens else None


def _is_beside(usage: _AnswerUsage, fed: int, stored: int, output: int) -> bool:
    """True if a prompt's cached and written tokens are counted beside it, and not as a part of it."""
    total = _total(usage)
    if total == fed + output:
        return False
    if total == fed + stored + output:
        return True
    # Anthropic's own count has no total, and leaves both out.
    is_anthropic = usage.cache_read_input_tokens is not None or usage.cache_creation_input_tokens is not None
    return stored > fed or (total is None and is_anthropic and usage.prompt_tokens is None)


def _total(usage: _AnswerUsage) -> int | None:
    """The total that a usage tells, as a number or as text; None for any other: it spoils none of the parts."""
    if type(usage.total_tokens) is int and 0 <= usage.total_tokens < MOST_TOKENS:
        return usage.total_tokens
    try:
        total: int | None = msgspec.convert(usage.total_tokens, Tokens | None, strict=False)
    except msgspec.ValidationError:
        return None
    return total


def usage_of(tokens: TokenCounts) -> BatchUsage:
    """Tokens as the usage object of a batch."""
    return BatchUsage(
        tokens.input,
        InputTokensDetails(tokens.cached),
        tokens.output,
        OutputTokensDetails(tokens.reasoning),
        tokens.input + tokens.output,
    )


def read_answer(body: bytes | msgspec.Raw) -> AnswerHead:
    """What an answer's body says of itself. Raises msgspec.DecodeError where it is not a JSON object."""
    try:
        answer = _decode_answer(body)
    except msgspec.ValidationError:
        answer = _read_parts(_decode_parts(body))
    tokens = NO_TOKENS if answer.usage is None else _counted(answer.usage)
    return AnswerHead(
        tokens,
        answer.model if isinstance(answer.model, str) else None,
        answer.service_tier if isinstance(answer.service_tier, str) else None,
        answer.error,
        why_unfinished(answer.choices, answer.object, answer.status, answer.incomplete_details),
        _is_complete(answer),
        None if answer.usage is None else _billed(answer.usage, tokens),
        _time(answer),
    )


def _time(answer: _Answer) -> float | None:
    for told in (answer.completed_at, answer.created, answer.created_at):
        if type(told) in (int, float) and 0 < told < _LATEST:
            return float(told)
    return None


def _is_complete(answer: _Answer) -> bool:
    """True if the first choice, or the response, says that it came to its end; embeddings are a list without one."""
    if answer.choices:
        return answer.choices[0].finish_reason in _COMPLETE_ENDS
    return bool(answer.status == "completed" or answer.object == "list")


def _read_parts(parts: _Parts) -> _Answer:
    error = _read(parts.error, unreadable=bytes(parts.error).decode(errors="replace"))
    return _Answer(
        _read(parts.model),
        _read(parts.service_tier),
        error,
        _usage_in_text(parts.usage),
        choice_ends(parts.choices),
        _read(parts.object),
        _read(parts.status),
        _read(parts.incomplete_details),
        _read(parts.completed_at),
        _read(parts.created),
        _read(parts.created_at),
    )


def _read(raw: msgspec.Raw, unreadable: str | None = None) -> Any:
    """The value, or `unreadable` where Python has none for it, as for a number beyond all floats."""
    try:
        return msgspec.json.decode(raw)
    except JSON_ERRORS:
        return unreadable
