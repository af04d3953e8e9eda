"""What befalls a hosted job, all from a seed: its rows, what its provider does to them, where the program is killed.

Of every row it is known beforehand how it must end, how often the provider may bill it in vain, and with how many
tokens: so the provider's bill can be compared with the ledger row by row, and to the last token.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from tests.emulator.answers import CHAT, decode_body, read
from tests.emulator.rowfaults import Tokens, effect_of, marked

MODEL = "m"
ATTEMPTS = 3
"""So many batches a row is given before it is given up; the program says the same."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """What the provider does to a row. It costs the row `attempts`, and `lost` answers are billed and never come."""

    text: str
    state: str = "succeeded"
    attempts: int = 0
    lost: int = 0


PLAIN = Mark("")
MARKS = (
    Mark("status:400", "failed"),
    Mark("content_filter", "failed"),
    Mark("context_length_exceeded", "failed"),
    Mark("status:500", "failed", ATTEMPTS),
    Mark("status:500:1", attempts=1),
    Mark("status:500:2", attempts=2),
    Mark("status:0:1", attempts=1),
    Mark("status:429:1"),
    Mark("status:503:1", attempts=1),
    Mark("status:404:1", attempts=1),
    Mark("insufficient_quota:1"),
    Mark("missing", "failed", ATTEMPTS, ATTEMPTS),
    Mark("missing:1", attempts=1, lost=1),
    Mark("never_ran:1", attempts=1),
    Mark("broken_line:1", attempts=1, lost=1),
    Mark("expired:1", attempts=1),
    Mark("cancelled:1", attempts=1),
    Mark("duplicate"),
    Mark("both_files"),
    Mark("unknown_id"),
    Mark("body_string"),
    Mark("cached"),
    Mark("reasoning"),
    Mark("reasoning_outside"),
    Mark("length"),
)
LOSING = frozenset(("missing", "missing:1", "never_ran:1", "broken_line:1"))
ANTHROPICS = (*(mark for mark in MARKS if mark.text not in LOSING), Mark("cache_write"))
"""Its results have each row, and so at least one that says whose batch it is; only they tell what went to a cache."""
BEDROCKS_MARKS = tuple(mark for mark in MARKS if not mark.text.startswith("reasoning"))
"""Converse counts no thoughts by themselves."""
COHERES_MARKS = tuple(
    replace(mark, attempts=mark.attempts or int(mark.text.endswith(":1"))) for mark in BEDROCKS_MARKS
)
"""Nor does Cohere, where a row that failed has words alone: each failure counts."""


@dataclass(frozen=True, slots=True)
class Given:
    """A row as it is sent, and the digest and tokens that the provider knows it by."""

    custom_id: str
    mark: Mark
    line: Json
    digest: str
    tokens: Tokens


def given(custom_id: str, mark: Mark = PLAIN) -> Given:
    directive = f" [[fault:{mark.text}]]" if mark.text else ""
    body = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": f"{custom_id}{directive}"}]}
    line = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
    encoded = json.dumps(body).encode()
    asked = read(decode_body(encoded), CHAT)
    effect = effect_of(fault for fault in marked(encoded) if fault.tries is None)
    tokens = effect.tokens(asked.prompt, asked.completion, asked.most)
    return Given(custom_id, mark, line, asked.digest.hex(), tokens)


def write(path: Path, rows: list[Given]) -> None:
    """A ready batch file of these rows."""
    path.write_text("".join(json.dumps(row.line) + "\n" for row in rows), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Blow:
    """An entry of the provider's script. It may cost each row of a batch `attempts`, and `lost` billed answers.

    `uploads`: it may leave an input file behind that nobody can know of; `kept_files`: it refuses their deletion.
    """

    fault: Json
    attempts: int = 0
    lost: int = 0
    uploads: int = 0
    kept_files: int = 0


OPENAI_VERBS = ("upload", "create", "create", "retrieve", "list", "content", "delete_file", "cancel", "models")
ANTHROPIC_VERBS = ("create", "create", "retrieve", "list", "results", "cancel")
LINES = "Invalid value of 'messages'."


def _of_call(dice: random.Random, flavour: str) -> Blow:
    """Something that goes wrong with one call."""
    verb = dice.choice(ANTHROPIC_VERBS if flavour == "anthropic" else OPENAI_VERBS)
    kinds: list[Json] = [
        {"do": "cut_before"},
        {"do": "cut_after"},
        {"do": "status", "status": dice.choice([500, 502, 503, 504, 408])},
        {"do": "status", "status": 429, "retry_after": dice.choice([None, 20, 400])},
        {"do": "status", "status": 429, "code": "insufficient_quota"},
        {"do": "status", "status": 401},
        {"do": "cut_body", "share": dice.choice([0.0, 0.3, 0.9])},
    ]
    # What nobody calls often enough for a later call of it to come.
    nth = 1 if verb in ("upload", "cancel") else dice.randint(1, 3)
    fault = {**dice.choice(kinds), "match": {"verb": verb, "flavour": flavour, "nth": nth}}
    # An account that may not delete its files keeps no job waiting: they are left, and `orch reconcile` tells.
    is_refused = verb == "delete_file" and (fault.get("status") == 401 or "code" in fault)
    fault["times"] = times = dice.choice([1, 1, 2])
    return Blow(fault, uploads=times if verb == "upload" else 0, kept_files=times if is_refused else 0)


def _orphans(dice: random.Random, flavour: str) -> list[Blow]:
    """Batches that are made, not told of, and not listed for a while."""
    match = {"verb": "create", "flavour": flavour, "nth": dice.randint(1, 2)}
    common = {"match": match, "times": dice.randint(1, 3)}
    hidden = {"do": "hidden", "seconds": dice.choice([0.0, 100.0, 400.0, 550.0])}
    return [Blow({"do": "cut_after", **common}), Blow({**hidden, **common})]


def _of_batch(dice: random.Random, flavour: str, *, cancels: bool) -> Blow:
    """Something that becomes of one batch."""
    kinds: list[Blow] = [
        Blow({"do": "hidden", "seconds": dice.choice([30.0, 200.0, 500.0])}),
        Blow({"do": "expires", "share": dice.choice([0.0, 0.4, 0.9])}),
        Blow({"do": "stuck_in_progress", "share": 0.6}),
        Blow({"do": "turnaround", "seconds": dice.choice([0.0, 40_000.0])}),
        Blow({"do": "vanishes", "seconds": dice.choice([10.0, 400.0, 50_000.0])}, attempts=1, lost=1),
        Blow({"do": "shuffled"}),
        Blow({"do": "rows", "row": "status:500", "share": dice.choice([0.3, 1.0])}, attempts=1),
    ]
    if flavour in ("openai", "azure"):
        # The others name no line of a batch that failed, and count no enqueued tokens here.
        kinds += [
            Blow({"do": "token_limit_exceeded", "limit": dice.choice([60, 400, 900_000])}),
            Blow(
                {"do": "fails", "code": "invalid_request", "param": "body.messages", "message": LINES, "lines": [2]},
                1,
            ),
        ]
    if flavour != "anthropic":
        kinds += [
            Blow({"do": "fails", "code": "too_many_tasks", "message": "Too many tasks in the file."}),
            Blow({"do": "late_output_id", "seconds": dice.choice([60.0, 500.0])}),
            Blow({"do": "zero_byte_error_file"}),
            Blow({"do": "cut_tail"}, attempts=1, lost=1),
        ]
    if flavour in ("gemini", "bedrock", "vertex", "xai", "openrouter", "cohere"):
        kinds = [one for one in kinds if one.fault["do"] != "zero_byte_error_file"]
    if cancels:
        kinds += [
            Blow({"do": "slow_cancel", "seconds": 600.0}),
            Blow({"do": "cancel_race", "drop": 2, "billed": dice.choice([True, False])}, lost=1),
        ]
    chosen = dice.choice(kinds)
    match = {"verb": "create", "flavour": flavour, "nth": dice.randint(1, 3)}
    return replace(chosen, fault={**chosen.fault, "match": match})


COUNTED_ODDLY = (
    "text_counts float_counts null_counts zero_counts negative_counts huge_counts nan_counts no_counts "
    "counts_as_list loud_status status_object no_metadata odd_metadata odd_usage"
).split()
"""What may be told of a batch at every look."""
TOLD_ODDLY = (
    "new_status no_status earlier_status no_id number_id other_id odd_times huge_times no_times odd_letters"
).split()
"""What is told of one for a while."""
LISTED_ODDLY = (
    "no_has_more endless_list reversed_list doubled_list empty_list bare_list list_of_items null_in_list unpaged_list"
).split()
NO_ANSWERS: tuple[Json, ...] = (
    {"do": "html_page"},
    {"do": "error_object"},
    {"do": "json_null"},
    {"do": "half_json"},
    {"do": "empty_body"},
    {"do": "reset_before"},
    {"do": "reset_after"},
    {"do": "bare_status", "status": 502},
    {"do": "bare_status", "status": 429},
    {"do": "redirect", "status": 307, "to": "nowhere"},
    {"do": "status", "status": 429, "headers": {"retry-after": "Fri, 31 Dec 99999999999 23:59:59 GMT"}},
    {"do": "status", "status": 403},
)
READ_ODDLY: tuple[Json, ...] = (
    {"do": "short_body", "share": 0.6},
    {"do": "short_length"},
    {"do": "long_length"},
    {"do": "bare_status", "status": 404},
    {"do": "bom"},
    {"do": "crlf"},
    {"do": "blank_lines"},
    {"do": "json_array"},
    {"do": "raw_gzip"},
)
"""What becomes of the bytes of result files."""
LINES_OF_TEXT = ("bom", "crlf", "blank_lines", "json_array", "raw_gzip")
BATCHED_ODDLY: tuple[Json, ...] = (
    {"do": "unknown_for", "seconds": 300.0, "listed": True},
    {"do": "unknown_for", "after": 200.0, "seconds": 900.0, "listed": False},
    {"do": "late_content", "seconds": 7200.0},
    {"do": "grows", "seconds": 3600.0, "told": "whole"},
    {"do": "grows", "seconds": 3600.0, "told": "part"},
    {"do": "lagging_counts"},
    {"do": "shrinking_counts"},
    {"do": "backwards"},
    {"do": "swapped"},
    {"do": "no_size"},
    {"do": "wrong_size"},
    {"do": "rows", "row": "id_upper"},
    {"do": "rows", "row": "id_lower"},
    {"do": "rows", "row": "id_blanks"},
    {"do": "rows", "row": "status_text"},
    {"do": "rows", "row": "status_float"},
    {"do": "rows", "row": "text_usage"},
    {"do": "rows", "row": "surrogate"},
)
LATE = ("late_content", "grows")
UPLOADED_ODDLY: tuple[Json, ...] = (
    {"do": "no_bytes"},
    {"do": "nameless_file"},
    {"do": "late_upload", "seconds": 400.0, "told": "create"},
    {"do": "late_upload", "seconds": 400.0, "told": "status"},
)


def _oddly(dice: random.Random, flavour: str, most_lasting: float) -> Blow:
    """Something that contradicts what was said before, or has another shape: no row may be billed again for it."""
    is_claude = flavour == "anthropic"
    content = "results" if flavour in ("anthropic", "xai") else "content"
    lasts = min(most_lasting, dice.choice([200.0, 1200.0, 3600.0]))
    # An Avro file is no text: what is put between its bytes is no part of it.
    read = [one for one in READ_ODDLY if flavour != "cohere" or one["do"] not in LINES_OF_TEXT]
    of_batches = [one for one in BATCHED_ODDLY if one["do"] not in LATE or one["seconds"] <= most_lasting]
    polls = ["retrieve"] if is_claude else ["retrieve", "list"]
    verb = dice.choice(ANTHROPIC_VERBS if is_claude else OPENAI_VERBS)
    nth = {"nth": dice.randint(1, 3)}
    # Counts are xAI's word for a status: wrong ones for ever are a batch that never ends.
    counted: Json = {"lasts": lasts} if flavour == "xai" else {}
    chosen: list[tuple[Json, Json]] = [
        ({"do": dice.choice(COUNTED_ODDLY), "times": None, **counted}, {"verb": "retrieve"}),
        ({"do": dice.choice(TOLD_ODDLY), "times": None, "lasts": lasts}, {"verb": dice.choice(polls)}),
        ({"do": dice.choice(LISTED_ODDLY), "times": dice.randint(1, 3)}, {"verb": "list"}),
        ({**dice.choice(read), "times": None, "lasts": lasts}, {"verb": content}),
        ({**dice.choice(NO_ANSWERS), "times": dice.randint(1, 2)}, {"verb": verb}),
        (dice.choice(of_batches), {"verb": "create", **nth}),
    ]
    if not is_claude:
        chosen.append((dice.choice(UPLOADED_ODDLY), {"verb": "upload"}))
    fault, match = dice.choice(chosen)
    return Blow(
        {**fault, "match": {**match, "flavour": flavour}},
        uploads=4 if match["verb"] == "upload" else 0,
        kept_files=3 if match["verb"] == "delete_file" else 0,
    )


VOCABULARY = frozenset(
    [*COUNTED_ODDLY, *TOLD_ODDLY, *LISTED_ODDLY]
    + [f"{one['do']} {one.get('row', one.get('told', ''))}" for one in (*BATCHED_ODDLY, *UPLOADED_ODDLY)]
    + [f"{one['do']} {one.get('status', '')}" for one in (*NO_ANSWERS, *READ_ODDLY)]
)


@dataclass(frozen=True, slots=True)
class Kills:
    """Where the program is killed: at every `nth` point that it passes, or with this chance at each, `most` times."""

    most: int = 0
    chance: float = 0.0
    nth: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that is decided beforehand. `order` are the backends as orch.toml has them."""

    seed: int
    order: tuple[str, ...]
    rows: list[Given]
    most_rows: int
    blows: list[Blow]
    kills: Kills
    settings: Json
    cancel_at: float = inf
    limits: Json = field(default_factory=dict)

    @property
    def script(self) -> list[Json]:
        return [blow.fault for blow in self.blows]

    def __str__(self) -> str:
        rows = {row.custom_id: row.mark.text for row in self.rows if row.mark.text}
        return (
            f"seed {self.seed}: {len(self.rows)} rows by {self.most_rows} to {' then '.join(self.order)}, "
            f"{self.kills}, cancelled at {self.cancel_at}, settings {self.settings}, limits {self.limits}, "
            f"marks {rows}, script {json.dumps(self.script)}"
        )


def odd(seed: int, orders: Orders | None = None) -> Schedule:
    """A schedule as `drawn`, at a provider whose answers are odd as well, late, or contradict each other.

    A job that is cancelled waits ten minutes for answers that exist; in its schedule nothing takes longer.
    """
    schedule = drawn(seed, orders)
    return with_odd_answers(schedule, most_lasting=200.0 if schedule.cancel_at < inf else inf)


def with_odd_answers(schedule: Schedule, most_lasting: float) -> Schedule:
    """A schedule with some odd answers, none of which lasts longer than so many seconds."""
    dice = random.Random(f"odd {schedule.seed}")
    flavours = [FLAVOURS[name] for name in schedule.order]
    blows = [_oddly(dice, dice.choice(flavours), most_lasting) for _ in range(dice.choice([1, 2, 3, 6]))]
    return replace(schedule, blows=[*schedule.blows, *blows])


Orders = Sequence[tuple[str, str]]
ORDERS: Orders = (("cloud", "claude"), ("claude", "cloud"), ("azure", "cloud"), ("cloud", "azure"))
OTHERS: dict[str, Orders] = {
    name: ((name, "cloud"), ("cloud", name), (name, last))
    for name, last in (
        ("mistral", "claude"), ("gemini", "mistral"), ("bedrock", "claude"), ("vertex", "claude"),
        ("together", "claude"), ("xai", "claude"), ("fireworks", "claude"), ("openrouter", "claude"),
        ("scaleway", "claude"), ("cohere", "claude"),
    )
}  # fmt: skip
"""Beside `ORDERS`, by the provider that is one of the two in each."""


def _marks(order: tuple[str, str]) -> tuple[Mark, ...]:
    for name, marks in (("bedrock", BEDROCKS_MARKS), ("cohere", COHERES_MARKS)):
        if name in order:
            return tuple(mark for mark in marks if order[0] != "claude" or mark in ANTHROPICS)
    return ANTHROPICS if order[0] == "claude" else MARKS


def drawn(seed: int, orders: Orders | None = None) -> Schedule:
    """The schedule of a seed: anything may happen in it, and often nothing does."""
    dice = random.Random(f"schedule {seed}")
    order = dice.choice(orders or ORDERS)
    rows = list(_rows(dice, dice.randint(5, 40), _marks(order)))
    most_rows = -(-len(rows) // dice.randint(1, 4))
    cancels = dice.random() < 0.12
    blows = []
    for _ in range(dice.choice([0, 1, 1, 2, 3, 5])):
        flavour = FLAVOURS[order[0] if dice.random() < 0.8 else order[1]]
        blows.append(_of_call(dice, flavour) if dice.random() < 0.6 else _of_batch(dice, flavour, cancels=cancels))
    # Azure and Cohere let a batch run on for ever, xAI for a month.
    blows = [
        blow
        for blow in blows
        if not (blow.fault["match"]["flavour"] in ("azure", "xai", "cohere") and blow.fault["do"] in _ENDLESS)
    ]
    if dice.random() < 0.25:
        blows += _orphans(dice, FLAVOURS[order[0]])
    kills = Kills(most=dice.choice([0, 1, 3, 6, 12]), chance=dice.choice([0.02, 0.05, 0.2]))
    settings: Json = {"turnaround_s": dice.choice([[0, 0], [60, 600], [600, 9000]])}
    if dice.random() < 0.15:
        settings["enqueued_tokens"] = {MODEL: dice.choice([80, 250])}
    limits: Json = {} if dice.random() < 0.8 else {"batches_per_hour": 2}
    cancel_at = dice.choice([0.0, 30.0, 300.0, 1500.0]) if cancels else inf
    return Schedule(seed, order, rows, most_rows, blows, kills, settings, cancel_at, limits)


_ENDLESS = ("expires", "stuck_in_progress")
FLAVOURS = {"cloud": "openai", "azure": "azure", "claude": "anthropic", "mistral": "mistral", "gemini": "gemini",
            "bedrock": "bedrock", "vertex": "vertex", "together": "together", "xai": "xai",
            "fireworks": "fireworks", "openrouter": "openrouter", "scaleway": "scaleway",
            "cohere": "cohere"}  # fmt: skip


def _rows(dice: random.Random, number: int, marks: tuple[Mark, ...]) -> Iterator[Given]:
    share = dice.choice([0.0, 0.1, 0.5])
    for index in range(number):
        yield given(f"row-{index:03d}", dice.choice(marks) if dice.random() < share else PLAIN)


def plain(seed: int, order: tuple[str, ...], kills: Kills, blows: list[Blow] | None = None) -> Schedule:
    """Six rows in two batches, one of them refused at first: the same in every run, but for the kills."""
    rows = [given(f"row-{index:03d}", MARKS[4] if index == 2 else PLAIN) for index in range(6)]
    return Schedule(seed, order, rows, 3, blows or [], kills, {"turnaround_s": [60, 600]})
