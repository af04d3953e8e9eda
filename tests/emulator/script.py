"""Faults of calls and of batches, posted as JSON: which call each is for, and whether it is due.

    {"do": "cut_after", "match": {"verb": "create", "nth": 2, "model": "m", "flavour": "openai"}, "times": 1}

`nth` counts the calls that match from the moment the fault is posted, `times` says for how many of them it holds,
null for all that follow. A fault's own options stand beside `do`, with the defaults of `OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.emulator.rowfaults import RowFault, parse

Json = dict[str, Any]

OF_CALLS: dict[str, Json] = {
    "status": {"status": 500, "code": None, "message": None, "type": None, "retry_after": None},
    "hang_before": {},
    "hang_after": {},
    "cut_before": {},
    "cut_after": {},
    "cut_body": {"share": 0.5},
    "short_body": {"share": 0.5, "whole_lines": False},
}
"""What happens to one call: instead of it (`status`, `..._before`), behind it (`..._after`), to its answer's body."""

OF_BATCHES: dict[str, Json] = {
    "hidden": {"seconds": 60.0},
    "fails": {"code": "invalid_request", "message": "The batch is not valid.", "param": None, "lines": []},
    "token_limit_exceeded": {"limit": 900_000},
    "turnaround": {"seconds": 0.0},
    "expires": {"share": 0.5},
    "stuck_validating": {},
    "stuck_in_progress": {"share": 0.5},
    "slow_cancel": {"seconds": 600.0},
    "cancel_race": {"drop": 1, "billed": True},
    "vanishes": {"seconds": 0.0},
    "late_output_id": {"seconds": 60.0},
    "zero_byte_error_file": {},
    "shuffled": {},
    "cut_tail": {},
    "rows": {"row": "status:500", "share": 1.0, "lines": []},
}
"""What becomes of the batch that the matched call creates; `rows` is for synchronous calls as well."""

OPTIONS = OF_CALLS | OF_BATCHES

CREATING = ("create",)
SYNCHRONOUS = ("chat",)


class Match(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which calls; None is any."""

    verb: str | None = None
    flavour: str | None = None
    model: str | None = None
    nth: int = 1


@dataclass(slots=True)
class Fault:
    """One entry of the script; `seen` is how many calls have matched it so far."""

    do: str
    match: Match
    times: int | None
    options: Json
    seen: int = 0

    @property
    def is_of_batch(self) -> bool:
        return self.do in OF_BATCHES

    def meets(self, flavour: str, verb: str, model: str | None) -> bool:
        wanted = self.match
        if self.is_of_batch and verb not in (CREATING + SYNCHRONOUS if self.do == "rows" else CREATING):
            return False
        return (
            wanted.verb in (None, verb)
            and wanted.flavour in (None, flavour)
            and (wanted.model is None or wanted.model == model)
        )

    def is_due(self) -> bool:
        """Whether it holds for the call that was counted last."""
        behind = self.seen - self.match.nth
        return behind >= 0 and (self.times is None or behind < self.times)

    def row_fault(self) -> RowFault:
        """Of `rows`."""
        return parse(self.options["row"])

    def told(self) -> Json:
        return {"do": self.do, "match": msgspec.to_builtins(self.match), "times": self.times, "seen": self.seen} | (
            self.options
        )


@dataclass(slots=True)
class Script:
    faults: list[Fault] = field(default_factory=list)

    def add(self, entries: Iterable[Json]) -> None:
        """Raises ValueError for what cannot be read, lest a test passes by a typo."""
        self.faults += [_fault(dict(entry)) for entry in entries]

    def take(self, flavour: str, verb: str, model: str | None) -> tuple[Fault, ...]:
        """Count this call, and give the faults that are due for it."""
        return tuple(self._due(flavour, verb, model))

    def _due(self, flavour: str, verb: str, model: str | None) -> Iterator[Fault]:
        for fault in self.faults:
            if fault.meets(flavour, verb, model):
                fault.seen += 1
                if fault.is_due():
                    yield fault


def _fault(entry: Json) -> Fault:
    do = entry.pop("do", None)
    if do not in OPTIONS:
        raise ValueError(f"unknown fault {do!r}")
    match = msgspec.convert(entry.pop("match", {}), Match)
    times = entry.pop("times", 1)
    unknown = set(entry) - set(OPTIONS[do])
    if unknown:
        raise ValueError(f"fault {do} has no option {', '.join(sorted(unknown))}")
    fault = Fault(do, match, times, OPTIONS[do] | entry)
    if do == "rows":
        fault.row_fault()
    return fault
