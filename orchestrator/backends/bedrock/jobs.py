"""Converts Bedrock's batch jobs to OpenAI's shape, and locates their files. Pure.

Sources: botocore 1.43 (bedrock/2023-04-20, service-2.json), AWS's pages on data and results of batch inference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from orchestrator.backends import BatchOrder, lenient, metadata_of
from orchestrator.backends.buckets import BucketPrefix

# `PartiallyCompleted`: not all records could be processed in time. `Scheduled`: validated, and in the queue.
STATES = {"submitted": "validating", "scheduled": "validating", "partiallycompleted": "expired",
          "stopping": "cancelling", "stopped": "cancelled"}  # fmt: skip
_DONE = frozenset({"completed", "partiallycompleted"})
_ENDED = _DONE | {"failed", "stopped", "expired"}
_COUNTS = {"total": "totalRecordCount", "completed": "successRecordCount", "failed": "errorRecordCount"}
_PROCESSED = ("processedRecordCount", "successRecordCount", "errorRecordCount")
_LONGEST_NAME = 63
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.-]+")
MANIFEST = "manifest.json.out"
Json = dict[str, Any]


def token_of(order: BatchOrder) -> str:
    """Return the shard's idempotency token. With it, a repeated create makes no second job."""
    return blake2b(f"{order.home}\0{order.shard}".encode(), digest_size=16).hexdigest()


def name_of(order: BatchOrder) -> str:
    """Return a job's name, which must be unique in the account."""
    return f"{token_of(order)[:12]}-{_NOT_IN_A_NAME.sub('-', order.shard)}"[:_LONGEST_NAME]


def creation(order: BatchOrder, place: BucketPrefix, role: str, hours: int) -> Json:
    return {
        "jobName": name_of(order),
        "clientRequestToken": token_of(order),
        "roleArn": role,
        "modelId": order.model,
        "modelInvocationType": "Converse",
        "inputDataConfig": {"s3InputDataConfig": {"s3InputFormat": "JSONL", "s3Uri": place.uri(order.input_file_id)}},
        "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": place.uri(place.output(order))}},
        "timeoutDurationInHours": hours,
        "tags": [{"key": key, "value": value} for key, value in metadata_of(order).items()],
    }


def batch_of(job: object, place: BucketPrefix) -> object:
    """Return a job as a batch in OpenAI's shape. Fields may be missing. A value that is not a job stays unchanged."""
    told = lenient.mapping(job)
    if not told:
        return job
    word = lenient.word(told.get("status"))
    source = place.key_in(_uri(told, "inputDataConfig", "s3InputDataConfig"))
    target = place.key_in(_uri(told, "outputDataConfig", "s3OutputDataConfig"))
    batch: Json = {
        "id": told.get("jobArn"),
        "created_at": told.get("submitTime"),
        "request_counts": {ours: told[theirs] for ours, theirs in _COUNTS.items() if theirs in told},
        "input_file_id": source,
        "metadata": place.owner_of(target),
    }
    if word:
        batch["status"] = STATES.get(word, word)
    if word not in _ENDED:
        return batch
    batch["completed_at"] = told.get("endTime")
    if word == "failed":
        batch["errors"] = [{"code": "failed", "message": told.get("message")}]
    if source and target and _has_results(told, word):
        batch["output_file_id"] = _output_key(target, str(told.get("jobArn")), source)
    return batch


def _uri(job: Mapping[str, Any], config: str, of_s3: str) -> object:
    return lenient.mapping(lenient.mapping(job.get(config)).get(of_s3)).get("s3Uri")


def _has_results(job: Mapping[str, Any], word: str) -> bool:
    """True if the job may have results: processed records are billed, however the job ended."""
    counts = [found for name in _PROCESSED if (found := lenient.count(job.get(name))) is not None]
    return word in _DONE or any(counts) or (word == "stopped" and not counts)


def _output_key(output: str, arn: str, source: str) -> str:
    return f"{output.rstrip('/')}/{arn.rpartition('/')[2]}/{source.rpartition('/')[2]}.out"


def manifest_of(key: str) -> str | None:
    """Return the key of the manifest beside a result file; None for an input file."""
    return f"{key.rpartition('/')[0]}/{MANIFEST}" if key.endswith(".out") else None


def list_of(told: object, place: BucketPrefix) -> object:
    jobs = lenient.mapping(told).get("invocationJobSummaries")
    if not isinstance(jobs, list):
        return {"data": [], "has_more": False} if told == {} else told
    return {
        "data": [batch_of(job, place) for job in jobs],
        "has_more": bool(lenient.mapping(told).get("nextToken")),
    }
