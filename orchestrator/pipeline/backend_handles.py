"""Backends as the pipeline uses them: API, limits and prices."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from orchestrator.backends import Backend
from orchestrator.backends.profiles import BatchLimits, Profile
from orchestrator.core.model import Outcome, Price, Usage
from orchestrator.policy.dialect import UNKNOWN, Recipient
from orchestrator.policy.prompt_cache import CacheRules

Models = Mapping[str, str | dict[str, str]]


class Prices(Protocol):
    """Prices of rows at a backend. Each method raises UsageError if no price is known."""

    def of_row(self, model: str, outcome: Outcome, expected: Usage) -> Price:
        """Price a row asked under this model name; `expected` replaces token counts that were not reported."""

    def of_uncertain(self, model: str, sends: int, usage: Usage) -> Price | None:
        """Price a row's attempts without an answer; None if these cost nothing beyond the row."""

    def of_time(self, seconds: float) -> Price:
        """Price upstream seconds; the price is zero if rows are paid by the token."""

    def known(self, model: str, endpoint: str) -> str:
        """Describe what a model costs at the backend."""

    def at_most(self, model: str, usage: Usage) -> Price | None:
        """Price tokens as if none were cached; None if the price cannot be known beforehand."""

    def synchronous(self) -> Prices:
        """Return the prices of rows sent one by one, outside a batch."""

    def at(self, moment: datetime) -> Prices:
        """Return the prices at a moment; callers with many rows read the clock once."""


class BackendHandle(Struct, frozen=True):
    """A backend: its API, limits and prices.

    `is_own` marks our own server, which may be polled at will and retries rows itself. `upstreams` counts its
    endpoints that are paid by the hour. `recipient` says how requests are spelled for it. With `preflight`, one row
    is asked synchronously before a batch of requests that the backend has never answered. `prompt_cache` has the
    rules of the cache that this row writes for its batch.
    """

    name: str
    api: Backend
    profile: Profile
    limits: BatchLimits
    poll_seconds: float
    price: Prices
    is_own: bool
    upstreams: int = 0
    recipient: Recipient = UNKNOWN
    preflight: bool = False
    prompt_cache: CacheRules | None = None
