"""The time that a test sets: a JSON file `{"at": ISO time, "since": unix seconds, "speed": factor}`.

It means: now = at + (real now - since) * speed. Whoever reads it looks again when the file's mtime_ns has changed.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

START = datetime(2026, 12, 1, tzinfo=UTC)


class Clock:
    """Reads the file; without a path it is the real time."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._mtime_ns = -1
        self._at = self._since = 0.0
        self._speed = 1.0

    def time(self) -> float:
        """Unix seconds."""
        if self._path is None:
            return time.time()
        mtime_ns = self._path.stat().st_mtime_ns
        if mtime_ns != self._mtime_ns:
            told = json.loads(self._path.read_bytes())
            self._at = datetime.fromisoformat(told["at"]).timestamp()
            self._since, self._speed = float(told["since"]), float(told["speed"])
            self._mtime_ns = mtime_ns
        return self._at + (time.time() - self._since) * self._speed


class ClockFile:
    """What a test moves. It stands still until it gets a speed."""

    def __init__(self, path: Path, at: datetime = START, speed: float = 0.0) -> None:
        self.path = path
        self._clock = Clock(path)
        self._speed = speed
        self._written_ns = 0
        self.set(at)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.time(), UTC)

    def set(self, at: datetime | None = None, *, speed: float | None = None) -> None:
        """Go to `at`, or stay; run on at `speed` virtual seconds a second, or as before."""
        at = self.now() if at is None else at
        self._speed = self._speed if speed is None else speed
        told = {"at": at.astimezone(UTC).isoformat(), "since": time.time(), "speed": self._speed}
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        draft.write_text(json.dumps(told), encoding="ascii")
        # The kernel's own stamps are 4 ms coarse: two settings in a row would look like one.
        self._written_ns = max(time.time_ns(), self._written_ns + 1)
        os.utime(draft, ns=(self._written_ns, self._written_ns))
        draft.replace(self.path)

    def advance(self, seconds: float) -> None:
        self.set(datetime.fromtimestamp(self._clock.time() + seconds, UTC))
