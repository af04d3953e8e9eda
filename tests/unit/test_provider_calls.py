"""Stages off the daemon's thread: what hangs holds up nothing else, and what fails is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orchestrator.core.errors import BackendError, StorageError
from orchestrator.pipeline.provider_calls import THREADS, Done, Inline, ProviderCalls, Threads
from tests.support.process import wait_until


@pytest.fixture
def provider_calls() -> Iterator[Threads]:
    found = Threads()
    yield found
    found.close()


@pytest.fixture
def hang() -> Iterator[Callable[[], str]]:
    """A call that returns when the test is over."""
    over = threading.Event()

    def call() -> str:
        over.wait()
        return "late"

    yield call
    over.set()


def done(provider_calls: ProviderCalls, backend: str, key: str, stage: Callable[[], Any], **how: Any) -> Any:
    """What comes of a stage, as soon as it does."""
    return wait_until(lambda: provider_calls.do(backend, key, stage, **how)).value


def test_a_stage_is_begun_once_and_picked_up_once(provider_calls: Threads) -> None:
    begun: list[int] = []
    assert provider_calls.do("a", "a/1", lambda: begun.append(1)) is None
    assert provider_calls.is_busy("a/1")
    wait_until(lambda: begun)
    assert done(provider_calls, "a", "a/1", lambda: begun.append(2)) is None
    assert begun == [1], "what is asked for while one is under way is the same stage"
    assert not provider_calls.is_busy("a/1")


def test_what_hangs_holds_up_no_other_backend_and_no_other_shard(
    provider_calls: Threads, hang: Callable[[], str]
) -> None:
    for number in range(THREADS - 1):
        assert provider_calls.do("a", f"a/{number}", hang) is None
    assert done(provider_calls, "b", "b/1", lambda: "other backend") == "other backend"
    assert done(provider_calls, "a", "a/free", lambda: "other shard") == "other shard"
    assert provider_calls.do("a", "a/0", hang) is None, "it still hangs"


def test_of_those_alone_a_backend_has_one_at_a_time(provider_calls: Threads, hang: Callable[[], str]) -> None:
    assert provider_calls.do("a", "a/1", hang, alone=True) is None
    assert provider_calls.do("a", "a/2", lambda: "second", alone=True) is None
    assert not provider_calls.is_busy("a/2"), "it is not even begun"
    assert done(provider_calls, "a", "a/3", lambda: "a look") == "a look"
    assert done(provider_calls, "b", "b/1", lambda: "elsewhere", alone=True) == "elsewhere"


def test_what_a_stage_raises_is_raised_where_it_is_picked_up(provider_calls: Threads) -> None:
    def fail() -> None:
        raise StorageError("full")

    def break_down() -> None:
        raise ZeroDivisionError("nobody foresaw this")

    with pytest.raises(StorageError, match="full"):
        done(provider_calls, "a", "a/1", fail)
    with pytest.raises(BackendError, match="ZeroDivisionError: nobody foresaw this"):
        done(provider_calls, "a", "a/2", break_down)
    assert done(provider_calls, "a", "a/1", lambda: "again") == "again"


def test_waiting_ends_when_a_stage_does(provider_calls: Threads) -> None:
    go = threading.Event()
    provider_calls.do("a", "a/1", go.wait)
    threading.Timer(0.05, go.set).start()
    provider_calls.wait(60)
    assert done(provider_calls, "a", "a/1", go.wait) is True


@pytest.mark.slow
def test_closing_leaves_behind_what_hangs(hang: Callable[[], str], caplog: pytest.LogCaptureFixture) -> None:
    provider_calls = Threads()
    begun = threading.Event()

    def stage() -> str:
        begun.set()
        return hang()

    provider_calls.do("a", "a/1", stage)
    provider_calls.do("b", "b/1", lambda: "quick")
    assert begun.wait(20)
    provider_calls.close()
    assert "left in a call that does not return: a calls" in caplog.text
    assert provider_calls.do("a", "a/2", lambda: "no more") is None
    assert not provider_calls.is_busy("a/2")


def test_inline_a_stage_is_over_at_once() -> None:
    provider_calls = Inline()
    assert provider_calls.do("a", "a/1", lambda: "done") == Done("done")
    assert not provider_calls.is_busy("a/1")
    provider_calls.wait(0)
    provider_calls.close()
