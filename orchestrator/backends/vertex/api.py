"""The calls of Vertex AI's batch prediction jobs, their bucket and their models, answered in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx2
from msgspec.structs import replace

from orchestrator.backends import BatchOrder, lenient
from orchestrator.backends.api import ApiAnswer, ApiRefusal, answer_of
from orchestrator.backends.buckets import BucketPrefix, input_object
from orchestrator.backends.gemini import answers
from orchestrator.backends.openai_http import HttpAPI, converted
from orchestrator.backends.received_files import split_lines
from orchestrator.backends.translated import nothing_sent
from orchestrator.backends.vertex.jobs import batch_of, creation, model_path, object_of, results_in
from orchestrator.backends.vertex.requests import translate
from orchestrator.backends.vertex.results import request_lines

_NO_KEY = "no-key-is-sent"
_JOBS = "batchPredictionJobs"
_MODELS = "v1beta1/publishers/google/models"
_PAGE = 1000
_OVER = (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT)
"""HTTP statuses with which a cancel is refused if the job is over."""


class VertexAPI(HttpAPI):
    """Vertex AI's calls. `parent` is the path of project and location.

    If Google refuses the credentials, `forget` is called.
    """

    def __init__(
        self,
        vertex: httpx2.Client,
        storage: httpx2.Client,
        token: str,
        parent: str,
        place: BucketPrefix,
        silent: float,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(vertex, token or _NO_KEY, silent)
        self._storage, self._parent, self._place, self._forget = storage, parent, place, forget
        self._objects = f"storage/v1/b/{quote(place.bucket, safe='')}/o"

    def close(self) -> None:
        self._http.close()
        self._storage.close()

    def models(self) -> ApiAnswer:
        found, after = list[object](), None
        while True:
            answer = self._page(self._http, _MODELS, "publisherModels", answers.model_of, after, pageSize="100")
            found += answer.json()["data"]
            if (after := answer.next_page) is None:
                return answer_of({"data": found}, answer.headers)

    # --- the bucket

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._objects_under(self._place.inputs, limit, after)

    def _objects_under(self, prefix: str, limit: int, after: str | None) -> ApiAnswer:
        query = {"prefix": prefix, "maxResults": str(limit)}
        with _in_bucket():
            return self._page(self._storage, self._objects, "items", object_of, after, **query)

    def file(self, file_id: str) -> ApiAnswer:
        """Return an object without its size, because orch translates its lines.

        Raises ApiRefusal for a folder without results.
        """
        with self.content(file_id):
            return answer_of({"id": file_id})

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        with input_object(self._place, name, content, request_lines(content)) as sent:
            if not sent.size:
                return nothing_sent(name)
            url = f"upload/{self._objects}?uploadType=media&name={quote(sent.key, safe='')}"
            headers = {"Content-Type": "application/jsonl", "Content-Length": str(sent.size)}
            post = self._storage.post(url, content=sent.file, headers=headers, timeout=self._transfer)
            with _in_bucket():
                made = self._answer(post)
            return answer_of({"id": sent.key, "filename": name}, made.headers)

    def delete_file(self, file_id: str) -> None:
        """Delete an object, or all objects in a folder."""
        for key in self._names(file_id) if file_id.endswith("/") else [file_id]:
            try:
                self._answer(self._storage.delete(self._path(key)))
            except ApiRefusal as refusal:
                if refusal.status != HTTPStatus.NOT_FOUND:
                    raise

    def _names(self, folder: str) -> list[str]:
        found, after = list[str](), None
        while True:
            answer = self._objects_under(folder, _PAGE, after)
            found += filter(None, (lenient.name(one["id"]) for one in answer.json()["data"]))
            if (after := answer.next_page) is None:
                return found

    def _path(self, key: str) -> str:
        return f"{self._objects}/{quote(key, safe='')}"

    @contextmanager
    def content(self, file_id: str) -> Iterator[Iterator[bytes]]:
        """Open an object, or a folder's result files one after another."""
        names = results_in(self._names(file_id)) if file_id.endswith("/") else [file_id]
        if not names:
            gone = {"message": f"no results are in {file_id}", "code": "not_found"}
            raise ApiRefusal(HTTPStatus.NOT_FOUND, httpx2.Headers(), file_id, gone)
        with closing(self._read(names)) as lines:
            yield lines

    def _read(self, names: Iterable[str]) -> Generator[bytes]:
        for key in names:
            with self._streamed(self._storage, self._path(key), params={"alt": "media"}) as chunks:
                yield from (line + b"\n" for line in split_lines(chunks) if line)

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        made = self._post(f"{self._parent}/{_JOBS}", creation(order, self._place))
        return converted(made, lambda told: batch_of(told, self._place))

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        path, query = f"{self._parent}/{_JOBS}", {"pageSize": str(limit)}
        return self._page(self._http, path, _JOBS, lambda one: batch_of(one, self._place), after, **query)

    def batch(self, batch_id: str) -> ApiAnswer:
        return converted(self._get(self._job(batch_id)), lambda told: batch_of(told, self._place))

    def cancel(self, batch_id: str) -> None:
        self._cancel(f"{self._job(batch_id)}:cancel", batch_id, _OVER)

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        asked = lenient.mapping(lenient.decode(body))
        model = quote(model_path(str(asked.get("model", ""))), safe="/")
        answer = super().ask(f"{self._parent}/{model}:generateContent", json.dumps(translate(asked)).encode())
        return converted(answer, lambda told: answers.completion(told) if isinstance(told, dict) else told)

    def _job(self, batch_id: str) -> str:
        return f"{self._parent}/{_JOBS}/{quote(batch_id, safe='')}"

    def _page(
        self,
        client: httpx2.Client,
        path: str,
        name: str,
        convert: Callable[[object], object],
        after: str | None,
        **query: str,
    ) -> ApiAnswer:
        token = {} if after is None else {"pageToken": after}
        answer = self._answer(client.get(path, params={**query, **token}))
        found = replace(answer, next_page=lenient.name(lenient.mapping(answer.json()).get("nextPageToken")))
        return converted(found, lambda told: answers.listed(told, name, convert))

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        if status == HTTPStatus.UNAUTHORIZED:
            self._forget()
        return status, answers.error_of(body)


@contextmanager
def _in_bucket() -> Iterator[None]:
    """Report a missing bucket as an error in the settings, so that no row counts as failed."""
    try:
        yield
    except ApiRefusal as refusal:
        if refusal.status == HTTPStatus.NOT_FOUND:
            refusal.status = HTTPStatus.FORBIDDEN
        raise
