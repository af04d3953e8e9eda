"""Which daemon of a home may write: the newest one, whatever an older one has open."""

from __future__ import annotations

from contextlib import suppress

import pytest

from orchestrator.core.errors import StorageError
from orchestrator.store import Store
from orchestrator.store.daemon_fence import DaemonFence, FencedOff

HOME = "0123456789ab"


def opened(url: str, generation: int, home: str = HOME, replica: str = "r1") -> Store:
    return Store.open(url, fence=DaemonFence(home, replica, generation))


def test_an_older_daemon_writes_nothing_more(store_url: str) -> None:
    with opened(store_url, 1) as first:
        change(first)
        with opened(store_url, 2) as second:
            change(second)
            with pytest.raises(FencedOff, match="generation 2") as lost:
                change(first)
            assert lost.value.exit_code == 4
            change(second)


def test_an_older_daemon_does_not_begin(store_url: str) -> None:
    with opened(store_url, 3), pytest.raises(FencedOff, match="generation 3"):
        opened(store_url, 2)
    opened(store_url, 3).close()  # it starts again


def test_homes_have_fences_of_their_own(store_url: str) -> None:
    with opened(store_url, 5), opened(store_url, 1, "ba9876543210") as other:
        change(other)


def test_a_home_may_begin_another_replica_or_leave_the_one_it_has(store_url: str) -> None:
    with opened(store_url, 7) as former:
        with opened(store_url, 1, replica="r2") as later:
            change(later)
            with pytest.raises(FencedOff, match="another one by now"):
                change(former)
        with Store.open(store_url) as alone:
            alone.daemon_fences.leave(HOME)
            change(alone)
        with pytest.raises(FencedOff, match="has left its replica"):
            change(former)


def test_commands_need_none(store_url: str) -> None:
    with opened(store_url, 1), Store.open(store_url) as command:
        change(command)


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_paused_daemon_holds_nobody_up(store_url: str) -> None:
    """It was stopped in the middle of a transaction, and its connection stands open."""
    first = opened(store_url, 1)
    with suppress(StorageError), first._database.write() as tx:
        tx.exec_driver_sql("SELECT 1")
        with opened(store_url, 2) as second:
            change(second)
    with pytest.raises(FencedOff):
        change(first)
    first.close()


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_an_older_daemon_ends_no_connection_of_a_newer_one(store_url: str) -> None:
    with opened(store_url, 2) as newer:
        with newer._database.write() as tx:
            tx.exec_driver_sql("SELECT 1")
            with pytest.raises(FencedOff, match="generation 2"):
                opened(store_url, 1)
            tx.exec_driver_sql("DELETE FROM events WHERE id = -1")
        change(newer)


def change(store: Store) -> None:
    """Some transaction that writes."""
    with store._database.write() as tx:
        tx.exec_driver_sql("DELETE FROM events WHERE id = -1")
