"""Signals that ask for a stop, as a block handles them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from orchestrator.core.interrupts import handled


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_closed_terminal_asks_for_a_stop_unless_it_is_ignored_as_under_nohup(
    before: signal.Handlers, hangup: None
) -> None:
    signal.signal(signal.SIGHUP, before)
    seen: list[int] = []
    with handled(lambda number, frame: seen.append(number)):
        if before == signal.SIG_IGN:
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
    assert seen == ([] if before == signal.SIG_IGN else [signal.SIGHUP]) + [signal.SIGTERM]
    assert signal.getsignal(signal.SIGHUP) == before
