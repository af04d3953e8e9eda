"""What a provider tells in shapes that nobody has documented: read as what it can only mean, or as missing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends import lenient
from orchestrator.backends.anthropic import api as anthropic
from orchestrator.backends.lenient_batches import remote_batch, remote_file
from orchestrator.core.batch_api import BatchStatus

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "id status request_counts usage errors metadata created_at completed_at output_file_id error_file_id "
    "input_file_id upstream_seconds processing_status archived_at bytes filename"
).split()

COUNTS: dict[str, tuple[Any, int | None]] = {
    "a number": (3, 3), "text": ("3", 3), "a fraction": (3.0, 3), "below zero": (-3, 0), "null": (None, None),
    "words": ("three", None), "no number": (float("nan"), None), "endless": (float("inf"), lenient.MOST),
    "beyond 64 bits": (2**70, lenient.MOST), "beyond floats": (10**400, lenient.MOST), "a list": ([3], None),
    "a truth": (True, None),
}  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), COUNTS.values(), ids=COUNTS)
def test_counts(value: Any, expected: int | None) -> None:
    assert lenient.count(value) == expected
    told = remote_batch({"id": "b", "status": "completed", "request_counts": {"completed": value, "failed": None}})
    assert (told.completed, told.is_counted) == (expected or 0, expected is not None)


NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECONDS = int(NOON.timestamp())
TIMES: dict[str, tuple[Any, datetime | None]] = {
    "seconds": (SECONDS, NOON), "milliseconds": (SECONDS * 1000, NOON), "text of seconds": (str(SECONDS), NOON),
    "ISO": ("2026-11-21T12:00:00Z", NOON), "no zone": ("2026-11-21 12:00:00", NOON), "words": ("noon", None),
    "beyond every calendar": (10**30, None), "a list": ([], None), "null": (None, None),
}  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), TIMES.values(), ids=TIMES)
def test_times(value: Any, expected: datetime | None) -> None:
    assert lenient.time(value) == expected


ERROR = {"code": "invalid_request", "message": "no", "line": 2}
ERRORS: dict[str, tuple[Any, list[tuple[str, str, int | None]]]] = {
    "OpenAI's": ({"object": "list", "data": [ERROR]}, [("invalid_request", "no", 2)]),
    "a bare list": ([ERROR], [("invalid_request", "no", 2)]),
    "texts": (["no", "never"], [("error", "no", None), ("error", "never", None)]),
    "one text": ("no", [("error", "no", None)]),
    "one object": (ERROR, [("invalid_request", "no", 2)]),
    "a map of codes": ({"invalid_request": "no"}, [("invalid_request", "no", None)]),
    "within more": ({"data": {"errors": [ERROR]}}, [("invalid_request", "no", 2)]),
    "an error in an object": ({"error": ERROR}, [("invalid_request", "no", 2)]),
    "a line that is not a number": ([{**ERROR, "line": "two"}], [("invalid_request", "no", None)]),
    "a line as text": ([{**ERROR, "line": "2"}], [("invalid_request", "no", 2)]),
    "none": (None, []),
    "an empty list": ({"object": "list", "data": []}, []),
    "an empty object": ({"object": "list"}, []),
    "letters that no database takes": (["a\0\ud800"], [("error", "a\ufffd?", None)]),
}


@pytest.mark.parametrize(("told", "expected"), ERRORS.values(), ids=ERRORS)
def test_trap_d_why_a_batch_failed_in_other_shapes(told: Any, expected: list[tuple[str, str, int | None]]) -> None:
    found = remote_batch({"id": "b", "status": "failed", "errors": told}).problems
    assert [(one.code, one.message, one.line) for one in found] == expected


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"status": " COMPLETED "}, "completed"),
        ({"status": {"state": "Cancelled"}}, "cancelled"),
        ({"status": "done"}, "completed"),
        ({"status": "awaiting wizards"}, "in_progress"),
        ({"status": "awaiting wizards", "completed_at": SECONDS}, "completed"),
        ({"status": None, "cancelled_at": SECONDS}, "cancelled"),
        ({"status": 7}, "in_progress"),
    ],
    ids=str,
)
def test_a_status_in_any_spelling(facts: dict[str, Any], status: str) -> None:
    assert remote_batch({"id": "b", **facts}).status == status


def test_an_answer_about_another_batch_is_none() -> None:
    for told in (
        {"id": "other", "status": "completed"},
        {"id": 4711, "status": "completed"},
        {"error": {}},
        [],
        None,
    ):
        with pytest.raises(ValueError, match="the answer is"):
            remote_batch(told, "batch_1")
    assert remote_batch({"status": "completed"}, "batch_1").id == "batch_1", "one that does not say is taken for it"
    with pytest.raises(ValueError, match="the answer is not a batch"):
        remote_batch({"status": "completed"})


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=8))
def test_whatever_is_told_is_read_or_refused_and_fits_a_database(told: dict[str, Any]) -> None:
    for read in (
        lambda: remote_batch(told),
        lambda: remote_file(told),
        lambda: remote_batch(anthropic.batch_of(told)),
    ):
        try:
            found = read()
        except ValueError:
            continue
        if found.id is not None:
            assert "\0" not in found.id
            found.id.encode()
        for name in ("completed", "failed", "rows"):
            value = getattr(found, name, 0) or 0
            assert 0 <= value <= lenient.MOST * 5
        if hasattr(found, "status"):
            assert isinstance(found.status, BatchStatus)


@given(st.binary(max_size=100))
def test_bytes_are_json_or_a_value_error(content: bytes) -> None:
    try:
        lenient.decode(content)
    except ValueError:
        return
    json.loads(content.decode("utf-8-sig"), strict=False)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"", b"\xff", b"{"])
def test_what_is_no_json_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any is
        lenient.decode(content)


def test_json_with_nan_a_mark_and_endless_digits_is_read() -> None:
    found = lenient.decode(b'\xef\xbb\xbf{"a": NaN, "b": ' + b"9" * 5000 + b"}")
    assert found == {"a": None, "b": lenient.MOST}


def test_other_programs_entries_of_any_shape_do_not_hide_ours() -> None:
    def batches(told: Any) -> list[str]:
        return [one.id for one in lenient.readable(lenient.entries(told), remote_batch)]

    assert batches({"data": [None, 5, {"id": "b"}]}) == ["b"]
    assert batches([{"id": "b"}]) == ["b"]
    assert batches({"items": [{"id": "b"}]}) == ["b"]
    for told in ([], {}, {"data": 5}, "no", {"data": [5]}):
        with pytest.raises(ValueError, match="the answer is"):
            batches(told)
