"""Together's files and batches. Sources: together 3.1.1, togethercomputer/openapi 090263a, docs.together.ai.

The SDK uploads in three calls: it asks for an address, puts the content there, and asks for it to be read
(lib/resources/files.py). `/files/upload` is one call for the same (the openapi). Equal bytes are one file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from tests.emulator import openai_batches, openai_files
from tests.emulator.answers import CHAT
from tests.emulator.batch import Batch
from tests.emulator.call import Call, Reply
from tests.emulator.errors import Json, Problem, Refusal, problem_of, refuse
from tests.emulator.openai_batches import file_id_of
from tests.emulator.world import StoredFile, World

MAX_BYTES = 100 * 10**6
PURPOSES = ("fine-tune", "eval", "batch-api")
ENDPOINTS = (CHAT, "/v1/audio/transcriptions", "/v1/audio/translations")
STATUS = {
    "validating": "VALIDATING",
    "in_progress": "IN_PROGRESS",
    "finalizing": "IN_PROGRESS",
    "cancelling": "IN_PROGRESS",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "expired": "EXPIRED",
    "cancelled": "CANCELLED",
}


def upload(world: World, call: Call) -> Reply:
    if call.path is None:
        raise refuse(400, "file is required")
    return Reply(_told(world, _stored(world, call, call.path)))


def begin_upload(world: World, call: Call) -> Reply:
    """Where the content is to be put, in the headers of a redirect."""
    _check_fields(call)
    if (known := _known(world, call, call.fields.get("checksum", ""))) is not None:
        raise _exists(known)
    name = world.new_id("upload-")
    world.begun[name] = {"account": call.account, "fields": dict(call.fields), "id": world.new_id("file-")}
    headers = {"location": f"{call.root}/uploads/{name}", "x-together-file-id": world.begun[name]["id"]}
    return Reply({}, status=302, headers=headers)


def put(world: World, call: Call) -> Reply:
    """The content, at an address that needs no key."""
    begun = world.begun.get(call.name)
    if begun is None or call.path is None:
        raise refuse(403, "The address is not valid.")
    call.fields, call.account = begun["fields"], begun["account"]
    _stored(world, call, call.path, begun["id"])
    return Reply("")


def preprocess(world: World, call: Call) -> Reply:
    return Reply(_told(world, _found(world, call)))


def _check_fields(call: Call) -> None:
    if call.fields.get("purpose") not in PURPOSES:
        raise refuse(400, f"purpose must be one of {', '.join(PURPOSES)}")
    if not call.fields.get("file_name"):
        raise refuse(400, "file_name is required")


def _stored(world: World, call: Call, path: Path, file_id: str | None = None) -> StoredFile:
    _check_fields(call)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise Refusal(413, problem_of(413))
    if (known := _known(world, call, hashlib.sha256(path.read_bytes()).hexdigest())) is not None:
        raise _exists(known)
    now, fields = world.now(), call.fields
    older = [*world.live_files(call.flavour, call.account)] if call.has("older_file") else []
    if older:
        return older[-1]
    name = file_id or world.new_id("file-")
    facts = (call.flavour, call.account, fields["file_name"], fields["purpose"], now, inf)
    stored = StoredFile(name, *facts, path=path, size=size)
    late = next((fault.options for fault in call.faults if fault.do == "late_upload"), None)
    if late is not None:
        stored.usable_at, stored.told_at = now + late["seconds"], late["told"]
    world.add_file(stored)
    return stored


def _known(world: World, call: Call, checksum: str) -> StoredFile | None:
    """The file with these bytes."""
    for one in world.live_files(call.flavour, call.account):
        if one.path is not None and hashlib.sha256(one.path.read_bytes()).hexdigest() == checksum:
            return one
    return None


def _exists(file: StoredFile) -> Refusal:
    return Refusal(409, Problem("File already exists."), {}, json.dumps({"file_id": file.id}))


def _told(world: World, file: StoredFile) -> Json:
    told = openai_files.told(world, file)
    return {
        **{name: told[name] for name in ("id", "object", "bytes", "created_at", "filename")},
        "purpose": file.purpose if file.batch is None else "batch-generated",
        "FileType": "jsonl",
        "Processed": True,
    }


def files(world: World, call: Call) -> Reply:
    return Reply({"data": [_told(world, one) for one in world.live_files(call.flavour, call.account)]})


def file(world: World, call: Call) -> Reply:
    return Reply(_told(world, _found(world, call)))


def delete_file(world: World, call: Call) -> Reply:
    world.delete_file(_found(world, call))
    return Reply({"id": call.name, "deleted": True})


def content(world: World, call: Call) -> Reply:
    _found(world, call)
    return openai_files.content(world, call)


def _found(world: World, call: Call) -> StoredFile:
    try:
        return world.file(call.flavour, call.account, call.name)
    except Refusal:
        raise refuse(404, f"File {call.name} not found") from None


def create(world: World, call: Call) -> Reply:
    told = call.json()
    if told.get("endpoint") not in ENDPOINTS:
        raise _refuse(400, f"endpoint must be one of {', '.join(ENDPOINTS)}")
    if not isinstance(told.get("input_file_id"), str):
        raise _refuse(400, "input_file_id is required")
    _check_usable(world, call, told["input_file_id"])
    older = world.listed_batches(call.flavour, call.account) if call.has("older_batch") else []
    if older:
        return Reply({"job": _job(world, older[0])}, status=201)
    made = world.made(lambda: _batch(world, call, told))
    warning = {} if told.get("completion_window", "24h") == "24h" else {"warning": "completion_window is 24h"}
    return Reply({"job": _job(world, made), **warning}, status=201)


def _batch(world: World, call: Call, told: Json) -> Batch:
    found = world.new_batch(call.flavour, call.account, told["endpoint"], "", call.faults)
    found.id = f"{found.id[:8]}-{found.id[8:12]}-4000-8000-{found.id[12:]}"
    found.input_file_id = told["input_file_id"]
    return found


def _check_usable(world: World, call: Call, file_id: str) -> None:
    stored = world.files.get(file_id)
    is_there = stored is not None and not stored.is_deleted and stored.account == call.account
    if stored is None or not is_there or (world.now() < stored.usable_at and stored.told_at != "validation"):
        raise _refuse(400, f"File {file_id} not found")
    if stored.purpose != "batch-api":
        raise _refuse(400, f"File {file_id} has purpose {stored.purpose}, not batch-api")


def _refuse(status: int, words: str) -> Refusal:
    """The errors of batches are a text (BatchErrorResponse)."""
    return Refusal(status, Problem(words), {}, json.dumps({"error": words}))


def retrieve(world: World, call: Call) -> Reply:
    return Reply(_job(world, _of_call(world, call)))


def _of_call(world: World, call: Call) -> Batch:
    try:
        return world.batch(call.flavour, call.account, call.name)
    except Refusal:
        raise _refuse(404, f"Batch job {call.name} not found") from None


def batches(world: World, call: Call) -> Reply:
    """An array without pages."""
    return Reply([_job(world, one) for one in world.listed_batches(call.flavour, call.account)])


def cancel(world: World, call: Call) -> Reply:
    batch = _of_call(world, call)
    if batch.is_final:
        raise _refuse(400, f"Batch job {batch.id} is {STATUS[batch.status]} and cannot be cancelled")
    if batch.status != "cancelling":
        world.cancel(batch)
    return Reply(_job(world, batch))


def _job(world: World, batch: Batch) -> Json:
    now, ahead = world.now(), world.settings.clock_offset_s
    total, completed, failed = batch.counts(now)
    is_over = batch.is_final and not batch.runs_again(now)
    stored = world.files.get(batch.input_file_id or "")
    told: Json = {
        "id": batch.id,
        "user_id": batch.account,
        "input_file_id": batch.input_file_id,
        "file_size_bytes": 0 if stored is None else stored.size,
        "status": STATUS[batch.status] if is_over or not batch.is_final else "IN_PROGRESS",
        "job_deadline": _time(batch.created_at + batch.window_s + ahead),
        "created_at": _time(batch.created_at + ahead),
        "endpoint": batch.endpoint,
        "progress": 100.0 * (completed + failed) / total if total else 0.0,
        "model_id": batch.model,
    }
    if is_over:
        told["completed_at"] = _time(batch.ended_at + ahead)
        named = {f"{kind}_file_id": file_id_of(world, batch, kind, now) for kind in ("output", "error")}
        told |= {name: value for name, value in named.items() if value is not None}
        told |= {"error": batch.errors[0].message} if batch.errors else {}
    return told


def _time(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def models(world: World, call: Call) -> Reply:
    """An array, as the SDK has it."""
    return Reply(openai_batches.models(world, call).body["data"])


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    **openai_batches.VERBS,
    "upload": upload,
    "begin_upload": begin_upload,
    "put": put,
    "preprocess": preprocess,
    "files": files,
    "file": file,
    "content": content,
    "delete_file": delete_file,
    "create": create,
    "retrieve": retrieve,
    "list": batches,
    "cancel": cancel,
    "models": models,
}
