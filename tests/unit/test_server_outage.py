"""Who is at fault where an upstream fails: one row, or the upstream for all rows."""

from __future__ import annotations

from orchestrator.server.dispatch.outage import MANY_ROWS, SOME_ROWS, Blame, Outage


class Row:
    def __init__(self) -> None:
        self.is_at_fault = False

    def forgive(self) -> None:
        """Nothing is counted here."""


def failed(outage: Outage[Row], row: Row, now: float = 1.0, *, last: bool = False, many: bool = True, out: int = 0):
    return outage.note(row, now, is_last=last, counts_many=many, in_flight=out)


def test_many_rows_that_fail_without_a_success_are_the_upstreams_fault() -> None:
    outage: Outage[Row] = Outage()
    assert outage.succeeded(0.0) is False
    rows = [Row() for _ in range(MANY_ROWS)]
    assert [failed(outage, row) for row in rows] == [Blame.ROW] * (MANY_ROWS - 1) + [Blame.UPSTREAM]
    assert (outage.is_open, outage.began) == (True, 1.0)
    assert outage.failed_rows() == rows
    assert failed(outage, Row()) is Blame.UPSTREAM
    assert outage.succeeded(2.0) is True
    assert not any(row.is_at_fault for row in rows), "it was the upstream"
    assert (outage.is_open, outage.began) == (False, None)


def test_one_row_that_fails_often_is_one_row() -> None:
    outage: Outage[Row] = Outage()
    row = Row()
    assert {failed(outage, row) for _ in range(3 * MANY_ROWS)} == {Blame.ROW}


def test_a_row_that_fails_while_others_succeed_is_at_fault_and_proves_no_outage() -> None:
    outage: Outage[Row] = Outage()
    bad = [Row() for _ in range(SOME_ROWS * MANY_ROWS)]
    for row in bad:
        failed(outage, row)
        outage.succeeded(2.0)
        assert row.is_at_fault
    assert {failed(outage, row, last=True) for row in bad} == {Blame.ROW}
    assert not outage.is_open


def test_a_lone_row_is_at_fault_only_if_the_upstream_ever_answered() -> None:
    outage: Outage[Row] = Outage()
    assert failed(outage, Row(), last=True) is Blame.UPSTREAM
    assert outage.succeeded(2.0) is True
    assert failed(outage, Row(), last=True) is Blame.ROW


def test_a_lone_row_of_the_engine_itself_is_at_fault() -> None:
    outage: Outage[Row] = Outage()
    rows = [Row() for _ in range(SOME_ROWS)]
    for row in rows:
        assert outage.note(row, 1.0, is_last=True, counts_many=True, in_flight=0, is_engine=True) is Blame.ROW
    assert not outage.is_open


def test_the_last_rows_are_at_fault_only_if_they_are_few() -> None:
    outage: Outage[Row] = Outage()
    outage.succeeded(0.0)
    few = [Row() for _ in range(SOME_ROWS)]
    for row in few:
        failed(outage, row)
    assert failed(outage, few[0], last=True) is Blame.UPSTREAM


def test_nobody_is_blamed_while_rows_in_flight_may_tell() -> None:
    outage: Outage[Row] = Outage()
    row = Row()
    assert failed(outage, row, last=True, out=3) is Blame.UNKNOWN
    outage.succeeded(0.5)
    assert failed(outage, row, last=True, out=3) is Blame.ROW


def test_a_row_that_was_out_all_the_while_shows_that_the_others_were_at_fault() -> None:
    outage: Outage[Row] = Outage()
    rows = [Row() for _ in range(MANY_ROWS)]
    for row in rows:
        failed(outage, row, now=5.0)
    assert outage.succeeded(4.0) is True
    assert all(row.is_at_fault for row in rows)


def test_overload_is_an_outage_only_once_rows_have_no_tries_left() -> None:
    outage: Outage[Row] = Outage()
    assert {failed(outage, Row(), many=False) for _ in range(2 * MANY_ROWS)} == {Blame.ROW}
    assert failed(outage, Row(), many=False, last=True) is Blame.UPSTREAM
