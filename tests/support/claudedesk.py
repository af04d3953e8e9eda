"""A client of Anthropic's Message Batches, as tests drive it: a key of its own, a folder for its shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from orchestrator.backends import BatchOrder, RemoteBatch
from orchestrator.backends.anthropic import PROFILE
from orchestrator.backends.anthropic.batches import AnthropicBatches
from tests.support.plain_http import for_anthropic

CHAT = "/v1/chat/completions"
MODEL = "claude-sonnet-5-5"
SHARD = "contracts-1.001"
DAY = 86_400
Json = dict[str, Any]

_keys = count(1)


class Desk:
    """A client with a key of its own, and the folder in which its shards lie."""

    def __init__(self, base_url: str, folder: Path, **options: Any) -> None:
        self.key = f"sk-ant-secret-{next(_keys)}"
        self.folder = folder
        self.backend = AnthropicBatches("claude", for_anthropic(base_url, self.key, **options), PROFILE, 1000)

    def input(self, rows: Sequence[Json | str], shard: str = SHARD) -> Path:
        """A shard's input file with rows `r0`, `r1`, ..., of their texts or bodies."""
        path = self.folder / f"{shard}.input.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for number, row in enumerate(rows):
                given_body = row if isinstance(row, dict) else {"messages": [{"role": "user", "content": row}]}
                line = {
                    "custom_id": f"r{number}",
                    "method": "POST",
                    "url": CHAT,
                    "body": {"model": MODEL, **given_body},
                }
                file.write(json.dumps(line) + "\n")
        return path

    def send(self, rows: Sequence[Json | str], shard: str = SHARD) -> RemoteBatch:
        return self.backend.create(self.order(rows, shard))

    def order(self, rows: Sequence[Json | str], shard: str = SHARD) -> BatchOrder:
        file_id = self.backend.upload(self.input(rows, shard), f"{shard}.jsonl")
        return BatchOrder(shard, file_id, CHAT, DAY, len(rows))

    def read(self, file_id: str | None, shard: str = SHARD) -> list[Json]:
        assert file_id is not None
        path = self.folder / "result.jsonl"
        self.backend.download(file_id, path, self.folder / f"{shard}.input.jsonl")
        lines = path.read_bytes().splitlines()
        path.unlink()
        return [json.loads(line) for line in lines]

    def ids(self, file_id: str | None, shard: str = SHARD) -> list[str]:
        return sorted(line["custom_id"] for line in self.read(file_id, shard))
