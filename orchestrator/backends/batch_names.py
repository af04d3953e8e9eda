"""Names by which batches are found again, for providers whose batches have a name and no metadata."""

from __future__ import annotations

import re

from orchestrator.backends import HOME_KEY, SHARD_KEY, BatchOrder, lenient

_NAME = re.compile(rf"{SHARD_KEY}=(\S+)(?: {HOME_KEY}=(\S+))?")


def display_name(order: BatchOrder) -> str:
    """Return the name of a batch, which carries its shard and home."""
    return f"{SHARD_KEY}={order.shard}" + (f" {HOME_KEY}={order.home}" if order.home else "")


def metadata_in(name: object) -> dict[str, str | None] | None:
    """Return the metadata that a batch's name stands for; None for a foreign name."""
    found = _NAME.search(lenient.text(name))
    return None if found is None else {SHARD_KEY: found[1], HOME_KEY: found[2]}
