"""The lines of result files, made whenever they are read: OpenAI's two files, and Anthropic's one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from tests.emulator.answers import MESSAGES, answer, decode_body, read, with_model
from tests.emulator.batch import Batch
from tests.emulator.errors import Json, anthropic_error, failed_row, mistral_error, problem_of
from tests.emulator.oddlines import odd_line
from tests.emulator.rowfaults import Effect
from tests.emulator.settings import Settings
from tests.emulator.validation import Line, decode_line

BLOCK_BYTES = 128 * 1024
STRANGER = "nobody-asked-for-this"
MESSAGE_OF = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed because the batch was cancelled.",
}

encode = msgspec.json.Encoder().encode


class Request(msgspec.Struct, frozen=True):
    """One entry of an Anthropic list."""

    custom_id: str
    params: msgspec.Raw


decode_request = msgspec.json.Decoder(Request).decode


def blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in larger pieces."""
    block = bytearray()
    for line in lines:
        block += line
        if len(block) >= BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    yield bytes(block)


def openai_lines(batch: Batch, kind: str, settings: Settings) -> Iterator[bytes]:
    """The lines of an ended batch's output or error file."""
    lines = _openai_lines(batch, kind, settings)
    if kind == "output":
        lines = with_swapped_keys(lines, batch, "custom_id")
    return cut_tail(lines) if batch.plan.has_cut_tail and kind == "output" else lines


def with_swapped_keys(lines: Iterator[bytes], batch: Batch, key: str) -> Iterator[bytes]:
    """The lines, of which those with these numbers, from 1, have each other's keys: each that of the one before."""
    numbers = batch.plan.files.swapped_keys
    if not numbers:
        yield from lines
        return
    whole = list(lines)
    told = [json.loads(whole[number - 1]) for number in numbers]
    keys = [one[key] for one in told]
    for number, one, other in zip(numbers, told, [*keys[-1:], *keys], strict=False):
        whole[number - 1] = encode({**one, key: other}) + b"\n"
    yield from whole


def _openai_lines(batch: Batch, kind: str, settings: Settings) -> Iterator[bytes]:
    rows = batch.rows
    if rows is None or batch.plan.does_nothing:
        return
    for _, rank, raw in rows.lines(rows.by_rank() if batch.plan.is_shuffled else rows.in_order()):
        effect = outcome(batch, rank)
        if effect is None or not effect.lines(kind) or (effect.unrun is not None and not batch.tells_unrun):
            continue
        line = decode_line(raw)
        if effect.place in (kind, "both"):
            if effect.fails_first:
                failed = replace(effect, status=500, odd=())
                yield _encoded(_openai_row(batch, line, failed, settings), failed)
            told = _encoded(_openai_row(batch, line, effect, settings), effect)
            yield from (_broken(told) if effect.is_broken else told for _ in range(effect.copies))
        if effect.has_stranger and kind == "output":
            stranger = msgspec.structs.replace(line, custom_id=f"{STRANGER}-{line.custom_id}")
            yield encode(_openai_row(batch, stranger, effect, settings)) + b"\n"


def _encoded(line: Json, effect: Effect) -> bytes:
    return (odd_line(line, effect.odd) if effect.odd else encode(line)) + b"\n"


def outcome(batch: Batch, rank: int) -> Effect | None:
    """What has become of a row of an ended batch; None where the provider has lost it."""
    assert batch.rows is not None
    if rank < batch.kept:
        return batch.rows.effect(rank)
    if rank < batch.ran:
        return None
    return _UNRUN[batch.status]


_UNRUN = {
    status: Effect(unrun=f"batch_{status}", place="error", is_billed=False) for status in ("expired", "cancelled")
}


def _openai_row(batch: Batch, line: Line, effect: Effect, settings: Settings) -> Json:
    assert isinstance(line.body, msgspec.Raw)
    asked = read(with_model(decode_body(line.body), batch.model), batch.endpoint)
    name = hashlib.blake2b(f"{batch.id}:{line.custom_id}".encode(), digest_size=12).hexdigest()
    row: Json = {"id": f"batch_req_{name}", "custom_id": line.custom_id, "response": None, "error": None}
    if effect.unrun is not None:
        row["error"] = {"code": effect.unrun, "message": MESSAGE_OF[effect.unrun]}
        return row
    body: Any
    if effect.status == 200:
        at = int(batch.created_at)
        model = f"{batch.model}{settings.snapshot}"
        body = answer(asked, batch.endpoint, effect, model=model, tier="default", at=at)
    elif effect.status == 0:
        body = None
    else:
        problem = effect.problem or problem_of(effect.status, effect.code)
        problem = replace(problem, message=effect.message or problem.message)
        body = {"error": problem.json()}
        if batch.flavour in ("together", "fireworks"):
            return failed_row(line.custom_id, effect.status, problem)
        if batch.flavour == "mistral":
            body = json.dumps(mistral_error(effect.status, problem))
    if batch.flavour == "fireworks":
        return {"custom_id": line.custom_id, "response": body}
    if batch.flavour == "mistral":
        row["response"] = {"status_code": effect.status, "body": json.dumps(body) if effect.is_string else body}
        return row
    row["response"] = {
        "status_code": effect.status,
        "request_id": f"req_{name}" if effect.status else "",
        "body": json.dumps(body) if effect.is_string else body,
    }
    return row


def anthropic_lines(batch: Batch, settings: Settings) -> Iterator[bytes]:
    """The results of an ended batch, in the order in which its rows have ended."""
    lines = with_swapped_keys(_anthropic_lines(batch, settings), batch, "custom_id")
    return cut_tail(lines) if batch.plan.has_cut_tail else lines


def _anthropic_lines(batch: Batch, settings: Settings) -> Iterator[bytes]:
    rows = batch.rows
    assert rows is not None
    for _, rank, raw in rows.lines(rows.by_rank()):
        effect = outcome(batch, rank)
        if effect is None:
            continue
        request = decode_request(raw)
        result = _anthropic_result(batch, request, effect, settings)
        told = _encoded({"custom_id": request.custom_id, "result": result}, effect)
        copies = 0 if effect.place == "none" else effect.copies
        yield from (_broken(told) if effect.is_broken else told for _ in range(copies))
        if effect.has_stranger:
            yield encode({"custom_id": STRANGER, "result": result}) + b"\n"


def _anthropic_result(batch: Batch, request: Request, effect: Effect, settings: Settings) -> Json:
    match effect.unrun:
        case "batch_expired":
            return {"type": "expired"}
        case "batch_cancelled":
            return {"type": "canceled"}
    if effect.status == 200:
        asked = read(decode_body(request.params), MESSAGES)
        model = f"{asked.body.model}{settings.snapshot}"
        message = answer(asked, MESSAGES, effect, model=model, tier="batch", at=int(batch.created_at))
        return {"type": "succeeded", "message": message}
    said = effect.message or (effect.problem or problem_of(effect.status, effect.code)).message
    return {"type": "errored", "error": anthropic_error(effect.status, said, None)}


def _broken(line: bytes) -> bytes:
    return line[: len(line) // 2] + b"\n"


def cut_tail(lines: Iterable[bytes]) -> Iterator[bytes]:
    last = b""
    for line in lines:
        yield last
        last = line
    yield last[: len(last) // 2]
