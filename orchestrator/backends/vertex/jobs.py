"""Converts Vertex AI's batch prediction jobs to OpenAI's shape. Pure.

Sources: google-genai 3.6.1 (batches.py, types.py), Google's reference of BatchPredictionJob and its guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.backends import BatchOrder, lenient
from orchestrator.backends.batch_names import display_name
from orchestrator.backends.buckets import BucketPrefix

# `expired`: orch sends the unanswered rows of a partial success again, without counting an attempt. A paused job can
# be resumed.
STATES = {"partially_succeeded": "expired", "paused": "in_progress", "updating": "in_progress"}
_ENDED = frozenset({"succeeded", "partially_succeeded", "failed", "cancelled", "expired"})
_COUNTS = {"completed": "successfulCount", "failed": "failedCount"}
_CODES = {
    1: "cancelled", 3: "invalid_argument", 4: "deadline_exceeded", 5: "not_found", 7: "permission_denied",
    8: "resource_exhausted", 9: "permission_denied", 13: "internal", 14: "unavailable",
}  # fmt: skip
"""Our error code for each google.rpc.Code. Code 9 means that the service agent has no permission for the bucket."""
_LONGEST_NAME = 128
Json = dict[str, Any]


def model_path(name: str) -> str:
    """Return a model's resource name. A name without a slash stands for one of Google's own models."""
    return name if "/" in name else f"publishers/google/models/{name}"


def creation(order: BatchOrder, place: BucketPrefix) -> Json:
    """Return the fields of a create. The prefix of the results names shard and home, because every list shows it."""
    return {
        "displayName": display_name(order)[:_LONGEST_NAME],
        "model": model_path(order.model),
        "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": [place.uri(order.input_file_id)]}},
        "outputConfig": {
            "predictionsFormat": "jsonl",
            "gcsDestination": {"outputUriPrefix": place.uri(place.output(order))},
        },
    }


def batch_of(job: object, place: BucketPrefix) -> object:
    """Return a job as a batch in OpenAI's shape. A value that is not an object stays unchanged."""
    told = lenient.mapping(job)
    if not told:
        return job
    word = lenient.word(told.get("state")).removeprefix("job_state_")
    sources = lenient.mapping(lenient.mapping(told.get("inputConfig")).get("gcsSource")).get("uris")
    prefix = place.key_in(
        lenient.mapping(lenient.mapping(told.get("outputConfig")).get("gcsDestination")).get("outputUriPrefix")
    )
    stats = lenient.mapping(told.get("completionStats"))
    batch: Json = {
        "created_at": told.get("createTime"),
        "request_counts": {ours: stats.get(theirs, 0) for ours, theirs in _COUNTS.items()} if stats else {},
        "input_file_id": place.key_in(sources[0] if isinstance(sources, list) and sources else sources),
        "metadata": place.owner_of(prefix),
    }
    if (name := lenient.name(told.get("name"))) is not None:
        batch["id"] = name.rpartition("/")[2]
    if word:
        batch["status"] = STATES.get(word, word)
    if word not in _ENDED:
        return batch
    batch["completed_at"] = told.get("endTime")
    if told.get("error"):
        batch["errors"] = [_error(lenient.mapping(told["error"]))]
    folder = place.key_in(lenient.mapping(told.get("outputInfo")).get("gcsOutputDirectory"))
    if (folder or prefix) and _has_results(word, stats, folder):
        batch["output_file_id"] = f"{(folder or prefix or '').rstrip('/')}/"
    return batch


def _error(error: Mapping[str, Any]) -> Json:
    code = lenient.count(error.get("code")) or 0
    return {"code": _CODES.get(code, f"rpc_{code}"), "message": error.get("message")}


def _has_results(word: str, stats: Mapping[str, Any], folder: str | None) -> bool:
    """True if the job may have results: processed rows are billed, however the job ended."""
    if word in ("succeeded", "partially_succeeded"):
        return True
    counts = [found for name in _COUNTS.values() if (found := lenient.count(stats.get(name))) is not None]
    return any(counts) if stats else folder is not None


def object_of(one: object) -> Json:
    told = lenient.mapping(one)
    name = lenient.text(told.get("name"), 1024)
    facts = {"bytes": told.get("size"), "created_at": told.get("timeCreated")}
    return {"id": name or None, "filename": name.rpartition("/")[2], **facts}


def results_in(names: list[str]) -> list[str]:
    """Return the result files among a folder's objects. The folder may hold partial files besides the complete
    file.
    """
    whole = [name for name in names if name.rpartition("/")[2].startswith("predictions")]
    return whole or [name for name in names if name.endswith(".jsonl")]
