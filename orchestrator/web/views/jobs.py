"""The pages *Job* (rows by state, time line of shards, events, cost) and *Rows*."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from orchestrator.core.clock import now
from orchestrator.core.durations import duration
from orchestrator.core.errors import OrchError, UsageError
from orchestrator.core.model import Forecast, Job, JobId, RequestState
from orchestrator.core.money import money
from orchestrator.core.shards import Shard
from orchestrator.policy.advice import advice_for
from orchestrator.policy.sent_text import question_text
from orchestrator.reports.cost_reader import cost_of
from orchestrator.reports.quote_words import place_words
from orchestrator.reports.requests_and_answers import Exchange, exchange_at
from orchestrator.reports.status import JobDetail
from orchestrator.store.lookups import RowFilter
from orchestrator.web.figures import NOTHING, CommandJson
from orchestrator.web.marked_text import MarkedText, abridged, marked_texts
from orchestrator.web.outlook_cache import Outlooks
from orchestrator.web.reader import HomeReader
from orchestrator.web.views import PageAddress, View

EVENTS, SHARDS, FORECASTS = 100, 200, 40
PAGE = 50
PICTURES = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8", "image/gif": b"GIF8", "image/webp": b"RIFF"}
PLACES = 20
"""Most places of a quote with a link; all places are marked."""
MOST_SHOWN = 200_000
"""Most characters of a text on a page; the raw lines have all of it."""
AROUND = 500
"""Characters shown on both sides of a mark behind these."""


class JobPage:
    """Everything about one job."""

    def __init__(self, outlooks: Outlooks) -> None:
        self._outlooks = outlooks

    def __call__(self, reader: HomeReader, address: PageAddress) -> View:
        job, at = found_job(reader, address), now()
        detail = reader.detail(job.id)
        forecasts = [one for one in reader.store.forecasts.since(job.created_at) if one.job_id == job.id]
        told = {**replace(detail, events=()).to_json(), "outlook": self._outlooks.told(reader, job).get("outlook")}
        shown_events = None if address.query.get("events") == "all" else EVENTS
        return View(
            "job.html",
            job.name,
            "tonight",
            {
                "job": job,
                "told": CommandJson(f"status {job.id}", told),
                "is_open": not detail.line.state.is_final,
                "events": list(reversed(detail.events))[:shown_events],
                "more_events": 0 if shown_events is None else max(0, len(detail.events) - shown_events),
                "more_shards": max(0, len(detail.shards) - SHARDS),
                "line": _time_line(detail, at),
                "by_task": _by_task(reader, job),
                "forecasts": [_forecast(one) for one in forecasts if one.kind in _UNITS][:FORECASTS],
                "after": job.options.get("after"),
            },
        )


def found_job(reader: HomeReader, address: PageAddress) -> Job:
    """Return the job that an address names. Raises UsageError."""
    job_id = JobId(str(address.path["job"]))
    if (job := reader.store.jobs.find(job_id)) is None:
        raise UsageError(f"there is no job {job_id}", hint="it may have been removed by [retention]")
    return job


def _by_task(reader: HomeReader, job: Job) -> CommandJson | None:
    if (settings := reader.readable) is None:
        return None
    try:
        return CommandJson(
            f"report cost --by task --job {job.id}", cost_of(reader.store, settings, "task", None, job.id).to_json()
        )
    except OrchError:
        return None  # the compared model has no price: the Money page says so


_UNITS: Mapping[str, Callable[[float], str]] = {
    "cost": lambda value: money(Decimal(repr(value))),
    "finish": duration,
    "turnaround": duration,
    "in_time": lambda value: f"{value:.0%}",
    "output": lambda value: f"{value:,.0f} tokens",
}
"""Format of each kind of forecast."""


def _forecast(one: Forecast) -> dict[str, str]:
    words = _UNITS[one.kind]
    return {
        "kind": one.kind.replace("_", " "),
        "task": one.task,
        "where": " ".join(filter(None, (one.backend, one.shard_id.rpartition(".")[2]))),
        "p50": words(one.p50),
        "p95": words(one.p95) if one.kind != "in_time" else NOTHING,
        "actual": NOTHING if one.actual is None else words(one.actual),
    }


def _time_line(detail: JobDetail, at: datetime) -> dict[str, Any] | None:
    """Place shards, their phases and the deadline on one axis of 1000 steps."""
    shards = detail.shards[-SHARDS:]
    job = detail.line.job
    starts = [job.created_at, *(shard.created_at for shard in shards)]
    ends = [job.finished_at or at, *filter(None, (_end(shard) for shard in shards)), *filter(None, [job.deadline_at])]
    if not shards:
        return None
    first, last = min(starts), max(ends)
    length = max(1.0, (last - first).total_seconds())

    def place(moment: datetime) -> float:
        return round(1000 * (moment - first).total_seconds() / length, 1)

    return {
        "first": first,
        "last": last,
        "now": place(at) if job.finished_at is None and at <= last else None,
        "deadline": None if job.deadline_at is None else place(job.deadline_at),
        "shards": [{"index": number, "parts": list(_parts(shard, at, place))} for number, shard in enumerate(shards)],
        "skipped": len(detail.shards) - len(shards),
    }


def _end(shard: Shard) -> datetime | None:
    return shard.collected_at or shard.ended_at


def _parts(shard: Shard, at: datetime, place: Any) -> Iterator[dict[str, Any]]:
    """Yield the phases of a shard: waiting, queued until its first row, answering, being collected."""
    over = shard.state.is_final
    moments = [
        ("waits", shard.created_at),
        ("queued", shard.submitted_at),
        ("works", shard.started_at),
        ("collects", shard.ended_at),
        ("", shard.collected_at or (None if not over else shard.ended_at) or (shard.rerouted_at if over else at)),
    ]
    known = [(name, moment) for name, moment in moments if moment is not None]
    for (name, begins), (_, ends) in pairwise(known):
        if ends > begins:
            yield {"name": name, "x": place(begins), "width": max(2.0, place(ends) - place(begins))}


def rows(reader: HomeReader, address: PageAddress) -> View:
    """Show a page of a job's rows, by filter."""
    job = found_job(reader, address)
    query = {name: address.query.get(name, "").strip() for name in ("state", "code", "task", "q")}
    state = query["state"] if query["state"] in set(RequestState) else None
    wanted = RowFilter(state, query["code"] or None, query["task"] or None, query["q"] or None)
    before, after = address.number("before"), address.number("after")
    found = reader.store.lookups.page(job.id, wanted, PAGE + 1, after=-1 if after is None else after, before=before)
    is_back = before is not None
    has_more = len(found) > PAGE
    found = (found[1:] if is_back else found[:PAGE]) if has_more else found
    detail = reader.store.jobs.counts([job.id])[job.id]
    return View(
        "rows.html",
        f"Rows of {job.name}",
        "tonight",
        {
            "job": job,
            "rows": [one.row for one in found],
            "query": query,
            "states": list(RequestState),
            "counts": detail,
            "codes": reader.store.failures.reasons(job.id),
            "tasks": reader.store.lookups.tasks(job.id),
            "previous": _turn(query, before=found[0].row.seq)
            if found and (has_more if is_back else after is not None)
            else None,
            "following": _turn(query, after=found[-1].row.seq) if found and (is_back or has_more) else None,
        },
        live=False,
    )


def _turn(query: dict[str, str], **place: int) -> str:
    return urlencode({**{name: value for name, value in query.items() if value}, **place})


def row(reader: HomeReader, address: PageAddress) -> View:
    """Show one row: its request beside its answer."""
    job, exchange = _exchange(reader, address)
    of = exchange.row
    command = f"show {job.id} {of.document} --task {of.task}"
    error = exchange.merged.get("error")
    return View(
        "row.html",
        of.document or of.custom_id,
        "tonight",
        {
            "job": job,
            "row": of,
            "merged": CommandJson(command, {"rows": [exchange.to_json()]})["rows"][0],
            "messages": list(_messages(exchange)),
            "answer": _answer(exchange.merged["output"]),
            "quotes": list(_quotes(exchange)),
            "error": error,
            "advice": None if error is None else advice_for(error["code"]),
            "request": _raw(exchange.request),
            "result": _raw(exchange.result),
            "gone": exchange.gone,
        },
        live=False,
    )


def _exchange(reader: HomeReader, address: PageAddress) -> tuple[Job, Exchange]:
    job = found_job(reader, address)
    found = exchange_at(reader.store, reader.home, job, address.place("seq"))
    if found is None:
        raise UsageError(f"job {job.id} has no such row")
    return job, found


def _messages(exchange: Exchange) -> Iterator[dict[str, Any]]:
    """Yield the messages of a request: texts, and pictures by number."""
    number, question = 0, question_text(exchange.messages)
    for message in exchange.messages:
        content = message.get("content")
        parts: list[dict[str, Any]] = []
        for part in content if isinstance(content, list) else [content]:
            said = part.get("text", part) if isinstance(part, dict) else part
            if message.get("role") == "user" and said == question:
                parts.append({"marked": _marked(exchange, said)})
            elif isinstance(part, str) or not isinstance(part, dict):
                parts.append({"text": _pretty(part)})
            elif _address_of(part) is not None:
                parts.append({"picture": number})
                number += 1
            else:
                parts.append({"text": _pretty(part.get("text", part))})
        yield {"role": str(message.get("role", "")), "parts": parts}


def _quotes(exchange: Exchange) -> Iterator[dict[str, Any]]:
    """Yield the quotes of an answer with their places; `mark` is the number of a place marked in the text."""
    mark = 0
    for quote in exchange.quotes:
        places = []
        for place in quote.places:
            places.append({"mark": mark, "part": place.part, "words": place_words(place)})
            mark += 1
        shown, more = places[:PLACES], max(0, len(places) - PLACES)
        yield {"path": quote.path, "status": quote.status.replace("_", " "), "places": shown, "more": more}


def _marked(exchange: Exchange, text: str) -> list[MarkedText]:
    """Return a question in pieces, with the passages marked that the answer quotes."""
    at = exchange.text_at
    places = () if at is None else [place for quote in exchange.quotes for place in quote.places]
    start = 0 if at is None else at.start
    pieces = marked_texts(text, [(start + place.start, start + place.end) for place in places])
    return abridged(pieces, MOST_SHOWN, AROUND)


def _address_of(part: dict[str, Any]) -> str | None:
    """Return the address of a picture in a message."""
    held = part.get("image_url")
    found = held.get("url") if isinstance(held, dict) else held
    return found if isinstance(found, str) else None


def picture(reader: HomeReader, address: PageAddress) -> tuple[str, bytes] | None:
    """Return the type and bytes of a picture in a request, or None if missing or of an unknown type."""
    _, exchange = _exchange(reader, address)
    held = [
        found
        for message in exchange.messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, dict) and (found := _address_of(part)) is not None
    ]
    number = address.place("number")
    head, _, data = held[number].partition(";base64,") if number < len(held) else ("", "", "")
    kind = head.removeprefix("data:")
    if kind not in PICTURES:
        return None
    try:
        data_bytes = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return (kind, data_bytes) if data_bytes.startswith(PICTURES[kind]) else None


def _pretty(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _answer(output: Any) -> str | None:
    """Format an answer for people; JSON gets a line per field."""
    if output is None:
        return None
    return _raw(output.encode("utf-8", "replace")) if isinstance(output, str) else _pretty(output)


def _raw(line: bytes | None) -> str | None:
    if line is None:
        return None
    try:
        return _pretty(json.loads(line))
    except (ValueError, RecursionError):
        return _pretty(line.decode("utf-8", "replace"))
