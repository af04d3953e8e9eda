"""Converts Mistral's batch jobs to OpenAI's shape. Pure.

Sources: mistralai 3.7.0 (client/jobs.py, client/files.py, extra/batch/client.py), a recorded batch, and Mistral's
guide.
"""

from __future__ import annotations

from typing import Any

from orchestrator.backends import lenient

# `completed_requests` counts failed rows too.
_COUNTS = {"total": "total_requests", "completed": "succeeded_requests", "failed": "failed_requests"}
_FILES = {"output_file_id": "output_file", "error_file_id": "error_file"}
_ALIKE = ("id", "status", "created_at", "completed_at", "metadata", "model", "endpoint")


def batch_of(job: object) -> object:
    """Return a job as a batch in OpenAI's shape. A value that is not an object stays unchanged."""
    told = lenient.mapping(job)
    if not told:
        return job
    files = {ours: told.get(theirs) for ours, theirs in _FILES.items()}
    batch: dict[str, Any] = {name: told[name] for name in _ALIKE if name in told} | files
    batch["request_counts"] = {ours: told[theirs] for ours, theirs in _COUNTS.items() if theirs in told}
    inputs = told.get("input_files")
    if isinstance(inputs, list) and len(inputs) == 1:
        batch["input_file_id"] = inputs[0]
    # If rows ran, `errors` summarizes their errors. Only without results does it say why the job failed.
    if lenient.word(told.get("status")) == "failed" and not any(files.values()):
        batch["errors"] = told.get("errors")
    return batch
