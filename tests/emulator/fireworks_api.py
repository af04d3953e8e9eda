"""Fireworks' datasets and batch inference jobs.

Sources: fireworks-ai 1.2.30 (resources/batch_inference_jobs.py, resources/datasets.py, types), docs.fireworks.ai, and
what OpenRouter's adapter saw of the live API on 2026-08-30: `exampleCount` is asked for and not checked, a failed job
has no results, results are `BIJOutputSet.jsonl` and `error-data`, and a deletion is the only end of a job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import inf

from tests.emulator import openai_batches, openai_files
from tests.emulator.answers import CHAT
from tests.emulator.batch import Batch
from tests.emulator.call import Call, Reply
from tests.emulator.errors import Json, Problem, Refusal, problem_of
from tests.emulator.world import StoredFile, World

MAX_BYTES = 150 * 10**6
STATE = {
    "validating": "VALIDATING",
    "in_progress": "RUNNING",
    "finalizing": "WRITING_RESULTS",
    "cancelling": "DELETING_CLEANING_UP",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "expired": "EXPIRED",
    "cancelled": "DELETING_CLEANING_UP",
}
FILES = {"output": "BIJOutputSet.jsonl", "error": "error-data"}


def _refuse(status: int, words: str) -> Refusal:
    """Google's error, flat."""
    code = {400: 3, 404: 5, 409: 6}.get(status, 13)
    return Refusal(status, Problem(words), {}, json.dumps({"code": code, "message": words, "details": []}))


def create_dataset(world: World, call: Call) -> Reply:
    told = call.json()
    name, dataset = told.get("datasetId"), told.get("dataset")
    if not isinstance(name, str) or not isinstance(dataset, dict):
        raise _refuse(400, "dataset_id and dataset are required")
    if "userUploaded" in dataset and not dataset.get("exampleCount"):
        raise _refuse(400, "example_count is required for uploaded datasets")
    if (call.account, name) in world.datasets:
        raise _refuse(409, f"dataset {name} already exists")
    world.datasets[call.account, name] = {**dataset, "createTime": _time(world.now())}
    return Reply(_dataset(world, call, name))


def upload(world: World, call: Call) -> Reply:
    if call.path is None:
        raise _refuse(400, "file is required")
    dataset = world.datasets.get((call.account, call.name))
    if dataset is None:
        raise _refuse(404, "resource not found")
    if call.path.stat().st_size > MAX_BYTES:
        raise Refusal(413, problem_of(413))
    if _ready(world, call, call.name):
        raise _refuse(400, f"dataset {call.name} is not UPLOADING")
    now = world.now()
    facts = (call.flavour, call.account, dataset.get("displayName", ""), "batch", now, inf)
    stored = StoredFile(_key(world.files, call, call.name), *facts, path=call.path, size=call.path.stat().st_size)
    late = next((fault.options for fault in call.faults if fault.do == "late_upload"), None)
    if late is not None:
        stored.usable_at, stored.told_at = now + late["seconds"], "create"
    world.add_file(stored)
    return Reply({"id": call.name, "object": "file", "bytes": stored.size, "filename": call.filename})


def _key(known: Mapping[str, StoredFile | Batch], call: Call, name: str) -> str:
    """Ids are an account's own: one that another account has is told by its account as well."""
    other = known.get(name)
    return name if other is None or other.account == call.account else f"{call.account}/{name}"


def _ready(world: World, call: Call, name: str) -> bool:
    stored = world.files.get(_key(world.files, call, name))
    return stored is not None and not stored.is_deleted


def _dataset(world: World, call: Call, name: str) -> Json:
    state = "READY" if _ready(world, call, name) else "UPLOADING"
    return {**world.datasets[call.account, name], "name": f"accounts/a/datasets/{name}", "state": state}


def datasets(world: World, call: Call) -> Reply:
    found = [name for account, name in world.datasets if account == call.account]
    return Reply(_page(call, "datasets", [_dataset(world, call, name) for name in found]))


def dataset(world: World, call: Call) -> Reply:
    if (call.account, call.name) not in world.datasets:
        raise _refuse(404, "resource not found")
    return Reply(_dataset(world, call, call.name))


def _page(call: Call, name: str, found: list[Json]) -> Json:
    """An empty list is left out."""
    start, size = int(call.query.get("pageToken") or 0), int(call.query.get("pageSize", "50"))
    told: Json = {"totalSize": len(found)}
    if start + size < len(found):
        told["nextPageToken"] = str(start + size)
    return told | ({name: found[start : start + size]} if found[start : start + size] else {})


def delete_dataset(world: World, call: Call) -> Reply:
    if (batch := _batch_of(world, call.name)) is not None:
        for kind in FILES:
            if (stored := world.files.get(world.result_id(batch, kind))) is not None:
                stored.is_deleted = True
        return Reply({})
    if world.datasets.pop((call.account, call.name), None) is None:
        raise _refuse(404, "resource not found")
    if (stored := world.files.get(_key(world.files, call, call.name))) is not None:
        world.delete_file(stored)
    return Reply({})


def _batch_of(world: World, name: str) -> Batch | None:
    """The job whose results are in this dataset."""
    return next((one for one in world.batches.values() if _results(one) == name), None)


def _results(batch: Batch) -> str:
    return f"bij-{batch.id.rpartition('/')[2]}"


def download_endpoint(world: World, call: Call) -> Reply:
    """Signed addresses, which need no key."""
    if (batch := _batch_of(world, call.name)) is None:
        if not _ready(world, call, call.name):
            raise _refuse(404, "resource not found")
        return Reply(
            {
                "filenameToSignedUrls": {
                    f"dataset/{call.name}/in.jsonl": _signed(call, _key(world.files, call, call.name))
                }
            }
        )
    ids = {kind: world.result_id(batch, kind) for kind in FILES}
    now = world.now()
    is_there = batch.is_final and batch.status != "failed" and now >= batch.ended_at + batch.plan.late_output_id
    found = {
        f"dataset/{call.name}/{FILES[kind]}": _signed(call, name)
        for kind, name in ids.items()
        if is_there and name in world.files and not world.files[name].is_deleted
    }
    if not found:
        raise _refuse(404, "resource not found")
    return Reply({"filenameToSignedUrls": found})


def _signed(call: Call, name: str) -> str:
    return f"{call.root.removesuffix('/v1')}/signed/{name}"


def content(world: World, call: Call) -> Reply:
    stored = world.files.get(call.name)
    if stored is None:
        raise _refuse(404, "resource not found")
    call.account = stored.account
    return openai_files.content(world, call)


def create(world: World, call: Call) -> Reply:
    told = call.json()
    name = call.query.get("batchInferenceJobId") or world.new_id("bij-")
    key, dataset = _key(world.batches, call, name), str(told.get("inputDatasetId")).rpartition("/")[2]
    if not told.get("model"):
        raise _refuse(400, "model is required")
    models = world.settings.models
    if models is not None and str(told["model"]).rpartition("/")[2] not in models:
        raise _refuse(404, f"model {told['model']} not found")
    if key in world.batches:
        raise _refuse(409, f"batch inference job {name} already exists")
    stored = world.files.get(_key(world.files, call, dataset))
    if stored is None or stored.is_deleted or world.now() < stored.usable_at:
        raise _refuse(404, f"dataset {dataset} not found")
    batch = world.new_batch(call.flavour, call.account, CHAT, "", call.faults)
    batch.id, batch.input_file_id, batch.display_name = key, stored.id, told.get("displayName")
    batch.model = str(told["model"]).rpartition("/")[2]
    world.add_batch(batch)
    return Reply(_job(world, batch))


def retrieve(world: World, call: Call) -> Reply:
    return Reply(_job(world, _found(world, call)))


def _found(world: World, call: Call) -> Batch:
    try:
        return world.batch(call.flavour, call.account, _key(world.batches, call, call.name))
    except Refusal:
        raise _refuse(404, "resource not found") from None


def batches(world: World, call: Call) -> Reply:
    found = world.listed_batches(call.flavour, call.account)
    if not call.query.get("orderBy", "").endswith("desc"):
        found.reverse()
    return Reply(_page(call, "batchInferenceJobs", [_job(world, one) for one in found]))


def cancel(world: World, call: Call) -> Reply:
    """A deletion: its results go with it."""
    batch = _found(world, call)
    if not batch.is_final:
        world.cancel(batch)
    batch.is_deleted = True
    return Reply({})


def _job(world: World, batch: Batch) -> Json:
    now = world.now()
    total, completed, failed = batch.counts(now)
    is_over = batch.is_final and not batch.runs_again(now)
    message = batch.errors[0].message if batch.errors else ""
    told: Json = {
        "name": f"accounts/a/batchInferenceJobs/{batch.id.rpartition('/')[2]}",
        "displayName": batch.display_name,
        "createTime": _time(batch.created_at),
        "state": f"JOB_STATE_{STATE[batch.status] if is_over or not batch.is_final else 'RUNNING'}",
        "status": {"code": "INVALID_ARGUMENT" if message else "OK", "message": message},
        "model": f"accounts/fireworks/models/{batch.model}",
        "inputDatasetId": f"accounts/a/datasets/{(batch.input_file_id or '').rpartition('/')[2]}",
        "outputDatasetId": f"accounts/a/datasets/{_results(batch)}",
        "inferenceParameters": {"extraBody": "{}"},
        "updateTime": _time(batch.ended_at if is_over else now),
        "jobProgress": {
            "percent": 100 * (completed + failed) // total if total else 0,
            "totalInputRequests": total,
            "totalProcessedRequests": completed + failed,
            "successfullyProcessedRequests": completed,
            "failedRequests": failed,
            "outputRows": completed,
        },
    }
    return told


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def models(world: World, call: Call) -> Reply:
    known = openai_batches.MODELS if world.settings.models is None else world.settings.models
    return Reply(_page(call, "models", [{"name": f"accounts/fireworks/models/{name}"} for name in known]))


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "create_dataset": create_dataset,
    "upload": upload,
    "files": datasets,
    "file": dataset,
    "delete_file": delete_dataset,
    "endpoint": download_endpoint,
    "content": content,
    "create": create,
    "retrieve": retrieve,
    "list": batches,
    "cancel": cancel,
    "models": models,
    "chat": openai_batches.VERBS["chat"],
}
