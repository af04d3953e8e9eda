"""A call as it arrived, and what is answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from tests.emulator.errors import Json, refuse
from tests.emulator.rowfaults import PLAIN, Effect
from tests.emulator.script import Fault
from tests.emulator.wire import Wire


@dataclass(slots=True)
class Call:
    """`name` is the id or name in the path, `root` the URL of the flavour, `path` where the body or its file lies.

    `address` is the path that was asked for.
    """

    flavour: str
    verb: str
    name: str
    account: str
    root: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    fields: Mapping[str, str] = field(default_factory=dict)
    filename: str | None = None
    path: Path | None = None
    faults: tuple[Fault, ...] = ()
    address: str = ""

    @property
    def fault(self) -> Fault | None:
        """The first fault of calls that is due for it."""
        return next((fault for fault in self.faults if fault.is_of_call), None)

    def has(self, do: str) -> bool:
        """Whether a fault of this name is due for it."""
        return any(fault.do == do for fault in self.faults)

    def json(self) -> Json:
        """Raises Refusal for a body that is not a JSON object."""
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = None
        if not isinstance(found, dict):
            raise refuse(400, "We could not parse the JSON body of your request.")
        return found

    def limit(self, most: int, usual: int) -> int:
        """Raises Refusal."""
        told = self.query.get("limit", str(usual))
        if not told.isdecimal() or not 1 <= int(told) <= most:
            raise refuse(400, f"Invalid 'limit': must be from 1 to {most}.", param="limit", code="invalid_value")
        return int(told)


@dataclass(frozen=True, slots=True)
class Reply:
    """`blocks` are the body's bytes where it is not JSON. `effect` is that of a synchronous row, which may have its
    answer cut off; `cut` is a wire that is cut behind the body."""

    body: Any = None
    blocks: Iterator[bytes] | None = None
    kind: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    effect: Effect = PLAIN
    cut: Wire | None = None


class Named(Protocol):
    @property
    def id(self) -> str: ...


N = TypeVar("N", bound=Named)


def page(items: Sequence[N], after: str | None, limit: int) -> tuple[list[N], bool]:
    """The next so many behind the one with the id `after`, and whether there are more. Raises Refusal."""
    start = 0
    if after is not None:
        places = [number for number, item in enumerate(items) if item.id == after]
        if not places:
            raise refuse(400, f"No such object: {after}", param="after", code="invalid_value")
        start = places[0] + 1
    return list(items[start : start + limit]), len(items) > start + limit
