"""Vertex AI's lines: a request without an id, and a result that echoes it, in words that differ from what was sent.

Sources: Google's guide to batch inference from Cloud Storage (both examples of results), google-genai 3.6.1
(types.py); googleapis/python-genai#2123 and published notes of OpenRouter on what the import of a file refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from tests.emulator.answers import Asked
from tests.emulator.batch import Batch
from tests.emulator.errors import Json, Refusal, problem_of
from tests.emulator.gemini_lines import answer, asked_of, blocks, check_request, refused_by
from tests.emulator.refusals import Refused
from tests.emulator.results import outcome, with_swapped_keys
from tests.emulator.rowfaults import MARK, Effect, marked
from tests.emulator.settings import Settings
from tests.emulator.validation import JSON_ERRORS, Checked, LineError, lines_of

MAX_ROWS = 200_000
DEEPEST = 15
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}")
_HUMP = re.compile(r"([A-Z])")
IMPORT = "Failed to import data. Please check 'Prepare input' section of the batch predictions documentation. "


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    request: dict[str, Any]


decode_row = msgspec.json.Decoder(Row).decode
encode = msgspec.json.Encoder().encode


def check(path: Path, model: str, *, is_truthful: bool) -> Checked:
    """The rows as they will run. What the import refuses fails the whole job; the model refuses single rows."""
    found = Checked()
    found.model = model
    for number, start, raw in lines_of(path):
        try:
            row = decode_row(raw)
        except JSON_ERRORS:
            found.errors.append(LineError("3", f"{IMPORT}Line {number} is not a request."))
            return found
        if (problem := _not_imported(row.request, "request", 1)) is not None:
            found.errors.append(LineError("3", f"{IMPORT}{problem}"))
            return found
        index = len(found.draft.starts)
        try:
            check_request(row.request)
        except Refusal as refusal:
            found.refused[index] = Refused(400, refusal.problem)
        else:
            refused = refused_by("vertex", model, row.request) if is_truthful else None
            found.refused |= {} if refused is None else {index: refused}
        asked = asked_of({"contents": [], **row.request}, model)
        if MARK in raw:
            found.marks[index], found.digests[index] = marked(raw), asked.digest
        found.draft.add(start, len(raw), asked.prompt, asked.completion, asked.most)
    if not found.draft.starts or len(found.draft.starts) > MAX_ROWS:
        found.errors.append(LineError("3", f"{IMPORT}It has {len(found.draft.starts)} rows."))
    return found


def _not_imported(value: object, where: str, depth: int) -> str | None:
    """What the import says of a value: it makes columns of names."""
    if isinstance(value, dict):
        if not value:
            return f"Cannot store struct '{where}' with no fields"
        if depth > DEEPEST:
            return f"Schema nested too deeply, at least {depth} compared to the maximum allowed level of {DEEPEST}"
        for name, one in value.items():
            if not _COLUMN.fullmatch(name):
                return f'Invalid field name "{name}"'
            if (problem := _not_imported(one, f"{where}.{name}", depth + 1)) is not None:
                return problem
    elif isinstance(value, list):
        if None in value or len({type(one) for one in value}) > 1:
            return f"Repeated field must be imported as a JSON array. Field: {where}"
        return next((told for one in value if (told := _not_imported(one, where, depth)) is not None), None)
    return None


def spoken(request: Json) -> str:
    """The text of a row, by which a bill names it."""
    turns = [request.get("systemInstruction") or {}, *request["contents"]]
    return " ".join(part["text"] for turn in turns for part in turn.get("parts", ()) if "text" in part)


# --- the echo


def _with_nulls(value: Any) -> Any:
    """As in Google's examples: sorted, with nulls beside what a part has."""
    if isinstance(value, dict):
        found = {key: _with_nulls(one) for key, one in sorted(value.items())}
        return dict(sorted((found | {"fileData": None}).items())) if "text" in found else found
    return [_with_nulls(one) for one in value] if isinstance(value, list) else value


def _in_snakes(value: Any) -> Any:
    """As protobuf's own names, with every number a fraction."""
    if isinstance(value, dict):
        return {_HUMP.sub(r"_\1", key).lower(): _in_snakes(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_in_snakes(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _with_defaults(value: Json) -> Json:
    """With defaults that nobody sent, and single precision."""
    config = {"candidateCount": 1, "topP": 0.949999988079071, **(value.get("generationConfig") or {})}
    if isinstance(config.get("temperature"), float):
        config["temperature"] += 1e-9
    return {**value, "generationConfig": config, "labels": {}}


ECHOES: dict[str, Callable[[Json], Json]] = {
    "sent": lambda request: request,
    "nulls": _with_nulls,
    "snakes": _in_snakes,
    "defaults": _with_defaults,
}


# --- results


def result_lines(batch: Batch, settings: Settings) -> Iterator[bytes]:
    """The one file of results, failures among them, in no order that is promised."""
    whole = with_swapped_keys(_lines(batch, settings), batch, "request")
    if not batch.plan.has_cut_tail:
        yield from whole
        return
    last = b""
    for line in whole:
        yield last
        last = line
    yield last[: len(last) // 2]


def _lines(batch: Batch, settings: Settings) -> Iterator[bytes]:
    rows = batch.rows
    if rows is None or batch.plan.does_nothing:
        return
    for _, rank, raw in rows.lines(rows.by_rank()):
        effect = outcome(batch, rank)
        if effect is None or effect.unrun is not None:
            continue
        request = decode_row(raw).request
        asked = asked_of({"contents": [], **request}, batch.model or "")
        names = settings.echoes
        echo = ECHOES[names[asked.digest[0] % len(names)]](request)
        told = _result(batch, request, None if "id_null" in effect.odd else echo, effect, settings)
        copies = 0 if effect.place == "none" else effect.copies
        if effect.fails_first:
            yield encode(_result(batch, request, echo, Effect(status=500), settings)) + b"\n"
        line = encode(told) + b"\n"
        yield from (line[: len(line) // 2] + b"\n" if effect.is_broken else line for _ in range(copies))
        if effect.has_stranger:
            foreign = {"contents": [{"role": "user", "parts": [{"text": f"nobody asked: {spoken(request)}"}]}]}
            yield encode(_result(batch, request, foreign, effect, settings)) + b"\n"


def _result(batch: Batch, request: Json, echo: Json | None, effect: Effect, settings: Settings) -> Json:
    told: Json = {"status": "", "processed_time": "2026-07-09T19:57:43.558+00:00", "request": echo, "response": {}}
    if effect.status == 200:
        asked: Asked = asked_of(request, batch.model or "")
        return told | {"response": answer(asked, effect, f"{batch.model}{settings.snapshot}@default")}
    if effect.status == 0:
        return told
    problem = effect.problem or problem_of(effect.status, effect.code)
    error = {"code": effect.status, "message": effect.message or problem.message}
    phrase = HTTPStatus(effect.status).phrase
    return told | {"status": f"{phrase}: {encode({'error': error}).decode()}"}


__all__ = ["blocks", "check", "decode_row", "result_lines", "spoken"]
