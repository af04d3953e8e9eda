"""The calls of Cohere's datasets and batches, answered in OpenAI's shape.

Sources: cohere 7.3.1 (batches/raw_client.py, datasets/raw_client.py, utils.py), Cohere's OpenAPI and its notebook on
batches (recorded names, ids and lists), crmne/ruby_llm (protocols/cohere, run against the live API).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any, BinaryIO

import httpx2
import msgspec

from orchestrator.backends import BatchOrder, RemoteBatch, lenient
from orchestrator.backends.api import ApiAnswer, ApiRefusal, answer_of
from orchestrator.backends.batches import GONE
from orchestrator.backends.chat_rows import sent_rows
from orchestrator.backends.cohere.answers import result_line
from orchestrator.backends.cohere.avro import records
from orchestrator.backends.cohere.batches import batch_name, batch_of, batch_page, dataset_file, spelled
from orchestrator.backends.cohere.requests import translate
from orchestrator.backends.openai_http import HttpAPI, converted, path_of
from orchestrator.backends.received_files import translated
from orchestrator.backends.translated import NOTHING_SENT, TranslatedBatches, nothing_sent
from orchestrator.core.error_body import openai_error
from orchestrator.core.errors import BackendError, BackendRefused, NotSent

_BATCHES, _DATASETS = "v2/batches", "v1/datasets"
_INPUTS = "batch-chat-v2-input"
_VALIDATED, _FAILED = "validated", ("failed", "skipped")
_UNFINISHED = ("queued", "processing")
_NOT_READY, _NOT_THERE = "file_not_ready", "file_not_found"
"""OpenAI's codes for a create whose dataset is not validated yet (wait) or is missing (upload again)."""
_MOST = 1000
"""Maximum number of batches on a page.

The list is not newest first, so a search may have to read all batches.
"""
_OVER = (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class CohereAPI(HttpAPI):
    """Cohere's calls, on an HTTP client that has Cohere's address and sends the key.

    The client `signed` sends no key, because signed addresses belong to another company.
    """

    def __init__(self, http: httpx2.Client, signed: httpx2.Client, key: str, silent: float) -> None:
        super().__init__(http, key, silent)
        self._signed = signed

    def close(self) -> None:
        super().close()
        self._signed.close()

    def models(self) -> ApiAnswer:
        answer = self._get("v1/models", page_size=str(_MOST))
        listed = lenient.entries(answer.json(), "models")
        return answer_of({"data": [{"id": lenient.mapping(one).get("name")} for one in listed]}, answer.headers)

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        """Return a page of input datasets. `after` is the number of earlier datasets, as text.

        An empty page ends the list.
        """
        start = int(after or 0)
        answer = self._get(_DATASETS, datasetType=_INPUTS, limit=str(limit), offset=str(start))
        listed = lenient.mapping(answer.json()).get("datasets") or []
        return answer_of({"data": [dataset_file(one) for one in listed]}, answer.headers, str(start + limit))

    def file(self, file_id: str) -> ApiAnswer:
        """Return a dataset, without its size, which counts Avro bytes. Raises ApiRefusal if the dataset is
        missing.
        """
        self.dataset(file_id)
        return answer_of({"id": file_id})

    def dataset(self, dataset_id: str) -> Mapping[str, Any]:
        """Return a dataset. Raises ValueError if the answer is not a dataset."""
        told = lenient.mapping(self._get(path_of(_DATASETS, dataset_id)).json())
        found = lenient.mapping(told.get("dataset"))
        if not found:
            raise ValueError("the answer is not a dataset")
        return found

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        rows = sent_rows(content, translate)
        lines = (msgspec.json.encode({"custom_id": key, "body": body}) + b"\n" for key, body in rows)
        with translated(content, lines) as file:
            if not file.read(1):
                return nothing_sent(name)
            file.seek(0)
            made = self._http.post(
                _DATASETS,
                params={"name": spelled(name), "type": _INPUTS},
                files={"data": (name, file)},
                timeout=self._transfer,
            )
            return converted(self._answer(made), lambda told: {"id": lenient.mapping(told).get("id")})

    def delete_file(self, file_id: str) -> None:
        self._answer(self._http.delete(path_of(_DATASETS, file_id)))

    @contextmanager
    def content(self, file_id: str) -> Iterator[Iterator[bytes]]:
        dataset = self.dataset(file_id)
        urls = _part_urls(dataset)
        if not urls or lenient.word(dataset.get("validation_status")) in _UNFINISHED:
            raise ApiRefusal(404, httpx2.Headers(), file_id, {"message": f"{file_id} has no files yet"})
        with closing(self._result_lines(urls)) as lines:
            yield lines

    def _result_lines(self, urls: Sequence[str]) -> Generator[bytes]:
        for url in urls:
            with self._streamed(self._signed, url) as chunks:
                for record in records(chunks):
                    yield result_line(record) + b"\n"

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        batch = {"name": batch_name(order), "input_dataset_id": order.input_file_id, "model": order.model}
        return converted(self._post(_BATCHES, batch), batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        token = {} if after is None else {"page_token": after}
        answer = self._get(_BATCHES, page_size=str(min(10 * limit, _MOST)), **token)
        listed, next_page = batch_page(answer.json())
        return answer_of(listed, answer.headers, next_page)

    def batch(self, batch_id: str) -> ApiAnswer:
        return converted(self._get(path_of(_BATCHES, batch_id)), batch_of)

    def cancel(self, batch_id: str) -> None:
        # No source says how a cancel is refused.
        self._cancel(f"{path_of(_BATCHES, batch_id)}:cancel", batch_id, _OVER)

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        return status, openai_error(body)


class CohereBatches(TranslatedBatches):
    """Cohere's batch operations. A batch is created only after Cohere has validated its dataset."""

    _api: CohereAPI

    def create(self, order: BatchOrder) -> RemoteBatch:
        if not order.input_file_id.startswith(NOTHING_SENT):
            self._check_validated(order.input_file_id)
        return super().create(order)

    def _check_validated(self, dataset_id: str) -> None:
        """Raise BackendRefused if a dataset is not validated, or NotSent if its state is unknown."""
        try:
            with self._translated("look at its dataset"):
                dataset = self._api.dataset(dataset_id)
        except BackendRefused as refusal:
            if refusal.status in GONE:
                raise BackendRefused(refusal.message, status=refusal.status, code=_NOT_THERE) from None
            raise
        except BackendError as error:
            raise NotSent(error.message) from None
        status = lenient.word(dataset.get("validation_status"))
        if status in _FAILED:
            why = lenient.text(dataset.get("validation_error")) or status
            raise BackendRefused(f"{self._name}: the dataset is not valid: {why}", status=400, code=None)
        if status != _VALIDATED:
            message = f"{self._name}: dataset {dataset_id} is not validated yet ({status or 'no status'})"
            raise BackendRefused(message, status=400, code=_NOT_READY)


def _part_urls(dataset: Mapping[str, Any]) -> list[str]:
    told = dataset.get("dataset_parts")
    parts = [lenient.mapping(one) for one in told] if isinstance(told, list) else []
    parts.sort(key=lambda part: lenient.count(part.get("index")) or 0)
    return [url for part in parts if isinstance(url := part.get("url"), str) and url]
