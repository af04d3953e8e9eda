"""What orch.toml and the environment say of a hosted backend, made into one: its profile, its limits, its client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.backends import Backend
from orchestrator.backends.profiles import (
    ANTHROPIC,
    PROFILES,
    BatchLimits,
    Profile,
    profile_of,
    with_limits,
)
from orchestrator.core.errors import UsageError
from orchestrator.settings.backends import AnthropicBackend, HostedBackend
from orchestrator.settings.backends import Backend as AnyBackend


def open_backend(
    name: str,
    settings: HostedBackend | AnthropicBackend,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> Backend:
    """The backend, with the key that the environment holds; nothing is sent yet. `root` is the home with the input
    files. Raises UsageError.
    """
    from orchestrator.backends import calls

    key = key_of(name, settings.api_key_env, environ)
    # A client that tries again by itself would sleep for as long as it is told to, and everything else with it.
    silent = settings.request_timeout
    timeout = calls.timeouts(min(silent, calls.QUIET_SECONDS))
    if isinstance(settings, AnthropicBackend):
        import anthropic

        from orchestrator.backends import anthropic as messages

        # The header that the API's documentation asks for; clients from 2.12 on send another one by themselves.
        headers = {"x-api-key": key}
        claude = anthropic.Anthropic(
            api_key=key,
            base_url=settings.base_url,
            timeout=timeout,
            max_retries=0,
            default_headers=headers,
            # A header of its own goes along to wherever a redirect leads.
            http_client=calls.bounded(
                anthropic.DefaultHttpxClient(timeout=timeout, verify=calls.certificates()), stay=True
            ),
        )
        return messages.AnthropicBatches(name, claude, settings.max_tokens, silent, root)
    import openai

    from orchestrator.backends.openai import OpenAIBatches
    from orchestrator.backends.openai_sdk import SdkAPI

    profile = profile_for(settings)
    client = openai.OpenAI(
        api_key=key,
        base_url=settings.base_url,
        timeout=timeout,
        max_retries=0,
        http_client=calls.bounded(openai.DefaultHttpxClient(timeout=timeout, verify=calls.certificates())),
    )
    # The client takes these from the environment as well, and would send OpenAI's to whoever it is pointed at.
    client.organization, client.project = settings.organization, settings.project
    extra = {"include_provenance": True} if profile.is_orch else None
    return OpenAIBatches(name, SdkAPI(client, silent), profile, extra)


def profile_for(settings: HostedBackend | AnthropicBackend) -> Profile:
    """What is known of a backend's provider, with what orch.toml says instead. Raises UsageError."""
    if isinstance(settings, AnthropicBackend):
        return ANTHROPIC
    try:
        known = profile_of(settings.kind, settings.base_url, settings.profile)
    except KeyError:
        raise UsageError(
            f"orch.toml names an unknown profile {settings.profile!r}",
            hint=f"known: {', '.join(PROFILES)}",
        ) from None
    return replace(
        known,
        windows=known.windows if settings.windows is None else settings.windows,
        provider=settings.provider or known.provider,
        discount=known.discount if settings.discount is None else settings.discount,
    )


def limits_of(settings: AnyBackend, profile: Profile) -> BatchLimits:
    """What a batch there may hold: what orch.toml says, and what the profile says of the rest."""
    return with_limits(profile, **settings.limits.model_dump())


def key_of(name: str, variable: str, environ: Mapping[str, str]) -> str:
    """The key in an environment variable; a line's end behind it is not a part of it. Raises UsageError."""
    key = environ.get(variable, "").strip()
    if not key:
        raise UsageError(
            f"the environment variable {variable} is not set; it must hold the key of backend {name}",
            hint="set it, then run the same command again",
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(f"what the environment variable {variable} holds is not a key: it has invalid characters")
    return key
