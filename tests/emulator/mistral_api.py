"""Mistral's files and batch jobs. Sources: mistralai 3.7.0, a recorded batch of August 2026, Mistral's guide."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

from tests.emulator import openai_files
from tests.emulator.answers import CHAT, EMBEDDINGS
from tests.emulator.batch import Batch
from tests.emulator.call import Call, Reply
from tests.emulator.errors import Json, Refusal, problem_of, refuse
from tests.emulator.mistral_lines import check_upload
from tests.emulator.openai_batches import file_id_of
from tests.emulator.results import outcome
from tests.emulator.sync import chat
from tests.emulator.world import StoredFile, World

HOUR = 3600.0
MAX_BYTES = 512 * 1024 * 1024
MAX_HOURS = 168
ENDPOINTS = (CHAT, EMBEDDINGS)
MODELS = ("mistral-small-latest", "mistral-large-latest", "mistral-embed")
STATUS = {
    "validating": "QUEUED",
    "in_progress": "RUNNING",
    "finalizing": "RUNNING",
    "completed": "SUCCESS",
    "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelling": "CANCELLATION_REQUESTED",
    "cancelled": "CANCELLED",
}


def upload(world: World, call: Call) -> Reply:
    if call.path is None or call.filename is None:
        raise refuse(422, "file: Field required")
    size = call.path.stat().st_size
    if size > MAX_BYTES:
        raise Refusal(413, problem_of(413))
    purpose = call.fields.get("purpose", "fine-tune")
    if purpose == "batch":
        check_upload(call.path)
    older = [*world.live_files(call.flavour, call.account)] if call.has("older_file") else []
    if older:
        return Reply(_file(world, older[-1]))
    expiry = call.fields.get("expiry")
    now = world.now()
    end = now + int(expiry) * HOUR if expiry else inf
    stored = StoredFile(
        _id(world), call.flavour, call.account, call.filename, purpose, now, end, call.path, size=size
    )
    late = next((fault.options for fault in call.faults if fault.do == "late_upload"), None)
    if late is not None:
        stored.usable_at, stored.told_at = now + late["seconds"], late["told"]
    world.add_file(stored)
    return Reply(_file(world, stored))


def _id(world: World) -> str:
    return str(uuid.UUID(hex=(world.new_id("") * 2)[:32]))


def _file(world: World, file: StoredFile) -> Json:
    told = openai_files.told(world, file)
    kind = _kind(world, file)
    return {
        **{name: told[name] for name in ("id", "object", "bytes", "created_at", "filename", "purpose", "expires_at")},
        "sample_type": kind,
        "num_lines": None,
        "mimetype": "application/jsonl",
        "source": "upload" if file.batch is None else "mistral",
        "signature": None,
    }


def _kind(world: World, file: StoredFile) -> str:
    if file.batch is None:
        return "batch_request"
    return "batch_result" if file.id == world.result_id(file.batch, "output") else "batch_error"


def files(world: World, call: Call) -> Reply:
    found = [*world.live_files(call.flavour, call.account)][::-1]
    kinds = call.query.get("sample_type")
    wanted = [one for one in found if kinds in (None, _kind(world, one))]
    return Reply(_page(call, [_file(world, one) for one in wanted]))


def _page(call: Call, found: list[Json]) -> Json:
    """By number from 0; a page behind the last one is empty."""
    page, size = (_number(call, name, usual) for name, usual in (("page", 0), ("page_size", 100)))
    return {"data": found[page * size : (page + 1) * size], "object": "list", "total": len(found)}


def _number(call: Call, name: str, usual: int) -> int:
    told = call.query.get(name, str(usual))
    if not told.isdecimal() or (name == "page_size" and not 1 <= int(told) <= 1000):
        raise refuse(422, f"{name}: Input should be a valid integer")
    return int(told)


def file(world: World, call: Call) -> Reply:
    return Reply({**_file(world, _found(world, call)), "deleted": False})


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
    endpoint, inputs = told.get("endpoint"), told.get("input_files")
    if endpoint not in ENDPOINTS:
        raise refuse(422, f"endpoint: Input should be {' or '.join(ENDPOINTS)}")
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise refuse(422, "input_files: Input should be a valid list")
    if not isinstance(told.get("model"), str) or not told["model"]:
        raise refuse(422, "model: Either a model or an agent_id is required")
    hours = told.get("timeout_hours", 24)
    if not isinstance(hours, int) or not 1 <= hours <= MAX_HOURS:
        raise refuse(422, f"timeout_hours: Input should be from 1 to {MAX_HOURS}")
    metadata = told.get("metadata")
    if metadata is not None and not all(isinstance(value, str) for value in metadata.values()):
        raise refuse(422, "metadata: Input should be a valid string")
    models = world.settings.models
    if models is not None and told["model"] not in models:
        raise refuse(400, f"Invalid model: {told['model']}")
    _check_usable(world, call, inputs[0])
    older = world.listed_batches(call.flavour, call.account) if call.has("older_batch") else []
    if older:
        return Reply(_told(world, older[0]))
    made = world.made(lambda: _batch(world, call, told, hours * HOUR))
    return Reply(_told(world, made))


def _batch(world: World, call: Call, told: Json, window: float) -> Batch:
    found = world.new_batch(call.flavour, call.account, told["endpoint"], "", call.faults)
    found.id = _id(world)
    found.input_file_id, found.metadata, found.model = told["input_files"][0], told.get("metadata"), told["model"]
    found.window_s = window
    return found


def _check_usable(world: World, call: Call, file_id: str) -> None:
    stored = world.files.get(file_id)
    if stored is None or (stored.flavour, stored.account) != (call.flavour, call.account) or stored.is_deleted:
        raise refuse(404, f"File {file_id} not found")
    if world.now() < stored.usable_at and stored.told_at in ("create", "status"):
        raise refuse(404, f"File {file_id} not found")


def retrieve(world: World, call: Call) -> Reply:
    return Reply(_told(world, _job(world, call)))


def _job(world: World, call: Call) -> Batch:
    try:
        return world.batch(call.flavour, call.account, call.name)
    except Refusal:
        raise refuse(404, f"Batch job {call.name} not found") from None


def batches(world: World, call: Call) -> Reply:
    found = [_told(world, one) for one in world.listed_batches(call.flavour, call.account)]
    if call.query.get("order_by", "-created") == "created":
        found.reverse()
    if call.query.get("model"):
        found = [one for one in found if one["model"] == call.query["model"]]
    return Reply(_page(call, found))


def cancel(world: World, call: Call) -> Reply:
    batch = _job(world, call)
    if batch.is_final:
        raise refuse(400, f"Batch job {batch.id} is {STATUS[batch.status]} and cannot be cancelled")
    if batch.status != "cancelling":
        world.cancel(batch)
    return Reply(_told(world, batch))


def delete(world: World, call: Call) -> Reply:
    batch = _job(world, call)
    batch.is_deleted = True
    return Reply({"id": batch.id, "object": "batch", "deleted": True})


def _told(world: World, batch: Batch) -> Json:
    now, ahead = world.now(), world.settings.clock_offset_s
    total, completed, failed = batch.counts(now)
    is_over = batch.is_final and not batch.runs_again(now)
    started = batch.times.get("in_progress")
    return {
        "id": batch.id,
        "object": "batch",
        "input_files": [batch.input_file_id],
        "metadata": batch.metadata,
        "endpoint": batch.endpoint,
        "model": batch.model,
        "agent_id": None,
        "output_file": file_id_of(world, batch, "output", now) if is_over else None,
        "error_file": file_id_of(world, batch, "error", now) if is_over else None,
        "errors": _errors(batch) if is_over else [],
        "outputs": None,
        "status": STATUS[batch.status] if is_over or not batch.is_final else "RUNNING",
        "created_at": int(batch.created_at + ahead),
        "total_requests": total,
        "completed_requests": completed + failed,
        "succeeded_requests": completed,
        "failed_requests": failed,
        "started_at": None if started is None else int(started + ahead),
        "completed_at": int(batch.ended_at + ahead) if is_over else None,
    }


def _errors(batch: Batch) -> list[Json]:
    """Why it failed, or else the errors of its rows, each once with how often it was."""
    if batch.errors:
        return [{"message": one.message, "count": 1} for one in batch.errors]
    if batch.rows is None:
        return []
    effects = (outcome(batch, rank) for rank in range(batch.kept))
    counted: Counter[str] = Counter(
        effect.message or problem_of(effect.status, effect.code).message
        for effect in effects
        if effect is not None and effect.has_failed
    )
    return [{"message": message, "count": count} for message, count in counted.items()]


def models(world: World, call: Call) -> Reply:
    known = MODELS if world.settings.models is None else world.settings.models
    return Reply({"object": "list", "data": [_model(name) for name in known]})


def model(world: World, call: Call) -> Reply:
    if world.settings.models is not None and call.name not in world.settings.models:
        raise refuse(404, f"Model {call.name} not found")
    return Reply(_model(call.name))


def _model(name: str) -> Json:
    capabilities: dict[str, Any] = {"completion_chat": True, "function_calling": True}
    return {
        "id": name,
        "object": "model",
        "created": 1_780_000_000,
        "owned_by": "mistralai",
        "capabilities": capabilities,
    }


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "upload": upload,
    "files": files,
    "file": file,
    "content": content,
    "delete_file": openai_files.delete_file,
    "create": create,
    "retrieve": retrieve,
    "list": batches,
    "cancel": cancel,
    "delete": delete,
    "models": models,
    "model": model,
    "chat": chat,
}
