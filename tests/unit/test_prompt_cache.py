"""The shared prefix of a task's requests, its mark, and what a cache saves."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from orchestrator.backends.anthropic.cache_rules import RULES, least_tokens
from orchestrator.backends.anthropic.messages import translate
from orchestrator.policy.prompt_cache import (
    CacheMark,
    PrefixCosts,
    SharedPrefix,
    cache_of,
    marked,
    preflight_of,
    shared_prefix,
)
from orchestrator.settings.task_spec import Task


@pytest.mark.parametrize(
    ("model", "least"),
    [
        ("claude-sonnet-4-20250514", 1024),
        ("claude-sonnet-4-5", 1024),
        ("claude-3-7-sonnet-latest", 1024),
        ("claude-opus-4-1-20250805", 1024),
        ("claude-sonnet-4-6", 2048),
        ("claude-3-5-haiku-20241022", 2048),
        ("claude-haiku-4-5", 4096),
        ("claude-opus-4-5-20251101", 4096),
        ("claude-sonnet-5-5", 4096),
        ("some-name", 4096),
    ],
)
def test_the_least_prefix_of_a_model(model: str, least: int) -> None:
    assert least_tokens(model) == least


@pytest.mark.parametrize(
    ("seconds", "life"), [(60, "5m"), (150, "5m"), (151, "1h"), (1800, "1h"), (1801, None), (86_400, None)]
)
def test_the_life_outlives_the_batches_twice(seconds: float, life: str | None) -> None:
    found = RULES.life(seconds)
    assert (found and found.name) == life


@pytest.mark.parametrize(
    ("task", "prefix"),
    [
        ({"system": "Rules."}, SharedPrefix("Rules.", "")),
        ({"system": "Rules.", "prompt": "First {{ text }} then"}, SharedPrefix("Rules.", "First ")),
        ({"prompt": "Read: {% if a %}{{ text }}{% endif %}"}, SharedPrefix("", "Read: ")),
        ({"prompt": "What?"}, None),
        ({"prompt": "{{ text }} What?"}, None),
        ({"system": "Rules of {{ name }}."}, None),
        ({"system": "Rules.", "endpoint": "responses"}, None),
        ({"kind": "embedding", "prompt": "Of: {{ text }}"}, None),
    ],
    ids=str,
)
def test_what_all_requests_of_a_task_begin_with(task: dict[str, Any], prefix: SharedPrefix | None) -> None:
    assert shared_prefix(Task.model_validate({"id": "t", "prompt": "What?", "model": "m", **task})) == prefix


def test_the_mark_stands_at_the_end_of_the_prefix_and_changes_no_word() -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Head: rest"}]}
    control = {"type": "ephemeral", "ttl": "1h"}
    of_system = marked("t-1", body, [CacheMark("t", SharedPrefix("S", ""), "1h")])
    params, left_out = translate(of_system, 10)
    assert params["system"] == [{"type": "text", "text": "S", "cache_control": control}]
    assert not left_out
    of_head = marked("t-1", body, [CacheMark("t", SharedPrefix("S", "Head: "), "1h")])
    (turn,) = translate(of_head, 10)[0]["messages"]
    assert turn["content"] == [
        {"type": "text", "text": "Head: ", "cache_control": control}, {"type": "text", "text": "rest"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "mark",
    [
        CacheMark("other", SharedPrefix("S", ""), "1h"),
        CacheMark("t", SharedPrefix("Another", ""), "1h"),
        CacheMark("t", SharedPrefix("", "Head: "), "1h"),
        CacheMark("t", SharedPrefix("S", "Tail"), "1h"),
    ],
)
def test_a_request_without_the_prefix_has_no_mark(mark: CacheMark) -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Head: rest"}]}
    assert marked("t-1", body, [mark]) == body


def test_a_saving_counts_rows_that_miss_the_cache() -> None:
    costs = PrefixCosts(Decimal(10), Decimal(1), Decimal(20), first=Decimal(30))
    assert costs.saving(1) == -30
    assert costs.saving(11) == 10 * (Decimal("0.9") * 9 - Decimal("0.1") * 10) - 30


def test_a_shard_names_the_task_and_the_life() -> None:
    assert cache_of(preflight_of("1h", "a-task", "max_tokens messages")) == ("1h", "a-task")
    assert cache_of("max_tokens messages") is None
    assert cache_of(None) is None
