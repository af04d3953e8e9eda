"""Reads JSON that a provider answers with, whatever shapes its values have. Pure.

Nothing here raises for a value that is odd: it is read as what it can only mean, or as missing. What goes into a
database is within what every database holds: numbers of 31 bits, text without NUL and half letters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

Read = TypeVar("Read")
MOST = 2**31 - 1
MOST_TOKENS = 2**53
LONGEST = 500
LONGEST_NUMBER = 300
MILLISECONDS = 10**11
"""A time that has more seconds than this (the year 5138) is in milliseconds."""


def decode(content: bytes) -> Any:
    """JSON as its own library reads it, NaN and a byte order mark included. Raises ValueError."""
    try:
        return json.loads(content.decode("utf-8-sig"), strict=False, parse_constant=lambda _: None, parse_int=_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _int(digits: str) -> int:
    # Python refuses to read very long numbers, and nobody counts that far.
    return int(digits) if len(digits) <= LONGEST_NUMBER else MOST


def mapping(value: object) -> Mapping[str, Any]:
    """An object, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def count(value: object, most: int = MOST) -> int | None:
    """A number from 0 to `most`, also one given as text or fraction; None where none is given."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return most if isinstance(value, int) else None
    if math.isnan(number):
        return None
    return int(min(max(number, 0.0), most))


def seconds(value: object) -> float:
    """A time span above zero; 0 for anything else."""
    try:
        number = float(value) if isinstance(value, int | float) else 0.0
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) and number > 0 else 0.0


def text(value: object, most: int = LONGEST) -> str:
    """What a value says to people; anything but text in JSON."""
    if value is None:
        return ""
    said = value if isinstance(value, str) else json.dumps(value, default=str)
    return plain(said)[:most]


def plain(said: str) -> str:
    """Text that every database and terminal takes: no NUL (Postgres), no half of a surrogate pair."""
    return said.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def name(value: object) -> str | None:
    """An id, which some tell as a number; None where there is none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return plain(str(value)).strip() or None


def word(value: object) -> str:
    """A word for a state: in lower case, with underscores; also one that an object carries. Empty for none."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("state", "status", "value", "name", "type") if key in value), None)
    return value.strip().lower().replace(" ", "_").replace("-", "_") if isinstance(value, str) else ""


def time(value: object) -> datetime | None:
    """Seconds or milliseconds since 1970, or an ISO text, as aware UTC; None for what is neither."""
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
    """The entries of a list, which some give as an array, or under another name. Raises ValueError where none is.

    An array of nothing is an answer only behind a page that `is_first`: else it may be anything's.
    """
    if isinstance(told, list) and (told or not is_first):
        return told
    for key in ("data", "items", *names):
        found = mapping(told).get(key)
        if isinstance(found, list):
            return found
        if key == "data" and key in mapping(told) and found is None:
            return []
    raise ValueError("the answer is not a list")


def unseen(listed: Sequence[Read], key: Callable[[Read], Hashable], seen: set[Hashable]) -> list[Read]:
    """The entries of a page whose key no page before it had, each once, the latest told; they are seen from now on.

    An id alone is not a key: where several batches are reported under one wrong id, all but one would be missed.
    """
    found = {key(one): one for one in listed if key(one) not in seen}
    seen.update(found)
    return list(found.values())


def readable(
    found: Sequence[object], convert: Callable[[object], Read], unread: list[object] | None = None
) -> list[Read]:
    """The entries that can be read: another program's may be of any shape. The others are added to `unread`.

    Raises ValueError where none can.
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
