"""A provider's prompt cache for the rows of a batch: the shared prefix, its mark, and the saving. Pure.

Rows of a batch run side by side, so no row reads a cache that another row of the batch writes. One row that is sent
before the batch writes the cache for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from msgspec import Struct

from orchestrator.settings.task_spec import Task

ALIVE = Decimal("0.9")
"""Assumed probability that a row of a batch finds the cache.

It holds for a cache that lives at least `SPARE` times as long as a batch usually takes.
"""
SPARE = 2
"""Minimum life of the cache, as a multiple of a batch's usual time."""
MARK = "cache:"
"""Prefix of `Shard.preflight` for a row that writes a cache."""
_CODE = ("{{", "{%", "{#")


class CacheLife(Struct, frozen=True):
    """Life of a cache after its last use, in seconds. `name` is the provider's name for it."""

    name: str
    seconds: float


class CacheRules(Struct, frozen=True):
    """A provider's rules for its cache.

    `least` returns the minimum tokens of a cached prefix, by model. `lives` are the possible lives, shortest first.
    """

    least: Callable[[str], int]
    lives: tuple[CacheLife, ...]

    def life(self, usual_seconds: float) -> CacheLife | None:
        """Return the shortest life of at least `SPARE` times `usual_seconds`, a batch's usual time. None if all are
        shorter.
        """
        return next((life for life in self.lives if usual_seconds * SPARE <= life.seconds), None)


class SharedPrefix(Struct, frozen=True):
    """Beginning that all requests of a task share: the system prompt, and the words before the document."""

    system: str
    head: str

    @property
    def texts(self) -> list[str]:
        """Non-empty texts of the prefix."""
        return [text for text in (self.system, self.head) if text]


def shared_prefix(task: Task) -> SharedPrefix | None:
    """Return the prefix that all requests of a task share.

    Returns None if there is no prefix, or if the requests are not chat completions.
    """
    if task.kind == "embedding" or task.endpoint != "chat":
        return None
    from orchestrator.core.templates import template  # imported here, as a batch file has no templates

    system = task.system or ""
    if system and (template(system).variables or any(mark in system for mark in _CODE)):
        return None
    # Without {{ text }}, the document comes before the question, which then is not shared.
    at = min((task.prompt.find(mark) for mark in _CODE if mark in task.prompt), default=0)
    head = task.prompt[:at] if "text" in template(task.prompt).variables else ""
    return SharedPrefix(system, head) if system or head else None


class CacheMark(Struct, frozen=True):
    """A prefix to mark in the requests of a task, and the life of its cache."""

    task: str
    prefix: SharedPrefix
    life: str

    def is_for(self, custom_id: str) -> bool:
        """True if a row belongs to the mark's task. Other tasks do not count: a provider may cache a task's schema
        with the prefix.
        """
        return custom_id.rpartition("-")[0] == self.task

    def put(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a chat completion's body with a mark at the end of the prefix. A body without the prefix stays
        unchanged.
        """
        messages = [dict(message) for message in body.get("messages") or ()]
        control = {"cache_control": {"type": "ephemeral", "ttl": self.life}}
        system = [one for one in messages if one.get("role") == "system"]
        user = next((one for one in messages if one.get("role") == "user"), None)
        if [one.get("content") for one in system] != [self.prefix.system] * bool(self.prefix.system):
            return dict(body)
        if not self.prefix.head:
            system[0]["content"] = [{"type": "text", "text": self.prefix.system, **control}]
            return {**body, "messages": messages}
        said = None if user is None else user.get("content")
        if user is None or not isinstance(said, str) or not said.startswith(self.prefix.head):
            return dict(body)
        left = said[len(self.prefix.head) :]
        user["content"] = [{"type": "text", "text": self.prefix.head, **control}, {"type": "text", "text": left}]
        return {**body, "messages": messages}


class PrefixCosts(Struct, frozen=True):
    """Dollars for the shared prefix of a row in a batch: without cache, read from the cache, or written to it.

    `first` is the extra cost of the row sent before the batch, compared with a row of the batch.
    """

    plain: Decimal
    read: Decimal
    write: Decimal
    first: Decimal

    def saving(self, rows: int) -> Decimal:
        """Return the expected saving for this many rows, in dollars. Rows that miss the cache pay for writing it."""
        return (rows - 1) * (ALIVE * (self.plain - self.read) - (1 - ALIVE) * (self.write - self.plain)) - self.first


def preflight_of(life: str, task: str, fields: str) -> str:
    """Return the value of `Shard.preflight` for a row that writes a task's cache."""
    return f"{MARK}{life}:{task} {fields}"


def cache_of(preflight: str | None) -> tuple[str, str] | None:
    """Return the life and the task of a row that writes a cache. Returns None for rows sent first for other
    reasons.
    """
    if preflight is None or not preflight.startswith(MARK):
        return None
    _, life, task = preflight.partition(" ")[0].split(":", 2)
    return life, task


def marked(custom_id: str, body: Mapping[str, Any], marks: Iterable[CacheMark]) -> Mapping[str, Any]:
    """Return the body of a row's chat completion, with the mark of the row's task if `marks` has that mark."""
    mark = next((mark for mark in marks if mark.is_for(custom_id)), None)
    return body if mark is None else mark.put(body)
