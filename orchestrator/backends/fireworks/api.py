"""The calls of Fireworks' datasets and batch inference jobs, answered in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, BinaryIO

import httpx2

from orchestrator.backends import BatchOrder, Intent, Sighting, lenient
from orchestrator.backends.api import ApiAnswer, ApiRefusal, answer_of
from orchestrator.backends.batch_names import display_name
from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.fireworks.jobs import (
    OUTPUT,
    batch_of,
    dataset_file,
    file_in,
    has_begun,
    model_name,
    result_line,
    sent_lines,
    short_name,
)
from orchestrator.backends.openai_http import HttpAPI, converted, path_of
from orchestrator.backends.received_files import translated
from orchestrator.backends.result_lines import lines
from orchestrator.core.error_body import openai_error

_JOBS, _DATASETS = "batchInferenceJobs", "datasets"
_MOST = "200"
_BLOCK = 1024 * 1024
_READY = "READY"
_BESIDE = {"nextPageToken", "totalSize"}
"""Fields of a list answer other than its entries."""


class FireworksAPI(HttpAPI):
    """Fireworks' calls, on an HTTP client that has Fireworks' address and sends the key.

    The client `signed` sends no key, because signed addresses belong to another company. A job that orch deleted
    counts as cancelled.
    """

    def __init__(self, http: httpx2.Client, signed: httpx2.Client, account: str, key: str, silent: float) -> None:
        super().__init__(http, key, silent, account)
        self._signed = signed
        self._account = f"accounts/{account}"
        self._jobs, self._datasets = (f"v1/{self._account}/{kind}" for kind in (_JOBS, _DATASETS))
        self._deleted = set[str]()

    def close(self) -> None:
        super().close()
        self._signed.close()

    def models(self) -> ApiAnswer:
        """Return the list of Fireworks' own models, each under its full and its short name."""
        names, page = list[str](), dict[str, str]()
        while True:
            answer = self._get("v1/accounts/fireworks/models", pageSize=_MOST, **page)
            told = lenient.mapping(answer.json())
            listed = lenient.entries(told, "models", is_first=False)
            names += [name for one in listed if (name := lenient.name(lenient.mapping(one).get("name")))]
            token = lenient.name(told.get("nextPageToken"))
            if token is None or token == page.get("pageToken"):
                both = [{"id": one} for name in names for one in (name, short_name(name))]
                return answer_of({"data": both}, answer.headers)
            page = {"pageToken": token}

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page(self._datasets, _DATASETS, limit, after, dataset_file)

    def file(self, file_id: str) -> ApiAnswer:
        """Return a file without a size, because datasets state none.

        Raises ApiRefusal if a dataset or output file is missing. A missing error file counts as empty.
        """
        with self.content(file_id):
            return answer_of({"id": file_id})

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        with translated(content, sent_lines(content)) as file:
            dataset, rows = _identity(name, file)
            made = {"id": dataset, "filename": name}
            told = {"displayName": name, "userUploaded": {}, "exampleCount": str(rows)}
            try:
                self._post(self._datasets, {"datasetId": dataset, "dataset": told})
            except ApiRefusal as refusal:
                # On a conflict, an earlier call created this dataset, since the id encodes the file's name and bytes.
                if refusal.status != HTTPStatus.CONFLICT:
                    raise
                if self._is_ready(dataset):
                    return answer_of(made, refusal.headers)
            sent = self._http.post(
                f"{path_of(self._datasets, dataset)}:upload", files={"file": (name, file)}, timeout=self._transfer
            )
            return answer_of(made, self._answer(sent).headers)

    def _is_ready(self, dataset: str) -> bool:
        return lenient.mapping(self._get(path_of(self._datasets, dataset)).json()).get("state") == _READY

    def delete_file(self, file_id: str) -> None:
        dataset, _, kind = file_id.partition("/")
        if kind in ("", OUTPUT):
            self._answer(self._http.delete(path_of(self._datasets, dataset)))

    @contextmanager
    def content(self, file_id: str) -> Iterator[Iterator[bytes]]:
        dataset, _, kind = file_id.partition("/")
        urls = self._get(f"{path_of(self._datasets, dataset)}:getDownloadEndpoint").json()
        named = lenient.mapping(lenient.mapping(urls).get("filenameToSignedUrls"))
        url = file_in(named, kind)
        if url is None:
            if kind in ("", OUTPUT):
                raise ApiRefusal(404, httpx2.Headers(), file_id, {"message": f"{dataset} has no such file"})
            yield iter(())
            return
        with self._streamed(self._signed, url) as chunks:
            convert = result_line if kind else bytes
            yield (convert(line) + b"\n" for line in lines(chunks))

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        """Create a job under its dataset's id, or return the existing job. The call can be repeated safely."""
        dataset = order.input_file_id
        job = {
            "model": model_name(order.model),
            "inputDatasetId": f"{self._account}/{_DATASETS}/{dataset}",
            "displayName": display_name(order),
        }
        try:
            made = self._answer(self._http.post(self._jobs, params={"batchInferenceJobId": dataset}, json=job))
        except ApiRefusal as refusal:
            if refusal.status != HTTPStatus.CONFLICT:
                raise
            try:
                return self.batch(dataset)
            except ApiRefusal:
                raise refusal from None  # the job exists, but cannot be read yet
        return converted(made, batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page(self._jobs, _JOBS, limit, after, batch_of, orderBy="create_time desc")

    def batch(self, batch_id: str) -> ApiAnswer:
        try:
            return converted(self._get(path_of(self._jobs, batch_id)), batch_of)
        except ApiRefusal as refusal:
            if refusal.status != HTTPStatus.NOT_FOUND or batch_id not in self._deleted:
                raise
            return answer_of({"id": batch_id, "status": "cancelled"}, refusal.headers)

    def cancel(self, batch_id: str) -> None:
        """Delete a job if none of its rows has run. Other jobs continue, because deletion would lose paid answers."""
        path = path_of(self._jobs, batch_id)
        if not has_begun(lenient.mapping(self._get(path).json())):
            self._answer(self._http.delete(path))
            self._deleted.add(batch_id)

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        asked = lenient.mapping(lenient.decode(body))
        told = {**asked, "model": model_name(str(asked.get("model", "")))}
        return self._answer(self._http.post(f"inference/v1{path}", json=told, timeout=self._patient))

    def _page(
        self,
        path: str,
        name: str,
        limit: int,
        after: str | None,
        convert: Callable[[object], object],
        **query: str,
    ) -> ApiAnswer:
        token = {} if after is None else {"pageToken": after}
        answer = self._get(path, pageSize=str(limit), **query, **token)
        told = lenient.mapping(answer.json())
        next_page = lenient.name(told.get("nextPageToken"))
        # An answer omits an empty list.
        found = [] if name not in told and told.keys() <= _BESIDE else lenient.entries(told, name)
        listed = {"data": [convert(one) for one in found], "has_more": next_page is not None}
        return answer_of(listed, answer.headers, next_page)

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        return status, openai_error(body)


class FireworksBatches(ApiBatches):
    """Fireworks' batch operations. A job has the id of its dataset, so orch retrieves the job without a search."""

    def find(self, intent: Intent) -> Sighting:
        if intent.input_file_id is None:
            return Sighting()
        return Sighting(self.retrieve(intent.input_file_id))

    def cancel(self, batch_id: str) -> None:
        """Delete a job if none of its rows has run. Other jobs continue."""
        self._end(batch_id)


def _identity(name: str, file: BinaryIO) -> tuple[str, int]:
    """Return a dataset id that depends on a file's name and bytes, and the number of lines. Rewinds the file."""
    digest, rows = blake2b(name.encode(), digest_size=16), 0
    while block := file.read(_BLOCK):
        digest.update(block)
        rows += block.count(b"\n")
    file.seek(0)
    return f"orch-{digest.hexdigest()}", rows
