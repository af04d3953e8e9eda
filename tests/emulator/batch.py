"""The life of a batch, driven by the clock alone: what it will be at any time is settled when it starts to run."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tests.emulator.rowfaults import Tokens
from tests.emulator.rows import Rows
from tests.emulator.script import Fault
from tests.emulator.settings import Settings
from tests.emulator.validation import LineError

FINAL = frozenset({"failed", "completed", "expired", "cancelled", "gone"})
WINDOW = 86_400.0
NEARLY = 1e-9


@dataclass(slots=True)
class FilePlan:
    """What becomes of its result files: from when on they can be read, how they grow, what is told of their size.

    `late`, `grows` are seconds from its end; `share` of the lines is there at once; `told` says which size is.
    """

    late: float = 0.0
    grows: float = 0.0
    share: float = 1.0
    told: str = "whole"
    wrong_size: int = 0
    is_swapped: bool = False
    swapped_keys: tuple[int, ...] = ()
    lost: frozenset[str] = frozenset()


@dataclass(slots=True)
class Plan:
    """How long its stages take, in virtual seconds, and what a script wants of it.

    `expire_share` and `stuck_share` are the part of its rows that end before the window does or before it is stuck.
    `rows` are the script's faults for rows. `unknown` and `backwards` are from when to when, in seconds from the
    creation or the end, nobody knows the batch (is it listed then?) or it is told as running again.
    """

    validating: float
    turnaround: float
    finalizing: float
    cancelling: float
    hidden: float = 0.0
    vanishes: float = inf
    late_output_id: float = 0.0
    expire_share: float | None = None
    stuck_share: float | None = None
    drop: int = 0
    is_drop_billed: bool = True
    has_empty_error_file: bool = False
    is_shuffled: bool = False
    has_cut_tail: bool = False
    errors: list[LineError] = field(default_factory=list)
    token_limit: int | None = None
    rows: list[Fault] = field(default_factory=list)
    unknown: tuple[float, float] | None = None
    is_listed: bool = True
    backwards: tuple[float, float] | None = None
    lagging_counts: float = 0.0
    shrinking_counts: int = 0
    ignores_cancel: bool = False
    has_twin: bool = False
    does_nothing: bool = False
    files: FilePlan = field(default_factory=FilePlan)


def plan(settings: Settings, flavour: str, dice: random.Random, faults: Iterable[Fault]) -> Plan:
    """Draw the times and put the faults upon them."""
    found = Plan(
        dice.uniform(*settings.validating_s),
        dice.uniform(*settings.turnaround_s),
        dice.uniform(*settings.finalizing_s),
        dice.uniform(*settings.cancelling_s),
        has_empty_error_file=flavour == "azure",
        is_shuffled=flavour == "anthropic",
    )
    if flavour == "anthropic":
        # Its batches are in progress from the start and have ended as soon as their rows have.
        found.validating = found.finalizing = 0.0
    for fault in faults:
        _put(found, fault)
    return found


def _put(found: Plan, fault: Fault) -> None:
    told = fault.options
    match fault.do:
        case "hidden":
            found.hidden = told["seconds"]
        case "fails":
            lines = told["lines"] or [None]
            found.errors = [LineError(told["code"], told["message"], told["param"], line) for line in lines]
        case "token_limit_exceeded":
            found.token_limit = told["limit"]
        case "turnaround":
            found.turnaround = told["seconds"]
        case "expires":
            found.expire_share = told["share"]
        case "stuck_validating":
            found.validating = inf
        case "stuck_in_progress":
            found.stuck_share = told["share"]
        case "slow_cancel":
            found.cancelling = told["seconds"]
        case "cancel_race":
            found.drop, found.is_drop_billed = told["drop"], told["billed"]
        case "vanishes":
            found.vanishes = told["seconds"]
        case "late_output_id":
            found.late_output_id = told["seconds"]
        case "zero_byte_error_file":
            found.has_empty_error_file = True
        case "shuffled":
            found.is_shuffled = True
        case "cut_tail":
            found.has_cut_tail = True
        case "rows":
            found.rows.append(fault)
        case "unknown_for":
            found.unknown = (told["after"], told["after"] + told["seconds"])
            found.is_listed = told["listed"]
        case "backwards":
            found.backwards = (told["after"], told["after"] + told["seconds"])
        case "lagging_counts":
            found.lagging_counts = told["seconds"]
        case "shrinking_counts":
            found.shrinking_counts = told["by"]
        case "cancel_ignored":
            found.ignores_cancel = True
        case "stuck_finalizing":
            found.finalizing = inf
        case "twice":
            found.has_twin = True
        case "does_nothing":
            found.does_nothing = True
        case _:
            _put_files(found.files, fault)


def _put_files(found: FilePlan, fault: Fault) -> None:
    told = fault.options
    match fault.do:
        case "late_content":
            found.late = told["seconds"]
        case "grows":
            found.grows, found.share, found.told = told["seconds"], told["share"], told["told"]
        case "lost_file":
            found.lost |= {told["kind"]}
        case "wrong_size":
            found.wrong_size = told["by"]
        case "no_size":
            found.told = "none"
        case "swapped":
            found.is_swapped = True
        case "swapped_keys":
            found.swapped_keys = tuple(told["lines"])


@dataclass(slots=True)
class Batch:
    """`number` counts all batches of the provider, `times` says when each status was entered, in unix seconds.

    Statuses are OpenAI's, at Anthropic too, and `gone` is that of a batch that has vanished. `ran` is how many rows
    had run when it ended or was cancelled, `dropped` how many of these the provider has lost.
    """

    id: str
    number: int
    flavour: str
    account: str
    endpoint: str
    plan: Plan
    created_at: float
    input_file_id: str | None = None
    metadata: dict[str, str] | None = None
    output_expires_s: float = 30 * WINDOW
    window_s: float = WINDOW
    display_name: str | None = None
    asked: dict[str, Any] | None = None
    output_key: str | None = None
    model: str | None = None
    status: str = "validating"
    rows: Rows | None = None
    errors: list[LineError] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    ran: int = 0
    dropped: int = 0
    is_deleted: bool = False
    deletes_input: bool = False
    tallied: tuple[int, Tokens] | None = None
    next_try: float | None = None

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def is_enqueued(self) -> bool:
        """Whether its tokens count against the model's limit."""
        return self.rows is not None and not self.is_final

    @property
    def count(self) -> int:
        return 0 if self.rows is None else self.rows.count

    @property
    def window_end(self) -> float:
        """Azure lets a batch run on behind its window."""
        return inf if self.flavour == "azure" else self.created_at + self.window_s

    @property
    def tells_unrun(self) -> bool:
        """Whether rows that did not run have a line; nothing says that the others have one."""
        return self.flavour in ("openai", "azure", "anthropic")

    @property
    def ended_at(self) -> float:
        return self.times[self.status]

    def enter(self, status: str, at: float) -> None:
        self.status = status
        self.times[status] = at

    def start(self, rows: Rows, at: float) -> None:
        """Its input is valid: the rows run from now on."""
        self.rows = rows
        if self.plan.expire_share is not None:
            left = self.created_at + self.window_s - at
            self.plan.turnaround = left / self.plan.expire_share if self.plan.expire_share > 0 else inf
        self.enter("in_progress", at)

    def fail(self, errors: list[LineError], at: float) -> None:
        self.errors = errors
        self.enter("failed", at)

    def is_unknown(self, at: float) -> bool:
        """Whether nobody knows it now."""
        span = self.plan.unknown
        return span is not None and self.created_at + span[0] <= at < self.created_at + span[1]

    def runs_again(self, at: float) -> bool:
        """Whether it is told as running though it has ended."""
        span = self.plan.backwards
        return span is not None and self.is_final and self.ended_at + span[0] <= at < self.ended_at + span[1]

    def shown(self, lines: int, at: float) -> int:
        """How many of a result file's lines are there now."""
        files = self.plan.files
        if not files.grows:
            return lines
        passed = min(1.0, (at - self.ended_at) / files.grows)
        return int(lines * (files.share + (1 - files.share) * passed) + NEARLY)

    def cancel(self, at: float) -> None:
        """Rows that have run by now have their answers, no other row will run."""
        if self.plan.ignores_cancel:
            return
        self.ran = self.has_run(at)
        self.enter("cancelling", at)

    def due(self) -> float:
        """When it changes next by itself; infinity where it will not."""
        gone = self.created_at + self.plan.vanishes
        match self.status:
            case "gone":
                return inf
            case "failed" | "completed" | "expired" | "cancelled":
                return gone
            case "validating":
                return min(gone, self.next_try or self.created_at + self.plan.validating)
            case "in_progress":
                return min(gone, self._all_done(), self.window_end)
            case "finalizing":
                return min(gone, self.times["finalizing"] + self.plan.finalizing)
            case _:
                return min(gone, self.times["cancelling"] + self.plan.cancelling)

    def step(self, at: float) -> None:
        """Do what is due at `at`; validation is the world's."""
        if at >= self.created_at + self.plan.vanishes:
            self.ran = self.has_run(at)
            self.enter("gone", at)
        elif self.status == "in_progress":
            self.ran = self.has_run(at)
            is_done = self.ran == self.count or self.plan.does_nothing
            self.enter("finalizing" if is_done else "expired", at)
        elif self.status == "finalizing":
            self.enter("completed", at)
        else:
            self.dropped = min(self.plan.drop, self.ran)
            self.enter("cancelled", at)

    def has_run(self, at: float) -> int:
        """How many rows have run by then."""
        if self.plan.does_nothing:
            return 0
        if self.status != "in_progress":
            return self.ran
        if at >= self._all_done():
            return self.count
        passed = at - self.times["in_progress"]
        share = min(passed / self.plan.turnaround, 1.0) if self.plan.turnaround else 1.0
        return min(int(self.count * share + NEARLY), self._before_stuck())

    def _before_stuck(self) -> int:
        share = self.plan.stuck_share
        return self.count if share is None else int(self.count * share + NEARLY)

    def _all_done(self) -> float:
        return self.times["in_progress"] + self.plan.turnaround if self._before_stuck() == self.count else inf

    @property
    def kept(self) -> int:
        """How many of the rows that have run are in its files."""
        return self.ran - self.dropped

    def counts(self, now: float) -> tuple[int, int, int]:
        """All rows, and those counted completed and failed so far; none while it validates or where it failed."""
        if self.rows is None:
            return 0, 0, 0
        if self.is_final and now < self.ended_at + self.plan.lagging_counts:
            return self.count, 0, 0
        ran = self.has_run(now) - self.dropped
        failed = self.rows.tally(ran, lambda effect: int(effect.has_failed))
        fewer = self.plan.shrinking_counts if self.is_final else 0
        return self.count, max(0, ran - failed - fewer), failed

    def billable(self, now: float) -> int:
        """How many rows, the first of those that have run, are to be billed if their effect says so."""
        if self.flavour == "gemini" and self.status == "expired":
            return 0
        return self.has_run(now) - (0 if self.plan.is_drop_billed else self.dropped)

    def file_lines(self, kind: str) -> int:
        """How many lines its result file of that kind has, now that it has ended."""
        if self.rows is None or not self.is_final:
            return 0
        if self.flavour == "gemini":
            # One file for all results, and none of a batch that has expired.
            if kind == "error" or self.status == "expired":
                return 0
            return self.rows.tally(self.kept, lambda effect: effect.unrun is None and effect.copies)
        if self.flavour in ("bedrock", "vertex", "cohere"):
            # One file as well, and one of all that was done however the job ended.
            return 0 if kind == "error" else self.kept
        has_unrun = kind == "error" and self.tells_unrun and not self.plan.does_nothing
        unrun = self.count - self.ran if has_unrun else 0
        return self.rows.tally(self.kept, lambda effect: effect.lines(kind)) + unrun

    def has_file(self, kind: str) -> bool:
        has_empty_one = self.plan.does_nothing or (kind == "error" and self.plan.has_empty_error_file)
        is_empty_one = has_empty_one and self.rows is not None and self.is_final
        return self.status != "gone" and (is_empty_one or self.file_lines(kind) > 0)
