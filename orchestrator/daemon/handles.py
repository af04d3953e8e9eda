"""Backend handles, opened from orch.toml."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import assert_never

from orchestrator.backends.open import key_of, limits_of, open_backend, profile_for
from orchestrator.backends.openai import OpenAIBatches
from orchestrator.backends.own_api import over_unix_socket
from orchestrator.backends.profiles import PROFILES
from orchestrator.core.clock import now
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.dialects import recipient_of
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.server.memory_limits import BODY_MEMORY
from orchestrator.server.settings import Settings
from orchestrator.settings.backends import (
    AnthropicBackend,
    EnginesBackend,
    FleetBackend,
    HostedBackend,
    LocalBackend,
    OwnBackend,
    RayBackend,
    SyncBackend,
    TimedBackend,
)
from orchestrator.settings.config import Config


def check(config: Config) -> None:
    """Raise UsageError for invalid settings of a backend."""
    for backend in config.backends.values():
        prices_of(backend, config, now)


def own_handle(name: str, settings: OwnBackend, config: Config, socket: Path) -> BackendHandle:
    """Return a backend whose server is our own and listens on a socket."""
    profile = PROFILES["orch"]
    return BackendHandle(
        name=name,
        api=OpenAIBatches(name, over_unix_socket(socket), profile, {"include_provenance": True}),
        profile=profile,
        limits=limits_of(settings, profile),
        poll_seconds=0.0,
        price=prices_of(settings, config, now),
        is_own=True,
        recipient=recipient_of(settings),
        upstreams=settings.upstream_count if isinstance(settings, TimedBackend) else 0,
    )


def hosted_handle(name: str, settings: HostedBackend | AnthropicBackend, config: Config) -> BackendHandle:
    """Return a provider's Batch API. Raises UsageError if its key is not set."""
    profile = profile_for(settings)
    return BackendHandle(
        name=name,
        api=open_backend(name, settings, os.environ, config.home),
        profile=profile,
        limits=limits_of(settings, profile),
        poll_seconds=settings.poll_seconds or profile.poll_seconds,
        price=prices_of(settings, config, now),
        is_own=False,
        preflight=settings.preflight and profile.asks_directly,
        recipient=recipient_of(settings),
    )


def server_settings(name: str, backend: OwnBackend, *, dispatch: bool) -> Settings:
    """Return the settings for a backend's own server. Raises UsageError if its key's variable is not set."""
    # A missing key is not the job's fault: the job stays for the next start with the key.
    variable = None if isinstance(backend, FleetBackend) else backend.api_key_env
    api_key = None if variable is None else key_of(name, variable, os.environ)
    limits = limits_of(backend, PROFILES["orch"])
    common = Settings(
        body_memory=backend.body_memory or BODY_MEMORY,
        upstreams=_upstreams(backend),
        api_key=api_key,
        request_timeout=backend.request_timeout,
        retry_delay=backend.retry_delay,
        max_concurrency=backend.max_concurrency,
        max_file_bytes=max(limits.max_bytes, 512 * 1024 * 1024),
        max_rows=limits.max_rows,
        dispatch=dispatch,
    )
    if isinstance(backend, FleetBackend):
        return replace(common, expected_models=backend.model_names, most_upstreams=backend.most_engines)
    if isinstance(backend, LocalBackend):
        return common
    return replace(
        common,
        paid=True,
        service_tier=backend.service_tier,
        requests_per_minute=backend.requests_per_minute,
        tokens_per_minute=backend.tokens_per_minute,
    )


def _upstreams(backend: OwnBackend) -> tuple[str, ...]:
    """Return the initial upstreams."""
    match backend:
        case LocalBackend():
            return backend.upstreams
        case EnginesBackend() | RayBackend():
            return ()
        case SyncBackend():
            return (backend.base_url,)
        case _:
            assert_never(backend)
