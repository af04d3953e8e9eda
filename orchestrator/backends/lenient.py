"""Reads providers' JSON leniently, with values of any shape. Pure.

Unless documented, no function raises for an odd value. It reads the value in its only possible sense, or treats it as
missing. Results fit every database: numbers have 31 bits, and text has no NUL or lone surrogates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from orchestrator.core import answers

Read = TypeVar("Read")
MOST = 2**31 - 1
MOST_TOKENS = 2**53
LONGEST = 500
LONGEST_NUMBER = 300
MILLISECONDS = 10**11
"""Times above this number (the year 5138 in seconds) are in milliseconds."""


def decode(content: bytes) -> Any:
    """Decode JSON, accepting NaN and a byte order mark. Raises ValueError for invalid JSON."""
    try:
        return json.loads(content.decode("utf-8-sig"), strict=False, parse_constant=lambda _: None, parse_int=_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decode_object(content: bytes) -> dict[str, Any] | None:
    """Decode a JSON object like `decode`; None for anything else."""
    try:
        found = decode(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _int(digits: str) -> int:
    # Python refuses to convert very long numbers, and no count is that large.
    return int(digits) if len(digits) <= LONGEST_NUMBER else MOST


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is an object, else an empty mapping."""
    return value if isinstance(value, dict) else {}


def batch_id(batch: Mapping[str, Any], asked: str | None, *, mark: str) -> str:
    """Return a batch's id. An answer that has the field `mark` may omit the requested id, `asked`.

    Raises ValueError if the answer is not a batch, or is a different batch.
    """
    found = name(batch.get("id")) or (asked if mark in batch else None)
    if found is None:
        raise ValueError("the answer is not a batch")
    if asked is not None and found != asked:
        raise ValueError(f"the answer is about {found[:100]}")
    return found


def count(value: object, most: int = MOST) -> int | None:
    """Read a number, clamped to 0 through `most`, even from a text or with a fraction; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return most if isinstance(value, int) else None
    if math.isnan(number):
        return None
    return int(min(max(number, 0.0), most))


def tokens(usage: Mapping[str, Any], name: str) -> int:
    """Read a token count; 0 if missing or impossible."""
    value = count(usage.get(name), MOST_TOKENS) or 0
    return value if value < answers.MOST_TOKENS else 0


def seconds(value: object) -> float:
    """Read a duration in seconds; 0 unless it is above zero."""
    try:
        number = float(value) if isinstance(value, int | float) else 0.0
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) and number > 0 else 0.0


def text(value: object, most: int = LONGEST) -> str:
    """Format a value for display. A value other than text becomes JSON."""
    if value is None:
        return ""
    said = value if isinstance(value, str) else json.dumps(value, default=str)
    return plain(said)[:most]


def plain(said: str) -> str:
    """Replace characters that databases or terminals reject, namely NUL (Postgres) and lone surrogates."""
    return said.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def name(value: object) -> str | None:
    """Read an id, which may be a number; None if missing."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return plain(str(value)).strip() or None


def word(value: object) -> str:
    """Read a state's name, even inside an object, in lower case with underscores; empty if missing."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("state", "status", "value", "name", "type") if key in value), None)
    return value.strip().lower().replace(" ", "_").replace("-", "_") if isinstance(value, str) else ""


def time(value: object) -> datetime | None:
    """Read seconds or milliseconds since 1970, or an ISO text, as an aware UTC time; None for anything else."""
    try:
        if isinstance(value, str):
            if (number := _number(value)) is not None:
                return time(number)
            at = datetime.fromisoformat(value.strip())
            return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return datetime.fromtimestamp(value / 1000 if value > MILLISECONDS else value, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _number(said: str) -> float | None:
    try:
        return float(said)
    except ValueError:
        return None


def entries(told: object, *names: str, is_first: bool = True) -> list[Any]:
    """Return the entries of a list answer: the array itself, or the array under one of `names`.

    Raises ValueError if the answer has no list. On the first page (`is_first`), an empty array does not count as a
    list, because it could be any answer.
    """
    told = unwrapped(told)
    if isinstance(told, list) and (told or not is_first):
        return told
    for key in ("data", "items", *names):
        found = mapping(told).get(key)
        if isinstance(found, list):
            return found
        if key == "data" and key in mapping(told) and found is None:
            return []
    raise ValueError("the answer is not a list")


def with_entries(told: object, convert: Callable[[object], object], *names: str) -> object:
    """Return a list answer with its entries converted, under `data`. Any other value stays unchanged."""
    try:
        found = entries(told, *names)
    except ValueError:
        return told
    return {**mapping(told), "data": [convert(one) for one in found]}


def unwrapped(told: object) -> object:
    """Return the object inside SiliconFlow's `{"code": …, "data": {…}}`. Any other value stays unchanged."""
    inner = mapping(told).get("data")
    return inner if isinstance(inner, dict) else told


def unseen(listed: Sequence[Read], key: Callable[[Read], Hashable], seen: set[Hashable]) -> list[Read]:
    """Return a page's entries whose keys are not in `seen`, and add their keys to `seen`.

    If a key occurs twice on the page, return only its latest entry. A key must be more than the id, because a list
    may show several batches under one wrong id.
    """
    found = {key(one): one for one in listed if key(one) not in seen}
    seen.update(found)
    return list(found.values())


def readable(
    found: Sequence[object], convert: Callable[[object], Read], unread: list[object] | None = None
) -> list[Read]:
    """Convert the readable entries of a list, and add unreadable entries to `unread`.

    Entries from other programs may have any shape. Raises ValueError if the list has non-null entries and none is
    readable.
    """
    known, problem = list[Read](), None
    for one in found:
        try:
            known.append(convert(one))
        except ValueError as error:
            problem = error if one is not None else problem
            if unread is not None:
                unread.append(one)
    if problem is not None and not known:
        raise problem
    return known
