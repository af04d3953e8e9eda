"""Cohere's batches, datasets and names in OpenAI's shape. Pure.

Sources: cohere 7.3.1 (batches/types, types/dataset.py), Cohere's OpenAPI, its notebook on batches: names are lower
case with hyphens, dataset ids are derived from names, and several batches may have one name.
"""

from __future__ import annotations

import re
from typing import Any

from orchestrator.backends import HOME_KEY, SHARD_KEY, BatchOrder, lenient
from orchestrator.backends.lenient_batches import status_of
from orchestrator.core.batch_api import BatchStatus

_COUNTS = {"total": "num_records", "completed": "num_successful_records", "failed": "num_failed_records"}
_TOKENS = ("input_tokens", "output_tokens")
_OTHER = re.compile(rb"[^a-z0-9]")
_CODED = re.compile(rb"-([0-9a-f]{2})")
_SPELLED = r"((?:[a-z0-9]|-[0-9a-f]{2})+)"
# The dash code of a character is hexadecimal, so it cannot be confused with "-shard" or "-home".
_NAME = re.compile(rf"orch-shard-{_SPELLED}(?:-home-{_SPELLED})?")
Json = dict[str, Any]


def spelled(name: str) -> str:
    """Encode a name in lower-case letters, digits and hyphens. `unspelled` decodes it."""
    return _OTHER.sub(lambda found: b"-%02x" % found[0][0], name.encode()).decode()


def unspelled(name: str) -> str:
    """Decode a name that `spelled` encoded. For a name that is not ours, the result is arbitrary."""
    return _CODED.sub(lambda found: bytes.fromhex(found[1].decode()), name.encode()).decode(errors="replace")


def batch_name(order: BatchOrder) -> str:
    """Return the name of a batch, which encodes its shard and home."""
    return f"orch-shard-{spelled(order.shard)}" + (f"-home-{spelled(order.home)}" if order.home else "")


def _metadata_in(name: object) -> dict[str, str | None] | None:
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        return None
    return {SHARD_KEY: unspelled(found[1]), HOME_KEY: None if found[2] is None else unspelled(found[2])}


def batch_of(told: object) -> object:
    """Return a batch in OpenAI's shape. A value that is not an object stays unchanged."""
    found = lenient.mapping(told)
    found = lenient.mapping(found.get("batch")) or found
    if not found:
        return told
    batch: Json = {
        "request_counts": {ours: found[theirs] for ours, theirs in _COUNTS.items() if theirs in found},
        "usage": {name: found[name] for name in _TOKENS if name in found},
        "created_at": found.get("created_at"),
        "input_file_id": found.get("input_dataset_id") or None,
        "model": found.get("model"),
    }
    if "id" in found:
        batch["id"] = found["id"]
    if (named := _metadata_in(found.get("name"))) is not None:
        batch["metadata"] = named
    if "status" not in found:
        return batch
    word = lenient.word(found["status"]).removeprefix("batch_status_")
    batch["status"], status = word, status_of(word)
    if status is None or not status.is_final:
        return batch
    batch[f"{status}_at"] = found.get("updated_at")
    if results := lenient.name(found.get("output_dataset_id")):
        batch["output_file_id"] = results
    elif status is BatchStatus.FAILED:
        batch["errors"] = found.get("status_reason")
    return batch


def batch_page(told: object) -> tuple[object, str | None]:
    """Return a list page in OpenAI's shape, and the token of the next page, None if the list is complete.

    An answer may omit an empty list.
    """
    if told == {}:
        return {"data": [], "has_more": False}, None
    token = lenient.name(lenient.mapping(told).get("next_page_token"))
    listed = [batch_of(one) for one in lenient.entries(told, "batches")]
    return {"data": listed, "has_more": token is not None}, token


def dataset_file(dataset: object) -> Json:
    told = lenient.mapping(dataset)
    name = lenient.name(told.get("name"))
    filename = None if name is None else unspelled(name)
    return {"id": told.get("id"), "filename": filename, "created_at": told.get("created_at")}
