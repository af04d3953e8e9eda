"""Quantiles out of buckets, and lines of the log."""

from __future__ import annotations

import json
import logging
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.server.dispatch.stats import BOUNDS, Latencies
from orchestrator.server.logs import JsonLines, PlainLines, log_fields, plain_url
from orchestrator.server.metrics import quantile


def latencies(*seconds: float) -> Latencies:
    found = Latencies()
    for one in seconds:
        found.observe(one)
    return found


def test_a_quantile_is_interpolated_in_its_bucket() -> None:
    assert math.isnan(quantile(latencies(), 0.5))
    assert quantile(latencies(0.3, 0.3), 0.5) == pytest.approx(0.375)
    assert quantile(latencies(0.3, 0.3), 1.0) == pytest.approx(0.5)
    assert quantile(latencies(*[0.005] * 99, 20.0), 0.99) == pytest.approx(0.01)
    assert quantile(latencies(*[0.005] * 9, 20.0), 0.99) == pytest.approx(28.0)


def test_beyond_the_longest_bound_nothing_is_known() -> None:
    assert quantile(latencies(10_000.0), 0.5) == BOUNDS[-1]


@given(st.lists(st.floats(0.0, 600.0), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_in_the_bucket_of_the_true_one(seconds: list[float], share: float) -> None:
    true = sorted(seconds)[math.ceil(share * len(seconds)) - 1]
    high = next(bound for bound in BOUNDS if true <= bound)
    low = max((bound for bound in BOUNDS if bound < true), default=0.0)
    assert low <= quantile(latencies(*seconds), share) <= high


def record(message: str, failed: bool = False, **fields: object) -> logging.LogRecord:
    try:
        if failed:
            raise ValueError("why")
    except ValueError:
        error = sys.exc_info()
    made = logging.LogRecord("orchestrator.x", logging.INFO, "", 0, message, None, error if failed else None)
    made.created = 1_700_000_000.25
    return made if not fields else logging.makeLogRecord({**made.__dict__, **log_fields(**fields)})


def test_a_line_of_json() -> None:
    line = json.loads(JsonLines().format(record("it went", number=3, path="a\nb")))
    assert line == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "logger": "orchestrator.x",
        "message": "it went",
        "number": 3,
        "path": "a\nb",
    }
    broken = JsonLines().format(record("it broke", failed=True))
    assert "\n" not in broken
    assert "ValueError: why" in json.loads(broken)["exception"]


def test_a_line_of_text() -> None:
    line = PlainLines().format(record("it went", number=3, path='a\nb="c"', empty=""))
    assert line == '2023-11-14T22:13:20.250Z info orchestrator.x: it went number=3 path="a\\nb=\\"c\\"" empty=""'
    assert PlainLines().format(record("it broke", failed=True)).endswith("ValueError: why")


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("https://name:secret@host:1/v1", "https://host:1/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_a_url_without_its_password(url: str, plain: str) -> None:
    assert plain_url(url) == plain
