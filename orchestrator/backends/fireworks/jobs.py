"""Converts Fireworks' jobs, datasets and lines to OpenAI's shape. Pure.

Sources: fireworks-ai 1.2.30 (types/batch_inference_job.py, types/dataset.py), docs.fireworks.ai (batch inference).
States, file names and result lines follow OpenRouter's adapter, which saw them in the live API on 2026-08-30.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from orchestrator.backends import body_lines, lenient
from orchestrator.backends.batch_names import metadata_in
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.json_decoders import json_decoder

OUTPUT, ERRORS = "output", "errors"
"""The two files of a results dataset. A file's id is `DATASET/NAME`, with one of these names."""
_MODELS = "accounts/fireworks/models/"
_STATES = {
    "validating": BatchStatus.VALIDATING,
    "unspecified": BatchStatus.VALIDATING,
    "creating": BatchStatus.VALIDATING,
    "creating_input_dataset": BatchStatus.VALIDATING,
    "pending": BatchStatus.VALIDATING,
    "writing_results": BatchStatus.FINALIZING,
    "completed": BatchStatus.COMPLETED,
    "failed": BatchStatus.FAILED,
    "expired": BatchStatus.EXPIRED,
    "early_stopped": BatchStatus.EXPIRED,
    "cancelling": BatchStatus.CANCELLING,
    "cancelled": BatchStatus.CANCELLED,
    "deleting": BatchStatus.CANCELLED,
    "deleting_cleaning_up": BatchStatus.CANCELLED,
}
"""States without the prefix `JOB_STATE_`, and OpenAI's states. A job in any other state is running."""
_COUNTS = {"completed": "successfullyProcessedRequests", "failed": "failedRequests"}
_decode_body = json_decoder(dict[str, msgspec.Raw]).decode


def model_name(model: str) -> str:
    """Return a model's resource name. A short name stands for one of Fireworks' own models."""
    return model if "/" in model else f"{_MODELS}{model}"


def short_name(resource: object) -> str | None:
    return (lenient.name(resource) or "").rpartition("/")[2] or None


def batch_of(job: object) -> object:
    """Return a job as a batch in OpenAI's shape. A value that is not an object stays unchanged."""
    told = lenient.mapping(job)
    if not told:
        return job
    state = lenient.word(told.get("state")).removeprefix("job_state_")
    status = _STATES.get(state, BatchStatus.IN_PROGRESS)
    progress = lenient.mapping(told.get("jobProgress"))
    counts = {ours: progress[theirs] for ours, theirs in _COUNTS.items() if theirs in progress}
    batch: dict[str, Any] = {
        "id": short_name(told.get("name")),
        "status": status,
        "created_at": told.get("createTime"),
        "input_file_id": short_name(told.get("inputDatasetId")),
        "model": told.get("model"),
        "metadata": metadata_in(told.get("displayName")),
        "request_counts": counts,
    }
    results = short_name(told.get("outputDatasetId"))
    if status.is_final:
        batch[f"{status}_at"] = told.get("updateTime")
        if status is BatchStatus.FAILED:
            batch["errors"] = lenient.mapping(told.get("status")).get("message")
        elif results is not None:
            batch |= {"output_file_id": f"{results}/{OUTPUT}", "error_file_id": f"{results}/{ERRORS}"}
    return batch


def has_begun(job: Mapping[str, Any]) -> bool:
    """True if rows of a job may have run."""
    status = lenient.mapping(batch_of(job)).get("status")
    processed = lenient.count(lenient.mapping(job.get("jobProgress")).get("totalProcessedRequests"))
    return bool(processed) or status != BatchStatus.VALIDATING


def dataset_file(dataset: object) -> dict[str, Any]:
    told = lenient.mapping(dataset)
    return {
        "id": short_name(told.get("name")),
        "filename": told.get("displayName"),
        "created_at": told.get("createTime"),
    }


def sent_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines in Fireworks' format, without the model, which is a field of the job. Raises InputError."""
    return body_lines.body_lines(lines, body_of=_without_model)


def sent_line(line: bytes) -> tuple[str, bytes]:
    """Return a line's custom_id and its request's digest. Both are the same for our line and for Fireworks' copy."""
    return body_lines.sent_line(line, _without_model)


def _without_model(body: msgspec.Raw) -> bytes:
    found = _decode_body(body)
    found.pop("model", None)
    return msgspec.json.encode(found)


def result_line(line: bytes) -> bytes:
    """Return a result line in OpenAI's shape. Fireworks' own lines have no status."""
    told = lenient.decode_object(line)
    if told is None or "custom_id" not in told:
        return line
    answer = told.get("response")
    if isinstance(answer, dict) and "body" not in answer and told.get("error") is None:
        return json.dumps({**told, "response": {"status_code": 200, "body": answer}, "error": None}).encode()
    if answer is None and told.get("error") is None:
        rest = {name: value for name, value in told.items() if name not in ("custom_id", "response", "error")}
        return json.dumps({"custom_id": told["custom_id"], "error": {"message": lenient.text(rest)}}).encode()
    return line


def file_in(urls: Mapping[str, Any], kind: str) -> str | None:
    """Return the signed address of a results dataset's file; None if missing. `urls` maps names to addresses."""
    found = {name.rpartition("/")[2]: url for name, url in urls.items() if isinstance(url, str)}
    errors = {name for name in found if "error" in name.lower()}
    wanted = errors if kind == ERRORS else found.keys() - errors
    return found[min(wanted)] if wanted else None
