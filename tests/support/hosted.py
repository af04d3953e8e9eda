"""The client of a hosted backend before a provider whose every answer a test writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.backends import BatchOrder
from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.openai.profiles import PROFILES
from orchestrator.backends.openai_http import HttpAPI
from orchestrator.core.errors import OrchError
from tests.support.plain_http import with_bearer
from tests.support.scripted import Answer, Asked, Scripted, scripted

KEY = "sk-test-0123456789abcdef"
CHAT = "/v1/chat/completions"
NOW = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
ORDER = BatchOrder("contracts-1.001", "file-1", CHAT, 86_400, 3)


def error(status: int, code: str | None = None, message: str = "no", **headers: str) -> Answer:
    body = {"error": {"message": message, "type": "some_error", "param": None, "code": code}}
    return Answer(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


def batch(number: int = 1, **facts: Any) -> dict[str, Any]:
    created = int(NOW.timestamp())
    return {"id": f"batch_{number}", "object": "batch", "status": "in_progress", "created_at": created, **facts}


def client(
    base_url: str, profile: str = "openai", key: str = KEY, project: str | None = None, **options: Any
) -> ApiBatches:
    api = HttpAPI(with_bearer(base_url, key, **options), key, project=project)
    return ApiBatches("cloud", api, PROFILES[profile])


@contextmanager
def answering(
    answer: Answer | Callable[[Asked], Answer], profile: str = "openai", **options: Any
) -> Iterator[tuple[ApiBatches, Scripted]]:
    """A client and the provider that gives its every call this answer."""
    with scripted(answer if callable(answer) else lambda _: answer) as provider:
        backend = client(provider.base_url, profile, **options)
        try:
            yield backend, provider
        finally:
            backend.close()


def outcome(call: Callable[[], object]) -> tuple[type[OrchError], OrchError]:
    with pytest.raises(OrchError) as caught:
        call()
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value)
    return type(caught.value), caught.value
