"""The pages *Rows* and *Row*, and downloads of filtered rows."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.errors import UsageError
from orchestrator.core.model import FinishedRow, Job, RequestState
from orchestrator.core.sanitize import shortened
from orchestrator.pipeline.finish import merge
from orchestrator.pipeline.finish.confidences import merging_checks
from orchestrator.pipeline.finish.outputs import schemas_of
from orchestrator.pipeline.finish.outputs.formats import csv_lines
from orchestrator.pipeline.finish.outputs.layout import Layout
from orchestrator.policy.advice import added_advice
from orchestrator.policy.sent_text import question_text
from orchestrator.reports.quote_words import place_words, reason_words
from orchestrator.reports.requests_and_answers import Exchange, exchange_at
from orchestrator.store.rows_by_document import ORDERS, FoundRow, RowFilter
from orchestrator.web.figures import CommandJson
from orchestrator.web.marked_text import MarkedText, abridged, marked_texts
from orchestrator.web.reader import HomeReader
from orchestrator.web.views import PageAddress, View, require_page
from orchestrator.web.views.jobs import found_job

PAGE = 50
HEADS = {
    "document": "document",
    "task": "task",
    "state": "state",
    "input_tokens": "tokens in",
    "output_tokens": "tokens out",
    "cost": "cost",
    "attempt": "attempt",
    "settled_at": "ended",
}
"""Titles of the columns by which the list can be sorted."""
FIELD = "answer."
"""Prefix of `sort` in the query if the list is sorted by a field of the answers."""
MOST_SORTED = 2_000
"""Maximum rows to sort by a field of their answers, because each answer must be read."""
CHUNK = 500
"""Number of filtered rows read at a time."""
MOST_FIELDS = 6
"""Maximum answer fields with a column on the page. A download has all fields."""
CELL = 200
"""Maximum characters of an answer in a cell."""
PICTURES = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8", "image/gif": b"GIF8", "image/webp": b"RIFF"}
PLACES = 20
"""Maximum places of a quote that get a link. All places are marked."""
MOST_SHOWN = 200_000
"""Maximum characters of a text on a page. In the request's text, marks beyond this limit are shown too."""
AROUND = 500
"""Characters shown before and after each mark beyond MOST_SHOWN."""


class RowQuery(Struct, frozen=True):
    """Conditions from an address: `stated` as the page shows them, and `wanted` as the store's filter."""

    stated: dict[str, str]
    wanted: RowFilter

    @classmethod
    def of(cls, address: PageAddress) -> RowQuery:
        """Read the conditions of an address. Ignores an unknown sort column. Raises UsageError for an unknown
        state.
        """
        stated = {name: address.query.get(name, "").strip() for name in ("state", "code", "task", "q", "sort")}
        state = address.choice("state", tuple(RequestState))
        order = stated["sort"].removeprefix("-")
        wanted = RowFilter(
            state or None,
            stated["code"] or None,
            stated["task"] or None,
            stated["q"] or None,
            order if order in ORDERS else None,
            descending=order in ORDERS and stated["sort"].startswith("-"),
        )
        return cls(stated, wanted)

    def link(self, **changes: int | str) -> str:
        """Return the query string for these conditions with some changes."""
        return urlencode({name: value for name, value in {**self.stated, **changes}.items() if value != ""})

    @property
    def field(self) -> str | None:
        """The answer field by which the list is sorted, or None."""
        name = self.stated["sort"].removeprefix("-")
        return name.removeprefix(FIELD) if name.startswith(FIELD) else None

    def heads(self, fields: Sequence[str], *, is_sorted: bool) -> dict[str, dict[str, Any]]:
        """Return the sortable columns by name, each with its link, and its direction if the list `is_sorted` by
        it.
        """
        found = {}
        for name, title in (*HEADS.items(), *((f"{FIELD}{field}", field) for field in fields)):
            is_it, is_down = self.stated["sort"].removeprefix("-") == name, self.stated["sort"].startswith("-")
            down = "-" if is_it and not is_down else ""
            arrow = ("descending" if is_down else "ascending") if is_it and is_sorted else None
            found[name] = {"name": name, "title": title, "link": self.link(sort=f"{down}{name}"), "sorted": arrow}
        return found


def rows(reader: HomeReader, address: PageAddress) -> View:
    """Show a page of a job's filtered rows, with their answers."""
    job, query = found_job(reader, address), RowQuery.of(address)
    before, after = address.number("before"), address.number("after")
    tasks = reader.store.rows_by_document.tasks(job.id)
    note = ""
    if query.field is not None:
        every = list(islice(_filtered(reader, job, query.wanted), MOST_SORTED + 1))
        if len(every) <= MOST_SORTED:
            return _by_field(reader, job, query, tasks, every, address.page())
        note = f"Only lists of up to {MOST_SORTED:,} rows are sorted by a field: filter these first."
    page = reader.store.rows_by_document.page
    found = page(job.id, query.wanted, PAGE + 1, after=-1 if after is None else after, before=before)
    is_back = before is not None
    require_page(int(is_back or after is not None), found)
    has_more = len(found) > PAGE
    found = (found[1:] if is_back else found[:PAGE]) if has_more else found
    fields, answers = _answers(reader, job, query, tasks, [one.row for one in found])
    shown = [(one.row, cells) for one, cells in zip(found, answers, strict=True)]
    previous = query.link(before=found[0].row.seq) if found and (has_more if is_back else after is not None) else None
    following = query.link(after=found[-1].row.seq) if found and (is_back or has_more) else None
    return _view(reader, job, query, tasks, fields, shown, (previous, following), note)


def _by_field(
    reader: HomeReader, job: Job, query: RowQuery, tasks: list[str], every: list[FinishedRow], page: int
) -> View:
    fields, answers = _answers(reader, job, query, tasks, every)
    column = fields.index(query.field) if query.field in fields else None
    shown = list(zip(every, answers, strict=True))
    if column is not None:
        known = [one for one in shown if one[1][column]]
        known.sort(key=lambda one: _sort_key(one[1][column]), reverse=query.stated["sort"].startswith("-"))
        shown = [*known, *(one for one in shown if not one[1][column])]
    turns = (
        query.link(page=page - 1) if page else None,
        query.link(page=page + 1) if len(shown) > (page + 1) * PAGE else None,
    )
    here = shown[page * PAGE : (page + 1) * PAGE]
    require_page(page, here)
    return _view(reader, job, query, tasks, fields, here, turns, "")


def _sort_key(cell: str) -> tuple[bool, float, str]:
    try:
        return False, float(cell), ""
    except ValueError:
        return True, 0.0, cell.casefold()


def _view(
    reader: HomeReader,
    job: Job,
    query: RowQuery,
    tasks: list[str],
    fields: list[str],
    shown: Sequence[tuple[FinishedRow, list[str]]],
    turns: tuple[str | None, str | None],
    note: str,
) -> View:
    return View(
        "rows.html",
        f"Rows of {job.name}",
        "jobs",
        {
            "job": job,
            "rows": shown,
            "fields": fields,
            "note": note,
            "query": query.stated,
            "link": query.link(),
            "heads": query.heads(fields, is_sorted=not note),
            "states": list(RequestState),
            "counts": reader.store.jobs.counts([job.id])[job.id],
            "codes": reader.store.failures.reasons(job.id),
            "tasks": tasks,
            "previous": turns[0],
            "following": turns[1],
        },
        live=False,
    )


def _answers(
    reader: HomeReader, job: Job, query: RowQuery, tasks: list[str], found: list[FinishedRow]
) -> tuple[list[str], list[list[str]]]:
    """Return the answers' columns and cells. If a single task is shown, each of its fields has a column."""
    task = query.stated["task"] or (tasks[0] if len(tasks) == 1 else "")
    layout = Layout(job.id, {name: kind for name, kind in schemas_of(job).items() if name == task}, flat=True)
    answers = layout.answers
    checks = merging_checks(reader.store, reader.home, job)
    lines = merge.lines(reader.home.results, found, checks, style="jsonl", tolerant=True)
    cells = [[_cell(one) for one in layout.cells(line)[answers]] for line in lines]
    fields = [column.name.removeprefix(f"{task}.") for column in layout.columns[answers]]
    if len(fields) > 1 and not any(row[0] for row in cells):
        fields, cells = fields[1:], [row[1:] for row in cells]  # no row has a whole answer to show
    return fields[:MOST_FIELDS], [row[:MOST_FIELDS] for row in cells]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), CELL)


def download(reader: HomeReader, address: PageAddress) -> Iterator[bytes]:
    """Yield the filtered rows of a job in input order as JSONL or CSV, as `orch fetch --partial` writes them.

    Raises UsageError for an unknown job or form. The iterator raises StorageError if a result file is gone.
    """
    job, query, form = found_job(reader, address), RowQuery.of(address), address.path["form"]
    if form not in ("csv", "jsonl"):
        raise UsageError(f"rows are downloaded as csv or jsonl, not as {shortened(str(form), 20)}")
    unsorted = replace(query.wanted, order=None, descending=False)
    checks, rows = merging_checks(reader.store, reader.home, job), _filtered(reader, job, unsorted)
    lines = merge.lines(reader.home.results, rows, checks, style="jsonl", partial=True)
    if form == "csv":
        return csv_lines(lines, Layout(job.id, schemas_of(job), flat=True))
    return (line + b"\n" for line in lines)


def _filtered(reader: HomeReader, job: Job, wanted: RowFilter) -> Iterator[FinishedRow]:
    """Yield the rows that match a filter, with one chunk in memory at a time."""
    after = -1
    while found := reader.store.rows_by_document.page(job.id, wanted, CHUNK, after=after):
        after = found[-1].row.seq
        yield from (one.row for one in found)


def row(reader: HomeReader, address: PageAddress) -> View:
    """Show one row: its request beside its answer."""
    job, exchange = _exchange(reader, address)
    of, query = exchange.row, RowQuery.of(address)
    command = f"show {job.id} {of.document} --task {of.task}"
    error = exchange.merged.get("error")
    return View(
        "row.html",
        of.document or of.custom_id,
        "jobs",
        {
            "job": job,
            "row": of,
            "link": query.link(),
            "previous": _neighbour(reader, job, query, before=of.seq),
            "following": _neighbour(reader, job, query, after=of.seq),
            "merged": CommandJson(command, {"rows": [exchange.to_json()]})["rows"][0],
            "messages": list(_messages(exchange)),
            "answer": _answer(exchange.merged["output"]),
            "quotes": list(_quotes(exchange)),
            "error": error,
            "advice": None if error is None else added_advice(error["code"]),
            "request": _raw(exchange.request),
            "result": _raw(exchange.result),
            "gone": exchange.gone,
        },
        live=False,
    )


def _neighbour(reader: HomeReader, job: Job, query: RowQuery, **place: int) -> int | None:
    found: list[FoundRow] = reader.store.rows_by_document.page(job.id, query.wanted, 1, **place)
    return found[0].row.seq if found else None


def _exchange(reader: HomeReader, address: PageAddress) -> tuple[Job, Exchange]:
    job = found_job(reader, address)
    found = exchange_at(reader.store, reader.home, job, address.place("seq"))
    if found is None:
        raise UsageError(f"job {job.id} has no such row")
    return job, found


def _messages(exchange: Exchange) -> Iterator[dict[str, Any]]:
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
    """Yield an answer's quotes with their places. `mark` numbers the places that are marked in the text."""
    mark = 0
    for quote in exchange.quotes:
        places = []
        for place in quote.places:
            places.append({"mark": mark, "part": place.part, "words": place_words(place)})
            mark += 1
        shown, more = places[:PLACES], max(0, len(places) - PLACES)
        why = "" if places else reason_words(quote.status)
        status = quote.status.replace("_", " ")
        yield {"path": quote.path, "status": status, "why": why, "places": shown, "more": more}


def _marked(exchange: Exchange, text: str) -> list[MarkedText]:
    at = exchange.text_at
    places = () if at is None else [place for quote in exchange.quotes for place in quote.places]
    start = 0 if at is None else at.start
    pieces = marked_texts(text, [(start + place.start, start + place.end) for place in places])
    return abridged(pieces, MOST_SHOWN, AROUND)


def _address_of(part: dict[str, Any]) -> str | None:
    held = part.get("image_url")
    found = held.get("url") if isinstance(held, dict) else held
    return found if isinstance(found, str) else None


def picture(reader: HomeReader, address: PageAddress) -> tuple[str, bytes] | None:
    """Return the type and bytes of a picture in a request; None if it is missing or of an unknown type."""
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
