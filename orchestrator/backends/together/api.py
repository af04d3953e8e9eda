"""The calls of Together's files and batches, answered in OpenAI's shape.

Sources: together 3.1.1 (resources/batches.py, lib/resources/files.py, types), togethercomputer/openapi 090263a
(`/files/upload`), docs.together.ai.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.backends import BatchOrder, lenient
from orchestrator.backends.api import ApiAnswer, ApiRefusal, answer_of
from orchestrator.backends.batch_names import metadata_in_file
from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.openai_http import HttpAPI, converted, path_of
from orchestrator.backends.received_files import translated
from orchestrator.backends.together.lines import sent_lines, with_own_ids
from orchestrator.core.error_body import openai_error

log = logging.getLogger(__name__)
_PURPOSE = "batch-api"
_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class TogetherAPI(HttpAPI):
    """The calls, on an HTTP client that has Together's base URL and sends the key."""

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        return converted(self._get("files"), _input_files)

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        fields = {"purpose": _PURPOSE, "file_name": name, "file_type": "jsonl"}
        with translated(content, sent_lines(content, name)) as file:
            try:
                files = {"file": (name, file)}
                return self._answer(self._http.post("files/upload", data=fields, files=files, timeout=self._transfer))
            except ApiRefusal as refusal:
                # The file exists: it is an earlier upload of this shard, since the lines carry the file's name.
                file_id = lenient.name(lenient.mapping(refusal.body).get("file_id"))
                if refusal.status != HTTPStatus.CONFLICT or file_id is None:
                    raise
                return answer_of({"id": file_id}, refusal.headers)

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        fields = {"input_file_id": order.input_file_id, "endpoint": order.endpoint, "completion_window": window}
        return converted(self._post("batches", fields), _created)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        listed = self._get("batches")
        files = lenient.mapping(self.files(limit).json()).get("data") or ()
        names = {one.get("id"): lenient.text(one.get("filename")) for one in map(lenient.mapping, files)}
        owners = {key: owner for key, name in names.items() if (owner := metadata_in_file(name))}
        return converted(listed, lambda told: _whole_list(told, owners))

    def batch(self, batch_id: str) -> ApiAnswer:
        return converted(self._get(path_of("batches", batch_id)), batch_of)

    def cancel(self, batch_id: str) -> None:
        # No source says how a cancel is refused.
        self._cancel(f"{path_of('batches', batch_id)}/cancel", batch_id, _REFUSED)

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        return status, {**openai_error(body), "file_id": lenient.mapping(body).get("file_id")}


class TogetherBatches(ApiBatches):
    """Together's batch operations. Custom_ids may have any length."""

    def _read_lines(self, chunks: Iterable[bytes], input_path: Path) -> Iterator[bytes]:
        results = super()._read_lines(chunks, input_path)
        try:
            source = input_path.open("rb")
        except FileNotFoundError:  # an adopted batch may have no input file here
            yield from results
            return
        with source:
            yield from with_own_ids(results, source)


def batch_of(job: object) -> object:
    """Return a batch with OpenAI's field names. A value that is not an object stays unchanged."""
    told = lenient.mapping(job)
    return {**told, "model": told.get("model_id"), "errors": told.get("error")} if told else job


def _created(told: object) -> object:
    found = lenient.mapping(told)
    if found.get("warning"):
        log.warning("Together: %s", lenient.text(found["warning"]))
    return batch_of(found.get("job") or told)


def _input_files(told: object) -> object:
    files = lenient.entries(told, is_first=False)
    return {"data": [one for one in files if lenient.mapping(one).get("purpose") == _PURPOSE], "has_more": False}


def _whole_list(told: object, owners: Mapping[object, Mapping[str, str | None]]) -> object:
    """Return the list in OpenAI's shape. `owners` maps ids of input files to the metadata in their names."""
    found = [] if told is None else lenient.entries(told, is_first=False)
    for one in found:
        if isinstance(one, dict) and one.get("input_file_id") in owners:
            one["metadata"] = owners[one["input_file_id"]]
    return {"data": [batch_of(one) for one in found], "has_more": False}
