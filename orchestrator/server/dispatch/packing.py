"""Several rows in one request, for endpoints that take a list of inputs. Splits the answers by row. Pure.

    row = read(endpoint, body)             None: send the row by itself
    pack = Pack(row); pack.add(other)      False: not into this pack
    pack.body() -> send -> pack.split(answer)

Packs never wait for rows. A batch has all its rows, so a pack takes the rows available now.

The caller must handle failures. One bad row makes the upstream refuse a whole pack, and a row that crashes an engine
fails its whole pack. After a 4xx, a cut connection, an unusable answer or a PackError, send the rows singly. Each row
then gets its own result. An upstream that caused a PackError will cause more, so stop packing for it.

`/v1/completions` also takes a list of prompts, but is left out. Its usage is one sum of prompts and generated tokens,
which cannot be split by row. A pack there would also last as long as its longest answer. `/v1/score` and `/v1/rerank`
answer one query with one list, which is not a list of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import JSON_ERRORS, read_json
from orchestrator.core.counts import number_of
from orchestrator.core.json_decoders import json_decoder

# With 64 inputs the request's own cost per row is negligible. The answer stays at a few megabytes (64 x 4,096
# numbers are 5 MB). 8,192 tokens are what a vLLM on a large GPU computes in one step (2,048 on others, 16,384 on the
# largest): a larger pack gains no throughput, but answers later and makes a failure dearer.
MAX_INPUTS = 64
MAX_TOKENS = 8_192
BYTES_PER_TOKEN = 4

Fields = dict[str, msgspec.Raw]
_decode: msgspec.json.Decoder[Fields] = json_decoder(Fields)
_decode_list = json_decoder(list[msgspec.Raw]).decode
_decode_items = json_decoder(list[Fields]).decode
_encode = msgspec.json.encode
_NULL = msgspec.Raw(b"null")
_DIGITS = frozenset(b"0123456789")
_QUOTE, _BRACKET = b'"['


class PackError(Exception):
    """Raised if an answer cannot be split by row. Send the rows singly."""


class _Shape(Struct, frozen=True):
    """The keys of an answer's list and of its entries. `tokens` is true if inputs may be lists of tokens."""

    items: str
    content: str
    indexed: bool
    tokens: bool


_SHAPES = {
    "/v1/embeddings": _Shape("data", "embedding", indexed=True, tokens=True),
    "/v1/moderations": _Shape("results", "flagged", indexed=False, tokens=False),
}
ENDPOINTS = frozenset(_SHAPES)
# A body with one of these cannot be packed: an id of its own, or a conversation instead of an input.
_SINGLE = frozenset({"request_id", "messages"})
_FORMATS = (b"null", b'"float"', b'"base64"')  # answers in other formats are not JSON


class Packable(Struct, frozen=True):
    """A row that may share a request with rows of the same `key`. `weight` is its size in bytes of text, or in
    tokens.
    """

    endpoint: str
    body: bytes
    key: bytes
    inputs: tuple[msgspec.Raw, ...]
    weight: int
    tokens: int


def read(endpoint: str, body: bytes | msgspec.Raw) -> Packable | None:
    """Return a row in packable form; None if it must be sent by itself. Never raises.

    Rows have the same key if their bodies differ only in `input`. All their inputs must be texts, or all must be
    tokens.
    """
    shape = _SHAPES.get(endpoint)
    if shape is None:
        return None
    try:
        fields = _decode.decode(body)
        inputs = _inputs(fields.pop("input", _NULL), tokens=shape.tokens)
        key = _encode(fields, order="deterministic")
    except JSON_ERRORS:
        return None
    if not inputs or not _SINGLE.isdisjoint(fields) or bytes(fields.get("encoding_format", _NULL)) not in _FORMATS:
        return None
    if memoryview(inputs[0])[0] == _QUOTE:
        weight = sum(memoryview(each).nbytes - 2 for each in inputs)
        return Packable(
            endpoint, bytes(body), f"{endpoint} text ".encode() + key, inputs, weight, -(-weight // BYTES_PER_TOKEN)
        )
    weight = sum(bytes(each).count(b",") + 1 for each in inputs)
    return Packable(endpoint, bytes(body), f"{endpoint} tokens ".encode() + key, inputs, weight, weight)


def _inputs(given: msgspec.Raw, *, tokens: bool) -> tuple[msgspec.Raw, ...]:
    """Return the raw inputs, which are all texts or all lists of tokens. Return () if they are mixed, empty or of
    another type.
    """
    is_list = memoryview(given)[0] == _BRACKET
    items = _decode_list(given) if is_list else [given]
    kinds = {memoryview(item)[0] for item in items}
    if tokens and is_list and kinds and kinds <= _DIGITS:
        return (given,)
    if kinds == {_QUOTE}:
        return () if any(memoryview(item).nbytes == 2 for item in items) else tuple(items)
    if tokens and kinds == {_BRACKET} and all(_decode_list(item) for item in items):
        return tuple(items)
    return ()


class Pack:
    """Rows of one key, as many as fit. The first row always fits, whatever its size."""

    def __init__(self, first: Packable, *, max_inputs: int = MAX_INPUTS, max_tokens: int = MAX_TOKENS) -> None:
        self.rows = [first]
        self._inputs = max_inputs - len(first.inputs)
        self._tokens = max_tokens - first.tokens

    def add(self, row: Packable) -> bool:
        """Add a row. Return False, without adding it, if it has another key or does not fit."""
        if row.key != self.rows[0].key or len(row.inputs) > self._inputs or row.tokens > self._tokens:
            return False
        self.rows.append(row)
        self._inputs -= len(row.inputs)
        self._tokens -= row.tokens
        return True

    def body(self) -> bytes:
        return combine(self.rows)

    def split(self, answer: bytes) -> list[bytes]:
        """Return each row's answer, in order. Raises PackError."""
        return split(answer, self.rows)


def combine(rows: Sequence[Packable]) -> bytes:
    """Return one body for rows of one key. A single row keeps its own body."""
    if len(rows) == 1:
        return rows[0].body
    fields: dict[str, Any] = {**_decode.decode(rows[0].body)}
    fields["input"] = [each for row in rows for each in row.inputs]
    return _encode(fields)


def split(answer: bytes, rows: Sequence[Packable]) -> list[bytes]:
    """Return the answer that each row of a `combine` would have had alone. Embeddings keep their bytes.

    Entries count from 0 in each answer, and ids get the row's position appended. The answer has one usage for all
    rows, which is divided. Prompt tokens are divided by the length of the inputs (exact if inputs are tokens). All
    other figures are divided in the same proportion. The shares add up to the whole usage. Raises PackError unless
    there is one entry for each input, in order.
    """
    if len(rows) == 1:
        return [answer]
    shape = _SHAPES[rows[0].endpoint]
    try:
        fields = _decode.decode(answer)
        items = _decode_items(fields[shape.items])
    except (KeyError, *JSON_ERRORS) as error:
        raise PackError(
            f"the answer to {number_of(len(rows), 'row')} cannot be read: {type(error).__name__}"
        ) from None
    _check(items, sum(len(row.inputs) for row in rows), shape)
    # A bad usage or id is no reason to send the rows again: they are answered, and may be billed.
    usage, name = (read_json(fields.get(key, _NULL)) for key in ("usage", "id"))
    usages = [_encode(each) for each in _usages(usage, rows)] if isinstance(usage, dict) else None
    if usages is None:
        fields.pop("usage", None)
    answers, start = [], 0
    for number, row in enumerate(rows):
        own: dict[str, Any] = {**fields}
        own[shape.items] = _numbered(items[start : start + len(row.inputs)], shape)
        start += len(row.inputs)
        if isinstance(name, str):
            own["id"] = f"{name}-{number}"
        if usages is not None:
            own["usage"] = msgspec.Raw(usages[number])
        answers.append(_encode(own))
    return answers


def _check(items: list[Fields], wanted: int, shape: _Shape) -> None:
    if len(items) != wanted:
        raise PackError(f"the answer to {number_of(wanted, 'input')} has {len(items)} entries")
    for position, item in enumerate(items):
        if shape.content not in item:
            raise PackError(f"entry {position} of the answer has no '{shape.content}'")
        if shape.indexed and bytes(item.get("index", _NULL)) != b"%d" % position:
            raise PackError(f"entry {position} of the answer has another index, or none")


def _numbered(items: list[Fields], shape: _Shape) -> list[Fields]:
    if not shape.indexed:
        return items
    return [{**item, "index": msgspec.Raw(b"%d" % index)} for index, item in enumerate(items)]


def _usages(usage: dict[str, Any], rows: Sequence[Packable]) -> list[dict[str, Any]]:
    weights = [row.weight for row in rows]
    prompt = usage.get("prompt_tokens")
    if isinstance(prompt, int) and prompt > 0:
        weights = _prompts(prompt, rows)
    return _parts(usage, weights)


def _prompts(total: int, rows: Sequence[Packable]) -> list[int]:
    """Return each row's share of the prompt tokens: one per input if possible, and the remainder by weight."""
    counts = [len(row.inputs) for row in rows]
    if total < sum(counts):
        return shares(total, [row.weight for row in rows])
    rest = shares(total - sum(counts), [row.weight - len(row.inputs) for row in rows])
    return [count + more for count, more in zip(counts, rest, strict=True)]


def _parts(value: Any, weights: Sequence[int]) -> list[Any]:
    """Divide a usage, or a number in it, among the rows. Every row gets a copy of values that are not numbers."""
    match value:
        case dict():
            parts = {name: _parts(each, weights) for name, each in value.items()}
            return [{name: part[number] for name, part in parts.items()} for number in range(len(weights))]
        case bool():
            return [value] * len(weights)
        case int():
            return shares(value, weights)
        case float():
            return [value * (weight / (sum(weights) or 1)) for weight in weights]
        case _:
            return [value] * len(weights)


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Return whole numbers that add up to `total`, each within 1 of its exact share (largest remainder)."""
    whole = sum(weights)
    if whole == 0:
        weights, whole = [1] * len(weights), len(weights)
    exact = [divmod(total * weight, whole) for weight in weights]
    result = [quotient for quotient, _ in exact]
    by_remainder = sorted(range(len(weights)), key=lambda place: -exact[place][1])
    for place in by_remainder[: total - sum(result)]:
        result[place] += 1
    return result
