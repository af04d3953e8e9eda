"""The backends of a home as its pipeline uses them, and the only function that opens a backend."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.backends import Backend
from orchestrator.backends.open import can_cancel, limits_of, open_backend, profile_for
from orchestrator.backends.package import package_of
from orchestrator.core.clock import now
from orchestrator.core.model import Job
from orchestrator.core.shards import ShardState, batches_words
from orchestrator.pipeline import disk
from orchestrator.pipeline.backend_handles import BackendHandle, Models
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.pipeline.build.reused_answers import Asked, asked_of
from orchestrator.pipeline.dialects import recipient_of
from orchestrator.pipeline.plan.engine_speeds import ObservationMemory
from orchestrator.pipeline.plan.mixed_planning import planning_of
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.pipeline.plan.routes import models_of
from orchestrator.settings.backends import Backend as BackendSettings
from orchestrator.settings.backends import HostedBackend, OwnServer, TimedBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store


def unstoppable(store: Store, config: Config, job: Job) -> str | None:
    """Describe the batches of a job that cannot be ended while they run, or return None."""
    sent = (ShardState.SUBMITTING, ShardState.SUBMITTED)
    shards = [
        one
        for one in store.shards.of_job(job.id)
        if one.state in sent and not can_cancel(config.backends.get(one.backend))
    ]
    if not shards:
        return None
    return f"{batches_words(shards)} cannot be ended once running, and will be paid for"


class BackendSet(ABC):
    """A home's backends by name under the current settings, with the planner's view of each job."""

    def __init__(
        self, store: Store, home: Home, config: Config, budgets: SharedBudgets, now: Callable[[], datetime] = now
    ) -> None:
        self.store = store
        self.home = home
        self.config = config
        self._budgets = budgets
        self._now = now
        self._memory = ObservationMemory()

    @abstractmethod
    def open(self, name: str) -> BackendHandle:
        """Return a backend, opened at its first use. Raises BackendError or UsageError."""

    def leaves(self, name: str) -> str | None:
        """Return why rows must leave a backend, or None if they may stay."""
        return None

    def health(self, name: str) -> Mapping[str, Any] | None:
        """Return the last health report of a backend's own server, or None."""
        return None

    def down(self) -> Mapping[str, float]:
        """Return how many seconds each backend has had no working upstream. Working backends are left out."""
        return {}

    def given_up(self) -> frozenset[str]:
        """Return the backends whose upstreams have taken no row for longer than the backend's `patience`."""
        return frozenset(
            name
            for name, seconds in self.down().items()
            if isinstance(own := self.config.backends.get(name), OwnServer) and seconds > own.patience
        )

    def planning(self, job: Job) -> Planning:
        """Return the planner's view of a job at this moment."""
        return planning_of(
            self.store, self.config, job, self._now(), self._budgets.left, down=self.down(), memory=self._memory
        )

    def models(self, job: Job) -> Models:
        """Return the models of a job's aliases at each backend."""
        return models_of(self.config, job)

    def asked(self, job: Job) -> Asked:
        """Return the backends that may answer rows of a job, each with its name for the model."""
        return asked_of(self.config, job)

    def shortage(self) -> str | None:
        """Return why nothing more may be stored in the home, or None."""
        return disk.shortage(self.home, self.config.retention)


def open_handle(name: str, settings: BackendSettings, config: Config, socket: Path) -> BackendHandle:
    """Open a backend. Our own server listens on `socket`. Raises UsageError if a provider's key is not set."""
    if isinstance(settings, OwnServer):
        # Imported here, so that a command that only plans loads no HTTP client.
        from orchestrator.backends.batches import ApiBatches
        from orchestrator.backends.openai_http import over_unix_socket

        api: Backend = ApiBatches(name, over_unix_socket(socket), profile_for(settings), {"include_provenance": True})
    else:
        api = open_backend(name, settings, os.environ, config.home)
    return handle_of(name, api, settings, config)


def handle_of(name: str, api: Backend, settings: BackendSettings, config: Config) -> BackendHandle:
    """Return a backend with an open API under these settings. Raises UsageError for invalid prices."""
    is_own = isinstance(settings, OwnServer)
    profile = profile_for(settings)
    return BackendHandle(
        name=name,
        api=api,
        profile=profile,
        limits=limits_of(settings, profile),
        poll_seconds=0.0 if is_own else settings.poll_seconds or profile.poll_seconds,
        price=prices_of(settings, config, now),
        is_own=is_own,
        upstreams=settings.upstream_count if isinstance(settings, TimedBackend) else 0,
        recipient=recipient_of(settings),
        preflight=not isinstance(settings, OwnServer) and settings.preflight and profile.asks_directly,
        prompt_cache=package_of(settings).prompt_cache() if isinstance(settings, HostedBackend) else None,
    )
