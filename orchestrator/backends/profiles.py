"""What is known of each Batch API that speaks OpenAI's protocol: windows, limits, discount. Data; the code is one.

Sources are the providers' own pages, as of 2026-11. What a profile says, orch.toml may overrule per backend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from orchestrator.settings.backends import window_seconds

DAY = 86_400
MB, GB = 10**6, 10**9
MIB = 1024 * 1024
CHAT_ONLY = frozenset({"/v1/chat/completions"})


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one batch, and all of them together, may hold; None is not a limit that is known.

    `max_inputs` counts the inputs of embedding rows. `enqueued_tokens` are prompt tokens that may wait at the
    backend, by model, under `""` for those that are not named.
    """

    max_rows: int = 50_000
    max_bytes: int = 200 * MIB
    max_inputs: int | None = None
    enqueued_tokens: dict[str, int] | None = None
    batches_per_hour: int | None = None

    def enqueued(self, model: str) -> int | None:
        """How many prompt tokens of a model may wait there."""
        known = self.enqueued_tokens or {}
        return known.get(model, known.get(""))


@dataclass(frozen=True, slots=True)
class Window:
    """A completion window: how long it is, and how its provider spells it."""

    seconds: int
    text: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A provider.

    `windows` as it spells them, none where any will do. `provider` names it in the price table. `discount` is off the
    realtime price where the table has no batch price. `overruns`: a batch goes on behind its window instead of
    expiring. `expires_after`: the seconds after which files go away by themselves, asked for where it is given.
    `appear_seconds`: how long a batch whose creation was not answered may take to show in a listing. `endpoints` are
    those that its batches may have, None where all may be tried. `lists_models`: whether the names that rows use are
    those of its list of models. `asks_directly`: it has synchronous endpoints, and they answer for what its batches
    take. `is_orch` marks our own server: its lists are cheap, and it gives the results of a
    batch that is still running.
    """

    name: str
    windows: tuple[str, ...] = ("24h",)
    limits: BatchLimits = BatchLimits()
    provider: str | None = None
    discount: Decimal | None = Decimal("0.5")
    poll_seconds: float = 60.0
    overruns: bool = False
    expires_after: int | None = None
    appear_seconds: float = 600.0
    endpoints: frozenset[str] | None = None
    lists_models: bool = True
    asks_directly: bool = True
    is_orch: bool = False


# Where a provider writes MB and nobody has measured which, it is taken for the smaller one.
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("openai", limits=BatchLimits(max_inputs=50_000, batches_per_hour=2_000), provider="openai"),
        # Files that go away by themselves lift Azure's cap of 500 files to 10,000; two weeks are its least. Rows name
        # deployments, its list of models does not.
        Profile(
            "azure",
            limits=BatchLimits(max_rows=100_000, max_bytes=200 * MB),
            provider="azure",
            overruns=True,
            expires_after=14 * DAY,
            lists_models=False,
            # A Global-Batch deployment answers batches alone.
            asks_directly=False,
        ),
        Profile(
            "groq",
            windows=("24h", "48h", "72h", "96h", "120h", "144h", "7d"),
            limits=BatchLimits(max_bytes=100 * MB),
            provider="groq",
            endpoints=CHAT_ONLY,
        ),
        # Its prices are a list by tier, not a share of another one.
        Profile(
            "doubleword",
            windows=("1h", "24h"),
            limits=BatchLimits(max_bytes=200 * MB),
            provider="doubleword",
            discount=None,
        ),
        Profile("parasail", limits=BatchLimits(max_bytes=500 * MB)),
        # It takes 5,000,000 rows in 10 GB; our batches are held in memory by their ids while they are collected.
        Profile("nebius", limits=BatchLimits(max_rows=200_000, max_bytes=2 * GB)),
        Profile("deepinfra", discount=Decimal("0.2")),
        # Our own server: any window, and a batch shows in its list from the moment in which it is made.
        Profile(
            "orch",
            windows=(),
            discount=None,
            poll_seconds=1.0,
            appear_seconds=1.0,
            asks_directly=False,
            is_orch=True,
        ),
        Profile("other", discount=None),
    )
}

_HOSTS = {
    "api.openai.com": "openai",
    "api.groq.com": "groq",
    "doubleword.ai": "doubleword",
    "api.parasail.io": "parasail",
    "tokenfactory.nebius.com": "nebius",
    "api.deepinfra.com": "deepinfra",
    "openai.azure.com": "azure",
    "services.ai.azure.com": "azure",
}

# Its cap is 256 MB of its own request, which may be a little longer than the rows that it is made of.
ANTHROPIC = Profile(
    "anthropic",
    limits=BatchLimits(max_rows=100_000, max_bytes=240 * MB),
    provider="anthropic",
    endpoints=CHAT_ONLY,
)


def profile_of(kind: str, base_url: str, name: str | None = None) -> Profile:
    """The profile that is named, or that of an address; `other` where nothing is known. Raises KeyError."""
    if name is not None:
        return PROFILES[name]
    if kind == "azure":
        return PROFILES["azure"]
    host = urlsplit(base_url).hostname or ""
    known = next((known for end, known in _HOSTS.items() if host == end or host.endswith("." + end)), "other")
    return PROFILES[known]


def with_limits(
    profile: Profile,
    *,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    max_inputs: int | None = None,
    enqueued_tokens: int | dict[str, int] | None = None,
    batches_per_hour: int | None = None,
) -> BatchLimits:
    """The limits of a profile with those that orch.toml overrules."""
    enqueued = {"": enqueued_tokens} if isinstance(enqueued_tokens, int) else enqueued_tokens
    given: dict[str, Any] = {
        "max_rows": max_rows,
        "max_bytes": max_bytes,
        "max_inputs": max_inputs,
        "enqueued_tokens": enqueued,
        "batches_per_hour": batches_per_hour,
    }
    return replace(profile.limits, **{name: value for name, value in given.items() if value is not None})


def window_for(profile: Profile, seconds_left: int) -> Window:
    """The window of a batch that has this long: the longest that fits, the shortest there is where none does.

    Where any window will do, it is just this long, at least a second.
    """
    if not profile.windows:
        return _exact(max(1, seconds_left))
    windows = sorted((Window(window_seconds(text), text) for text in profile.windows), key=lambda one: one.seconds)
    return next((window for window in reversed(windows) if window.seconds <= seconds_left), windows[0])


def _exact(seconds: int) -> Window:
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return Window(seconds, f"{seconds // length}{unit}")
    return Window(seconds, f"{seconds}s")
