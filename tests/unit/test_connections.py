"""Which connection goes where there are too many, and which client takes too long: on a transport of a test's own."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.client_limits import ClientTimeouts, Closed, Connection, Connections, Phase
from orchestrator.server.open_files import LEAST_CONNECTIONS, LEAST_ROWS, OTHER_FILES, fitted
from orchestrator.server.settings import Settings


class Wire:
    """As much of a transport as the guard uses."""

    def __init__(self) -> None:
        self.unsent = 0
        self.is_open = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str) -> Any:
        return self

    def fileno(self) -> int:
        return -1

    def abort(self) -> None:
        self.is_open = False


class Loop(asyncio.BaseEventLoop):
    """A clock that a test moves."""

    moment = 100.0

    def time(self) -> float:
        return self.moment


@pytest.fixture
def clock() -> Any:
    loop = Loop()
    asyncio._set_running_loop(loop)
    yield loop
    asyncio._set_running_loop(None)
    loop.close()


def client(guard: Connections) -> tuple[Connection, Wire]:
    wire = Wire()
    connection = Connection(guard)
    assert connection.opened(cast("asyncio.Transport", wire))
    return connection, wire


def known(guard: Connections) -> tuple[Connection, Wire]:
    connection, wire = client(guard)
    connection.begin(has_body=False)
    connection.trust()
    connection.end()
    return connection, wire


def still_open(wires: list[tuple[Connection, Wire]]) -> list[bool]:
    return [wire.is_open for _, wire in wires]


def test_the_stranger_that_waited_longest_makes_room(clock: Loop) -> None:
    guard = Connections(6, reserved=3)
    strangers = [client(guard) for _ in range(3)]
    strangers[0][0].begin(has_body=False)
    strangers[0][0].end()
    client(guard)
    assert still_open(strangers) == [True, False, True]
    assert guard.closed == {Closed.REPLACED: 1}
    assert (guard.strangers, guard.trusted) == (3, 0)


def test_who_is_being_answered_makes_no_room(clock: Loop) -> None:
    guard = Connections(2)
    busy = [client(guard) for _ in range(2)]
    for connection, _ in busy:
        connection.begin(has_body=False)
    refused = Connection(guard)
    assert not refused.opened(cast("asyncio.Transport", Wire()))
    assert still_open(busy) == [True, True]
    assert guard.closed == {Closed.REFUSED: 1}
    busy[1][0].end()
    client(guard)
    assert still_open(busy) == [True, False]


def test_a_body_that_comes_makes_room_behind_one_that_does_not(clock: Loop) -> None:
    guard = Connections(2)
    bodies = [client(guard) for _ in range(2)]
    for connection, _ in bodies:
        connection.begin(has_body=True)
    bodies[0][0].heard()
    client(guard)
    assert still_open(bodies) == [True, False]


def test_a_body_that_is_here_makes_no_room(clock: Loop) -> None:
    guard = Connections(1)
    connection, wire = client(guard)
    connection.begin(has_body=True)
    connection.whole()
    assert not Connection(guard).opened(cast("asyncio.Transport", Wire()))
    assert wire.is_open


def test_strangers_never_take_what_is_kept_for_keys(clock: Loop) -> None:
    guard = Connections(4, reserved=2)
    mine = [known(guard) for _ in range(2)]
    for _ in range(10):
        client(guard)
    assert still_open(mine) == [True, True]
    assert (guard.strangers, guard.trusted) == (2, 2)


def test_keys_may_have_all_of_it_and_make_room_for_each_other(clock: Loop) -> None:
    guard = Connections(4, reserved=2)
    mine = [known(guard) for _ in range(4)]
    assert (guard.strangers, guard.trusted) == (0, 4)
    known(guard)
    assert still_open(mine) == [False, True, True, True]


def test_two_requests_at_once_are_two(clock: Loop) -> None:
    guard = Connections(4)
    connection, _ = client(guard)
    connection.begin(has_body=False)
    connection.begin(has_body=False)
    connection.end()
    assert connection.phase is Phase.BUSY
    connection.end()
    assert connection.phase is Phase.IDLE


def test_a_head_has_its_time_as_a_whole(clock: Loop) -> None:
    guard = Connections(4, patience=ClientTimeouts(head=10.0))
    connection, wire = client(guard)
    for _ in range(10):
        clock.moment += 1.0
        connection.heard()
        guard.sweep()
    assert wire.is_open
    clock.moment += 0.5
    guard.sweep()
    assert not wire.is_open
    assert guard.closed == {Closed.HEAD: 1}


def test_between_requests_there_is_no_head_to_wait_for(clock: Loop) -> None:
    guard = Connections(4, patience=ClientTimeouts(head=10.0))
    connection, wire = known(guard)
    clock.moment += 1000.0
    guard.sweep()
    assert wire.is_open
    connection.heard()
    clock.moment += 11.0
    guard.sweep()
    assert not wire.is_open


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60))
def test_an_answer_goes_on_as_long_as_enough_of_it_is_taken(taken: list[int]) -> None:
    """Looked at once a second, for any reader: in no window of the patience is less taken and the reader kept."""
    loop = Loop()
    asyncio._set_running_loop(loop)
    try:
        patience = ClientTimeouts(answer=10.0, least_rate=100.0)
        guard = Connections(4, patience=patience)
        connection, wire = client(guard)
        connection.begin(has_body=False)
        connection.written = wire.unsent = 10**7
        guard.sweep()
        for second, size in enumerate(taken, 1):
            loop.moment += 1.0
            wire.unsent -= size
            guard.sweep()
            slow = any(sum(taken[end - 10 : end]) < 1000 for end in range(10, second + 1, 10))
            assert wire.is_open is not slow
            if slow:
                return
    finally:
        asyncio._set_running_loop(None)
        loop.close()


def test_answers_that_nobody_reads_have_no_more_memory_than_there_is(clock: Loop) -> None:
    guard = Connections(20, buffered=1100)
    idle = [client(guard) for _ in range(3)]
    reading, stuck = [client(guard) for _ in range(3)], [client(guard) for _ in range(3)]
    for connection, wire in (*reading, *stuck):
        connection.begin(has_body=False)
        connection.written = wire.unsent = 160
    guard.sweep()
    assert guard.closed == {}
    for connection, wire in reading:
        connection.written += 100
        wire.unsent -= 50
    for connection, wire in stuck:
        connection.written += 200
        wire.unsent += 200
    guard.sweep()
    # 3 x 110 and 3 x 360 bytes: one of those that took nothing is enough.
    assert still_open(reading) == still_open(idle) == [True] * 3
    assert still_open(stuck).count(False) == 1
    assert guard.closed == {Closed.MEMORY: 1}


@pytest.mark.parametrize("files", [0, 64, 256, 512, 1024, 4096, 65_536, 1_000_000])
@pytest.mark.parametrize("upstreams", [1, 2, 8])
def test_connections_and_rows_fit_into_the_files_that_may_be_open(files: int, upstreams: int) -> None:
    urls = tuple(f"http://gpu{number}" for number in range(upstreams))
    found = fitted(Settings(upstreams=urls), files)
    rows = found.most_in_flight * upstreams
    assert LEAST_CONNECTIONS <= found.max_connections <= 4096
    assert LEAST_ROWS <= found.max_concurrency <= min(1024, found.most_in_flight)
    assert 0 < found.max_calls <= found.max_connections // 4
    if files >= 512:
        # What is left is for the files of batches.
        assert OTHER_FILES + rows + 2 * found.max_connections < files


def test_where_files_abound_nothing_is_less_than_it_was() -> None:
    found = fitted(Settings(upstreams=("http://gpu1", "http://gpu2")), 65_536)
    assert (found.max_concurrency, found.max_connections, found.max_calls) == (1024, 4096, 1024)
