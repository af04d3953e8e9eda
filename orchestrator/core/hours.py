"""Daily hours in which something may run: `20:00-07:00`, in local time."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, tzinfo
from typing import NamedTuple

from msgspec import Struct

_FORM = re.compile(r"([01]\d|2[0-3]):([0-5]\d)\s*-\s*([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
DAY = timedelta(days=1)


class Opening(NamedTuple):
    """One period, from its opening time to its closing time."""

    opens: datetime
    closes: datetime


class Hours(Struct, frozen=True):
    """Daily hours from `opens` to `closes`. If `closes` is the earlier time, they end on the next day.

    Times are in `tz`, or in local time if `tz` is None.
    """

    opens: time
    closes: time
    tz: tzinfo | None = None

    @classmethod
    def parse(cls, text: str) -> Hours:
        """Parse hours such as `20:00-07:00`. Raises ValueError if the text has another form or both times are
        equal.
        """
        if (found := _FORM.fullmatch(text.strip())) is None:
            raise ValueError(f'{text!r} is not a time span such as "20:00-07:00"')
        opens, closes = time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4]))
        if opens == closes:
            raise ValueError(f"{text!r} spans no time; leave out `hours` for the whole day")
        return cls(opens, closes)

    def __str__(self) -> str:
        return f"{self.opens:%H:%M}-{self.closes:%H:%M}"

    def span(self, now: datetime) -> Opening:
        """Return the period that contains `now`, or else the next one."""
        here = now.astimezone(self.tz)
        for days in (-1, 0, 1, 2):
            day = (here + days * DAY).date()
            closing = day if self.closes > self.opens else (here + (days + 1) * DAY).date()
            span = Opening(
                self._at(datetime.combine(day, self.opens)), self._at(datetime.combine(closing, self.closes))
            )
            if now < span.closes and span.opens < span.closes:
                return span
        raise AssertionError("one of three days is not over yet")

    def steps(self, now: datetime, days: int = 8) -> tuple[tuple[float, float], ...]:
        """Return the openings and closings of the next `days` periods, in order.

        Each entry is (seconds from now, 1 for an opening or 0 for a closing).
        """
        found: list[tuple[float, float]] = []
        at = now
        for _ in range(days):
            span = self.span(at)
            if span.opens > now:
                found.append(((span.opens - now).total_seconds(), 1.0))
            found.append(((span.closes - now).total_seconds(), 0.0))
            at = span.closes
        return tuple(found)

    def _at(self, local: datetime) -> datetime:
        return local.replace(tzinfo=self.tz) if self.tz is not None else local.astimezone()
