"""Faults of calls and of batches, posted as JSON: which call each is for, and whether it is due.

    {"do": "cut_after", "match": {"verb": "create", "nth": 2, "model": "m", "flavour": "openai"}, "times": 1}

`nth` counts the calls that match from the moment the fault is posted, `times` says for how many of them it holds,
null for all that follow; `lasts` says for how many virtual seconds from the first of them, and then `times` is null.
A fault's own options stand beside `do`, with the defaults of `OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.emulator.oddanswers import VERBS_OF
from tests.emulator.rowfaults import RowFault, parse

Json = dict[str, Any]

OF_CALLS: dict[str, Json] = {
    "status": {"status": 500, "code": None, "message": None, "type": None, "retry_after": None, "headers": {}},
    "bare_status": {"status": 429, "headers": {}},
    "redirect": {"status": 307, "to": "itself"},
    "hang_before": {},
    "hang_after": {},
    "cut_before": {},
    "cut_after": {},
    "reset_before": {},
    "reset_after": {},
    "cut_body": {"share": 0.5},
    "short_body": {"share": 0.5, "whole_lines": False},
    "empty_body": {},
    "html_page": {},
    "error_object": {"message": "Something went wrong.", "code": "internal_error"},
    "json_null": {},
    "half_json": {},
    "plain_type": {},
    "long_length": {"by": 64},
    "short_length": {"share": 0.5},
    "drip_head": {"pause": 0.05},
    "drip_body": {"pause": 0.05},
    "gzip": {},
    "raw_gzip": {},
    "bom": {},
    "crlf": {},
    "blank_lines": {},
    "json_array": {},
}
"""What happens to one call: instead of it (statuses, `..._before`), behind it (`..._after`), to its bytes."""

OF_ANSWERS: dict[str, Json] = {name: {} for name in VERBS_OF}
"""What an answer that was JSON says instead; any number of them holds together (`oddanswers`)."""

OF_FILES: dict[str, Json] = {"late_upload": {"seconds": 60.0, "told": "create"}}
"""What becomes of a file that a matched upload makes: it cannot be used yet, told at create, by the validation, or by
its status."""

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
    "late_content": {"seconds": 60.0},
    "grows": {"seconds": 600.0, "share": 0.3, "told": "whole"},
    "lost_file": {"kind": "output"},
    "wrong_size": {"by": 100},
    "no_size": {},
    "swapped": {},
    "swapped_keys": {"lines": [1, 2]},
    "unknown_for": {"after": 0.0, "seconds": 60.0, "listed": True},
    "twice": {},
    "backwards": {"after": 0.0, "seconds": 300.0},
    "lagging_counts": {"seconds": 600.0},
    "shrinking_counts": {"by": 1},
    "cancel_ignored": {},
    "stuck_finalizing": {},
    "does_nothing": {},
    "zero_byte_error_file": {},
    "shuffled": {},
    "cut_tail": {},
    "rows": {"row": "status:500", "share": 1.0, "lines": []},
}
"""What becomes of the batch that the matched call creates; `rows` is for synchronous calls as well."""

OPTIONS = OF_CALLS | OF_ANSWERS | OF_FILES | OF_BATCHES

CREATING = ("create",)
SYNCHRONOUS = ("chat",)
UPLOADING = ("upload",)
CONTENT = ("content", "results")
LINES = frozenset(("bom", "crlf", "blank_lines", "json_array", "raw_gzip"))
"""Those that only the bytes of a result file can have."""


class Match(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which calls; None is any."""

    verb: str | None = None
    flavour: str | None = None
    model: str | None = None
    nth: int = 1


@dataclass(slots=True)
class Fault:
    """One entry of the script; `seen` is how many calls have matched it so far, `since` when it was first due."""

    do: str
    match: Match
    times: int | None
    options: Json
    lasts: float | None = None
    seen: int = 0
    since: float | None = None

    @property
    def is_of_batch(self) -> bool:
        return self.do in OF_BATCHES

    @property
    def is_of_call(self) -> bool:
        return self.do in OF_CALLS

    def meets(self, flavour: str, verb: str, model: str | None) -> bool:
        wanted, verbs = self.match, self._verbs()
        if verbs is not None and verb not in verbs:
            return False
        return (
            wanted.verb in (None, verb)
            and wanted.flavour in (None, flavour)
            and (wanted.model is None or wanted.model == model)
        )

    def _verbs(self) -> Collection[str] | None:
        """The calls that it may be about at all; None for any."""
        if self.do == "rows":
            return CREATING + SYNCHRONOUS
        if self.is_of_batch:
            return CREATING
        if self.do in OF_FILES:
            return UPLOADING
        return CONTENT if self.do in LINES else VERBS_OF.get(self.do)

    def is_due(self, now: float) -> bool:
        """Whether it holds for the call that was counted last."""
        behind = self.seen - self.match.nth
        if behind < 0:
            return False
        if self.lasts is not None:
            self.since = now if self.since is None else self.since
            return now < self.since + self.lasts
        return self.times is None or behind < self.times

    def row_fault(self) -> RowFault:
        """Of `rows`."""
        return parse(self.options["row"])

    def told(self) -> Json:
        told = {"do": self.do, "match": msgspec.to_builtins(self.match), "times": self.times, "seen": self.seen}
        return told | {"lasts": self.lasts} | self.options


@dataclass(slots=True)
class Script:
    faults: list[Fault] = field(default_factory=list)

    def add(self, entries: Iterable[Json]) -> None:
        """Raises ValueError for what cannot be read, lest a test passes by a typo."""
        self.faults += [_fault(dict(entry)) for entry in entries]

    def take(self, flavour: str, verb: str, model: str | None, now: float) -> tuple[Fault, ...]:
        """Count this call, and give the faults that are due for it."""
        return tuple(self._due(flavour, verb, model, now))

    def _due(self, flavour: str, verb: str, model: str | None, now: float) -> Iterator[Fault]:
        for fault in self.faults:
            if fault.meets(flavour, verb, model):
                fault.seen += 1
                if fault.is_due(now):
                    yield fault


def _fault(entry: Json) -> Fault:
    do = entry.pop("do", None)
    if do not in OPTIONS:
        raise ValueError(f"unknown fault {do!r}")
    match = msgspec.convert(entry.pop("match", {}), Match)
    times, lasts = entry.pop("times", 1), entry.pop("lasts", None)
    unknown = set(entry) - set(OPTIONS[do])
    if unknown:
        raise ValueError(f"fault {do} has no option {', '.join(sorted(unknown))}")
    fault = Fault(do, match, times, OPTIONS[do] | entry, lasts)
    if do == "rows":
        fault.row_fault()
    return fault
