"""Opens hosted backends, with profile, limits and key from orch.toml and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends import Backend
from orchestrator.backends.package import BackendAccess, package_of
from orchestrator.backends.profiles import OWN_SERVER, BatchLimits, Profile, with_limits
from orchestrator.core.errors import UsageError
from orchestrator.settings.backends import Backend as AnyBackend
from orchestrator.settings.backends import HostedBackend, OwnServer

if TYPE_CHECKING:
    from httpx2 import Response


def open_backend(
    name: str,
    settings: HostedBackend,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> Backend:
    """Open a backend with its key from the environment, without sending anything. `root` is the home of the input
    files.

    Raises UsageError.
    """
    key = "" if settings.api_key_env is None else key_of(name, settings.api_key_env, environ)
    return package_of(settings).open(settings, BackendAccess(name, key, root))


def profile_for(settings: AnyBackend) -> Profile:
    """Return the profile of a backend's provider, with overrides from orch.toml."""
    if isinstance(settings, OwnServer):
        return OWN_SERVER
    return package_of(settings).profile(settings)


def can_cancel(settings: AnyBackend | None) -> bool:
    """True if the provider of this backend can end a running batch."""
    return settings is None or profile_for(settings).cancels


def limits_of(settings: AnyBackend, profile: Profile) -> BatchLimits:
    """Return the limits of a batch from orch.toml, or else from the profile."""
    return with_limits(profile, **settings.limits.model_dump())


def ask_models(name: str, url: str, key_env: str | None, seconds: float) -> Response:
    """Request an upstream's list of models and return the response, whatever its status.

    Raises UsageError or httpx2.HTTPError.
    """
    import httpx2

    from orchestrator.backends.call_limits import certificates

    headers = {"Authorization": f"Bearer {key_of(name, key_env, os.environ)}"} if key_env else {}
    context = certificates(url.partition(":")[0].lower())
    return httpx2.get(f"{url}/models", headers=headers, timeout=seconds, verify=context)


def key_cure(name: str, variable: str | None) -> str:
    """Return advice for a key that a backend refuses. `variable` is the backend's `api_key_env`."""
    if variable is None:
        return f'give the variable that holds its key: api_key_env = "NAME", under [backends.{name}] in orch.toml'
    return f"export its right key in {variable}"


def key_of(name: str, variable: str, environ: Mapping[str, str]) -> str:
    """Return the key in an environment variable, without a trailing newline. Raises UsageError."""
    key = environ.get(variable, "").strip()
    if not key:
        raise UsageError(
            f"the environment variable {variable} is not set; it must hold the key of backend {name}",
            hint=f"export {variable}=…, then run the same command again; a daemon reads it when it starts",
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(f"the value of the environment variable {variable} is not a key: it has invalid characters")
    return key
