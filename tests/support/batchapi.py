"""A user of the Batch API: the official SDK, sync or async behind one face, and the batches that tests make."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.support.plain_http import NO_TLS
from tests.support.process import PATIENCE, wait_until

CHAT = "/v1/chat/completions"
OPEN = ("validating", "in_progress", "finalizing", "cancelling")


class Sdk:
    """`sdk(lambda api: api.files.list())` gives what the call gives, awaited where the client is async."""

    def __init__(self, client: openai.OpenAI | openai.AsyncOpenAI, raw: httpx2.Client) -> None:
        self.client: Any = client
        self.raw = raw
        self._loop = asyncio.new_event_loop() if isinstance(client, openai.AsyncOpenAI) else None

    def __call__(self, call: Callable[[Any], Any]) -> Any:
        return self._awaited(call(self.client))

    def _awaited(self, found: Any) -> Any:
        if inspect.isawaitable(found):
            assert self._loop is not None

            async def wait() -> Any:
                return await found

            return self._loop.run_until_complete(wait())
        return found

    def every(self, call: Callable[[Any], Any]) -> list[Any]:
        """The items of all pages, or of a stream."""
        found = call(self.client)
        if self._loop is None:
            return list(found)

        async def collect() -> list[Any]:
            source = await found if inspect.iscoroutine(found) else found
            return [item async for item in source]

        return self._loop.run_until_complete(collect())

    def refused(self, call: Callable[[Any], Any]) -> openai.APIStatusError:
        """The error that a call ends with."""
        with pytest.raises(openai.APIStatusError) as caught:
            self(call)
        return caught.value

    def close(self) -> None:
        self._awaited(self.client.close())
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
        self.raw.close()


@contextmanager
def sdk_at(address: Path | str, kind: str = "sync", api_key: str = "local") -> Iterator[Sdk]:
    """A client of the server at a Unix socket (a Path) or a base URL without /v1."""
    socket, url = (str(address), "http://orch") if isinstance(address, Path) else (None, address)
    client: openai.OpenAI | openai.AsyncOpenAI
    if kind == "async":
        http = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=socket, verify=NO_TLS))
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, http_client=http)
    else:
        plain = httpx2.Client(transport=httpx2.HTTPTransport(uds=socket, verify=NO_TLS))
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, http_client=plain)
    raw = httpx2.Client(transport=httpx2.HTTPTransport(uds=socket, verify=NO_TLS), base_url=url)
    sdk = Sdk(client, raw)
    try:
        yield sdk
    finally:
        sdk.close()


def row(custom_id: str, text: str | None = None, **body: Any) -> dict[str, Any]:
    """A request line of the chat endpoint; `text` may hold the upstream's fault directives. Its marker is its id."""
    messages = [{"role": "user", "content": custom_id if text is None else text}]
    fields = {"model": "test-model", "user": custom_id, "messages": messages, **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": fields}


def jsonl(lines: Iterable[dict[str, Any] | bytes]) -> bytes:
    """Lines of a file; bytes stand as they are."""
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def upload(sdk: Sdk, lines: Iterable[dict[str, Any] | bytes]) -> str:
    """The id of a new batch input file."""
    content = jsonl(lines)
    return str(sdk(lambda api: api.files.create(file=("in.jsonl", content), purpose="batch")).id)


def create(sdk: Sdk, lines: Iterable[dict[str, Any] | bytes], window: str = "24h", **fields: Any) -> Any:
    """A new batch of these lines."""
    file_id = upload(sdk, lines)
    arguments = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": window, **fields}
    return sdk(lambda api: api.batches.create(**arguments))


def retrieve(sdk: Sdk, batch_id: str) -> Any:
    return sdk(lambda api: api.batches.retrieve(batch_id))


@dataclass(frozen=True)
class Ended:
    """A batch at its end, and the rows of its files."""

    batch: Any
    output: list[dict[str, Any]]
    errors: list[dict[str, Any]]

    @property
    def by_id(self) -> dict[str, dict[str, Any]]:
        return {line["custom_id"]: line for line in (*self.output, *self.errors)}

    @property
    def counts(self) -> tuple[int, int, int]:
        counts = self.batch.request_counts
        return counts.total, counts.completed, counts.failed

    def check(self, custom_ids: Sequence[str]) -> None:
        """Every row exactly once, in the right file; counts, files and ids of files agree."""
        told = Counter(line["custom_id"] for line in (*self.output, *self.errors))
        assert told == Counter(custom_ids)
        assert self.counts == (len(custom_ids), len(self.output), len(self.errors))
        assert (self.batch.output_file_id is not None, self.batch.error_file_id is not None) == (
            bool(self.output),
            bool(self.errors),
        )
        assert all(line["error"] is None and line["response"]["status_code"] == 200 for line in self.output)
        assert all(line["error"] is not None or line["response"]["status_code"] >= 300 for line in self.errors)


def ended(sdk: Sdk, batch_id: str, timeout: float = PATIENCE) -> Ended:
    """Wait for a batch's end and read its files."""

    def over() -> Any:
        batch = retrieve(sdk, batch_id)
        return None if batch.status in OPEN else batch

    batch = wait_until(over, timeout)
    return Ended(batch, read_rows(sdk, batch.output_file_id), read_rows(sdk, batch.error_file_id))


def run_batch(sdk: Sdk, lines: Sequence[dict[str, Any] | bytes], window: str = "24h", **fields: Any) -> Ended:
    """Create a batch of these lines and wait for its end."""
    return ended(sdk, create(sdk, lines, window, **fields).id)


def read_rows(sdk: Sdk, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = sdk(lambda api: api.files.content(file_id)).content
    return [json.loads(line, parse_int=_number) for line in content.splitlines()]


def _number(digits: str) -> int | str:
    """A whole number; more digits than Python makes one of stay as they are."""
    return int(digits) if len(digits) < 4000 else digits


def health(sdk: Sdk) -> dict[str, Any]:
    found: dict[str, Any] = sdk.raw.get("/health").json()
    return found
