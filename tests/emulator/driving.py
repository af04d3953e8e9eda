"""What tests of the emulator do again and again, through the official SDKs.

Batches are `Any`: what a provider sends is not always what the SDK's types say.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

import openai

from tests.emulator.client import Emulator

CHAT = "/v1/chat/completions"
HOUR = 3600.0
DAY = 86_400.0
Json = dict[str, Any]

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""The emulator speaks none, and a client that may need it reads the system's certificates first: 20 ms."""

SIX = [f"document {number}" for number in range(6)]


def chat_line(custom_id: str, text: str, model: str = "m", **body: Any) -> Json:
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "messages": messages, **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def chat_lines(*texts: str, **body: Any) -> list[Json]:
    """Rows r0, r1, ... of these texts."""
    return [chat_line(f"r{number}", text, **body) for number, text in enumerate(texts)]


def jsonl(lines: Sequence[Json | bytes]) -> bytes:
    """Bytes are lines that are taken as they are."""
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


class Customer:
    """One account at one of the OpenAI flavours; nothing is tried again."""

    def __init__(self, provider: Emulator, url: str, key: str = "sk-a") -> None:
        self.provider = provider
        self.api = openai.OpenAI(
            base_url=url, api_key=key, max_retries=0, timeout=60, http_client=openai.DefaultHttpxClient(verify=NO_TLS)
        )

    def close(self) -> None:
        self.api.close()

    def upload(self, lines: Sequence[Json | bytes], **fields: Any) -> str:
        return self.api.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch", **fields).id

    def create(self, lines: Sequence[Json | bytes], endpoint: Any = CHAT, **fields: Any) -> Any:
        file_id = self.upload(lines)
        return self.api.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h", **fields)

    def later(self, batch: Any, seconds: float = HOUR) -> Any:
        """The batch as it is when so much time has passed."""
        self.provider.clock.advance(seconds)
        return self.api.batches.retrieve(batch.id)

    def run(self, lines: Sequence[Json | bytes], **fields: Any) -> Any:
        return self.later(self.create(lines, **fields))

    def read(self, file_id: str | None) -> bytes:
        return b"" if file_id is None else self.api.files.content(file_id).read()

    def rows(self, file_id: str | None) -> list[Json]:
        return list(parsed(self.read(file_id)))


def parsed(content: bytes) -> Iterator[Json]:
    """The lines that are JSON."""
    for line in content.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def ids(rows: Sequence[Json]) -> list[str]:
    return [row["custom_id"] for row in rows]


def of_batch(provider: Emulator, do: str, **options: Any) -> None:
    """Script a fault for the next batch."""
    provider.script({"do": do, **options})
