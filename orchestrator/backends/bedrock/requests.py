"""Translates chat completions to requests of Bedrock's Converse API and to lines of its input files. Pure.

A `recordId` must be alphanumeric, according to AWS's page on batch inference data.

Sources: botocore 1.43 (bedrock-runtime/2023-09-30, service-2.json), recorded requests, AWS's page on batch inference
data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from orchestrator.backends import lenient, line_digest
from orchestrator.backends.chat_rows import NO_EFFECT, check_counterparts, decode_line, sent_rows
from orchestrator.backends.message_parts import (
    DocumentPart,
    MessagePart,
    PicturePart,
    TextPart,
    data_in,
    read_messages,
)
from orchestrator.core import batch_api
from orchestrator.core.errors import InputError

_CONFIG = {"temperature": "temperature", "top_p": "topP"}
OWN = ("additionalModelRequestFields", "guardrailConfig")
"""Converse's own fields, which are sent unchanged."""
KNOWN = NO_EFFECT.union({*_CONFIG, *OWN, "messages", "max_tokens", "max_completion_tokens", "stop"})
_NOT_IN_A_BATCH = "has no counterpart in a batch of Bedrock"
_PICTURES = {f"image/{kind}": kind for kind in ("png", "jpeg", "gif", "webp")}
_DOCUMENTS = {"application/pdf": "pdf", "text/plain": "txt", "text/csv": "csv", "text/html": "html"}
_PLAIN_ID = re.compile(r"(?!x0)[A-Za-z0-9]+")
_CODED = "x0"
"""Prefix of a `recordId` that encodes a custom_id with non-alphanumeric characters."""
Json = dict[str, Any]


def record_id(custom_id: str) -> str:
    """Encode a custom_id as an alphanumeric `recordId`. Different custom_ids have different record ids."""
    return custom_id if _PLAIN_ID.fullmatch(custom_id) else f"{_CODED}{custom_id.encode().hex()}"


def custom_id_of(record: object) -> object:
    """Return the custom_id that a `recordId` encodes. An id that we did not write stays unchanged."""
    if not isinstance(record, str) or not record.strip().lower().startswith(_CODED):
        return record
    try:
        return bytes.fromhex(record.strip()[len(_CODED) :]).decode()
    except ValueError:
        return record


def record_lines(source: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the record of each row that has a counterpart. Raises InputError for a line that is not a request."""
    for custom_id, request in sent_rows(source, translate):
        yield msgspec.json.encode({"recordId": record_id(custom_id), "modelInput": request}) + b"\n"


def named_record(line: bytes) -> bytes:
    """Return a record with its custom_id added. A line that is not JSON stays unchanged."""
    told = lenient.decode_object(line)
    return line if told is None else msgspec.json.encode({"custom_id": custom_id_of(told.get("recordId")), **told})


def sent_line(line: bytes) -> tuple[str, bytes]:
    """Return the custom_id of a line (our own or a Bedrock record), and the digest of its request."""
    told = lenient.decode_object(line) or {}
    if "recordId" in told:
        name = lenient.name(custom_id_of(told["recordId"])) or ""
        return name, line_digest(msgspec.json.encode(told.get("modelInput")))
    try:
        row = decode_line(line)
        return row.custom_id, line_digest(msgspec.json.encode(translate(row.body)))
    except (InputError, *batch_api.JSON_ERRORS):
        return "", line_digest(line)


def translate(body: Mapping[str, Any]) -> Json:
    """Return a Converse request without its model. Raises InputError for a field without a counterpart."""
    check_counterparts(body, KNOWN, _NOT_IN_A_BATCH)
    system, turns = read_messages(body.get("messages"), {})
    messages = [{"role": turn.role, "content": _blocks(turn.parts)} for turn in turns]
    request: Json = {"messages": messages} | ({"system": _blocks(system)} if system else {})
    config = {theirs: body[ours] for ours, theirs in _CONFIG.items() if body.get(ours) is not None}
    bound = body.get("max_completion_tokens", body.get("max_tokens"))
    if bound is not None:
        config["maxTokens"] = bound
    if stop := body.get("stop"):
        config["stopSequences"] = [stop] if isinstance(stop, str) else stop
    if config:
        request["inferenceConfig"] = config
    return request | {name: body[name] for name in OWN if body.get(name) is not None}


def _blocks(parts: list[MessagePart]) -> list[Json]:
    return [_block(part, number) for number, part in enumerate(parts)]


def _block(part: MessagePart, number: int) -> Json:
    match part:
        case TextPart():
            return {"text": part.text}
        case PicturePart():
            kind, data = _inline(part, _PICTURES)
            return {"image": {"format": kind, "source": {"bytes": data}}}
        case DocumentPart():
            kind, data = _inline(part, _DOCUMENTS)
            # A document's own name would be part of the prompt.
            return {"document": {"format": kind, "name": f"document {number}", "source": {"bytes": data}}}
    raise InputError(_NOT_IN_A_BATCH, field=part.where)


def _inline(part: PicturePart | DocumentPart, kinds: Mapping[str, str]) -> tuple[str, str]:
    found = data_in(part.url)
    if found is None or found[0] not in kinds:
        raise InputError(f"Bedrock takes only data: URLs, of {', '.join(kinds)}", field=part.where)
    return kinds[found[0]], found[1]
