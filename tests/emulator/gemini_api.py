"""Gemini's files and batches. Sources: google-genai 3.6.1, recorded files and batches, Gemini's guide to batches."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from tests.emulator.batch import Batch
from tests.emulator.call import Call, Reply
from tests.emulator.errors import Json, Problem, Refusal, problem_of, refuse
from tests.emulator.gemini_lines import (
    answer,
    asked_of,
    blocks,
    check_file,
    check_request,
    refused_by,
    result_lines,
)
from tests.emulator.openai_batches import file_id_of
from tests.emulator.rowfaults import MARK, marked
from tests.emulator.world import StoredFile, World

DAY = 86_400.0
MAX_BYTES = 2 * 1024**3
MODELS = ("gemini-3.8-flash", "gemini-2.5-flash-lite")
STATES = {
    "validating": "PENDING",
    "in_progress": "RUNNING",
    "finalizing": "RUNNING",
    "cancelling": "RUNNING",
    "completed": "SUCCEEDED",
    "failed": "FAILED",
    "expired": "EXPIRED",
    "cancelled": "CANCELLED",
}


def begin_upload(world: World, call: Call) -> Reply:
    told = call.json().get("file") or {}
    upload_id = world.new_id("upload-")
    world.begun[upload_id] = told | {"account": call.account}
    if int(call.fields["length"]) > MAX_BYTES:
        raise refuse(400, "File size exceeds the limit of 2147483648 bytes.", code="INVALID_ARGUMENT")
    url = f"{call.root}/files?upload_id={upload_id}"
    return Reply({}, headers={"x-goog-upload-url": url, "x-goog-upload-status": "active"})


def upload(world: World, call: Call) -> Reply:
    told = world.begun.get(call.query.get("upload_id", ""))
    if told is None or call.path is None or call.fields["command"] != "upload, finalize":
        raise refuse(400, "Upload has already been terminated.", code="INVALID_ARGUMENT")
    now = world.now()
    name, whose = str(told.get("displayName", "")), (call.flavour, call.account)
    size = call.path.stat().st_size
    stored = StoredFile(world.new_id(""), *whose, name, "batch", now, now + 2 * DAY, call.path, size=size)
    world.add_file(stored)
    return Reply({"file": _file(world, stored)}, headers={"x-goog-upload-status": "final"})


def _file(world: World, file: StoredFile) -> Json:
    ahead = world.settings.clock_offset_s
    return {
        "name": f"files/{file.id}",
        "displayName": file.name,
        "mimeType": "application/jsonl",
        "sizeBytes": str(file.size or 0),
        "createTime": _time(file.created_at + ahead),
        "expirationTime": _time(file.expires_at + ahead),
        "state": "ACTIVE",
        "source": "UPLOADED" if file.batch is None else "GENERATED",
    }


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def files(world: World, call: Call) -> Reply:
    found = [one for one in world.live_files(call.flavour, call.account) if one.batch is None][::-1]
    return Reply(_page(call, "files", [_file(world, one) for one in found]))


def _page(call: Call, name: str, found: list[Json]) -> Json:
    start, size = int(call.query.get("pageToken") or 0), int(call.query.get("pageSize") or 10)
    end = start + size
    shown: Json = {name: found[start:end]} if found[start:end] else {}
    return shown | ({"nextPageToken": str(end)} if end < len(found) else {})


def file(world: World, call: Call) -> Reply:
    return Reply(_file(world, _found(world, call)))


def _found(world: World, call: Call) -> StoredFile:
    try:
        return world.file(call.flavour, call.account, call.name)
    except Refusal:
        words = "You do not have permission to access the File or it may not exist."
        raise Refusal(404, Problem(words, code="NOT_FOUND")) from None


def content(world: World, call: Call) -> Reply:
    found = _found(world, call)
    if found.batch is None:
        raise refuse(400, "Only generated files can be downloaded.", code="INVALID_ARGUMENT")
    batch, now = found.batch, world.now()
    if "output" in batch.plan.files.lost or now < batch.ended_at + batch.plan.files.late:
        raise refuse(404, "The file is not there.", code="NOT_FOUND")
    lines = list(result_lines(batch, world.settings))
    return Reply(blocks=blocks(lines[: batch.shown(len(lines), now)]), kind="application/octet-stream")


def delete_file(world: World, call: Call) -> Reply:
    world.delete_file(_found(world, call))
    return Reply({})


def create(world: World, call: Call) -> Reply:
    told = call.json().get("batch") or {}
    name = str((told.get("inputConfig") or {}).get("fileName", "")).removeprefix("files/")
    _check_model(world, call.name)
    stored = world.files.get(name)
    is_there = stored is not None and (stored.flavour, stored.account) == (call.flavour, call.account)
    if stored is None or not is_there or stored.is_deleted or stored.path is None or world.now() >= stored.expires_at:
        raise refuse(404, f"File files/{name} not found.", code="NOT_FOUND")
    check_file(stored.path)
    made = []
    while not made or (len(made) < 2 and made[0].plan.has_twin):
        batch = world.new_batch(call.flavour, call.account, "generateContent", "", call.faults)
        batch.number = len(world.batches)
        batch.input_file_id, batch.model, batch.window_s = name, call.name, 2 * DAY
        batch.display_name = told.get("displayName")
        world.add_batch(batch)
        made.append(batch)
    return Reply(_told(world, made[0]))


def _check_model(world: World, name: str) -> None:
    if world.settings.models is not None and name not in world.settings.models:
        words = f"models/{name} is not found for API version v1beta, or is not supported for generateContent."
        raise refuse(404, words, code="NOT_FOUND")


def retrieve(world: World, call: Call) -> Reply:
    return Reply(_told(world, _batch(world, call)))


def _batch(world: World, call: Call) -> Batch:
    try:
        return world.batch(call.flavour, call.account, call.name)
    except Refusal:
        raise refuse(404, "Requested entity was not found.", code="NOT_FOUND") from None


def batches(world: World, call: Call) -> Reply:
    found = [_told(world, one) for one in world.listed_batches(call.flavour, call.account)]
    return Reply(_page(call, "operations", found))


def cancel(world: World, call: Call) -> Reply:
    batch = _batch(world, call)
    if batch.is_final:
        raise refuse(400, "The batch has already ended.", code="FAILED_PRECONDITION")
    if batch.status != "cancelling":
        world.cancel(batch)
    return Reply({})


def delete(world: World, call: Call) -> Reply:
    _batch(world, call).is_deleted = True
    return Reply({})


def _told(world: World, batch: Batch) -> Json:
    now, ahead = world.now(), world.settings.clock_offset_s
    total, completed, failed = batch.counts(now)
    is_over = batch.is_final and not batch.runs_again(now)
    stats = {"requestCount": total, "successfulRequestCount": completed, "failedRequestCount": failed}
    stats["pendingRequestCount"] = total - completed - failed
    facts: Json = {
        "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
        "model": f"models/{batch.model}",
        "displayName": batch.display_name,
        "createTime": _time(batch.created_at + ahead),
        "updateTime": _time(now + ahead),
        "batchStats": {name: str(value) for name, value in stats.items() if value},
        "state": f"BATCH_STATE_{STATES[batch.status] if is_over or not batch.is_final else 'RUNNING'}",
        "name": f"batches/{batch.id}",
    }
    told: Json = {"name": f"batches/{batch.id}", "metadata": facts}
    if not is_over:
        return told
    facts["endTime"] = _time(batch.ended_at + ahead)
    if batch.errors:
        return told | {"done": True, "error": {"code": 3, "message": batch.errors[0].message}}
    output = file_id_of(world, batch, "output", now)
    if output is not None:
        facts["output"] = {"responsesFile": f"files/{output}"}
    return told | {"done": True}


def models(world: World, call: Call) -> Reply:
    known = MODELS if world.settings.models is None else world.settings.models
    return Reply(_page(call, "models", [_model(name) for name in known]))


def model(world: World, call: Call) -> Reply:
    _check_model(world, call.name)
    return Reply(_model(call.name))


def _model(name: str) -> Json:
    return {"name": f"models/{name}", "supportedGenerationMethods": ["generateContent", "batchGenerateContent"]}


def chat(world: World, call: Call) -> Reply:
    _check_model(world, call.name)
    return answered(world, call, call.name)


def answered(world: World, call: Call, name: str) -> Reply:
    """The answer of a model to a request of `generateContent`."""
    request = call.json()
    check_request(request)
    refused = refused_by(call.flavour, name, request) if world.settings.truthful else None
    if refused is not None:
        world.note(call.flavour, name, "generateContent", refused.message)
        raise refused.as_refusal()
    asked = asked_of(request, name)
    own = marked(call.body) if MARK in call.body else ()
    effect = world.effect(own, asked.digest if own else None)
    if effect.status >= 400:
        raise Refusal(effect.status, problem_of(effect.status, effect.code))
    world.pay(call.flavour, "standard", asked, effect)
    return Reply(answer(asked, effect, f"{name}{world.settings.snapshot}"), effect=effect)


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "begin_upload": begin_upload,
    "upload": upload,
    "files": files,
    "file": file,
    "content": content,
    "delete_file": delete_file,
    "create": create,
    "retrieve": retrieve,
    "list": batches,
    "cancel": cancel,
    "delete": delete,
    "models": models,
    "model": model,
    "chat": chat,
}
