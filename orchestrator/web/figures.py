"""Figures on the pages, as markup that names the command whose `--json` has the same value. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from markupsafe import Markup
from msgspec import Struct

from orchestrator.core.durations import duration, pace_words
from orchestrator.core.money import money
from orchestrator.core.probability_words import chance_words
from orchestrator.core.sanitize import escape_controls
from orchestrator.core.zones import zone_of

NOTHING = "—"
_SAME_ZONE = "%H:%M %Z"
_MOMENT = "%a %d %b %H:%M"


class CommandJson(Struct, frozen=True):
    """The `--json` of a command, or its part at path `at`. `command` omits `orch` and `--json`."""

    command: str
    data: Any
    at: str = ""

    def __getitem__(self, key: str | int) -> CommandJson:
        return CommandJson(self.command, self.data[key], f"{self.at}.{key}" if self.at else str(key))

    def __iter__(self) -> Any:
        return (self[number] for number in range(len(self.data)))

    def __len__(self) -> int:
        return len(self.data)

    def __bool__(self) -> bool:
        return bool(self.data)

    def get(self, path: str) -> Any:
        """Return the value at a path such as `requests.done`, or None if the path leads through null."""
        found = self.data
        for key in path.split("."):
            if found is None:
                return None
            found = found[int(key)] if isinstance(found, list) else found[key]
        return found


def count(value: Any) -> str:
    return f"{value:,}"


def dollars(value: Any) -> str:
    return money(Decimal(str(value)))


def share(value: Any) -> str:
    """Format a fraction as a percentage: `25%` for 0.25."""
    return f"{value:.0%}" if value in (0, 1) or 0.01 <= abs(value) <= 0.99 else f"{value:.1%}"


def tokens(value: Any) -> str:
    """Format a number of tokens: `9,999`, `12.3k`, `4.5M` or `123M`."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if value >= size:
            short = value / (1000 if unit == "k" else size)
            return f"{short:.0f}{unit}" if short >= 100 else f"{short:.1f}{unit}"
    return f"{value:,}"


def rate(value: Any) -> str:
    """Format a rate per second: `1,234`, `12.3` or `0.12`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


FORMS: Mapping[str, Callable[[Any], str]] = {
    "count": count,
    "dollars": dollars,
    "share": share,
    "chance": chance_words,
    "tokens": tokens,
    "rate": rate,
    "pace": pace_words,
    "seconds": duration,
    "text": str,
}


def figure(told: CommandJson, path: str, form: str = "count") -> Markup:
    """Mark up a value from a command's `--json`. The markup's attributes have the raw value and its source.

    An amount that the `--json` calls estimated is marked `≈`.
    """
    value = told.get(path)
    at = f"{told.at}.{path}" if told.at else path
    place, _, name = path.rpartition(".")
    beside = told.get(place) if place else told.data
    is_estimate = isinstance(beside, dict) and beside.get(name.replace("_usd", "_estimated")) is True
    mark = "≈" if is_estimate else ""
    shown = NOTHING if value is None else mark + FORMS[form](value)
    raw = "" if value is None else str(value)
    made = '<data value="{}" data-command="{}" data-at="{}">{}</data>'
    return Markup(made).format(raw, escape_controls(told.command), at, escape_controls(shown))


def moment(at: datetime | str | None) -> Markup:
    """Mark up a time in this machine's zone. The page's script then shows it in the reader's zone.

    If the reader's zone differs, the script also shows the time in this machine's zone.
    """
    if at is None:
        return Markup(NOTHING)
    found = datetime.fromisoformat(at) if isinstance(at, str) else at
    here = found.astimezone()
    made = '<time datetime="{}" data-there="{}" data-offset="{}">{}</time>'
    offset = here.utcoffset()
    minutes = 0 if offset is None else int(offset.total_seconds() // 60)
    iso = found.isoformat(timespec="seconds").replace("+00:00", "Z")
    return Markup(made).format(iso, f"{here:{_SAME_ZONE}}", minutes, f"{here:{_MOMENT}}")


def day(value: date | str) -> str:
    """Format a date: `Sun 29 Nov 2026`."""
    found = date.fromisoformat(value) if isinstance(value, str) else value
    return f"{found:%a %d %b %Y}"


def in_zone(at: datetime | str | None, tz: str) -> str:
    """Format a time in the time zone `tz`: `Mon 30 Nov 22:00`."""
    if at is None:
        return NOTHING
    found = datetime.fromisoformat(at) if isinstance(at, str) else at
    return f"{found.astimezone(zone_of(tz)):{_MOMENT}}"


def moment_text(at: datetime) -> str:
    """Format a time for use in a sentence, in this machine's time zone: `Mon 30 Nov 22:00 CET`."""
    return f"{at.astimezone():{_MOMENT} %Z}"
