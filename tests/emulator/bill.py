"""What the provider bills: rows that ran and succeeded, whatever became of their lines, and answered calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any

from tests.emulator import bedrock_lines, vertex_lines
from tests.emulator.answers import MESSAGES, decode_body, read, with_model
from tests.emulator.batch import Batch
from tests.emulator.gemini_lines import asked_of, decode_row
from tests.emulator.results import decode_request
from tests.emulator.rowfaults import Tokens
from tests.emulator.rows import plus
from tests.emulator.validation import decode_line
from tests.emulator.world import World

Json = dict[str, Any]
TIER = "batch"


def bill(world: World, *, with_rows: bool) -> Json:
    """`lines` by flavour, model and tier, `batches` by id.

    With rows: `rows` says how often each custom_id of a batch was billed, `asked` how often each digest of model and
    text was, in batches and in calls.
    """
    now = world.now()
    lines: dict[tuple[str, str, str], tuple[int, Tokens]] = {
        key: (paid.rows, paid.tokens) for key, paid in world.paid.items()
    }
    batches = {}
    for batch in world.batches.values():
        for model, rows, tokens in _sums(batch, now):
            key = (batch.flavour, model, TIER)
            known, sums = lines.get(key, (0, Tokens()))
            lines[key] = known + rows, plus(sums, tokens)
        batches[batch.id] = _of_batch(batch, now)
    told: Json = {
        "lines": [
            {"flavour": flavour, "model": model, "tier": tier, "rows": rows, **asdict(tokens)}
            for (flavour, model, tier), (rows, tokens) in sorted(lines.items())
            if rows
        ],
        "batches": batches,
    }
    return told | _rows(world, now) if with_rows else told


def _of_batch(batch: Batch, now: float) -> Json:
    rows, tokens = sums_of(batch, now)
    return {"flavour": batch.flavour, "status": batch.status, "rows": rows, **asdict(tokens)}


def sums_of(batch: Batch, now: float) -> tuple[int, Tokens]:
    """How many of its rows are billed by now, and their tokens; once it has ended this is known."""
    if batch.rows is None:
        return 0, Tokens()
    if batch.tallied is None:
        sums = batch.rows.sums(batch.billable(now))
        if not batch.is_final:
            return sums
        batch.tallied = sums
    return batch.tallied


def _sums(batch: Batch, now: float) -> list[tuple[str, int, Tokens]]:
    """By model: a batch of Anthropic may have several."""
    if batch.model is not None:
        return [(batch.model, *sums_of(batch, now))]
    found: dict[str, tuple[int, Tokens]] = {}
    for _, _, model, tokens in _billed(batch, now):
        rows, sums = found.get(model, (0, Tokens()))
        found[model] = rows + 1, plus(sums, tokens)
    return [(model, *sums) for model, sums in found.items()]


def _billed(batch: Batch, now: float) -> list[tuple[str, str, str, Tokens]]:
    """custom_id, digest, model and tokens of each billed row."""
    rows = batch.rows
    if rows is None:
        return []
    ranks = set(rows.billed(batch.billable(now)))
    found = []
    for _, rank, raw in rows.lines(rows.by_rank()):
        if rank in ranks:
            custom_id, digest, model = _asked(batch, raw)
            found.append((custom_id, digest, model, rows.tokens(rank)))
    return found


def _asked(batch: Batch, raw: bytes) -> tuple[str, str, str]:
    if batch.flavour == "anthropic":
        request = decode_request(raw)
        asked, custom_id = read(decode_body(request.params), MESSAGES), request.custom_id
    elif batch.flavour == "gemini":
        row = decode_row(raw)
        asked, custom_id = asked_of(row.request, batch.model or ""), row.key
    elif batch.flavour == "bedrock":
        record = bedrock_lines.decode_row(raw)
        asked = bedrock_lines.asked_of(record.request, batch.model or "")
        custom_id = bedrock_lines.custom_id_of(record.record_id)
    elif batch.flavour == "vertex":
        request = vertex_lines.decode_row(raw).request
        asked, custom_id = asked_of(request, batch.model or ""), vertex_lines.spoken(request)
    else:
        line = decode_line(raw)
        asked, custom_id = read(with_model(decode_body(line.body), batch.model), batch.endpoint), line.custom_id  # type: ignore[arg-type]
    return custom_id, asked.digest.hex(), asked.body.model


def _rows(world: World, now: float) -> Json:
    rows: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    paid_by: defaultdict[str, list[str]] = defaultdict(list)
    for batch in world.batches.values():
        for custom_id, digest, _, _ in _billed(batch, now):
            rows[custom_id] += 1
            asked[digest] += 1
            paid_by[digest].append(f"{batch.id} {batch.metadata} at {batch.created_at}")
    for paid in world.paid.values():
        asked += paid.asked
    return {"rows": rows, "asked": asked, "paid_by": paid_by}
