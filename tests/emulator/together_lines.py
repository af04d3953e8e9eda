"""What Together says of the lines of a batch while it validates.

Sources: docs.together.ai (batch tutorial: an id of at most 64 characters and a body), together 3.1.1.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from tests.emulator.answers import decode_body, read
from tests.emulator.rowfaults import MARK, marked
from tests.emulator.validation import JSON_ERRORS, Checked, LineError, lines_of

MAX_ROWS = 50_000
LONGEST_ID = 64


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    custom_id: str
    body: msgspec.Raw


decode_line = msgspec.json.Decoder(Line).decode


def check(path: Path, endpoint: str, models: Collection[str] | None) -> Checked:
    """The rows as they will run; the first line that is no request fails all."""
    found = Checked()
    ids: set[str] = set()
    for number, start, raw in lines_of(path):
        try:
            line = decode_line(raw)
            body = decode_body(line.body)
        except JSON_ERRORS as error:
            found.errors = [LineError("", f"line {number}: {error}")]
            return found
        words = _problem(line, body.model, found.model, ids, models)
        if words is not None:
            found.errors = [LineError("", f"line {number}: {words}")]
            return found
        ids.add(line.custom_id)
        found.model = str(body.model)
        asked = read(body, endpoint)
        if MARK in raw:
            index = len(found.draft.starts)
            found.marks[index], found.digests[index] = marked(raw), asked.digest
        found.draft.add(start, len(raw), asked.prompt, asked.completion, asked.most)
    if not found.draft.starts:
        found.errors.append(LineError("", "file is empty"))
    elif len(found.draft.starts) > MAX_ROWS:
        found.errors.append(LineError("", f"file has more than {MAX_ROWS} requests"))
    return found


def _problem(
    line: Line, model: object, other: str | None, ids: set[str], models: Collection[str] | None
) -> str | None:
    if not 1 <= len(line.custom_id) <= LONGEST_ID:
        return f"custom_id must have 1 to {LONGEST_ID} characters"
    if line.custom_id in ids:
        return f"custom_id {line.custom_id} is a duplicate"
    if not isinstance(model, str) or not model:
        return "body.model is required"
    if other not in (None, model):
        return "all requests must use the same model"
    if models is not None and model not in models:
        return f"model {model} is not available for batch"
    return None
