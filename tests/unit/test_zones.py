"""Offsets of zones, against those that the standard library gives for each instant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.zones import utc_offsets

NAMES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "Africa/Casablanca")
YEAR = timedelta(days=366)
START = datetime(2005, 1, 1, tzinfo=UTC)


@given(
    st.sampled_from(NAMES),
    st.timedeltas(timedelta(0), 32 * YEAR).map(lambda age: START + age),
    st.timedeltas(timedelta(0), 2 * YEAR),
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_each_instant_has_the_offset_of_its_zone(
    name: str, first: datetime, length: timedelta, places: list[float]
) -> None:
    zone, last = ZoneInfo(name), first + length
    ends = list(utc_offsets(zone, first, last))
    assert [end for end, _ in ends] == sorted({end for end, _ in ends})
    assert ends[-1][0] > last
    instants = [first + place * length for place in places]
    changes = [end for end, _ in ends[:-1]]
    for at in [*instants, *changes, *(end - timedelta(seconds=1) for end in changes), last]:
        if first <= at <= last:
            found = next(offset for end, offset in ends if at < end)
            assert found == at.astimezone(zone).utcoffset()
