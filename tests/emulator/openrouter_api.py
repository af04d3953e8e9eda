"""OpenRouter's batches.

Sources: openrouter 1.3.84 (batch.py, components/batchsubmitbody.py, batchobject.py, batchlistitem.py), its guide and
quickstart, and what users report: keys stand before `requests` (kaibo#123), errors of rows without a status.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec

from tests.emulator.answers import ENDPOINTS
from tests.emulator.batch import Batch
from tests.emulator.bill import sums_of
from tests.emulator.call import Call, Reply, page
from tests.emulator.errors import Json, Refusal, problem_of, refuse
from tests.emulator.openai_batches import model, models
from tests.emulator.openai_files import listing
from tests.emulator.results import openai_lines
from tests.emulator.settings import Settings
from tests.emulator.sync import chat
from tests.emulator.world import StoredFile, World

LIFE = 96 * 3600.0
"""It is said that a batch may take so long at some providers, whatever its window."""
MAX_ROWS = 5_000
MAX_BYTES = 200 * 1024 * 1024
TYPES = {
    "insufficient_quota": "payment_required",
    "context_length_exceeded": "context_length_exceeded",
    "content_filter": "content_policy_violation",
    400: "invalid_request",
    408: "timeout",
    422: "unprocessable",
    502: "provider_unavailable",
    504: "timeout",
    401: "authentication",
    402: "payment_required",
    403: "permission_denied",
    404: "not_found",
    413: "payload_too_large",
    429: "rate_limit_exceeded",
    503: "provider_overloaded",
}
STATUS = {"finalizing": "in_progress", "cancelling": "in_progress"}
"""Of a list, whose source collapses these."""


def create(world: World, call: Call) -> Reply:
    if len(call.body) > MAX_BYTES:
        raise Refusal(413, problem_of(413))
    told = call.json()
    requests, endpoint = told.get("requests"), told.get("endpoint")
    if not isinstance(requests, list) or not requests or len(requests) > MAX_ROWS:
        raise refuse(400, f"requests: must have from 1 to {MAX_ROWS} entries")
    # The SDK writes its `completion_window` behind them.
    behind = list(told)[list(told).index("requests") + 1 :]
    if early := [name for name in ("endpoint", "model", "callback_url") if name in behind]:
        raise refuse(400, f"{early[0]} must appear before requests in the request body")
    if endpoint not in ENDPOINTS or not isinstance(told.get("model"), str):
        raise refuse(400, "endpoint and model are required")
    if told.get("completion_window", "24h") != "24h":
        raise refuse(400, "completion_window: must be 24h")
    ids = [one.get("custom_id") for one in requests if isinstance(one, dict)]
    if len({*map(str, ids)}) < len(requests) or not all(isinstance(one.get("body"), dict) for one in requests):
        raise refuse(400, "requests: each needs its own custom_id, and a body")
    known = world.settings.models
    if known is not None and told["model"] not in known:
        raise refuse(400, f"Model '{told['model']}' does not have a :batch endpoint.")
    older = world.listed_batches(call.flavour, call.account) if call.has("older_batch") else []
    if older:
        return Reply(_told(world, older[0]), status=202)
    made = world.made(lambda: _batch(world, call, told))
    return Reply(_told(world, made), status=202)


def _batch(world: World, call: Call, told: Json) -> Batch:
    """Its rows are kept as OpenAI's lines, out of sight."""
    found = world.new_batch(call.flavour, call.account, told["endpoint"], "batch-", call.faults)
    found.window_s = LIFE
    path, now = world.new_path(), world.now()
    lines = (
        {
            "custom_id": one["custom_id"],
            "method": "POST",
            "url": told["endpoint"],
            "body": {"model": told["model"], **one["body"]},
        }
        for one in told["requests"]
    )
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    stored = StoredFile(
        world.new_id("inline-"), call.flavour, call.account, "", "batch", now, float("inf"), path=path, size=0
    )
    world.files[stored.id] = stored
    found.input_file_id, found.model = stored.id, told["model"]
    found.asked = {"rows": len(told["requests"])}
    return found


def retrieve(world: World, call: Call) -> Reply:
    batch = world.batch(call.flavour, call.account, call.name)
    told = _told(world, batch)
    is_over = batch.is_final and not batch.runs_again(world.now())
    told["results"] = list(_results(batch, world.settings, world.now())) if is_over else None
    # Its rows may hold what is no JSON.
    return Reply(blocks=iter([json.dumps(told).encode()])) if is_over else Reply(told)


def _results(batch: Batch, settings: Settings, now: float) -> Iterator[Json]:
    files = batch.plan.files
    if now < batch.ended_at + max(files.late, batch.plan.late_output_id) or "output" in files.lost:
        return
    lines = [line for kind in ("output", "error") for line in openai_lines(batch, kind, settings)]
    for line in islice(lines, batch.shown(len(lines), now) if files.grows else len(lines)):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the answer is one piece of JSON: what is torn is not in it
        yield row | _ended(row["response"] or {})


def _ended(response: Json) -> Json:
    """A result has either an answer or an error, and an error no status."""
    body: Any = response.get("body")
    said = json.loads(body) if isinstance(body, str) else body
    failed = said.get("error") if isinstance(said, dict) else None
    if not failed:
        for choice in body.get("choices") or () if isinstance(body, dict) else ():
            choice["native_finish_reason"] = choice["finish_reason"]
        return {}
    kind = TYPES.get(failed.get("code") or "") or TYPES.get(int(float(response["status_code"])), "server")
    error = {"message": failed["message"], "param": None, "type": failed.get("type"), "error_type": kind}
    return {"response": None, "error": error}


def batches(world: World, call: Call) -> Reply:
    found = world.listed_batches(call.flavour, call.account)
    shown, has_more = page(found, call.query.get("after"), call.limit(100, 20))
    told = [_told(world, batch) for batch in shown]
    return Reply(listing([{**one, "status": STATUS.get(one["status"], one["status"])} for one in told], has_more))


def delete(world: World, call: Call) -> Reply:
    batch = world.batch(call.flavour, call.account, call.name)
    if not batch.is_final:
        raise refuse(409, "Only a batch in a terminal status can be deleted")
    batch.is_deleted = True
    return Reply({"id": batch.id, "object": "batch", "deletion": {"openrouter": "deleted"}})


def _told(world: World, batch: Batch) -> Json:
    now, ahead = world.now(), world.settings.clock_offset_s
    is_over = batch.is_final and not batch.runs_again(now)
    total, completed, failed = batch.counts(now)
    rows = (batch.asked or {}).get("rows", total)
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "provider": "OpenAI",
        "status": batch.status if is_over or not batch.is_final else "in_progress",
        "completion_window": "24h",
        "created_at": int(batch.created_at + ahead),
        "expires_at": int(batch.created_at + batch.window_s + ahead),
        "finalized_at": int(batch.ended_at + ahead) if is_over else None,
        "request_counts": {"total": rows, "completed": completed, "failed": failed},
        "error": {"message": batch.errors[0].message} if batch.errors and is_over else None,
        "results": None,
        "usage": _usage(batch, now) if is_over else None,
    }


def _usage(batch: Batch, now: float) -> Json | None:
    if batch.rows is None:
        return None
    tokens = sums_of(batch, now)[1]
    total = tokens.input + tokens.output
    return {"prompt_tokens": tokens.input, "completion_tokens": tokens.output, "total_tokens": total}


VERBS: dict[str, Callable[[World, Call], Reply]] = {
    "create": create,
    "list": batches,
    "retrieve": retrieve,
    "delete": delete,
    "models": models,
    "model": model,
    "chat": chat,
}
