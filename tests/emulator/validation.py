"""What a batch's input must be: the checks that fail an OpenAI or Azure batch, and those of an Anthropic list."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.emulator.answers import CHAT, EMBEDDINGS, Body, decode_body, inputs_of, read
from tests.emulator.errors import Json
from tests.emulator.refusals import Refused, refusal_of
from tests.emulator.rowfaults import MARK, RowFault, marked
from tests.emulator.rows import Draft

MAX_ERRORS = 100
MOST_ROWS = 50_000
MAX_ROWS = {"azure": 100_000}
MAX_INPUTS = 50_000
BOM = b"\xef\xbb\xbf"
UNSET = msgspec.UNSET

PATHS = {"zhipu": "/v4/"}
"""How addresses in lines begin, if not with /v1/."""
AZURE_CODES = {"invalid_url": "url_mismatch", "mismatched_model": "model_mismatch"}


class Line(msgspec.Struct, frozen=True):
    custom_id: Any = UNSET
    method: Any = UNSET
    url: Any = UNSET
    body: msgspec.Raw | msgspec.UnsetType = UNSET


decode_line = msgspec.json.Decoder(Line).decode
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class LineError:
    code: str
    message: str
    param: str | None = None
    line: int | None = None

    def json(self) -> Json:
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


@dataclass(slots=True)
class Checked:
    """What reading an input gave. `marks` are the faults asked for in rows, `digests` those of these rows.

    `refused` are the rows whose requests the provider does not take.
    """

    draft: Draft = field(default_factory=Draft)
    errors: list[LineError] = field(default_factory=list)
    model: str | None = None
    marks: dict[int, tuple[RowFault, ...]] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    refused: dict[int, Refused] = field(default_factory=dict)


class _Check:
    def __init__(self, flavour: str, endpoint: str, models: Collection[str] | None, *, is_truthful: bool) -> None:
        self.checked = Checked()
        self._is_truthful = is_truthful
        self._flavour = flavour
        self._endpoint = endpoint
        self._models = models
        self._url: str | None = None if flavour == "azure" else endpoint.replace("/v1/", PATHS.get(flavour, "/v1/"))
        self._ids: set[bytes] = set()
        self.inputs = 0

    def line(self, number: int, start: int, raw: bytes) -> None:
        problem = self._problem(number, start, raw)
        if problem is not None:
            code, message, param = problem
            code = AZURE_CODES.get(code, code) if self._flavour == "azure" else code
            self.checked.errors.append(LineError(code, message, param, number))

    def _problem(self, number: int, start: int, raw: bytes) -> tuple[str, str, str | None] | None:
        if number == 1 and self._flavour == "azure" and raw.startswith(BOM):
            return "invalid_request", "Model parameter is required.", "body.model"
        try:
            line = decode_line(raw)
            body = None if line.body is UNSET else decode_body(line.body)
        except JSON_ERRORS:
            return "invalid_json_line", "This line is not parseable as valid JSON.", None
        for name in ("custom_id", "method", "url", "body"):
            if getattr(line, name) in (UNSET, None):
                return "missing_required_parameter", f"Missing required parameter: '{name}'.", name
        assert body is not None
        problem = self._of_line(line) or self._of_body(body)
        if problem is None:
            if self._is_truthful:
                self._refuse(line)
            self._keep(start, raw, body)
        return problem

    def _refuse(self, line: Line) -> None:
        """Note that the row, which comes next, will be an error when it runs."""
        assert isinstance(line.body, msgspec.Raw)
        found = refusal_of(self._flavour, self._endpoint, msgspec.json.decode(line.body))
        if found is not None:
            self.checked.refused[len(self.checked.draft.starts)] = found

    def _of_line(self, line: Line) -> tuple[str, str, str | None] | None:
        if line.method != "POST":
            return "invalid_request", "Only POST is supported.", "method"
        if not isinstance(line.custom_id, str):
            return "invalid_request", "Invalid type for 'custom_id': expected a string.", "custom_id"
        name = hashlib.blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=10).digest()
        if name in self._ids:
            message = (
                f"The custom_id '{line.custom_id}' for this request is a duplicate of another request. "
                "The custom_id parameter must be unique for each request in a batch."
            )
            return "duplicate_custom_id", message, "custom_id"
        self._ids.add(name)
        if self._url is None and v1(line.url) == self._endpoint:
            self._url = line.url
        if line.url != self._url:
            return "invalid_url", "The URL provided for this request does not match the batch endpoint.", "url"
        return None

    def _of_body(self, body: Body) -> tuple[str, str, str | None] | None:
        model, checked = body.model, self.checked
        if not isinstance(model, str) or not model:
            return "invalid_request", "Model parameter is required.", "body.model"
        if self._models is not None and model not in self._models:
            return "model_not_found", f"The provided model '{model}' is not supported by the Batch API.", "body.model"
        if checked.model not in (None, model):
            message = (
                f"The model '{model}' for this request does not match the rest of the batch. "
                "Each batch must contain requests for a single model."
            )
            return "mismatched_model", message, "body.model"
        checked.model = model
        if self._endpoint == CHAT and not isinstance(body.messages, list):
            return "invalid_request", "Messages parameter is required.", "body.messages"
        if body.stream:
            message = "Chat Completions: Streaming is not supported in the Batch API."
            return "streaming_unsupported", message, "body.stream"
        return None

    def _keep(self, start: int, raw: bytes, body: Body) -> None:
        checked = self.checked
        asked = read(body, self._endpoint)
        self.inputs += inputs_of(body.input) if self._endpoint == EMBEDDINGS else 0
        if MARK in raw:
            index = len(checked.draft.starts)
            checked.marks[index], checked.digests[index] = marked(raw), asked.digest
        checked.draft.add(start, len(raw), asked.prompt, asked.completion, asked.most)


def check(
    path: Path, flavour: str, endpoint: str, models: Collection[str] | None, *, is_truthful: bool = False
) -> Checked:
    """Read an input file of the OpenAI flavours, whose lines make the batch fail, each for itself."""
    found = _Check(flavour, endpoint, models, is_truthful=is_truthful)
    rows = 0
    for number, start, raw in lines_of(path):
        rows += 1
        if len(found.checked.errors) < MAX_ERRORS:
            found.line(number, start, raw)
    checked = found.checked
    if not rows:
        checked.errors.append(LineError("empty_file", "The input file is empty."))
    elif rows > MAX_ROWS.get(flavour, MOST_ROWS) or found.inputs > MAX_INPUTS:
        checked.errors = [LineError("too_many_tasks", "The input file has more requests than a batch may have.")]
    return checked


def lines_of(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number from 1, offset and bytes of each line that is not blank."""
    start = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if stripped := raw.strip():
                yield number, start, stripped if raw.startswith(stripped) else raw
            start += len(raw)


def first_model(path: Path) -> str | None:
    """The model that the first line names, where it does."""
    for _, _, raw in lines_of(path):
        try:
            body = decode_line(raw).body
            model = None if body is UNSET else decode_body(body).model
        except JSON_ERRORS:
            return None
        return model if isinstance(model, str) else None
    return None


def v1(url: Any) -> Any:
    """An endpoint's one name: Azure leaves the /v1 away where it likes."""
    return f"/v1{url}" if isinstance(url, str) and not url.startswith("/v1") else url
