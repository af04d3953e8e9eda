"""Names that identify our batches at providers without metadata. The name is the batch's own, or its file's."""

from __future__ import annotations

import re

from orchestrator.backends import HOME_KEY, SHARD_KEY, BatchOrder, lenient

FILE_ENDING = ".jsonl"
_NAME = re.compile(rf"{SHARD_KEY}=(\S+)(?: {HOME_KEY}=(\S+))?")


def display_name(order: BatchOrder) -> str:
    """Return the name of a batch, which encodes its shard and home."""
    return f"{SHARD_KEY}={order.shard}" + (f" {HOME_KEY}={order.home}" if order.home else "")


def metadata_in(name: object) -> dict[str, str | None] | None:
    """Return the metadata that a batch's name encodes; None if the name is not ours."""
    found = _NAME.search(lenient.text(name))
    return None if found is None else {SHARD_KEY: found[1], HOME_KEY: found[2]}


def file_name(shard: str, home: str = "") -> str:
    """Return the name of a shard's input file. It encodes the home if the provider cannot store it elsewhere."""
    return f"{shard}~{home}{FILE_ENDING}" if home else f"{shard}{FILE_ENDING}"


def metadata_in_file(name: str) -> dict[str, str | None]:
    """Return the metadata that an input file's name encodes; empty if the name is not ours."""
    if not name.endswith(FILE_ENDING):
        return {}
    shard, _, home = name.removesuffix(FILE_ENDING).partition("~")
    return {SHARD_KEY: shard, HOME_KEY: home or None}
