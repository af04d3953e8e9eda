"""Calls in worker processes: their order, their limits, and that one that goes wrong takes no other with it."""

from __future__ import annotations

import datetime
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.core.bounded import messages
from orchestrator.core.bounded.messages import MessageKind, packed
from orchestrator.core.bounded.pool import WorkerCall, WorkerPool
from orchestrator.core.bounded.process import OUT_OF_MEMORY, Trip, Tripped, WorkerLimits, verdict
from orchestrator.core.errors import StorageError

LIMITS = WorkerLimits(memory=300_000_000, seconds=1, value=1_000_000)


def call(name: str, *arguments: object) -> WorkerCall:
    return WorkerCall(f"tests.support.bounded:{name}", arguments)


def outcome(values: Iterator[Any]) -> list[Any]:
    """What a call gave, and behind it why it came to no end."""
    found: list[Any] = []
    try:
        found.extend(values)
    except Tripped as tripped:
        found.append(tripped.trip)
    return found


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, LIMITS) as pool:
        yield pool


@pytest.mark.slow
@given(st.lists(st.integers(0, 300), max_size=20))
def test_the_values_of_all_calls_come_in_order(pool: WorkerPool, numbers: list[int]) -> None:
    found = [[i for i, _ in values] for values in pool.map(call("count", number, 1000) for number in numbers)]
    assert found == [list(range(number)) for number in numbers]


def test_values_that_are_not_taken_are_lost_and_the_next_come(pool: WorkerPool) -> None:
    taken = [next(values, None) for values in pool.map(call("echo", i, "more", "x" * 1000) for i in range(200))]
    assert taken == list(range(200))


BAD: list[tuple[WorkerCall, list[Any]]] = [
    (call("spin"), [Trip.TIME]),
    (call("spin_in_c"), [Trip.TIME]),
    (call("hog", 10**9), [Trip.MEMORY]),
    (call("crash", int(signal.SIGABRT)), [Trip.CRASH]),
    (call("crash", int(signal.SIGKILL)), [Trip.MEMORY]),  # as the kernel does where the machine runs out of memory
    (call("segfault"), [Trip.CRASH]),
    (call("leave", 3), [Trip.CRASH]),
    (call("fail"), ["one", Trip.CRASH]),
    (call("count", 1, 2_000_000), [Trip.VALUE]),
    (call("panic"), [Trip.CRASH]),
    (call("hog_and_tell_otherwise", 240_000_000), [Trip.MEMORY]),
    (call("fail_if_worn"), ["fresh"]),
    (call("no_such_function"), [Trip.CRASH]),
    (WorkerCall("no_such_module:function"), [Trip.CRASH]),
    (call("say", b"\xff\x00\x00\x00\x00"), [Trip.CRASH]),
    (call("say", struct.pack("<BI", MessageKind.VALUE, 4_000_000_000)), [Trip.CRASH]),
    (call("say", packed(MessageKind.VALUE, pickle.dumps(os.system))), [Trip.CRASH]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("bad", "given"), BAD, ids=[f"{bad.function[-12:]}-{i}" for i, (bad, _) in enumerate(BAD)])
def test_a_call_that_goes_wrong_is_told_and_the_others_are_done(
    pool: WorkerPool, bad: WorkerCall, given: list[Any]
) -> None:
    calls = [call("echo", 1), bad, *(call("echo", i) for i in range(2, 6))]
    found = [outcome(values) for values in pool.map(calls)]
    assert found == [[1], given, *([i] for i in range(2, 6))]


@pytest.mark.long
def test_more_memory_is_had_by_who_asks_for_it() -> None:
    with WorkerPool(1, replace(LIMITS, seconds=60, more_memory=600_000_000)) as pool:
        calls = [call("hog", 400_000_000), call("take_more", 400_000_000), call("take_more", 700_000_000)]
        assert [outcome(values) for values in pool.map(calls)] == [[Trip.MEMORY], [400_000_000], [Trip.MEMORY]]


@pytest.mark.long
def test_many_bad_calls_among_good_ones(pool: WorkerPool) -> None:
    kinds = [
        call("segfault"),
        call("hog", 10**9),
        call("fail"),
        call("leave", 1),
        *(call("echo", i) for i in range(9)),
    ]
    calls = random.Random(5).choices(kinds, k=40)
    found = [outcome(values) for values in pool.map(calls)]
    assert [values for values, one in zip(found, calls, strict=True) if "echo" in one.function] == [
        list(one.arguments) for one in calls if "echo" in one.function
    ]
    assert {type(values[-1]) for values, one in zip(found, calls, strict=True) if "echo" not in one.function} == {
        Trip
    }


@pytest.mark.long
def test_time_counts_from_one_value_to_the_next(pool: WorkerPool) -> None:
    assert outcome(pool.call(call("slowly", 6, 0.4))) == list(range(6))
    assert outcome(pool.call(call("nothing_for_long", 6, 0.4))) == ["done"]


def test_one_that_says_nothing_and_takes_no_time_is_ended() -> None:
    with WorkerPool(2, WorkerLimits(patience=0.5)) as pool:
        found = [outcome(values) for values in pool.map([call("sleep", 60), call("echo", 1), call("sleep", 0)])]
    assert found == [[Trip.TIME], [1], ["slept"]]


@pytest.mark.long
def test_values_before_a_crash_are_not_lost_nor_given_twice(pool: WorkerPool) -> None:
    found = outcome(pool.call(call("crash_after", 5)))
    assert [value[0] for value in found[:-1]] == list(range(5))
    assert found[-1] is Trip.CRASH


@pytest.mark.long
def test_what_earlier_calls_took_is_not_held_against_one_that_crashes() -> None:
    larger_than_the_worker = bytearray(b"x" * LIMITS.memory)
    with WorkerPool(1, LIMITS) as pool:
        for _ in range(10):
            assert outcome(pool.call(call("fill", 30_000_000))) == [30_000_000]
        assert outcome(pool.call(call("crash", signal.SIGABRT))) == [Trip.CRASH]
        assert outcome(pool.call(call("crash_after", 5)))[-1] is Trip.CRASH
    assert larger_than_the_worker


@pytest.mark.slow
def test_a_worker_that_was_killed_by_chance_costs_no_call(pool: WorkerPool, tmp_path: Path) -> None:
    assert outcome(pool.call(call("crash_once", str(tmp_path / "mark")))) == ["second time"]


@pytest.mark.long
def test_a_call_made_ahead_does_not_wait_for_streams_that_nobody_takes() -> None:
    with WorkerPool(1, LIMITS) as pool:
        endless = pool.map([call("count", 100_000, 1000)])
        stream = next(endless)
        next(stream)
        assert outcome(pool.call(call("echo", "ahead"))) == ["ahead"]
        assert sum(1 for _ in stream) == 99_999


def test_a_worker_has_no_environment_no_files_and_writes_none(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with (tmp_path / "open").open("w") as file, WorkerPool(1) as fresh:
        os.set_inheritable(file.fileno(), True)
        environment, pid, files = fresh.call(call("environment"))
        assert "OPENAI_API_KEY" not in environment
        assert pid != os.getpid()
        assert [name for name in files if not name.startswith(("/dev/null", "/proc/"))] == ["socket"]
        assert outcome(fresh.call(call("write", str(tmp_path / "written")))) == ["File too large"]


def test_what_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with WorkerPool(1) as pool, pytest.raises(StorageError, match="no process can be started"):
        list(pool.call(call("echo", 1)))
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with WorkerPool(1) as pool, pytest.raises(StorageError, match="no process can be started"):
        outcome(next(pool.map([call("echo", 1)])))


@pytest.mark.parametrize(
    ("status", "peak", "trip"),
    [
        (-signal.SIGPROF, 0, Trip.TIME),
        (-signal.SIGXCPU, 0, Trip.TIME),
        (OUT_OF_MEMORY, 0, Trip.MEMORY),
        (-signal.SIGKILL, 0, Trip.MEMORY),
        (-signal.SIGABRT, 299_000_000, Trip.MEMORY),
        (-signal.SIGABRT, 10_000_000, Trip.CRASH),
        (-signal.SIGSEGV, 10_000_000, Trip.CRASH),
        (1, 10_000_000, Trip.CRASH),
    ],
)
def test_why_a_worker_died(status: int, peak: int, trip: Trip) -> None:
    assert verdict(status, peak, LIMITS).trip is trip


PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), st.uuids(),
        st.decimals(allow_nan=False), st.datetimes(timezones=st.none() | st.timezones()), st.dates(), st.timedeltas(),
    ),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@given(PLAIN)
def test_plain_values_come_through_as_they_are(value: object) -> None:
    assert messages.loads(messages.dumps(value)) == value


def test_other_values_come_through_as_their_text() -> None:
    odd = [
        Path("/a"),
        MessageKind.END,
        len,
        {"zone": ZoneInfo("Europe/Berlin")},
        datetime.UTC,
        Decimal("1.50"),
        UUID(int=1),
    ]
    found = messages.loads(messages.dumps(odd))
    assert found[:3] == ["/a", "5", "<built-in function len>"]
    assert found[3:] == odd[3:]


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/nowhere/evil",)


@pytest.mark.parametrize(
    "data",
    [pickle.dumps(_Evil()), pickle.dumps(Path("/a")), b"cos\nsystem\n(S'true'\ntR.", b"", b"\x80\x05", b"garbled",
     pickle.dumps([1, 2, 3])[:-2]],
)  # fmt: skip
def test_what_is_no_plain_value_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        messages.loads(data)


@given(st.binary(max_size=60))
def test_no_bytes_make_a_parent_fail(data: bytes) -> None:
    try:
        messages.loads(data)
    except (ValueError, MemoryError) as error:
        assert error is not None  # noqa: PT017 (either outcome is right)


SPINS = """
import os, sys
from orchestrator.core.bounded.pool import WorkerCall, WorkerPool
with WorkerPool(2) as pool:
    for values in pool.map([WorkerCall("tests.support.bounded:announced_spin", (sys.argv[1],))] * 2):
        list(values)
"""


def spinning(tmp_path: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A process whose two workers are at a loop without end, and their numbers."""
    process = subprocess.Popen([sys.executable, "-c", SPINS, str(tmp_path)], start_new_session=True)
    while len(found := [int(path.name) for path in tmp_path.iterdir()]) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    return process, found


def wait_until_gone(pids: list[int]) -> None:
    while any(is_alive(pid) for pid in pids):
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only its number: nobody may be collecting what it left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    process, workers = spinning(tmp_path)
    process.send_signal(number)
    process.wait()
    wait_until_gone(workers)


@pytest.mark.long
def test_ctrl_c_is_the_parents_alone(tmp_path: Path) -> None:
    process, workers = spinning(tmp_path)
    group = {os.getpgid(worker) for worker in workers}
    assert process.pid not in group
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait() == -signal.SIGINT
    wait_until_gone(workers)
