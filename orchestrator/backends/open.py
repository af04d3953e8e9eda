"""Opening of hosted backends from orch.toml and the environment: profile, limits, client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

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
from orchestrator.settings.backends import AnthropicBackend, HostedBackend, OwnServer
from orchestrator.settings.backends import Backend as AnyBackend


def open_backend(
    name: str,
    settings: HostedBackend | AnthropicBackend,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> Backend:
    """Open a backend with its key from the environment; sends nothing. `root` is the home of the input files.

    Raises UsageError.
    """
    from orchestrator.backends import calls

    key = key_of(name, settings.api_key_env, environ)
    # A client that retries by itself would sleep as long as the server asks, and block everything else.
    silent = settings.request_timeout
    timeout = calls.timeouts(min(silent, calls.QUIET_SECONDS))
    if isinstance(settings, AnthropicBackend):
        import anthropic

        from orchestrator.backends import anthropic as messages

        # The header from the API's documentation; clients from 2.12 on send another one by default.
        headers = {"x-api-key": key}
        claude = anthropic.Anthropic(
            api_key=key,
            base_url=settings.base_url,
            timeout=timeout,
            max_retries=0,
            default_headers=headers,
            # A custom header goes along to any redirect.
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
    # By default the client reads these from the environment, and would send OpenAI's to any address.
    client.organization, client.project = settings.organization, settings.project
    extra = {"include_provenance": True} if profile.is_orch else None
    return OpenAIBatches(name, SdkAPI(client, silent), profile, extra)


def profile_for(settings: AnyBackend) -> Profile:
    """Return the profile of a backend's provider, with changes from orch.toml."""
    if isinstance(settings, OwnServer):
        return PROFILES["orch"]
    if isinstance(settings, AnthropicBackend):
        return ANTHROPIC
    known = profile_of(settings.kind, settings.base_url, settings.profile)
    return replace(
        known,
        windows=known.windows if settings.windows is None else settings.windows,
        provider=settings.provider or known.provider,
        discount=known.discount if settings.discount is None else settings.discount,
    )


def limits_of(settings: AnyBackend, profile: Profile) -> BatchLimits:
    """Return a batch's limits: from orch.toml, else from the profile."""
    return with_limits(profile, **settings.limits.model_dump())


def key_of(name: str, variable: str, environ: Mapping[str, str]) -> str:
    """Return the key in an environment variable, without a line end. Raises UsageError."""
    key = environ.get(variable, "").strip()
    if not key:
        raise UsageError(
            f"the environment variable {variable} is not set; it must hold the key of backend {name}",
            hint="set it, then run the same command again",
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(f"what the environment variable {variable} holds is not a key: it has invalid characters")
    return key
