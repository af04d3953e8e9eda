"""A Batch API that speaks OpenAI's protocol, through the official client. Our own server is one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai

from orchestrator.backends import BATCH_GONE, LineProblem, RemoteBatch
from orchestrator.errors import BackendError, StorageError
from orchestrator.wire import BatchStatus

FIND_PAGES = 50
INSUFFICIENT_STORAGE = 507


def over_unix_socket(socket: Path) -> openai.OpenAI:
    """A client of the server that listens on a Unix socket."""
    transport = httpx2.HTTPTransport(uds=str(socket))
    return openai.OpenAI(
        base_url="http://orch/v1", api_key="local", http_client=httpx2.Client(transport=transport), timeout=600.0
    )


class OpenAIBackend:
    """The five verbs on an `openai` client. `extra` goes into each create, beside the standard fields."""

    def __init__(self, name: str, client: openai.OpenAI, extra: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._client = client
        # A create that is sent twice is paid twice: the client must not do it by itself.
        self._once = client.with_options(max_retries=0)
        self._extra = dict(extra or {})

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    def upload(self, path: Path, name: str) -> str:
        with self._translated("upload"):
            size = path.stat().st_size
            for file in self._client.files.list(purpose="batch", limit=100).data:
                if file.filename == name and file.bytes == size:
                    return file.id
            with path.open("rb") as content:
                return self._client.files.create(file=(name, content), purpose="batch").id

    def create(
        self, input_file_id: str, endpoint: str, window_seconds: int, metadata: Mapping[str, str]
    ) -> RemoteBatch:
        with self._translated("create a batch"):
            created = self._once.batches.create(
                input_file_id=input_file_id,
                endpoint=endpoint,  # type: ignore[arg-type]  # the client's list of endpoints is closed, ours is not
                completion_window=_window(window_seconds),  # type: ignore[arg-type]
                metadata=dict(metadata),
                extra_body=self._extra,
            )
            return _remote(created)

    def find(self, metadata: Mapping[str, str]) -> RemoteBatch | None:
        wanted = dict(metadata).items()
        with self._translated("list batches"):
            for number, page in enumerate(self._client.batches.list(limit=100).iter_pages()):
                for batch in page.data:
                    if batch.metadata and wanted <= batch.metadata.items():
                        return _remote(batch)
                if number >= FIND_PAGES:
                    break
        return None

    def retrieve(self, batch_id: str) -> RemoteBatch:
        with self._translated(f"retrieve {batch_id}"):
            try:
                return _remote(self._client.batches.retrieve(batch_id))
            except openai.NotFoundError:
                gone = LineProblem(BATCH_GONE, "the backend knows this batch no longer")
                return RemoteBatch(batch_id, BatchStatus.FAILED, problems=(gone,))

    def cancel(self, batch_id: str) -> None:
        with self._translated(f"cancel {batch_id}"):
            try:
                self._client.batches.cancel(batch_id)
            except openai.ConflictError:
                return  # it came to its end first; collecting will tell which

    def download(self, file_id: str, path: Path) -> None:
        with (
            self._translated(f"download {file_id}"),
            self._client.files.with_streaming_response.content(file_id) as response,
        ):
            _store(response.iter_bytes(), path)

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        with self._translated(f"read {batch_id}"):
            # A Stream for its open response alone: the body is as large as the batch, and goes to disk in pieces.
            address = f"/batches/{batch_id}/{kind}"
            with self._client.get(address, cast_to=bytes, stream=True, stream_cls=openai.Stream[bytes]) as stream:
                _store(stream.response.iter_bytes(), path)
            return True

    def forget_file(self, file_id: str) -> None:
        with self._translated(f"delete {file_id}"):
            try:
                self._client.files.delete(file_id)
            except openai.NotFoundError:
                return

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except openai.APIStatusError as error:
            detail = error.body.get("message") if isinstance(error.body, dict) else None
            message = f"{self._name}: cannot {what}: {detail or f'status {error.status_code}'}"
            if error.status_code == INSUFFICIENT_STORAGE:
                raise StorageError(message, hint="make room, then run the same command again") from error
            raise BackendError(message) from error
        except openai.APIError as error:
            raise BackendError(f"{self._name}: cannot {what}: {error.message}") from error
        except httpx2.HTTPError as error:  # a body that is streamed breaks off outside the client's own care
            raise BackendError(f"{self._name}: cannot {what}: {error}") from error


def _store(chunks: Iterator[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    # The backend's copy is deleted next: the name must survive a power cut as well as the bytes.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _window(seconds: int) -> str:
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _remote(batch: Any) -> RemoteBatch:
    counts, usage = batch.request_counts, batch.usage
    problems = batch.errors.data if batch.errors and batch.errors.data else ()
    return RemoteBatch(
        id=batch.id,
        status=BatchStatus(str(batch.status).lower()),
        completed=(counts.completed or 0) if counts else 0,
        failed=(counts.failed or 0) if counts else 0,
        input_tokens=usage.input_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
        upstream_seconds=float((batch.model_extra or {}).get("upstream_seconds") or 0.0),
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        problems=tuple(LineProblem(p.code or "error", p.message or "", p.line) for p in problems),
    )
