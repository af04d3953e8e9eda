"""xAI's files and batches.

Sources: xai-sdk 1.21.0 (batch.py, batch_pb2), recorded answers of August 2026, xAI's guide and reference of files,
litellm (llms/xai), vercel/ai#19525, CultivateLabs/raif#525.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import inf
from typing import TypeVar

from tests.emulator import openai_files
from tests.emulator.answers import CHAT
from tests.emulator.batch import Batch
from tests.emulator.call import Call, Reply
from tests.emulator.errors import Json, Refusal, problem_of, refuse
from tests.emulator.openai_files import expires_after
from tests.emulator.sync import chat
from tests.emulator.world import StoredFile, World
from tests.emulator.xai_lines import results as results_of

DAY = 86_400.0
LIFE = 30 * DAY
MAX_BYTES = 50 * 1024 * 1024
MODELS = ("grok-4.3", "grok-4.5", "grok-4.20-0309-reasoning")
Entry = TypeVar("Entry")


def upload(world: World, call: Call) -> Reply:
    """The purpose is not looked at."""
    if call.path is None or call.filename is None:
        raise refuse(400, "Missing file part in the request")
    size = call.path.stat().st_size
    if size > MAX_BYTES:
        raise Refusal(413, problem_of(413))
    older = [*world.live_files(call.flavour, call.account)] if call.has("older_file") else []
    if older:
        return Reply(_file(world, older[-1]))
    now = world.now()
    lifetime = expires_after(openai_files.nested(call.fields, "expires_after"), call.flavour)
    end = inf if lifetime is None else now + lifetime
    stored = StoredFile(
        world.new_id("file_"), call.flavour, call.account, call.filename, "batch", now, end, path=call.path, size=size
    )
    late = next((fault.options for fault in call.faults if fault.do == "late_upload"), None)
    if late is not None:
        stored.usable_at, stored.told_at = now + late["seconds"], late["told"]
    world.add_file(stored)
    return Reply(_file(world, stored))


def _file(world: World, file: StoredFile) -> Json:
    told = openai_files.told(world, file)
    names = ("id", "object", "bytes", "created_at", "expires_at", "filename")
    return {name: told[name] for name in names} | {"purpose": ""}


def files(world: World, call: Call) -> Reply:
    shown, token = _page(call, [*world.live_files(call.flavour, call.account)][::-1])
    return Reply({"data": [_file(world, one) for one in shown], "pagination_token": token})


def _page(call: Call, found: Sequence[Entry]) -> tuple[Sequence[Entry], str | None]:
    """The page behind the token, which says how many came before, and the token of the next one."""
    start, limit = int(call.query.get("pagination_token") or 0), call.limit(1000, 100)
    return found[start : start + limit], str(start + limit) if len(found) > start + limit else None


def file(world: World, call: Call) -> Reply:
    return Reply(_file(world, world.file(call.flavour, call.account, call.name)))


def create(world: World, call: Call) -> Reply:
    told = call.json()
    if not isinstance(told.get("name"), str):
        raise refuse(422, "Failed to deserialize the JSON body into the target type: missing field `name`")
    older = world.listed_batches(call.flavour, call.account) if call.has("older_batch") else []
    if older:
        return Reply(_told(world, older[0]))
    stored = world.files.get(str(told.get("input_file_id")))
    is_ours = stored is not None and (stored.flavour, stored.account) == (call.flavour, call.account)
    is_usable = stored is not None and (world.now() >= stored.usable_at or stored.told_at == "validation")
    if not is_ours or not is_usable or (stored is not None and stored.is_deleted):
        raise refuse(404, f"File {told.get('input_file_id')} not found")
    made = world.made(lambda: _batch(world, call, told))
    return Reply(_told(world, made))


def _batch(world: World, call: Call, told: Json) -> Batch:
    found = world.new_batch(call.flavour, call.account, CHAT, "batch_", call.faults)
    found.display_name, found.input_file_id, found.window_s = told["name"], told["input_file_id"], LIFE
    return found


def retrieve(world: World, call: Call) -> Reply:
    return Reply(_told(world, world.batch(call.flavour, call.account, call.name)))


def batches(world: World, call: Call) -> Reply:
    shown, token = _page(call, world.listed_batches(call.flavour, call.account))
    return Reply({"batches": [_told(world, one) for one in shown], "pagination_token": token})


def results(world: World, call: Call) -> Reply:
    batch = world.batch(call.flavour, call.account, call.name)
    shown, token = _page(call, results_of(batch, world.settings, world.now()))
    # Its rows may hold what is no JSON.
    return Reply(blocks=iter([json.dumps({"results": shown, "pagination_token": token}).encode()]))


def cancel(world: World, call: Call) -> Reply:
    batch = world.batch(call.flavour, call.account, call.name)
    if batch.is_final:
        raise refuse(400, f"Batch {batch.id} is over")
    if batch.status != "cancelling":
        world.cancel(batch)
    return Reply(_told(world, batch))


def _told(world: World, batch: Batch) -> Json:
    """It has no word for its status, and its times are dates."""
    now, ahead = world.now(), world.settings.clock_offset_s
    is_over = batch.is_final and not batch.runs_again(now)
    has_failed = batch.status == "failed" and is_over
    cancelled = batch.times.get("cancelling") if is_over or batch.status == "cancelling" else None
    return {
        "batch_id": batch.id,
        "name": batch.display_name,
        "create_time": _date(batch.created_at + ahead),
        "expire_time": _date(batch.created_at + LIFE + ahead),
        "create_api_key_id": "EXAMPLE",
        "cancel_time": _date(batch.ended_at + ahead if has_failed else cancelled),
        "cancel_by_xai_message": f"JSONL file validation failed: {batch.errors[0].message}" if has_failed else None,
        "state": _state(batch, now, is_over=is_over),
        "input_file_id": batch.input_file_id,
    }


def _date(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).date().isoformat()


def _state(batch: Batch, now: float, *, is_over: bool) -> Json:
    total, completed, failed = batch.counts(now)
    is_settled = is_over and batch.status != "expired" and now >= batch.ended_at + batch.plan.lagging_counts
    left = total - completed - failed
    return {
        "num_requests": total,
        "num_pending": 0 if is_settled else left,
        "num_success": completed,
        "num_error": failed,
        "num_cancelled": left if is_settled and batch.status == "cancelled" else 0,
    }


def models(world: World, call: Call) -> Reply:
    known = MODELS if world.settings.models is None else world.settings.models
    return Reply({"object": "list", "data": [_model(name) for name in known]})


def model(world: World, call: Call) -> Reply:
    if world.settings.models is not None and call.name not in world.settings.models:
        raise refuse(404, f"The model {call.name} does not exist or your team does not have access to it.")
    return Reply(_model(call.name))


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 1_780_000_000, "owned_by": "xai"}


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "upload": upload,
    "files": files,
    "file": file,
    "content": openai_files.content,
    "delete_file": openai_files.delete_file,
    "create": create,
    "retrieve": retrieve,
    "list": batches,
    "cancel": cancel,
    "results": results,
    "models": models,
    "model": model,
    "chat": chat,
}
