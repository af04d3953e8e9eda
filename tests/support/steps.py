"""How much Python code runs, counted in lines: the same on every machine, so that tests can compare two sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(work: Callable[[], object]) -> int:
    """The lines that `work` runs in this thread, those of comprehensions and generators too."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def grows_no_faster(make: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Whether four times as much takes at most five times the steps."""
    make(2)()  # what is imported and compiled at the first use
    return steps(make(4 * size)) <= 5 * steps(make(size))
