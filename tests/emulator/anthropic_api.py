"""Anthropic's Message Batches: requests inline, no files, one list of results."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tests.emulator.answers import MESSAGES, decode_body, read
from tests.emulator.anthropic_params import problem_of_params
from tests.emulator.batch import WINDOW, Batch
from tests.emulator.call import Call, Reply, page
from tests.emulator.errors import Json, refuse
from tests.emulator.refusals import refusal_of
from tests.emulator.results import anthropic_lines, blocks
from tests.emulator.rowfaults import MARK, Effect, marked
from tests.emulator.sync import chat
from tests.emulator.validation import Checked
from tests.emulator.world import World, refused_effect

MAX_REQUESTS = 100_000
MAX_BYTES = 256 * 1024 * 1024
RESULTS_DAYS = 29
MODELS = ("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5")
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Requests(msgspec.Struct, frozen=True):
    requests: list[msgspec.Raw]


class Request(msgspec.Struct, frozen=True):
    custom_id: Any = None
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


decode_requests = msgspec.json.Decoder(Requests).decode
decode_request = msgspec.json.Decoder(Request).decode


def create(world: World, call: Call) -> Reply:
    assert call.path is not None
    if call.path.stat().st_size > MAX_BYTES:
        raise refuse(413, "Request exceeds the maximum allowed number of bytes.")
    batch = world.new_batch(call.flavour, call.account, MESSAGES, "msgbatch_", call.faults)
    target = world.new_path()
    try:
        checked, refused = _take(world, call.account, call.path, target)
    except (msgspec.DecodeError, ValueError):
        raise refuse(400, "The request body is not valid JSON.") from None
    batch.model = checked.model
    batch.start(world.rows(batch, target, checked, refused), batch.created_at)
    world.add_batch(batch)
    if batch.plan.has_twin:
        twin = world.new_batch(call.flavour, call.account, MESSAGES, "msgbatch_", call.faults)
        twin.model = checked.model
        twin.start(world.rows(twin, target, checked, refused), twin.created_at)
        world.add_batch(twin)
    return Reply(_told(world, call, batch))


def _take(world: World, account: str, body: Path, target: Path) -> tuple[Checked, dict[int, Effect]]:
    """Write each request to `target`; what is wrong with its params is its effect. Raises Refusal."""
    with (
        body.open("rb") as source,
        mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as view,
        memoryview(view) as told,
    ):
        requests = [bytes(raw) for raw in decode_requests(told).requests]
    if not 1 <= len(requests) <= MAX_REQUESTS:
        raise refuse(400, f"requests: List should have from 1 to {MAX_REQUESTS} items")
    checked, refused, ids, models = Checked(), {}, set[str](), set[Any]()
    start = 0
    with target.open("wb") as file:
        for index, raw in enumerate(requests):
            request = decode_request(raw)
            _check_id(request.custom_id, index, ids)
            if request.params is msgspec.UNSET:
                raise refuse(400, f"requests.{index}.params: Field required")
            body_of = decode_body(request.params)
            asked = read(body_of, MESSAGES)
            models.add(body_of.model)
            params = msgspec.json.decode(request.params)
            problem = _problem(world, params)
            if problem is None and b'"cache_control"' in raw:
                at = world.now() + world.settings.cache_after_s
                problem = world.cache.effect(account, params, at, writes=False)
            if problem is not None:
                refused[index] = problem
            elif MARK in raw:
                checked.marks[index], checked.digests[index] = marked(raw), asked.digest
            checked.draft.add(start, len(raw), asked.prompt, asked.completion, asked.most)
            start += file.write(raw)
    checked.model = models.pop() if len(models) == 1 else None
    return checked, refused


def _check_id(custom_id: Any, index: int, ids: set[str]) -> None:
    where = f"requests.{index}.custom_id"
    if not isinstance(custom_id, str) or not CUSTOM_ID.fullmatch(custom_id):
        raise refuse(400, f"{where}: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
    if custom_id in ids:
        raise refuse(400, f"{where}: custom_id must be unique, '{custom_id}' is there twice")
    ids.add(custom_id)


def _problem(world: World, params: Any) -> Effect | None:
    """Looked at when the row runs: it ends as errored."""
    found = problem_of_params(params, world.settings)
    if found is None and world.settings.truthful:
        found = refusal_of("anthropic", MESSAGES, params)
        if found is not None:
            world.note("anthropic", params["model"], MESSAGES, found.message)
    return None if found is None else refused_effect(found)


def retrieve(world: World, call: Call) -> Reply:
    batch = world.batch(call.flavour, call.account, call.name)
    return Reply(_told(world, call, batch), headers={} if batch.is_final else {"retry-after": "10"})


def batches(world: World, call: Call) -> Reply:
    found = world.listed_batches(call.flavour, call.account)
    limit = call.limit(1000, 20)
    if "before_id" in call.query:
        newer, has_more = page(found[::-1], call.query["before_id"], limit)
        shown = newer[::-1]
    else:
        shown, has_more = page(found, call.query.get("after_id"), limit)
    return Reply(_listing([_told(world, call, batch) for batch in shown], has_more))


def _listing(data: list[Json], has_more: bool) -> Json:
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": has_more, "first_id": first, "last_id": last}


def cancel(world: World, call: Call) -> Reply:
    batch = world.batch(call.flavour, call.account, call.name)
    if batch.is_final:
        raise refuse(400, f"Batch {batch.id} has ended and cannot be canceled.")
    if batch.status != "cancelling":
        world.cancel(batch)
    return Reply(_told(world, call, batch))


def results(world: World, call: Call) -> Reply:
    batch = world.batch(call.flavour, call.account, call.name)
    now = world.now()
    if not batch.is_final or _is_archived(world, batch) or now < batch.ended_at + batch.plan.files.late:
        raise refuse(404, f"No results for batch {batch.id}.")
    lines = anthropic_lines(batch, world.settings)
    if batch.plan.files.grows:
        whole = list(lines)
        lines = iter(whole[: batch.shown(len(whole), now)])
    return Reply(blocks=blocks(lines), kind="application/x-jsonl")


def delete(world: World, call: Call) -> Reply:
    batch = world.batch(call.flavour, call.account, call.name)
    if not batch.is_final:
        raise refuse(400, f"Batch {batch.id} is still being processed and cannot be deleted.")
    batch.is_deleted = True
    return Reply({"id": batch.id, "type": "message_batch_deleted"})


_STATUS = {"in_progress": "in_progress", "finalizing": "in_progress", "cancelling": "canceling"}


def _is_archived(world: World, batch: Batch) -> bool:
    return world.now() >= _archived_at(batch)


def _archived_at(batch: Batch) -> float:
    return batch.created_at + RESULTS_DAYS * WINDOW


def _told(world: World, call: Call, batch: Batch) -> Json:
    now, ahead = world.now(), world.settings.clock_offset_s
    is_over, is_archived = batch.is_final and not batch.runs_again(now), _is_archived(world, batch)
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": _STATUS.get(batch.status, "ended") if is_over or not batch.is_final else "in_progress",
        "request_counts": _counts(batch, is_over=is_over),
        "created_at": _time(batch.created_at, ahead),
        "expires_at": _time(batch.created_at + WINDOW, ahead),
        "ended_at": _time(batch.ended_at, ahead) if is_over else None,
        "cancel_initiated_at": _time(batch.times.get("cancelling"), ahead),
        "archived_at": _time(_archived_at(batch), ahead) if is_archived else None,
        "results_url": f"{call.root}/messages/batches/{batch.id}/results" if is_over and not is_archived else None,
    }


def _counts(batch: Batch, *, is_over: bool) -> Json:
    """All but `processing` stay 0 until the whole batch has ended."""
    found = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if not is_over:
        return found | {"processing": batch.count}
    assert batch.rows is not None
    found |= {name: batch.rows.tally(batch.kept, count) for name, count in _KINDS.items()}
    if batch.status in _UNRUN:
        found[_UNRUN[batch.status]] += batch.count - batch.ran
    return found


_UNRUN = {"expired": "expired", "cancelled": "canceled"}
_KINDS: dict[str, Callable[[Effect], int]] = {
    "succeeded": lambda effect: int(not effect.has_failed),
    "errored": lambda effect: int(effect.has_failed and effect.unrun is None),
    "expired": lambda effect: int(effect.unrun == "batch_expired"),
    "canceled": lambda effect: int(effect.unrun == "batch_cancelled"),
}


def _time(at: float | None, ahead: float) -> str | None:
    return None if at is None else datetime.fromtimestamp(at + ahead, UTC).isoformat(timespec="microseconds")


def models(world: World, call: Call) -> Reply:
    known = MODELS if world.settings.models is None else world.settings.models
    return Reply(_listing([_model(name) for name in known], False))


def model(world: World, call: Call) -> Reply:
    if world.settings.models is not None and call.name not in world.settings.models:
        raise refuse(404, f"model: {call.name}")
    return Reply(_model(call.name))


def _model(name: str) -> Json:
    return {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}


def first_model(path: Path) -> str | None:
    """The model of the first request of a body, as far as its first bytes tell."""
    with path.open("rb") as file:
        found = re.search(rb'"model"\s*:\s*"([^"\\]*)"', file.read(64 * 1024))
    return None if found is None else found[1].decode(errors="replace")


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "create": create,
    "retrieve": retrieve,
    "list": batches,
    "cancel": cancel,
    "results": results,
    "delete": delete,
    "models": models,
    "model": model,
    "chat": chat,
}
