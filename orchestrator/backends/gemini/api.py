"""The calls of Gemini's files and batches, answered in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

import msgspec
from msgspec.structs import replace

from orchestrator.backends import BatchOrder, lenient
from orchestrator.backends.api import ApiAnswer
from orchestrator.backends.batch_names import display_name
from orchestrator.backends.chat_rows import sent_rows
from orchestrator.backends.gemini import answers
from orchestrator.backends.gemini.requests import translate
from orchestrator.backends.openai_http import HttpAPI, converted, path_of
from orchestrator.backends.received_files import blocks, sized, translated
from orchestrator.backends.result_lines import lines
from orchestrator.backends.translated import nothing_sent

_KIND = "application/jsonl"


class GeminiAPI(HttpAPI):
    """The calls, on an HTTP client that has Gemini's base URL and sends the key."""

    def models(self) -> ApiAnswer:
        return converted(
            self._get("models", pageSize="1000"), lambda told: answers.listed(told, "models", answers.model_of)
        )

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page("files", "files", limit, after, answers.file_of)

    def file(self, file_id: str) -> ApiAnswer:
        return converted(self._get(path_of("files", file_id)), answers.file_of)

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        rows = sent_rows(content, translate)
        lines = (msgspec.json.encode({"key": key, "request": request}) + b"\n" for key, request in rows)
        with translated(content, lines) as file:
            size = sized(file)
            return self._uploaded(name, file, size) if size else nothing_sent(name)

    def _uploaded(self, name: str, content: Any, size: int) -> ApiAnswer:
        """Upload a file in one piece, by Google's resumable protocol."""
        base = str(self._http.base_url).rstrip("/")
        root, _, version = base.rpartition("/")
        begin = {
            "X-Goog-Upload-Protocol": "resumable",
            "X-Goog-Upload-Command": "start",
            "X-Goog-Upload-Header-Content-Length": str(size),
            "X-Goog-Upload-Header-Content-Type": _KIND,
        }
        file = {"file": {"displayName": name, "mimeType": _KIND}}
        begun = self._answer(self._http.post(f"{root}/upload/{version}/files", json=file, headers=begin))
        target = begun.headers.get("x-goog-upload-url", "")
        if urlsplit(target).netloc != urlsplit(base).netloc:
            raise ValueError("the upload is directed to another host")
        end = {
            "X-Goog-Upload-Command": "upload, finalize",
            "X-Goog-Upload-Offset": "0",
            "Content-Length": str(size),
        }
        sent = self._http.post(target, content=blocks(content), headers=end, timeout=self._transfer)
        return converted(self._answer(sent), answers.file_of)

    @contextmanager
    def content(self, file_id: str) -> Iterator[Iterator[bytes]]:
        with self.whole(f"{path_of('files', file_id)}:download?alt=media") as chunks:
            yield (answers.result_line(line) + b"\n" for line in lines(chunks))

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        file_name = f"files/{order.input_file_id}"
        batch = {"displayName": display_name(order), "inputConfig": {"fileName": file_name}}
        path = f"models/{quote(order.model.removeprefix('models/'), safe='')}:batchGenerateContent"
        return converted(self._post(path, {"batch": batch}), answers.batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page("batches", "operations", limit, after, answers.batch_of)

    def batch(self, batch_id: str) -> ApiAnswer:
        return converted(self._get(path_of("batches", batch_id)), answers.batch_of)

    def cancel(self, batch_id: str) -> None:
        # No source says how a cancel is refused.
        self._cancel(f"{path_of('batches', batch_id)}:cancel", batch_id, (400, 409))

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        asked = lenient.mapping(lenient.decode(body))
        model = str(asked.get("model", "")).removeprefix("models/")
        sent = json.dumps(translate(asked)).encode()
        answer = super().ask(f"models/{quote(model, safe='')}:generateContent", sent)
        return converted(answer, lambda told: answers.completion(told) if isinstance(told, dict) else told)

    def _page(
        self, path: str, name: str, limit: int, after: str | None, convert: Callable[[object], object]
    ) -> ApiAnswer:
        token = {} if after is None else {"pageToken": after}
        answer = self._get(path, pageSize=str(limit), **token)
        after = lenient.name(lenient.mapping(answer.json()).get("nextPageToken"))
        return replace(converted(answer, lambda told: answers.listed(told, name, convert)), next_page=after)

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        return answers.status_of(body, status), answers.error_of(body)
