"""What Mistral says of the lines of a batch: at their upload, and when they run.

Sources: mistralai 3.7.0 (a line has `custom_id` and `body`), Mistral's guide, its page of limitations, and what users
report: a bad line is refused at its upload; `custom_id`s may be missing or there twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.emulator.answers import decode_body, read, with_model
from tests.emulator.errors import Refusal, problem_of
from tests.emulator.refusals import refusal_of
from tests.emulator.rowfaults import MARK, marked
from tests.emulator.validation import JSON_ERRORS, Checked, LineError, lines_of

MAX_ROWS = 100_000
FIELDS = {"custom_id", "body"}


class Line(msgspec.Struct, frozen=True):
    body: msgspec.Raw
    custom_id: Any = None


decode_line = msgspec.json.Decoder(Line).decode


def check_upload(path: Path) -> None:
    """Raises Refusal for the first line that is no request."""
    for number, _, raw in lines_of(path):
        try:
            told = msgspec.json.decode(raw)
        except JSON_ERRORS:
            raise _refused(f"Line {number} is not valid JSON") from None
        if not isinstance(told, dict) or not isinstance(told.get("body"), dict):
            raise _refused(f"Line {number}: body: Field required")
        if unknown := sorted(told.keys() - FIELDS):
            raise _refused(f"Line {number}: {unknown[0]}: Extra inputs are not permitted")


def _refused(words: str) -> Refusal:
    problem = problem_of(422)
    body = {"detail": [{"type": "value_error", "loc": ["body", "file"], "msg": words}]}
    return Refusal(422, problem, {}, msgspec.json.encode(body).decode())


def check(path: Path, endpoint: str, model: str, *, is_truthful: bool) -> Checked:
    """The rows as they will run, all with the job's model where they name no other."""
    found = Checked()
    found.model = model
    for _, start, raw in lines_of(path):
        line = decode_line(raw)
        told = msgspec.json.decode(line.body)
        body = with_model(decode_body(line.body), model)
        asked = read(body, endpoint)
        index = len(found.draft.starts)
        refused = refusal_of("mistral", endpoint, {"model": model, **told}) if is_truthful else None
        if refused is not None:
            found.refused[index] = refused
        if MARK in raw:
            found.marks[index], found.digests[index] = marked(raw), asked.digest
        found.draft.add(start, len(raw), asked.prompt, asked.completion, asked.most)
    rows = len(found.draft.starts)
    if not rows:
        found.errors.append(LineError("", "Input file is empty"))
    elif rows > MAX_ROWS:
        found.errors.append(LineError("", f"Input has more than {MAX_ROWS} requests"))
    return found
