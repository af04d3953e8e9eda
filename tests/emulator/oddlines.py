"""Result lines that are not as they should be: changes of a line before it is written, OpenAI's or Anthropic's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.emulator.errors import Json
from tests.emulator.oddanswers import DEEP, HUGE, NAN
from tests.emulator.shapes import SHAPES, Change

_NESTED = "@@nested@@"


def _id(change: Callable[[str], object]) -> Change:
    return lambda line: line.update(custom_id=change(line["custom_id"]))


def _body(line: Json) -> Json | None:
    """The answer in a line, None where it has failed."""
    response = line.get("response") or {}
    body = response.get("body") if response else (line.get("result") or {}).get("message")
    return body if isinstance(body, dict) and "error" not in body else None


def _usage(change: Callable[[Json], object]) -> Change:
    def apply(line: Json) -> None:
        body = _body(line)
        if body is not None and isinstance(body.get("usage"), dict):
            body["usage"] = change(body["usage"])

    return apply


def _numbers(usage: Json, change: Callable[[int], object]) -> Json:
    return {name: change(value) if isinstance(value, int) else value for name, value in usage.items()}


def _without_usage(line: Json) -> None:
    if (body := _body(line)) is not None:
        body.pop("usage", None)


def _miscopied(line: Json) -> None:
    """The code that the answer gives back has a wrong letter."""
    if (body := _body(line)) is not None:
        message = body["choices"][0]["message"]
        value = json.loads(message["content"])
        value["row_code"] = "_" + value["row_code"][1:]
        message["content"] = json.dumps(value)


def _answer(**more: Any) -> Change:
    def apply(line: Json) -> None:
        if (body := _body(line)) is not None:
            body.update(more)

    return apply


def _status(change: Callable[[int], object]) -> Change:
    def apply(line: Json) -> None:
        if "status_code" in (line.get("response") or {}):
            line["response"]["status_code"] = change(line["response"]["status_code"])

    return apply


def _no_body(line: Json) -> None:
    if _body(line) is not None:
        place, name = (line["response"], "body") if "response" in line else (line["result"], "message")
        place[name] = None


def _instead(body: Json) -> Change:
    """A body in place of the answer, with the status of one."""

    def apply(line: Json) -> None:
        if _body(line) is not None and "response" in line:
            line["response"]["body"] = dict(body)

    return apply


def _error(change: Callable[[Any], object]) -> Change:
    """For lines of rows that have failed."""

    def apply(line: Json) -> None:
        body = (line.get("response") or {}).get("body")
        if isinstance(body, dict) and "error" in body:
            body["error"] = change(body["error"])
        elif line.get("error"):
            line["error"] = change(line["error"])
        elif "error" in (line.get("result") or {}):
            line["result"]["error"] = change(line["result"]["error"])

    return apply


ODD_LINES: dict[str, Change] = {
    **SHAPES,
    "id_upper": _id(str.upper),
    "id_lower": _id(str.lower),
    "id_blanks": _id(lambda name: f"  {name}\t"),
    "id_number": _id(lambda name: int(name) if name.isdecimal() else name),
    "id_null": _id(lambda _: None),
    "id_list": _id(lambda name: [name]),
    "miscopied_code": _miscopied,
    "no_usage": _without_usage,
    "null_usage": _usage(lambda _: None),
    "text_usage": _usage(lambda usage: _numbers(usage, str)),
    "zero_usage": _usage(lambda usage: _numbers(usage, lambda _: 0)),
    "huge_usage": _usage(lambda usage: _numbers(usage, lambda _: HUGE)),
    "negative_usage": _usage(lambda usage: _numbers(usage, lambda number: -number)),
    "usage_as_list": _usage(lambda _: [1, 2]),
    "nan": _answer(logprob=NAN),
    "big_number": _answer(seed=10**400),
    "surrogate": _answer(note="\ud800"),
    "nul": _answer(model="m\0"),
    "number_model": _answer(model=HUGE),
    "deep": _answer(extra=_NESTED),
    "status_text": _status(str),
    "status_float": _status(float),
    "no_body": _no_body,
    "error_as_text": _error(lambda told: str(told)),
    "error_as_list": _error(lambda told: [told]),
    "error_as_number": _error(lambda _: 17),
    "model_in_detail": _instead({"detail": "model does not exist"}),
    "model_in_errors": _instead({"errors": [{"message": "The model `m` does not exist"}], "success": False}),
    "params_in_base": _instead({"base_resp": {"status_code": 2013, "status_msg": "invalid params"}, "choices": None}),
    "stop_in_detail": _instead({"detail": [{"loc": ["body", "stop"], "msg": "field not allowed", "type": "x"}]}),
    "worker_in_detail": _instead({"detail": "no worker is left"}),
    "odd_orch": lambda line: line.update(
        orch={"upstream": None, "latency_ms": HUGE, "upstream_seconds": NAN, "attempts": -1, "uncertain": HUGE}
    ),
}


def odd_line(line: Json, names: Iterable[str]) -> bytes:
    """A line under these changes, without its end."""
    for name in names:
        ODD_LINES[name](line)
    return told(line)


def odd_body(body: Json, names: Iterable[str]) -> Json:
    """The body of a synchronous answer under these changes."""
    line: Json = {"custom_id": "", "response": {"status_code": 200, "body": body}}
    for name in names:
        ODD_LINES[name](line)
    found: Json = line["response"]["body"]
    return found


def told(value: Any) -> bytes:
    """JSON as some write it: with NaN, with letters that are none."""
    text = json.dumps(value).replace(f'"{NAN}"', "NaN")
    return text.replace(f'"{_NESTED}"', "[" * DEEP + "]" * DEEP).encode("ascii")
