"""Formats a row's request and answer as lines for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from orchestrator.core.durations import duration, moment_words
from orchestrator.core.money import money
from orchestrator.policy.request_bodies import messages_of
from orchestrator.reports.quote_words import quote_words
from orchestrator.reports.requests_and_answers import Exchange
from orchestrator.reports.text_tables import Cell, Line, StyledText, pairs, sentence
from orchestrator.reports.words import tokens

SHOWN_NUMBERS = 4
_ASKED = frozenset({"messages", "input", "prompt", "instructions", "model"})
_ROW_STYLE = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "expired": "yellow"}


def exchange_lines(found: Iterable[Exchange], width: int | None) -> list[Line]:
    lines: list[Line] = []
    for exchange in found:
        lines += [*([()] if lines else []), *_exchange(exchange, width)]
    return lines


def _exchange(found: Exchange, width: int | None) -> list[Line]:
    row = found.row
    part = f", part {row.part} of {row.parts}" if row.part is not None else ""
    whole = f", the answer of its {row.parts} parts" if row.stage == "reduce" else ""
    title = f"{row.document}: {row.task}{part}{whole}" if row.task else row.document
    lines = [*sentence(title, width, "bold"), *pairs(_facts(found), width)]
    if not found.request:
        lines += [(), *sentence("request: none was made", width, "dim")]
    for role, text in messages(found.body):
        lines += [(), *sentence(role, width, "underline"), *_text(text, width)]
    if (answer := answer_text(found)) is not None:
        lines += [(), *sentence("answer", width, "underline"), *_text(answer, width)]
    for quote in found.quotes:
        lines += sentence(f"quote {quote.path}: {quote_words(quote)}", width, "dim")
    if not row.state.is_final:
        lines += [(), *sentence("no answer yet", width, "yellow")]
    if row.error_code is not None:
        lines += [(), *sentence(f"{row.error_code}: {row.error_message}", width, "red")]
    for text in found.gone:
        lines += sentence(f"! {text}", width, "yellow")
    return lines


def _facts(found: Exchange) -> list[tuple[str, list[Cell] | Cell]]:
    row, told = found.row, list[tuple[str, list[Cell] | Cell]]()
    state: list[Cell] = [StyledText(row.state.value, _ROW_STYLE.get(row.state, ""))]
    if row.carried_from is not None:
        state.append(f"the answer is that of {row.carried_from}")
    told.append(("state", state))
    told.append(("id", row.custom_id))
    if row.why is not None:
        told.append(("asked", row.why.value))
    if row.backend is not None:
        batch = "" if row.batch_id is None else f", {row.batch_id}"
        model = found.merged["provenance"]["model"]
        told.append(("answered", f"{model} at {row.backend}{batch}, attempt {row.attempt_number}"))
    if row.usage.input_tokens:
        told.append(("tokens", tokens(row.usage)))
    if row.state.is_final and row.cost != Decimal(0):
        told.append(("cost", _cost(found)))
    if row.latency_ms is not None:
        told.append(("took", duration(row.latency_ms / 1000) if row.latency_ms >= 1000 else f"{row.latency_ms} ms"))
    if row.settled_at is not None:
        told.append(("at", moment_words(row.settled_at)))
    if row.notes is not None:
        told.append(("not read", row.notes))
    if options := _options(found.body):
        told.append(("with", options))
    return told


def _cost(found: Exchange) -> str:
    """Return a row's cost, and the source of its price, including what the price omits."""
    price = found.price
    if price is None:
        return money(found.row.cost)
    return f"{'≈' if price.estimated else ''}{money(found.row.cost)}, {price.source}"


def _options(body: dict[str, Any]) -> str:
    rest = {name: value for name, value in body.items() if name not in _ASKED}
    return ", ".join(f"{name} {_words(value, indent=None)}" for name, value in rest.items())


def messages(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the role and text of each message. A picture is replaced by its type and size."""
    return [(str(message.get("role", "message")), _content(message.get("content"))) for message in messages_of(body)]


def answer_text(found: Exchange) -> str | None:
    """Return a row's answer as text, or None. A vector is replaced by its size and first numbers."""
    answer = found.merged["output"]
    if isinstance(answer, list) and len(answer) > SHOWN_NUMBERS and all(isinstance(one, float) for one in answer):
        return f"a vector of {len(answer):,} numbers: {', '.join(map(repr, answer[:SHOWN_NUMBERS]))}, …"
    return None if answer is None else _words(answer)


def _content(content: Any) -> str:
    if not isinstance(content, list):
        return _words(content)
    return "\n".join(map(_part, content))


def _part(part: Any) -> str:
    match part:
        case {"type": "text" | "input_text", "text": str(text)}:
            return text
        case {"image_url": {"url": str(url)} | str(url)} if url.startswith("data:"):
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            return f"[{kind}, {len(data) * 3 // 4:,} bytes]"
        case _:
            return _words(part)


def _words(value: Any, indent: int | None = 2) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=indent, ensure_ascii=False)


def _text(text: str, width: int | None) -> list[Line]:
    room = None if width is None else width - 2
    return [(StyledText("  "), *line) for line in sentence(text.replace("\r\n", "\n"), room)]
