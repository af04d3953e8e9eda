"""The published limits of synchronous calls, in real time: their clients wait in it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

MINUTE = 60.0


@dataclass(slots=True)
class Bucket:
    """So many a minute, in real time; full at the start."""

    limit: int
    level: float
    at: float

    def fill(self, now: float) -> None:
        self.level = min(float(self.limit), self.level + (now - self.at) * self.limit / MINUTE)
        self.at = now

    def wait(self, wanted: float) -> float:
        """Seconds until so much is there. What is more than a minute's is let through when the bucket is full."""
        return max(0.0, min(wanted, self.limit) - self.level) * MINUTE / self.limit

    @property
    def reset(self) -> float:
        """Seconds until it is full."""
        return (self.limit - self.level) * MINUTE / self.limit


@dataclass(slots=True)
class Limits:
    """The buckets of one account and model, by what they count: requests and tokens."""

    buckets: dict[str, Bucket] = field(default_factory=dict)

    def take(self, limits: Mapping[str, int | None], wanted: Mapping[str, int], now: float) -> float:
        """Take what is wanted; else take nothing, and give the seconds until it is there."""
        for name, limit in limits.items():
            if limit is None:
                self.buckets.pop(name, None)
            elif name not in self.buckets or self.buckets[name].limit != limit:
                self.buckets[name] = Bucket(limit, limit, now)
            else:
                self.buckets[name].fill(now)
        wait = max((bucket.wait(wanted[name]) for name, bucket in self.buckets.items()), default=0.0)
        if not wait:
            for name, bucket in self.buckets.items():
                bucket.level -= wanted[name]
        return wait

    def headers(self, flavour: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, bucket in self.buckets.items():
            remaining = str(max(0, int(bucket.level)))
            if flavour == "anthropic":
                reset = datetime.fromtimestamp(time.time() + bucket.reset, UTC)
                start, ends = f"anthropic-ratelimit-{name}-", ("limit", "remaining", "reset")
                values = (str(bucket.limit), remaining, reset.isoformat(timespec="seconds").replace("+00:00", "Z"))
                found |= {f"{start}{end}": value for end, value in zip(ends, values, strict=True)}
            else:
                found[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
                found[f"x-ratelimit-remaining-{name}"] = remaining
                found[f"x-ratelimit-reset-{name}"] = duration(bucket.reset)
        return found


def duration(seconds: float) -> str:
    """As OpenAI spells it: `120ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
