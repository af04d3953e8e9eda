"""A backend as the pipeline uses it: API, limits and prices."""

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
    """Prices of rows at a backend. Every method raises UsageError if the price is unknown."""

    def of_row(self, model: str, outcome: Outcome, expected: Usage) -> Price:
        """Price a row asked under this model name. `expected` replaces missing token counts."""

    def of_uncertain(self, model: str, sends: int, usage: Usage) -> Price | None:
        """Price a row's attempts of unknown outcome. None if they cost nothing beyond the row."""

    def of_time(self, seconds: float) -> Price:
        """Price upstream seconds; zero if rows are paid by the token."""

    def known(self, model: str, endpoint: str) -> str:
        """Describe the price of a model at the backend."""

    def at_most(self, model: str, usage: Usage) -> Price | None:
        """Price tokens as if none were cached. None if the price cannot be known beforehand."""

    def synchronous(self) -> Prices:
        """Return the prices of rows sent outside a batch."""

    def at(self, moment: datetime) -> Prices:
        """Return the prices at a moment, so that callers with many rows read the clock only once."""


class BackendHandle(Struct, frozen=True):
    """A backend: its API, limits and prices.

    `is_own` marks our own server, which may be polled at any rate and retries rows itself. `upstreams` is the number
    of its endpoints that are paid by the hour. `recipient` describes the spelling of its requests. With `preflight`,
    orch asks one row synchronously before a batch of requests that the backend has never answered. `prompt_cache` has
    the rules of the cache that this row writes for its batch.
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
