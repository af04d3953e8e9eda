"""Rows of an input file, found by the request that an answer echoes. Pure.

Some providers' result lines have no id and come in any order. An echo may differ from the sent request: providers add
nulls and defaults, and respell names and numbers. So a lookup compares three forms in turn. First comes the request
as sent, then the request without the parts that may change, then the conversation alone. A form that fits several
requests is not a match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

_HUMP = re.compile(r"_([a-z0-9])")
_BASE64 = str.maketrans("-_", "+/")
_SILENT = frozenset({"role", "mimeType"})
_SEVERAL = b""
Json = dict[str, Any]


class Echoes:
    """The rows of an input file, indexed by request.

    `find` returns the digest of an echoed request. `take` returns the ids of the rows with that request, in turn.
    `spoken` names the fields of a request that hold the conversation.
    """

    def __init__(self, rows: Iterable[tuple[str, Json]], spoken: Sequence[str]) -> None:
        self._fields = spoken
        self._ids: dict[bytes, list[str]] = {}
        self._next: dict[bytes, int] = {}
        self._plain: dict[bytes, bytes] = {}
        self._spoken: dict[bytes, bytes] = {}
        for custom_id, request in rows:
            sent = request_digest(request)
            self._ids.setdefault(sent, []).append(custom_id)
            plain = _plain(request)
            for known, form in ((self._plain, plain), (self._spoken, self._texts(plain))):
                key = request_digest(form)
                known[key] = sent if known.get(key, sent) == sent else _SEVERAL

    def find(self, echo: object) -> bytes | None:
        """Return the digest of the echoed request; None if the echo fits no request or several."""
        if (sent := request_digest(echo)) in self._ids:
            return sent
        plain = _plain(echo)
        texts = self._texts(plain)
        spoken = self._spoken.get(request_digest(texts)) if any(texts) else None
        return self._plain.get(request_digest(plain)) or spoken or None

    def rows(self, sent: bytes) -> int:
        return len(self._ids[sent])

    def take(self, sent: bytes) -> str:
        """Return the id of the next row that has this request. After the last row, return the last id again."""
        ids, number = self._ids[sent], self._next.get(sent, 0)
        self._next[sent] = number + 1
        return ids[min(number, len(ids) - 1)]

    def _texts(self, plain: Any) -> list[list[str]]:
        request = plain if isinstance(plain, dict) else {}
        return [[*_leaves(request.get(field))] for field in self._fields]


def request_digest(request: object) -> bytes:
    """Return an eight-byte digest of a request that does not depend on the order of keys."""
    return blake2b(json.dumps(request, sort_keys=True).encode(), digest_size=8).digest()


def _plain(value: Any, name: str = "") -> Any:
    """Return a value without nulls and empty values, and with names, texts and numbers in a normal form."""
    if isinstance(value, dict):
        found = {(key := _camel(one)): _plain(part, key) for one, part in value.items()}
        return {key: part for key, part in found.items() if part is not False and part not in ("", None, [], {})}
    if isinstance(value, list):
        return [_plain(one, name) for one in value]
    if isinstance(value, str):
        plain = value.translate(_BASE64).rstrip("=") if name == "data" else value
        return plain if name in ("data", "text") else plain.casefold()
    if isinstance(value, float) and not value.is_integer():
        return float(f"{value:.6g}")  # an echoed number has single precision
    return int(value) if isinstance(value, float) else value


def _camel(name: str) -> str:
    return _HUMP.sub(lambda found: found[1].upper(), name)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, dict):
        for key in sorted(value.keys() - _SILENT):
            yield from _leaves(value[key])
