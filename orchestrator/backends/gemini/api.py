"""The calls of Gemini's files and batches, answered in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

import httpx2
from msgspec.structs import replace

from orchestrator.backends import BatchOrder, lenient
from orchestrator.backends.gemini import answers
from orchestrator.backends.gemini.lines import sent_lines
from orchestrator.backends.gemini.requests import translate
from orchestrator.backends.openai.api import ApiAnswer, ApiRefusal
from orchestrator.backends.openai.http_api import HttpAPI, path_of
from orchestrator.backends.openai.read import remote_batch
from orchestrator.backends.result_lines import lines
from orchestrator.core.errors import JobFilesError

_KIND = "application/jsonl"
_BLOCK = 256 * 1024
NOTHING_SENT = "refused:"
"""The id of an upload without a row that could be translated."""


class GeminiAPI(HttpAPI):
    """The calls on an HTTP client with Gemini's base URL, which sends the key."""

    def models(self) -> ApiAnswer:
        return _converted(
            self._get("models", pageSize="1000"), lambda told: answers.listed(told, "models", answers.model_of)
        )

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page("files", "files", limit, after, answers.file_of)

    def file(self, file_id: str) -> ApiAnswer:
        return _converted(self._get(path_of("files", file_id)), answers.file_of)

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        try:
            with TemporaryFile(dir=Path(content.name).parent) as translated:
                translated.writelines(sent_lines(content))
                size = translated.tell()
                translated.seek(0)
                if not size:
                    nothing = {"id": f"{NOTHING_SENT}{name}", "filename": name}
                    return ApiAnswer(json.dumps(nothing).encode(), httpx2.Headers())
                return self._uploaded(name, translated, size)
        except OSError as error:
            message = f"cannot translate {content.name}: {error.strerror}"
            raise JobFilesError(message, hint="free disk space, then run it again") from error

    def _uploaded(self, name: str, content: Any, size: int) -> ApiAnswer:
        """Send a file by Google's resumable protocol, in one piece."""
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
        sent = self._http.post(target, content=_blocks(content), headers=end, timeout=self._transfer)
        return _converted(self._answer(sent), answers.file_of)

    def delete_file(self, file_id: str) -> None:
        if not file_id.startswith(NOTHING_SENT):
            super().delete_file(file_id)

    @contextmanager
    def content(self, file_id: str) -> Iterator[Iterator[bytes]]:
        with self.whole(f"{path_of('files', file_id)}:download?alt=media") as chunks:
            yield (answers.result_line(line) + b"\n" for line in lines(chunks))

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        file_name = f"files/{order.input_file_id}"
        batch = {"displayName": answers.display_name(order), "inputConfig": {"fileName": file_name}}
        path = f"models/{quote(order.model.removeprefix('models/'), safe='')}:batchGenerateContent"
        return _converted(self._post(path, {"batch": batch}), answers.batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page("batches", "operations", limit, after, answers.batch_of)

    def batch(self, batch_id: str) -> ApiAnswer:
        return _converted(self._get(path_of("batches", batch_id)), answers.batch_of)

    def cancel(self, batch_id: str) -> None:
        try:
            self._answer(self._http.post(f"{path_of('batches', batch_id)}:cancel"))
        except ApiRefusal as refusal:
            # No source says how the end of a batch is refused.
            if refusal.status not in (400, 409) or not self._is_over(batch_id):
                raise

    def _is_over(self, batch_id: str) -> bool:
        return remote_batch(self.batch(batch_id).json(), batch_id).status.is_final

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        asked = lenient.mapping(lenient.decode(body))
        model = str(asked.get("model", "")).removeprefix("models/")
        sent = json.dumps(translate(asked)).encode()
        answer = super().ask(f"models/{quote(model, safe='')}:generateContent", sent)
        return _converted(answer, lambda told: answers.completion(told) if isinstance(told, dict) else told)

    def _page(
        self, path: str, name: str, limit: int, after: str | None, convert: Callable[[object], object]
    ) -> ApiAnswer:
        token = {} if after is None else {"pageToken": after}
        answer = self._get(path, pageSize=str(limit), **token)
        after = lenient.name(lenient.mapping(answer.json()).get("nextPageToken"))
        return replace(_converted(answer, lambda told: answers.listed(told, name, convert)), next_page=after)

    def _refusal(self, response: httpx2.Response) -> ApiRefusal:
        try:
            told = lenient.decode(response.text.encode())
        except ValueError:
            told = None
        status = answers.status_of(told, response.status_code)
        return ApiRefusal(status, response.headers, response.request.url.path, answers.error_of(told))


def _blocks(content: Any) -> Iterator[bytes]:
    while block := content.read(_BLOCK):
        yield block


def _converted(answer: ApiAnswer, convert: Callable[[Any], object]) -> ApiAnswer:
    """Return an answer in another shape. Raises ValueError if it is not JSON."""
    return replace(answer, content=json.dumps(convert(answer.json())).encode())
