"""How often each file of a folder is opened, as Linux counts it (inotify(7)), by any process."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OPENED, IS_FOLDER = 0x20, 0x40000000
LOST = 0x4000
_EVENT = struct.Struct("iIII")


@contextmanager
def opened(folder: Path) -> Iterator[Counter[str]]:
    """Yield a counter of names, which is filled when the block ends. Subfolders are not watched."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: Counter[str] = Counter()
    events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        assert libc.inotify_add_watch(events, os.fsencode(folder), OPENED) >= 0, os.strerror(ctypes.get_errno())
        yield found
        for mask, name in _events(events):
            assert not mask & LOST, "the kernel's queue was full"
            if not mask & IS_FOLDER:
                found[name] += 1
    finally:
        os.close(events)


def _events(watch: int) -> Iterator[tuple[int, str]]:
    while True:
        try:
            read = os.read(watch, 1 << 16)
        except BlockingIOError:
            return
        while read:
            _, mask, _, length = _EVENT.unpack_from(read)
            end = _EVENT.size + length
            yield mask, os.fsdecode(read[_EVENT.size : end].rstrip(b"\0"))
            read = read[end:]
