"""OpenAI's batches, in its own spelling and in Azure's; and its models."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.emulator import openai_files
from tests.emulator.answers import ENDPOINTS
from tests.emulator.batch import WINDOW, Batch
from tests.emulator.bill import sums_of
from tests.emulator.call import Call, Reply, page
from tests.emulator.errors import Json, refuse
from tests.emulator.openai_files import expires_after, invalid, listing, missing
from tests.emulator.sync import chat
from tests.emulator.validation import v1
from tests.emulator.world import World

STAGES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
MODELS = ("gpt-5.4-mini", "gpt-5-nano", "gpt-4o-mini", "text-embedding-3-small")


def create(world: World, call: Call) -> Reply:
    told = call.json()
    for name in ("input_file_id", "endpoint", "completion_window"):
        if told.get(name) is None:
            raise missing(name)
    endpoint = v1(told["endpoint"]) if call.flavour == "azure" else told["endpoint"]
    if call.flavour == "zhipu":
        # docs.bigmodel.cn: addresses begin with /v4.
        endpoint = endpoint.replace("/v4/", "/v1/") if endpoint.startswith("/v4/") else ""
    if endpoint not in ENDPOINTS:
        raise invalid(told["endpoint"], "endpoint", ENDPOINTS)
    if told["completion_window"] != "24h":
        raise invalid(told["completion_window"], "completion_window", ("24h",))
    metadata = told.get("metadata")
    _check_metadata(metadata)
    lifetime = expires_after(told.get("output_expires_after"), call.flavour, "output_expires_after")
    _check_usable(world, told["input_file_id"])
    older = world.listed_batches(call.flavour, call.account) if call.has("older_batch") else []
    if older:
        return Reply(told_of(world, older[0]))
    batch = world.new_batch(call.flavour, call.account, endpoint, "batch_", call.faults)
    made = [batch]
    if batch.plan.has_twin:
        made.append(world.new_batch(call.flavour, call.account, endpoint, "batch_", call.faults))
    for one in made:
        one.number = len(world.batches)
        one.input_file_id, one.metadata = told["input_file_id"], metadata
        one.deletes_input = call.flavour == "zhipu" and told.get("auto_delete_input_file", True)
        one.output_expires_s = lifetime or one.output_expires_s
        world.add_batch(one)
    return Reply(told_of(world, batch))


def _check_usable(world: World, file_id: str) -> None:
    """Raises Refusal for an upload that takes a while until it can be used, where that is told here."""
    file = world.files.get(file_id)
    if file is None or world.now() >= file.usable_at:
        return
    if file.told_at == "create":
        raise refuse(404, f"No such File object: {file_id}", param="input_file_id", code="file_not_found")
    if file.told_at == "status":
        message = f"The file {file_id} cannot be used yet: its status is 'pending'."
        raise refuse(400, message, param="input_file_id", code="file_not_ready")


_TYPES = {list: "an array", dict: "an object", int: "an integer", float: "a decimal", bool: "a boolean"}


def _check_metadata(metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        raise refuse(400, "Invalid type for 'metadata': expected an object.", param="metadata", code="invalid_type")
    if len(metadata) > 16:
        raise refuse(400, "Invalid 'metadata': too many properties, at most 16.", param="metadata")
    for key, value in metadata.items():
        param = f"metadata.{key}"
        if not isinstance(value, str):
            kind = _TYPES.get(type(value), "null")
            message = f"Invalid type for '{param}': expected a string, but got {kind} instead."
            raise refuse(400, message, param=param, code="invalid_type")
        if len(key) > 64 or len(value) > 512:
            raise refuse(400, f"Invalid '{param}': string too long.", param=param, code="string_above_max_length")


def retrieve(world: World, call: Call) -> Reply:
    return Reply(told_of(world, world.batch(call.flavour, call.account, call.name)))


def batches(world: World, call: Call) -> Reply:
    found = world.listed_batches(call.flavour, call.account)
    shown, has_more = page(found, call.query.get("after"), call.limit(100, 20))
    return Reply(listing([told_of(world, batch) for batch in shown], has_more))


def cancel(world: World, call: Call) -> Reply:
    batch = world.batch(call.flavour, call.account, call.name)
    if batch.status in ("completed", "failed", "expired"):
        raise refuse(409, f"Cannot cancel a batch with status '{batch.status}'.")
    if batch.status not in ("cancelling", "cancelled"):
        world.cancel(batch)
    return Reply(told_of(world, batch))


def told_of(world: World, batch: Batch) -> Json:
    now = world.now()
    is_azure, ahead = batch.flavour == "azure", world.settings.clock_offset_s
    status = "in_progress" if batch.runs_again(now) else batch.status
    errors = {"object": "list", "data": [error.json() for error in batch.errors]} if batch.errors else None
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": None if batch.model is None else f"{batch.model}{world.settings.snapshot}",
        "errors": errors,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": status.capitalize() if is_azure else status,
        "output_file_id": file_id_of(world, batch, "output", now),
        "error_file_id": file_id_of(world, batch, "error", now),
        "created_at": _time(batch, batch.created_at, ahead),
        "expires_at": _time(batch, batch.created_at + WINDOW, ahead),
        **{f"{stage}_at": _time(batch, batch.times.get(stage), ahead) for stage in STAGES},
        "request_counts": _azure_counts(batch, now) if is_azure else _counts(batch, now),
        "usage": _usage(batch, now),
        "metadata": batch.metadata,
    }


def file_id_of(world: World, batch: Batch, kind: str, now: float) -> str | None:
    is_named = batch.is_final and now >= batch.ended_at + batch.plan.late_output_id and not batch.runs_again(now)
    if batch.plan.files.is_swapped:
        kind = "error" if kind == "output" else "output"
    return world.result_id(batch, kind) if is_named and batch.has_file(kind) else None


def _time(batch: Batch, at: float | None, ahead: float) -> int | str | None:
    if at is None:
        return None
    at += ahead
    return datetime.fromtimestamp(at, UTC).isoformat() if batch.flavour == "azure" else int(at)


def _counts(batch: Batch, now: float) -> Json:
    total, completed, failed = batch.counts(now)
    return {"total": total, "completed": completed, "failed": failed}


def _azure_counts(batch: Batch, now: float) -> Json | None:
    """Nothing while it validates, and no numbers while it runs."""
    if batch.is_final:
        return _counts(batch, now)
    return None if batch.rows is None else {"total": None, "completed": None, "failed": None}


def _usage(batch: Batch, now: float) -> Json | None:
    if not batch.is_final or batch.rows is None:
        return None
    tokens = sums_of(batch, now)[1]
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {"cached_tokens": tokens.cached},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.input + tokens.output,
    }


def models(world: World, call: Call) -> Reply:
    known = MODELS if world.settings.models is None else world.settings.models
    return Reply({"object": "list", "data": [_model(name) for name in known]})


def model(world: World, call: Call) -> Reply:
    """Where no models are set any name is one."""
    if world.settings.models is not None and call.name not in world.settings.models:
        raise refuse(404, f"The model '{call.name}' does not exist", param="model", code="model_not_found")
    return Reply(_model(call.name))


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "system"}


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "upload": openai_files.upload,
    "files": openai_files.files,
    "file": openai_files.file,
    "content": openai_files.content,
    "delete_file": openai_files.delete_file,
    "create": create,
    "retrieve": retrieve,
    "list": batches,
    "cancel": cancel,
    "models": models,
    "model": model,
    "chat": chat,
}
