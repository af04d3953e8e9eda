"""Cohere's rows and records: what a dataset may hold, what a row asks for, and the Avro file of the answers.

Sources: crmne/ruby_llm (protocols/cohere, specs of batches), cohere 7.3.1 (types of messages, answers and usage),
recorded answers of `/v2/chat`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from tests.emulator.answers import CHAT, decode_body, read, with_model
from tests.emulator.batch import Batch
from tests.emulator.errors import Json
from tests.emulator.refusals import refusal_of
from tests.emulator.results import openai_lines
from tests.emulator.rowfaults import MARK, marked
from tests.emulator.settings import Settings
from tests.emulator.validation import JSON_ERRORS, Checked, lines_of

FIELDS = frozenset(
    "messages tools temperature p frequency_penalty presence_penalty reasoning thinking_budget return_prompt "
    "logprobs max_tokens max_input_tokens k seed".split()
)
PARTS = {"text": "text", "thinking": "thinking", "image_url": "image_url"}
ROLES = ("system", "user", "assistant", "tool")
FINISH = {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}
INVALID = "invalid request"
"""How its words begin for a request that it does not take."""
PREAMBLE = 66
"""Tokens of Cohere's own in each prompt, which are counted and not billed."""


class Line(msgspec.Struct, frozen=True):
    body: msgspec.Raw
    custom_id: str


decode_line = msgspec.json.Decoder(Line).decode


def problem_of_file(path: Path) -> str | None:
    """Why a file is no dataset of chats; None if it is one."""
    rows = 0
    for number, _, raw in lines_of(path):
        rows += 1
        try:
            body = msgspec.json.decode(decode_line(raw).body)
        except JSON_ERRORS as error:
            return f"invalid row on line {number}: {error}"
        if (problem := _problem_of(body)) is not None:
            return f"invalid row on line {number}: {problem}"
    return None if rows else "the dataset is empty"


def _problem_of(body: Any) -> str | None:
    if not isinstance(body, dict):
        return "body: expected a record"
    if unknown := sorted(body.keys() - FIELDS):
        return f"body.{unknown[0]}: unknown field"
    if not body.get("messages"):
        return "body.messages: required"
    for message in body["messages"]:
        if message.get("role") not in ROLES:
            return "body.messages.role: unknown role"
        content = message.get("content")
        if content is None and message.get("tool_calls"):
            continue
        if not isinstance(content, list):
            return "body.messages.content: expected a list"
        for part in content:
            if not isinstance(part.get(PARTS.get(part.get("type"), "")), str):
                return "body.messages.content: expected a text of its type"
    for tool in body.get("tools") or ():
        if not isinstance(tool["function"].get("parameters"), str):
            return "body.tools.function.parameters: expected a string"
    return None


def check(path: Path, model: str, *, is_truthful: bool) -> Checked:
    """The rows as they will run, all with the batch's model."""
    found = Checked()
    found.model = model
    for _, start, raw in lines_of(path):
        line, index = decode_line(raw), len(found.draft.starts)
        asked = read(with_model(decode_body(line.body), model), CHAT)
        body = {"model": model, **msgspec.json.decode(line.body)}
        refused = refusal_of("cohere", CHAT, body) if is_truthful else None
        if refused is not None:
            found.refused[index] = refused
        if MARK in raw:
            found.marks[index], found.digests[index] = marked(raw), asked.digest
        found.draft.add(start, len(raw), asked.prompt, asked.completion, asked.most)
    return found


def _record(name: str, /, **fields: Any) -> Json:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": told} for key, told in fields.items()]}


TEXT, NUMBER = ["null", "string"], ["null", "double"]
CALL = _record("Call", id=TEXT, type=TEXT, function=_record("Function", name=TEXT, arguments=TEXT))
PART = _record("Part", type=TEXT, text=TEXT, thinking=TEXT)
MESSAGE = _record(
    "Message",
    role=TEXT,
    content=["null", {"type": "array", "items": PART}],
    tool_calls=["null", {"type": "array", "items": CALL}],
)
TOKENS = _record("Tokens", input_tokens=NUMBER, output_tokens=NUMBER)
USAGE = _record("Usage", billed_units=["null", TOKENS], tokens=["null", "Tokens"], cached_tokens=NUMBER)
BODY = _record("Chat", id=TEXT, finish_reason=TEXT, message=["null", MESSAGE], usage=["null", USAGE])
RESULT = _record("BatchChatV2Output", custom_id="string", error="string", body=["null", BODY])


def records(batch: Batch, settings: Settings) -> Iterator[Json]:
    """All results of an ended batch: each row that ran has one, whether it was answered or not."""
    for kind in ("output", "error"):
        for line in openai_lines(batch, kind, settings):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # half a record is none
            if (told := _told(row)) is not None:
                yield told


def _told(row: Json) -> Json | None:
    response = row["response"] or {}
    body = response.get("body")
    said = json.loads(body) if isinstance(body, str) else body
    failed = said.get("error") if isinstance(said, dict) else row["error"]
    name = row["custom_id"]
    if not isinstance(name, str):
        return None
    words = failed.get("message", "") if isinstance(failed, dict) else str(failed or "")
    if str(response.get("status_code")).startswith("400") and not words.startswith(INVALID):
        words = f"{INVALID}: {words}"
    return {"custom_id": name, "error": words, "body": None if failed or not said else _answer(said)}


def _answer(said: Json) -> Json:
    choice = said["choices"][0]
    message = choice["message"]
    text, calls = message.get("content"), message.get("tool_calls")
    usage = said.get("usage")
    return {
        "id": said.get("id"),
        "finish_reason": FINISH.get(choice["finish_reason"], "ERROR"),
        "message": {
            "role": "assistant",
            "content": [{"type": "text", "text": _plain(text), "thinking": None}] if text else None,
            "tool_calls": calls,
        },
        "usage": _usage(usage) if isinstance(usage, dict) else None,
    }


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _usage(usage: Json) -> Json:
    billed = {
        "input_tokens": _number(usage.get("prompt_tokens")),
        "output_tokens": _number(usage.get("completion_tokens")),
    }
    counted = {name: None if number is None else number + PREAMBLE for name, number in billed.items()}
    details = usage.get("prompt_tokens_details")
    cached = _number(details.get("cached_tokens")) if isinstance(details, dict) else None
    return {"billed_units": billed, "tokens": counted, "cached_tokens": cached}


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def avro_file(batch: Batch, settings: Settings, now: float) -> bytes:
    """The file of the answers that are there now, a block for each record."""
    import fastavro  # the other providers are played without it

    plan, whole = batch.plan, list(records(batch, settings))
    shown = batch.shown(len(whole), now) if plan.files.grows else len(whole)
    file = io.BytesIO()
    codec = "deflate" if batch.number % 2 else "null"
    fastavro.writer(file, fastavro.parse_schema(RESULT), islice(whole, shown), codec=codec, sync_interval=1)
    return file.getvalue()
