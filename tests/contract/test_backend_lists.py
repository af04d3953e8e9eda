"""Lists of batches that say nothing, at providers whose lists have a shape of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import Intent, Sighting
from orchestrator.backends.open import open_backend
from orchestrator.core.errors import BackendError
from orchestrator.settings.backend_packages import hosted_kinds
from tests.support.scripted import Answer, scripted

KINDS = ("anthropic", "cohere", "gemini", "mistral", "openrouter", "together", "xai")
EMPTY = {"cohere": {}, "gemini": {}, "xai": {"batches": []}}


def find(kind: str, answer: Any, folder: Path) -> Sighting:
    with scripted(lambda _: Answer(answer)) as provider:
        settings = hosted_kinds()[kind](kind=kind, base_url=provider.base_url, api_key_env="K")
        backend = open_backend("it", settings, {"K": "key"})
        since = datetime(2026, 11, 30, tzinfo=UTC)
        try:
            return backend.find(Intent("s.001", 2, since, folder / "s.001.input.jsonl", lambda _: None))
        finally:
            backend.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "together"])
def test_an_array_without_entries_may_be_any_answer(kind: str, tmp_path: Path) -> None:
    """Taken for an account without batches, it would send rows again that may be paid for. Together's list is one."""
    with pytest.raises(BackendError):
        find(kind, [], tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_without_entries_is_an_account_without_batches(kind: str, tmp_path: Path) -> None:
    found = find(kind, EMPTY.get(kind, {"data": [], "has_more": False}), tmp_path)
    assert (found, found.is_blank) == (Sighting(), True)
