"""Cohere's datasets and batches.

Sources: cohere 7.3.1 (batches, datasets), Cohere's OpenAPI, its notebook on batches (recorded ids, names and lists:
ids of datasets are names with six characters, several batches have one name and one dataset, the list begins with the
oldest), crmne/ruby_llm and qoretechnologies/qore (what both saw of the live API).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

from tests.emulator.answers import CHAT
from tests.emulator.batch import Batch
from tests.emulator.bill import sums_of
from tests.emulator.call import Call, Reply
from tests.emulator.cohere_lines import avro_file, problem_of_file
from tests.emulator.errors import Json, Refusal, problem_of, refuse
from tests.emulator.openai_batches import file_id_of
from tests.emulator.results import BLOCK_BYTES
from tests.emulator.world import StoredFile, World

DAY = 86_400.0
MAX_BYTES = 1_500 * 10**6
INPUT, OUTPUT = "batch-chat-v2-input", "batch-chat-v2-output"
HALF_A_BLOCK = b"\x02\xc8\x01half"
"""A block of one record and 100 bytes, which end before they have come: the record is not among the others."""
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
MODELS = ("command-a-03-2025", "command-r7b-12-2024")
STATUS = {
    "validating": "QUEUED",
    "in_progress": "IN_PROGRESS",
    "finalizing": "IN_PROGRESS",
    "cancelling": "CANCELING",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELED",
}


def upload(world: World, call: Call) -> Reply:
    """A dataset that is no dataset of its type is made all the same: its validation fails."""
    name, kind = call.query.get("name", ""), call.query.get("type")
    if call.path is None or not (call.filename or "").endswith((".jsonl", ".csv")):
        raise refuse(400, "invalid request: data must be a jsonl or csv file")
    if not NAME.fullmatch(name) or kind != INPUT:
        raise refuse(400, "invalid request: name and type are required")
    size = call.path.stat().st_size
    if size > MAX_BYTES:
        raise Refusal(413, problem_of(413))
    now = world.now()
    whose = (call.flavour, call.account, name, "batch")
    stored = StoredFile(_dataset_id(world, name), *whose, now, now + 30 * DAY, call.path, size=size)
    late = next((fault.options for fault in call.faults if fault.do == "late_upload"), None)
    if late is not None:
        stored.usable_at, stored.told_at = now + late["seconds"], late["told"]
    world.add_file(stored)
    return Reply({"id": stored.id})


def _dataset_id(world: World, name: str) -> str:
    return f"{name}-{world.new_id('')[:6]}"


def _found(world: World, call: Call) -> StoredFile:
    try:
        return world.file(call.flavour, call.account, call.name)
    except Refusal:
        raise refuse(404, f"dataset with id {call.name} not found") from None


def file(world: World, call: Call) -> Reply:
    return Reply({"dataset": _dataset(world, call, _found(world, call))})


def files(world: World, call: Call) -> Reply:
    found = list(world.live_files(call.flavour, call.account))[::-1]
    kind, start = call.query.get("datasetType"), int(call.query.get("offset") or 0)
    shown = [one for one in found if kind in (None, _type(one))][start : start + int(call.query.get("limit") or 50)]
    return Reply({"datasets": [_dataset(world, call, one) for one in shown]})


def _type(stored: StoredFile) -> str:
    return INPUT if stored.batch is None else OUTPUT


def _dataset(world: World, call: Call, stored: StoredFile) -> Json:
    status, problem = _validation(world, stored)
    ahead = world.settings.clock_offset_s
    signed = f"{call.root.removesuffix('/v1')}/signed/{stored.id}"
    part: Json = {"id": f"{stored.id}-0", "name": "part-000", "url": signed, "index": 0, "num_rows": 0}
    return {
        "id": stored.id,
        "name": stored.id.rpartition("-")[0],
        "created_at": _time(stored.created_at + ahead),
        "updated_at": _time(stored.created_at + ahead),
        "dataset_type": _type(stored),
        "validation_status": status,
        "validation_error": problem,
        "dataset_parts": [part] if status == "validated" else [],
    }


def _validation(world: World, stored: StoredFile) -> tuple[str, str | None]:
    now = world.now()
    if stored.batch is not None:
        late = now < stored.batch.ended_at + stored.batch.plan.files.late
        return ("processing" if late else "validated"), None
    if now < stored.usable_at:
        return "processing", None
    problem = None if stored.path is None else problem_of_file(stored.path)
    return ("validated", None) if problem is None else ("failed", problem)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def delete_file(world: World, call: Call) -> Reply:
    world.delete_file(_found(world, call))
    return Reply({})


def content(world: World, call: Call) -> Reply:
    """A signed address, which needs no key."""
    stored = world.files.get(call.name)
    if stored is None or stored.is_deleted or stored.batch is None:
        raise refuse(404, "NoSuchKey")
    batch = stored.batch
    if "output" in batch.plan.files.lost:
        raise refuse(404, "NoSuchKey")
    whole = avro_file(batch, world.settings, world.now())
    if batch.plan.has_cut_tail:
        whole += HALF_A_BLOCK
    pieces = (whole[start : start + BLOCK_BYTES] for start in range(0, len(whole), BLOCK_BYTES))
    return Reply(blocks=pieces, kind="application/octet-stream")


def create(world: World, call: Call) -> Reply:
    told = call.json()
    for name in ("name", "input_dataset_id", "model"):
        if not isinstance(told.get(name), str) or not told[name]:
            raise refuse(400, f"invalid request: {name} is required")
    if not NAME.fullmatch(told["name"]):
        raise refuse(400, "invalid request: name must be lower case letters, digits and hyphens")
    if world.settings.models is not None and told["model"] not in world.settings.models:
        raise refuse(404, f"model '{told['model']}' not found, make sure the correct model ID was used")
    stored = world.files.get(told["input_dataset_id"])
    is_ours = stored is not None and (stored.flavour, stored.account) == (call.flavour, call.account)
    if stored is None or not is_ours or stored.is_deleted or world.now() >= stored.expires_at:
        raise refuse(404, f"dataset with id {told['input_dataset_id']} not found")
    if _validation(world, stored)[0] != "validated":
        raise refuse(400, f"invalid request: dataset {stored.id} is not validated")
    older = world.listed_batches(call.flavour, call.account) if call.has("older_batch") else []
    made = older[0] if older else world.made(lambda: _batch(world, call, told))
    return Reply({"batch": _told(world, made)})


def _batch(world: World, call: Call, told: Json) -> Batch:
    found = world.new_batch(call.flavour, call.account, CHAT, "", call.faults)
    found.display_name, found.input_file_id, found.model = told["name"], told["input_dataset_id"], told["model"]
    found.output_key = _dataset_id(world, f"{told['name']}-output")
    found.window_s = float("inf")
    return found


def retrieve(world: World, call: Call) -> Reply:
    return Reply({"batch": _told(world, _known(world, call))})


def _known(world: World, call: Call) -> Batch:
    try:
        return world.batch(call.flavour, call.account, call.name)
    except Refusal:
        raise refuse(404, f"batch with id {call.name} not found") from None


def batches(world: World, call: Call) -> Reply:
    """The oldest first; what is empty is left out."""
    found = world.listed_batches(call.flavour, call.account)[::-1]
    start, size = int(call.query.get("page_token") or 0), min(int(call.query.get("page_size") or 50), 1000)
    shown = found[start : start + size]
    more = {"next_page_token": str(start + size)} if len(found) > start + size else {}
    return Reply({"batches": [_told(world, one) for one in shown], **more} if shown else {})


def cancel(world: World, call: Call) -> Reply:
    batch = _known(world, call)
    if batch.is_final:
        raise refuse(400, f"batch {batch.id} cannot be canceled in its current status")
    if batch.status != "cancelling":
        world.cancel(batch)
    return Reply({})


def _told(world: World, batch: Batch) -> Json:
    now, ahead = world.now(), world.settings.clock_offset_s
    total, completed, failed = batch.counts(now)
    is_over = batch.is_final and not batch.runs_again(now)
    tokens = sums_of(batch, now)[1]
    # There is one file: of two that are swapped, it is named in place of the other.
    output = file_id_of(world, batch, "output", now) or file_id_of(world, batch, "error", now)
    return {
        "id": batch.id,
        "name": batch.display_name,
        "creator_id": "creator",
        "org_id": batch.account,
        "status": f"BATCH_STATUS_{STATUS[batch.status] if is_over or not batch.is_final else 'IN_PROGRESS'}",
        "created_at": _time(batch.created_at + ahead),
        "updated_at": _time((batch.ended_at if is_over else now) + ahead),
        "input_dataset_id": batch.input_file_id,
        "output_dataset_id": (output if is_over else None) or "",
        "input_tokens": str(tokens.input),
        "output_tokens": str(tokens.output),
        "model": batch.model,
        "num_records": total,
        "num_successful_records": completed,
        "num_failed_records": failed,
        "status_reason": batch.errors[0].message if batch.errors and is_over else "",
    }


def models(world: World, call: Call) -> Reply:
    known = MODELS if world.settings.models is None else world.settings.models
    return Reply({"models": [{"name": name, "endpoints": ["chat"], "context_length": 128_000} for name in known]})


def cohere_error(message: str, request_id: str) -> Json:
    return {"id": request_id, "message": message}


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "upload": upload,
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
